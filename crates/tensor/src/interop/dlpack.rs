//! DLPack: exchanges tensors with other libraries in this process, without a copy.
//!
//! The structs are those of DLPack's C header (`dlpack.h`, the unversioned `DLManagedTensor`), for host
//! memory. NumPy, PyTorch, JAX and other libraries exchange capsules of them.
//!
//! Imported tensors are read-only: an op that would write in place writes to a copy. They count as [external
//! memory](crate::Device::external_memory). The thread that drops the last reference calls the deleter,
//! exactly once. Other libraries must not write exported tensors, whose buffers may be shared.
//!
//! ```
//! use highwater::{Device, Tensor};
//! use highwater::dlpack::ManagedTensor;
//! let device = Device::cpu()?;
//! let exported = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
//! // Export a tensor as a pointer, and import it again.
//! let pointer = exported.t()?.to_dlpack()?.into_raw();
//! // SAFETY: this code owns the managed tensor, and no code writes its elements.
//! let managed = unsafe { ManagedTensor::from_raw(pointer) }.ok_or("a null pointer")?;
//! let imported = Tensor::from_dlpack(&device, managed)?;
//! assert_eq!(imported.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
//! assert_eq!(device.external_memory().bytes_in_use, 16);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::slice;

use bfc_core::Category;

use crate::device::Device;
use crate::device::external::ExternalMemory;
pub use crate::error::DlpackError;
use crate::error::Result;
use crate::layout::Layout;
use crate::shape::{DType, MAX_RANK, Shape};
use crate::tensor::Tensor;

/// DLPack's number of host memory (`kDLCPU`).
pub const CPU: i32 = 1;

/// A device.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the header's names")]
pub struct DLDevice {
    pub device_type: i32,
    pub device_id: i32,
}

/// An element type: the kind of value, its bits, and the number of values per element.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the header's names")]
pub struct DLDataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

/// The address, shape and strides of the elements.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the header's names")]
pub struct DLTensor {
    pub data: *mut c_void,
    pub device: DLDevice,
    pub ndim: i32,
    pub dtype: DLDataType,
    pub shape: *mut i64,
    /// In elements; null for row-major order.
    pub strides: *mut i64,
    pub byte_offset: u64,
}

/// A tensor with a deleter, which its last user calls.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the header's names")]
pub struct DLManagedTensor {
    pub dl_tensor: DLTensor,
    pub manager_ctx: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// An owned managed tensor. Dropping it calls its deleter.
#[derive(Debug)]
pub struct ManagedTensor(NonNull<DLManagedTensor>);

// SAFETY: `from_raw` requires that any thread may call the deleter. Otherwise the tensor is only read.
unsafe impl Send for ManagedTensor {}

impl ManagedTensor {
    /// Takes ownership of a pointer, for instance from a capsule. Returns `None` for null.
    ///
    /// # Safety
    /// The pointer is null, or points to a managed tensor that follows DLPack's rules and that no other code
    /// deletes. Its pointers are valid for its shape. All bytes from its first to its last element are
    /// initialized, and no code writes them until the deleter is called. Any thread may call the deleter.
    #[must_use]
    pub unsafe fn from_raw(pointer: *mut DLManagedTensor) -> Option<Self> {
        NonNull::new(pointer).map(Self)
    }

    /// Returns the pointer. The caller must call its deleter once.
    #[must_use]
    pub fn into_raw(self) -> *mut DLManagedTensor {
        ManuallyDrop::new(self).0.as_ptr()
    }

    /// Returns the tensor's description.
    fn contents(&self) -> DLTensor {
        // SAFETY: `from_raw` requires a valid pointer, and the deleter was not called.
        unsafe { self.0.as_ref() }.dl_tensor
    }

