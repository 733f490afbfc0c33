//! Arrays in host memory, between files and devices.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use bfc_core::Category;
use highwater_tensor::{
    DType, Device, Element, Error, IntoShape, OpContext, Place, PlacementReason, RawElement, Result, Shape,
    Tensor, View, ViewMut,
};

// Arrays have the byte order of the files: little-endian.
const _: () = assert!(cfg!(target_endian = "little"), "io: big-endian machines are not supported");

/// Arrays by name, in the order of names.
pub type Arrays = BTreeMap<String, Array>;

/// The op that creates tensors from files.
const LOAD: &str = "load";

/// Maximum number of bytes to allocate at once before the data arrive.
const STEP_BYTES: usize = 1 << 20;

/// An array: the elements of a tensor in ordinary host memory, in row-major order.
///
/// ```
/// use highwater::{Device, Tensor};
/// use highwater::io::Array;
/// let device = Device::cpu()?;
/// let array = Array::of(&Tensor::ones(&device, [2, 3])?)?;
/// assert_eq!((array.shape().dims(), array.bytes().len()), (&[2, 3][..], 24));
/// assert_eq!(array.to_tensor(&device)?.to_vec::<f32>()?, [1.0; 6]);
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Array {
    dtype: DType,
    shape: Shape,
    /// Whole words, so that the bytes are aligned for every element type.
    words: Vec<u64>,
}

impl Array {
    /// Copies a tensor's elements to host memory.
    ///
    /// # Errors
    /// [`Error::NoData`] on a dry device, [`Error::NoHostMemory`] if host memory runs out.
    pub fn of(tensor: &Tensor) -> Result<Self> {
        const OP: &str = "save";
        if tensor.device().is_dry() {
            return Err(Error::NoData { op: OP, device: tensor.device().to_string() });
        }
        Self::download(OP, tensor.device(), tensor.view())
    }

    /// Creates an array from host values in row-major order.
    ///
    /// # Errors
    /// [`Error::ElementCount`] if the number of values differs from the shape's, [`Error::NoHostMemory`] if host memory
    /// runs out.
    pub fn from_slice<T: Element>(values: &[T], shape: impl IntoShape) -> Result<Self> {
        const OP: &str = "array";
        let (shape, elements) = (shape.into_shape().map_err(|error| error.in_op(OP))?, values.len());
        if shape.checked_elements() != Some(elements) {
            return Err(Error::ElementCount { op: OP, elements, shape });
        }
        let mut array = Self::zeros(OP, T::DTYPE, shape)?;
        array.bytes_mut().copy_from_slice(T::bytes_of(values));
        Ok(array)
    }

    /// Creates an array of zeros, or returns [`Error::NoHostMemory`].
    pub fn zeros(op: &'static str, dtype: DType, shape: Shape) -> Result<Self> {
        let none = || Error::NoHostMemory { op, shape, dtype };
        let bytes = shape.checked_elements().and_then(|elements| elements.checked_mul(dtype.size()));
        let count = bytes.ok_or_else(none)?.div_ceil(size_of::<u64>());
        let mut words = Vec::new();
        words.try_reserve_exact(count).map_err(|_| none())?;
        words.resize(count, 0);
        Ok(Self { dtype, shape, words })
    }

    /// Copies a view from a device.
    pub(crate) fn download(op: &'static str, device: &Device, view: View<'_>) -> Result<Self> {
        let mut array = Self::zeros(op, view.dtype(), *view.layout().shape())?;
        device.download(op, view, array.bytes_mut())?;
        Ok(array)
    }

    /// Copies the elements to a view of the same shape and type.
    pub(crate) fn upload(&self, op: &'static str, device: &Device, out: ViewMut<'_>) -> Result<()> {
        device.upload(op, self.bytes(), out)
    }

    /// Creates an array from words that contain exactly the elements of a shape, as the caller has checked.
    pub(super) const fn from_words(dtype: DType, shape: Shape, words: Vec<u64>) -> Self {
        Self { dtype, shape, words }
    }

    /// Returns the transpose of a matrix.
    ///
    /// # Errors
    /// [`Error::BadRank`] unless the array has two axes, [`Error::NoHostMemory`] if host memory runs out.
    pub fn transposed(&self) -> Result<Self> {
        const OP: &str = "transposed";
        let (shape, dtype) = (self.shape, self.dtype);
        let &[rows, columns] = shape.dims() else {
            return Err(Error::BadRank { op: OP, expected: "a matrix", shape });
        };
        let mut result = Self::zeros(OP, dtype, [columns, rows].into_shape()?)?;
        let (from, to) = (self.bytes(), result.bytes_mut());
        match dtype.size() {
            1 => transpose::<u8>(from, to, columns),
            2 => transpose::<u16>(from, to, columns),
            4 => transpose::<u32>(from, to, columns),
            _ => transpose::<u64>(from, to, columns),
        }
        Ok(result)
    }

