//! DLPack: tensors of other libraries in this process, and ours for them, without a copy.
//!
//! The structs are those of DLPack's C header (`dlpack.h`, the unversioned `DLManagedTensor`), for memory of the host. NumPy,
//! PyTorch, JAX and others exchange capsules of them.
//!
//! What comes in is read and never written: an op that would write in place writes to a copy. It stands in the accounts as memory
//! from [outside](crate::Device::outside_memory), and its deleter is called once, on the thread that lets go of it last.
//! What goes out must not be written by others: tensors here share their buffers.
//!
//! ```
//! use highwater::{Device, Tensor};
//! use highwater::dlpack::ManagedTensor;
//! let device = Device::cpu()?;
//! let ours = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
//! // Out, as a pointer that others understand, and in again, as one that they gave.
//! let pointer = ours.t()?.to_dlpack()?.into_raw();
//! // SAFETY: the pointer is that of a managed tensor which nobody else has, and nobody writes its elements.
//! let managed = unsafe { ManagedTensor::from_raw(pointer) }.ok_or("a null pointer")?;
//! let theirs = Tensor::from_dlpack(&device, managed)?;
//! assert_eq!(theirs.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
//! assert_eq!(device.outside_memory().bytes_in_use, 16);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::slice;

use crate::device::Device;
use crate::device::external::Lent;
pub use crate::error::DlpackError;
use crate::error::Result;
use crate::layout::Layout;
use crate::shape::{DType, MAX_RANK, Shape};
use crate::tensor::Tensor;

/// Memory of the host, as DLPack numbers devices (`kDLCPU`).
pub const CPU: i32 = 1;

/// A device.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the header's names")]
pub struct DLDevice {
    pub device_type: i32,
    pub device_id: i32,
}

/// An element type: a kind of number, its bits, and how many of them make an element.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the header's names")]
pub struct DLDataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

/// Where elements lie.
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

/// The same with whom to tell when they are needed no more.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the header's names")]
pub struct DLManagedTensor {
    pub dl_tensor: DLTensor,
    pub manager_ctx: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// A managed tensor that is owned: its deleter is called when this is dropped.
#[derive(Debug)]
pub struct ManagedTensor(NonNull<DLManagedTensor>);

// SAFETY: whoever makes one promises that its deleter may be called on any thread; nothing else is done to it but reading.
unsafe impl Send for ManagedTensor {}

impl ManagedTensor {
    /// Takes a pointer over, as from a capsule; `None` for null.
    ///
    /// # Safety
    /// The pointer is null or that of a managed tensor that follows DLPack's rules, which nobody else will delete: its pointers
    /// are valid for what it says of them; all bytes from its first element to its last, those between included, are
    /// initialised and stay unwritten until the deleter is called; and the deleter may be called on any thread.
    #[must_use]
    pub unsafe fn from_raw(pointer: *mut DLManagedTensor) -> Option<Self> {
        NonNull::new(pointer).map(Self)
    }

    /// Gives the pointer away, and with it the duty to call its deleter once.
    #[must_use]
    pub fn into_raw(self) -> *mut DLManagedTensor {
        ManuallyDrop::new(self).0.as_ptr()
    }

    /// What it says of its elements.
    fn contents(&self) -> DLTensor {
        // SAFETY: `from_raw` was promised a valid pointer, and the deleter was not called.
        unsafe { self.0.as_ref() }.dl_tensor
    }

    /// As many numbers as there are axes, behind one of its pointers; `None` if that is null.
    fn numbers(&self, pointer: *const i64, count: usize) -> Option<Vec<i64>> {
        if count == 0 {
            return Some(Vec::new());
        }
        if pointer.is_null() {
            return None;
        }
        // SAFETY: `from_raw` was promised pointers to a number for each axis.
        Some(unsafe { slice::from_raw_parts(pointer, count) }.to_vec())
    }
}

impl Drop for ManagedTensor {
    fn drop(&mut self) {
        // SAFETY: as in `contents`.
        let Some(deleter) = unsafe { self.0.as_ref() }.deleter else { return };
        // SAFETY: this is the owner, and drops once.
        unsafe { deleter(self.0.as_ptr()) }
    }
}

/// What stands behind the pointer that others get.
#[repr(C)]
struct Exported {
    managed: DLManagedTensor,
    /// The pointers lead into these.
    _numbers: Vec<i64>,
    _tensor: Tensor,
}

/// The deleter of what goes out.
unsafe extern "C" fn release(managed: *mut DLManagedTensor) {
    // SAFETY: whoever calls this has a pointer that `to_dlpack` made, which lies in its box.
    let exported = unsafe { (*managed).manager_ctx }.cast::<Exported>();
    // SAFETY: the box was leaked for this call alone.
    drop(unsafe { Box::from_raw(exported) });
}

/// DLPack's types that are ours as well.
const DTYPES: [(u8, DType); 8] = [
    (2, DType::F32),
    (2, DType::F64),
    (2, DType::F16),
    (4, DType::BF16),
    (0, DType::I64),
    (0, DType::I32),
    (1, DType::U8),
    (6, DType::Bool),
];

fn dtype_of(given: DLDataType) -> Result<DType, DlpackError> {
    let DLDataType { code, bits, lanes } = given;
    let same =
        |&&(ours, dtype): &&(u8, DType)| ours == code && dtype.size() * 8 == usize::from(bits) && lanes == 1;
    DTYPES.iter().find(same).map(|&(_, dtype)| dtype).ok_or(DlpackError::DType { code, bits, lanes })
}

/// Where the elements lie, from the first one, and how many bytes from its begin to the end of the last.
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
        // A stride along fewer than two elements is never followed.
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
    /// A tensor that looks into the memory of a managed one, which is let go with the last tensor that does. The memory counts
    /// as input, from [outside](Device::outside_memory). See [`dlpack`](self).
    ///
    /// # Errors
    /// [`Error::Dlpack`](crate::Error::Dlpack) for memory of other devices and for what no tensor here can be; the managed tensor is deleted then.
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
        // SAFETY: `ManagedTensor::from_raw` was promised all of this of the bytes from the first element to the last, until
        // the deleter is called, which the box does when it is dropped.
        let lent = unsafe { Lent::new(address, bytes, Box::new(managed)) };
        let tensor = Self::outside(OP, device, lent, layout, dtype)?;
        if dtype == DType::Bool {
            let bytes = tensor.view().host::<u8>().unwrap_or(&[]);
            if let Some(value) = layout.positions().map(|position| bytes[position]).find(|&byte| byte > 1) {
                return Err(DlpackError::Truth { value }.into());
            }
        }
        Ok(tensor)
    }

    /// This tensor for others: they see its elements where they lie, and keep them until they call the deleter. They must not
    /// write them. No gradient goes with it. See [`dlpack`](self).
    ///
    /// # Errors
    /// [`Error::Dlpack`](crate::Error::Dlpack) unless the elements lie in memory of the host.
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
        // Sizes and strides of elements that are there fit, as their bytes do.
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
        // SAFETY: the box was leaked just now, and nobody else knows of it.
        let managed = unsafe { &mut (*exported.as_ptr()).managed };
        managed.manager_ctx = exported.as_ptr().cast();
        // The struct begins with the field: so a pointer to it is one to both.
        Ok(ManagedTensor(exported.cast()))
    }
}