    /// Copies `count` numbers, one per axis, from one of the tensor's pointers. Returns `None` if the pointer
    /// is null.
    fn numbers(&self, pointer: *const i64, count: usize) -> Option<Vec<i64>> {
        if count == 0 {
            return Some(Vec::new());
        }
        if pointer.is_null() {
            return None;
        }
        // SAFETY: `from_raw` requires pointers to one number per axis.
        Some(unsafe { slice::from_raw_parts(pointer, count) }.to_vec())
    }
}

impl Drop for ManagedTensor {
    fn drop(&mut self) {
        // SAFETY: as in `contents`.
        let Some(deleter) = unsafe { self.0.as_ref() }.deleter else { return };
        // SAFETY: this owns the tensor and drops once.
        unsafe { deleter(self.0.as_ptr()) }
    }
}

/// The allocation behind an exported pointer.
#[repr(C)]
struct Exported {
    managed: DLManagedTensor,
    /// `managed` points to these numbers.
    _numbers: Vec<i64>,
    _tensor: Tensor,
}

/// The deleter of exported tensors.
unsafe extern "C" fn release(managed: *mut DLManagedTensor) {
    // SAFETY: the caller has a pointer from `to_dlpack`, which is valid.
    let exported = unsafe { (*managed).manager_ctx }.cast::<Exported>();
    // SAFETY: the box was leaked for this only call.
    drop(unsafe { Box::from_raw(exported) });
}

/// DLPack's types that tensors support.
const DTYPES: [(u8, DType); 9] = [
    (2, DType::F32),
    (2, DType::F64),
    (2, DType::F16),
    (4, DType::BF16),
    (0, DType::I64),
    (0, DType::I32),
    (1, DType::U32),
    (1, DType::U8),
    (6, DType::Bool),
];

fn dtype_of(given: DLDataType) -> Result<DType, DlpackError> {
    let DLDataType { code, bits, lanes } = given;
    let same = |&&(number, dtype): &&(u8, DType)| {
        number == code && dtype.size() * 8 == usize::from(bits) && lanes == 1
    };
    DTYPES.iter().find(same).map(|&(_, dtype)| dtype).ok_or(DlpackError::DType { code, bits, lanes })
}

/// Returns the layout of the elements from the first one on, and the bytes that they span.
fn layout_of(managed: &ManagedTensor, contents: &DLTensor, dtype: DType) -> Result<(Layout, usize)> {
    const OP: &str = "from_dlpack";
    let axes = usize::try_from(contents.ndim).ok().filter(|&axes| axes <= MAX_RANK);
    let axes = axes.ok_or(DlpackError::Axes { axes: contents.ndim })?;
    let sizes = managed.numbers(contents.shape, axes).ok_or(DlpackError::Null { what: "the shape" })?;
    let strides = managed.numbers(contents.strides, axes);
    let mut dims = Vec::new();
    for (axis, &size) in sizes.iter().enumerate() {
        let stride = strides.as_ref().map_or(0, |strides| strides[axis]);
        let bad = DlpackError::Axis { axis, size, stride };
        // Strides are unused along fewer than two elements.
        dims.push(usize::try_from(size).ok().filter(|_| stride >= 0 || size < 2).ok_or(bad)?);
    }
    let shape = Shape::new(&dims)?;
    let plain = Layout::contiguous(OP, shape, dtype)?;
    let layout = match strides {
        Some(strides) if shape.elements() > 0 => {
            let distance = |(&size, &stride): (&usize, &i64)| if size > 1 { stride as usize } else { 0 };
            plain.with_strides(&dims.iter().zip(&strides).map(distance).collect::<Vec<_>>())
        }
        _ => plain,
    };
    let bytes = match shape.elements() {
        0 => Some(0),
        _ => {
            let far = dims
                .iter()
                .zip(layout.strides())
                .try_fold(0_usize, |sum, (&size, &stride)| sum.checked_add((size - 1).checked_mul(stride)?));
            far.and_then(|far| far.checked_add(1)?.checked_mul(dtype.size()))
        }
    };
    let bytes = bytes.filter(|&bytes| isize::try_from(bytes).is_ok()).ok_or(DlpackError::TooLarge)?;
    Ok((layout, bytes))
}

/// # Exchange with DLPack
impl Tensor {
    /// Returns a tensor over the memory of a managed tensor, which is deleted with the last tensor that
    /// refers to it. The memory counts as input, in [external memory](Device::external_memory). See
    /// [`dlpack`](self).
    ///
    /// # Errors
    /// [`Error::Dlpack`](crate::Error::Dlpack) for memory of other devices and for unsupported tensors; the
    /// managed tensor is deleted then.
    pub fn from_dlpack(device: &Device, managed: ManagedTensor) -> Result<Self> {
        const OP: &str = "from_dlpack";
        if !device.reads_host_memory() {
            return Err(DlpackError::NotHostDevice { device: device.to_string() }.into());
        }
        let contents = managed.contents();
        if contents.device.device_type != CPU {
            return Err(DlpackError::NotHost { device_type: contents.device.device_type }.into());
        }
        let dtype = dtype_of(contents.dtype)?;
        let (layout, bytes) = layout_of(&managed, &contents, dtype)?;
        let mut address = 0;
        if bytes > 0 {
            if contents.data.is_null() {
                return Err(DlpackError::Null { what: "the data" }.into());
            }
            let start = contents.data.expose_provenance() as u64;
            address = start.checked_add(contents.byte_offset).ok_or(DlpackError::TooLarge)?;
            address.checked_add(bytes as u64).ok_or(DlpackError::TooLarge)?;
            if address % dtype.size() as u64 != 0 {
                return Err(DlpackError::Unaligned { address, dtype }.into());
            }
        }
        // SAFETY: `ManagedTensor::from_raw` requires all of this for the bytes from the first element to the
        // last, until the deleter is called. Dropping the box calls the deleter.
        let memory = unsafe { ExternalMemory::new(address, bytes, Box::new(managed)) };
        let tensor = Self::external(OP, device, memory, layout, dtype, Category::Input)?;
        if dtype == DType::Bool {
            let bytes = tensor.view().host::<u8>().unwrap_or(&[]);
            if let Some(value) = layout.positions().map(|position| bytes[position]).find(|&byte| byte > 1) {
                return Err(DlpackError::InvalidBool { value }.into());
            }
        }
        Ok(tensor)
    }