    /// Returns the element type.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the shape.
    #[must_use]
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the elements as little-endian bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.shape.elements() * self.dtype.size()]
    }

    /// Returns the elements as values.
    ///
    /// ```
    /// use highwater::io::Array;
    /// assert_eq!(Array::from_slice(&[1i64, 2], [2])?.to_vec::<i64>()?, [1, 2]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for another element type.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype {
            return Err(Error::UnsupportedDType { op: "to_vec", dtype: self.dtype });
        }
        let elements = self.bytes().chunks_exact(self.dtype.size());
        Ok(elements.map(|bytes| T::from_raw(bytemuck::pod_read_unaligned(bytes))).collect())
    }

    /// Returns the elements as little-endian bytes for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = self.shape.elements() * self.dtype.size();
        &mut bytemuck::cast_slice_mut(&mut self.words)[..bytes]
    }

    /// Returns the only element, if the array has one element of type `T`.
    pub(crate) fn item<T: Element>(&self) -> Option<T> {
        if T::DTYPE != self.dtype || self.shape.elements() != 1 {
            return None;
        }
        Some(T::from_raw(bytemuck::pod_read_unaligned(self.bytes())))
    }

    /// Creates a tensor with these elements.
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory.
    pub fn to_tensor(&self, place: &impl Place) -> Result<Tensor> {
        const OP: &str = LOAD;
        let device = place.device();
        device.log_placement(OP, PlacementReason::Requested);
        let ctx = OpContext::create(OP, device, place.memory()?, Category::Output);
        let mut out = ctx.output(&self.shape, self.dtype)?;
        self.upload(OP, ctx.device(), out.view_mut())?;
        Ok(out.finish())
    }
}

/// Returns a new tensor that `fill` fills with elements. On a dry device, nothing is filled. On a GPU, the elements pass
/// through host memory.
pub(super) fn filled<T: RawElement>(
    device: &Device,
    shape: &Shape,
    dtype: DType,
    fill: impl FnOnce(&mut [T]),
) -> Result<Tensor> {
    let ctx = OpContext::create(LOAD, device, device.default_allocator()?, Category::Output);
    device.log_placement(LOAD, PlacementReason::Requested);
    let mut out = ctx.output(shape, dtype)?;
    if let Some(values) = out.host_mut::<T>() {
        fill(values);
    } else if device.is_gpu() {
        let mut staged = Array::zeros(LOAD, dtype, *shape)?;
        if !device.is_dry() {
            fill(bytemuck::cast_slice_mut(staged.bytes_mut()));
        }
        staged.upload(LOAD, device, out.view_mut())?;
    }
    Ok(out.finish())
}

/// Returns a new tensor with these elements, which are not read on a dry device.
pub(super) fn copied(device: &Device, shape: &Shape, dtype: DType, elements: &[u8]) -> Result<Tensor> {
    let ctx = OpContext::create(LOAD, device, device.default_allocator()?, Category::Output);
    device.log_placement(LOAD, PlacementReason::Requested);
    let mut out = ctx.output(shape, dtype)?;
    device.upload(LOAD, elements, out.view_mut())?;
    Ok(out.finish())
}

/// Reads bytes into words with `fill`, which returns whole words except for the last call. Allocates as the bytes
/// arrive, at most twice their size. A source that ends early gives an error of kind [`io::ErrorKind::UnexpectedEof`].
pub(super) fn read_words(
    bytes: usize,
    mut fill: impl FnMut(&mut [u8]) -> io::Result<()>,
) -> io::Result<Vec<u64>> {
    let mut words: Vec<u64> = Vec::new();
    let (total, mut done) = (bytes.div_ceil(size_of::<u64>()), 0);
    while done < bytes {
        let step = (bytes - done).min(STEP_BYTES);
        let (start, end) = (words.len(), words.len() + step.div_ceil(size_of::<u64>()));
        if end > words.capacity() {
            let capacity = total.min(end.max(2 * words.capacity()));
            let reserved = words.try_reserve_exact(capacity - start);
            reserved.map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        }
        words.resize(end, 0);
        fill(&mut bytemuck::cast_slice_mut(&mut words[start..])[..step])?;
        done += step;
    }
    Ok(words)
}

/// Returns zeros for this many bytes.
pub(super) fn zero_words(bytes: usize) -> io::Result<Vec<u64>> {
    let (count, mut words) = (bytes.div_ceil(size_of::<u64>()), Vec::new());
    words.try_reserve_exact(count).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    words.resize(count, 0);
    Ok(words)
}

/// Copies elements of `size` bytes into row-major order. Element `index` is at `offset` plus the sum of `index` times
/// `strides`, in elements. The caller has checked that all of them exist.
pub(super) fn gather(
    from: &[u8],
    size: usize,
    shape: &Shape,
    offset: usize,
    strides: &[usize],
) -> io::Result<Vec<u64>> {
    let (dims, elements) = (shape.dims(), shape.elements());
    let mut words = zero_words(elements * size)?;
    let (mut place, mut index) = (offset, vec![0; dims.len()]);
    for to in bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..elements * size].chunks_exact_mut(size) {
        to.copy_from_slice(&from[place * size..][..size]);
        // Advances the index, last axis first.
        for axis in (0..dims.len()).rev() {
            index[axis] += 1;
            // The last step of an axis may exceed the elements; it is undone.
            place = place.wrapping_add(strides[axis]);
            if index[axis] < dims[axis] {
                break;
            }
            place = place.wrapping_sub(strides[axis].wrapping_mul(dims[axis]));
            index[axis] = 0;
        }
    }
    Ok(words)
}

/// Writes the matrix `from` with this many columns to `to`, column by column.
fn transpose<T: bytemuck::Pod>(from: &[u8], to: &mut [u8], columns: usize) {
    let (from, to): (&[T], &mut [T]) = (bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to));
    let all = (0..columns).flat_map(|column| from.iter().skip(column).step_by(columns));
    to.iter_mut().zip(all).for_each(|(to, from)| *to = *from);
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({} {})", self.dtype, self.shape)
    }
}