    /// Exports this tensor without a copy. Other libraries may read its elements until they call the deleter,
    /// but must not write them. The gradient edge is not exported. See [`dlpack`](self).
    ///
    /// # Errors
    /// [`Error::Dlpack`](crate::Error::Dlpack) unless the elements are in host memory.
    pub fn to_dlpack(&self) -> Result<ManagedTensor> {
        let in_host = self.storage().allocation().allocator().memory_kind().is_host_readable();
        if !in_host && self.elements() > 0 || !self.device().reads_host_memory() {
            return Err(DlpackError::NotHostDevice { device: self.device().to_string() }.into());
        }
        let (layout, size) = (self.layout(), self.dtype().size());
        let code = DTYPES.iter().find(|(_, dtype)| *dtype == self.dtype()).map_or(0, |&(code, _)| code);
        let data = match self.elements() {
            0 => ptr::null_mut(),
            _ => ptr::with_exposed_provenance_mut(self.storage().address() as usize + layout.offset() * size),
        };
        // Sizes and strides of existing elements fit into `i64`, as their bytes do.
        let mut numbers: Vec<i64> =
            self.dims().iter().chain(layout.strides()).map(|&number| number as i64).collect();
        let shape = numbers.as_mut_ptr();
        let dl_tensor = DLTensor {
            data,
            device: DLDevice { device_type: CPU, device_id: 0 },
            ndim: self.rank() as i32,
            dtype: DLDataType { code, bits: (size * 8) as u8, lanes: 1 },
            shape,
            strides: shape.wrapping_add(self.rank()),
            byte_offset: 0,
        };
        let managed = DLManagedTensor { dl_tensor, manager_ctx: ptr::null_mut(), deleter: Some(release) };
        let exported = Box::leak(Box::new(Exported { managed, _numbers: numbers, _tensor: self.detach() }));
        let exported = NonNull::from(exported);
        // SAFETY: the box was just leaked, so this is the only reference to it.
        let managed = unsafe { &mut (*exported.as_ptr()).managed };
        managed.manager_ctx = exported.as_ptr().cast();
        // The struct starts with the field, so a pointer to one is a pointer to the other.
        Ok(ManagedTensor(exported.cast()))
    }
}
