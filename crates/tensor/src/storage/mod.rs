//! Storage: the buffer of tensors. Only this file of the crate converts addresses to slices.
//!
//! Shared storage is immutable: kernels write through `&mut Storage`, which only the exclusive owner has. So
//! threads share views without a lock.

pub(crate) mod leaf;
pub(crate) mod stale;

use std::sync::atomic::{AtomicBool, Ordering};

use bfc_core::{Allocation, Allocator, Category, MemoryKind, Tag};

use self::stale::StaleValues;
use crate::layout::Layout;
use crate::shape::{DType, RawElement};

/// A buffer from an allocator. Dropping the last tensor that refers to it frees the buffer.
#[derive(Debug)]
pub struct Storage {
    allocation: Allocation,
    /// Bytes that the tensor requested; the block may be larger.
    bytes: usize,
    /// The allocator's memory kind, cached for kernels.
    memory: MemoryKind,
    /// The number of the device, which every kernel compares.
    device: u32,
    /// The type of all elements.
    dtype: DType,
    /// An exclusive upper bound of indices that the host wrote or the device clamped; [`UNKNOWN`] after any other write.
    index_bound: u64,
    /// Whether the category may be a result or a temporary. Saves the query of the allocator for parameters
    /// and inputs, which are most tensors that ops keep for backward passes.
    may_be_result: AtomicBool,
    stale: StaleValues,
}

/// The bound of unknown or negative indices.
const UNKNOWN: u64 = u64::MAX;

/// Returns an exclusive upper bound of indices of `N` bytes.
fn index_bound<const N: usize>(values: &[u8], read: impl Fn([u8; N]) -> i64) -> u64 {
    let (indices, _) = values.as_chunks();
    // Negative indices become the largest values when read as unsigned.
    let largest = indices.iter().map(|&bytes| read(bytes).cast_unsigned()).max();
    largest.map_or(0, |largest| largest.saturating_add(1))
}

impl Storage {
    /// Returns the storage of a new allocation, of which tensors use `bytes`. `category` is its category.
    pub(crate) fn new(
        allocation: Allocation,
        device: u32,
        bytes: usize,
        dtype: DType,
        category: Category,
    ) -> Self {
        let memory = allocation.allocator().memory_kind();
        let may_be_result = AtomicBool::new(is_result(category));
        let stale = StaleValues::new();
        Self { allocation, bytes, memory, device, dtype, index_bound: UNKNOWN, may_be_result, stale }
    }

    /// Returns whether the buffer is external memory, which tensors never write.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        matches!(self.memory, MemoryKind::LentHost)
    }

    /// Returns the requested bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the element type.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the number of the memory's device.
    #[inline(always)]
    pub(crate) const fn device(&self) -> u32 {
        self.device
    }

    /// Asserts that a layout stays within the buffer. A violation is an error of this crate, as layouts
    /// derive from valid layouts.
    #[inline(always)]
    pub(crate) fn assert_contains(&self, layout: &Layout) {
        // Compares bytes, which avoids a division.
        let end = layout.reach().and_then(|reach| reach.checked_mul(self.dtype.size()));
        if end.is_none_or(|end| end > self.bytes) {
            panic_out_of_buffer(layout, self);
        }
    }

    /// Returns the block and its allocator.
    #[must_use]
    pub const fn allocation(&self) -> &Allocation {
        &self.allocation
    }

    /// Returns the address of the buffer in the memory of its device.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.allocation.block().address
    }

    /// Returns the allocator of the buffer.
    fn allocator(&self) -> &dyn Allocator {
        self.allocation.allocator().as_ref()
    }

    /// Changes the category of the buffer and keeps its owner.
    pub(crate) fn set_category(&self, category: Category) {
        let block = self.allocation.block();
        if let Ok(tag) = self.allocator().tag(&block)
            && tag.category != category
        {
            // Allocators without tags return an error, which is harmless here.
            let _ = self.allocator().retag(&block, Tag { category, ..tag });
        }
        self.may_be_result.store(is_result(category), Ordering::Relaxed);
    }

    /// Changes the category of a result or a temporary to activation.
    pub(crate) fn keep_for_backward(&self) {
        if self.may_be_result.load(Ordering::Relaxed) {
            // Allocators without tags return an error, which is harmless here.
            let _ = self.allocator().recategorize(&self.allocation.block(), RESULTS, Category::Activation);
            self.may_be_result.store(false, Ordering::Relaxed);
        }
    }

    /// Changes the category of an activation to gradient.
    pub(crate) fn becomes_gradient(&self) {
        // Allocators without tags return an error, which is harmless here.
        let _ = self.allocator().recategorize(&self.allocation.block(), ACTIVATION, Category::Gradient);
    }

    /// Returns the updates that made the values of this buffer stale.
    pub(crate) const fn stale_values(&self) -> &StaleValues {
        &self.stale
    }

    /// Returns the category of the buffer; `None` if the allocator has no tags.
    #[must_use]
    pub fn category(&self) -> Option<Category> {
        self.allocator().tag(&self.allocation.block()).ok().map(|tag| tag.category)
    }

    /// Returns the whole buffer as values of one type; `None` if the host cannot read it.
    fn host<T: RawElement>(&self) -> Option<&[T]> {
        let count = self.bytes / size_of::<T>();
        if count == 0 {
            return Some(&[]);
        }
        if !self.memory.is_host_readable() {
            return None;
        }
        let address = self.allocation.block().address as *const T;
        debug_assert!(address.is_aligned());
        // `bfc_core::DEFAULT_ALIGNMENT` exceeds the alignment of any element, and imports are checked.
        // SAFETY: the allocator's contract makes the block valid and initialized. `T` is plain data of a
        // sealed set. The block lives as long as `self`, and shared storage is never written.
        Some(unsafe { std::slice::from_raw_parts(address, count) })
    }

    /// Returns the whole buffer as mutable values of one type; `None` if the host cannot write it.
    fn host_mut<T: RawElement>(&mut self) -> Option<&mut [T]> {
        let count = self.bytes / size_of::<T>();
        if count == 0 {
            return Some(&mut []);
        }
        if !self.memory.is_host_accessible() {
            return None;
        }
        let address = self.allocation.block().address as *mut T;
        debug_assert!(address.is_aligned());
        // SAFETY: as in `host`; the exclusive borrow of `self` makes this the only slice into the block.
        Some(unsafe { std::slice::from_raw_parts_mut(address, count) })
    }
}

/// The categories that `keep_for_backward` changes to activation.
const RESULTS: &[Category] = &[Category::Output, Category::Temporary];

const ACTIVATION: &[Category] = &[Category::Activation];

/// Returns whether the category is one of [`RESULTS`].
const fn is_result(category: Category) -> bool {
    matches!(category, Category::Output | Category::Temporary)
}

/// Panics before a kernel can access memory outside of a buffer.
#[cold]
#[inline(never)]
#[track_caller]
fn panic_out_of_buffer(layout: &Layout, storage: &Storage) -> ! {
    panic!("{layout:?} exceeds its buffer of {} bytes of {}", storage.bytes, storage.dtype)
}

/// A readable view of a tensor: a buffer and the layout of the elements.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    storage: &'a Storage,
    layout: &'a Layout,
}

impl<'a> View<'a> {
    /// Returns a view of all or a part of a buffer. The layout must have been made for or checked with this
    /// buffer.
    pub(crate) const fn new(storage: &'a Storage, layout: &'a Layout) -> Self {
        Self { storage, layout }
    }

    /// Returns the layout of the elements.
    #[must_use]
    pub const fn layout(&self) -> &'a Layout {
        self.layout
    }

    /// Returns the element type.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.storage.dtype
    }

    /// Returns the buffer.
    #[must_use]
    pub const fn storage(&self) -> &'a Storage {
        self.storage
    }

    /// Returns a view of the same buffer with another layout.
    ///
    /// # Panics
    /// If the layout exceeds the buffer.
    #[must_use]
    #[inline]
    pub fn with_layout<'b>(&self, layout: &'b Layout) -> View<'b>
    where
        'a: 'b,
    {
        self.storage.assert_contains(layout);
        View { storage: self.storage, layout }
    }

    /// Returns whether all elements are known to be indices in `0..len`. Then kernels need not check them.
    pub(crate) const fn are_indices_below(&self, len: usize) -> bool {
        let bound = self.storage.index_bound;
        matches!(self.storage.dtype, DType::I64) && bound <= len as u64 && bound <= i64::MAX.cast_unsigned()
    }

    /// Returns the whole buffer on the host, which the caller indexes through the layout. Returns `None` if
    /// the host cannot read the memory, and if the elements are not stored as `T`.
    #[must_use]
    pub fn host<T: RawElement>(&self) -> Option<&'a [T]> {
        if T::is_raw_of(self.storage.dtype) { self.storage.host() } else { None }
    }

    /// Returns the elements as one slice if they are contiguous, stored as `T`, and in memory that the host
    /// can read.
    #[must_use]
    #[inline]
    pub fn host_contiguous<T: RawElement>(&self) -> Option<&'a [T]> {
        if !self.layout.is_contiguous() {
            return None;
        }
        let start = self.layout.offset();
        self.host()?.get(start..start + self.layout.shape().elements())
    }
}

/// A writable view of a tensor, which owns the buffer exclusively. It is contiguous and starts at the start
/// of the buffer.
#[derive(Debug)]
pub struct ViewMut<'a> {
    storage: &'a mut Storage,
    layout: &'a Layout,
}

impl<'a> ViewMut<'a> {
    /// Returns a view with a layout that was made for or checked with this buffer. Forgets the bound of the
    /// indices.
    pub(crate) const fn new(storage: &'a mut Storage, layout: &'a Layout) -> Self {
        storage.index_bound = UNKNOWN;
        Self { storage, layout }
    }

    /// Returns the layout of the elements.
    #[must_use]
    pub const fn layout(&self) -> &'a Layout {
        self.layout
    }

    /// Returns the element type.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.storage.dtype
    }

    /// Returns the buffer.
    #[must_use]
    pub const fn storage(&self) -> &Storage {
        self.storage
    }

    /// Returns a readable view of the same elements.
    #[must_use]
    pub const fn as_view(&self) -> View<'_> {
        View::new(self.storage, self.layout)
    }

    /// Returns the elements on the host, in logical order. Returns `None` if the host cannot write the
    /// memory, and if the elements are not stored as `T`.
    #[must_use]
    pub fn host<T: RawElement>(&mut self) -> Option<&mut [T]> {
        ViewMut::new(self.storage, self.layout).into_host()
    }

    /// Stores an upper bound of the indices `values`, which just filled the whole buffer. The next writable
    /// view forgets it.
    pub(crate) fn note_indices(self, values: &[u8]) {
        if values.len() == self.storage.bytes {
            self.storage.index_bound = match self.storage.dtype {
                DType::I64 => index_bound(values, i64::from_ne_bytes),
                DType::I32 => index_bound(values, |bytes| i32::from_ne_bytes(bytes).into()),
                DType::U32 => index_bound(values, |bytes| u32::from_ne_bytes(bytes).into()),
                DType::U8 => index_bound(values, |[byte]| byte.into()),
                _ => UNKNOWN,
            };
        }
    }

    /// Stores the largest possible index, to which a kernel just clamped the whole buffer from 0 or more on. The next
    /// writable view forgets it.
    pub(crate) const fn note_indices_up_to(self, last: i64) {
        self.storage.index_bound = last.cast_unsigned().saturating_add(1);
    }

    /// Stores the upper bound of the indices in `other`, which were just converted to the elements of this buffer. The
    /// next writable view forgets it.
    pub(crate) const fn note_indices_of(self, other: View<'_>) {
        self.storage.index_bound = other.storage.index_bound;
    }

    /// Returns the same view with a shorter lifetime.
    pub(crate) const fn reborrow(&mut self) -> ViewMut<'_> {
        ViewMut::new(self.storage, self.layout)
    }

    /// Returns a view of the same buffer with another layout and a shorter lifetime. Only a copy into a part
    /// of a tensor uses a layout that is not contiguous from the start.
    ///
    /// # Panics
    /// If the layout exceeds the buffer, or has more elements than the buffer.
    #[inline]
    pub(crate) fn with_layout<'b>(&'b mut self, layout: &'b Layout) -> ViewMut<'b> {
        self.storage.assert_contains(layout);
        self.storage.assert_contains(&Layout::row_major(layout.shape()));
        ViewMut::new(self.storage, layout)
    }

    /// Returns the whole buffer on the host, which the caller indexes through the layout. Returns `None` as
    /// [`host`](Self::host) does.
    pub(crate) fn host_buffer<T: RawElement>(&mut self) -> Option<&mut [T]> {
        if T::is_raw_of(self.storage.dtype) { self.storage.host_mut() } else { None }
    }

    /// Returns [`host`](Self::host) with the lifetime of the borrowed buffer.
    #[must_use]
    pub fn into_host<T: RawElement>(self) -> Option<&'a mut [T]> {
        if !T::is_raw_of(self.storage.dtype) {
            return None;
        }
        let elements = self.layout.shape().elements();
        self.storage.host_mut()?.get_mut(..elements)
    }
}

#[cfg(test)]
mod tests {
    use crate::device::Runtime;
    use crate::shape::DType;
    use crate::tensor::Tensor;

    #[test]
    fn the_bound_of_host_indices_lasts_until_a_write() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let below = |values: &[i64], len| {
            Tensor::from_slice(&device, values, values.len()).unwrap().view().are_indices_below(len)
        };
        assert!(below(&[0, 4, 2], 5) && !below(&[0, 4, 2], 4));
        assert!(!below(&[0, -1], usize::MAX) && !below(&[i64::MIN], usize::MAX) && below(&[], 0));
        let narrow = [
            Tensor::from_slice(&device, &[0_u8, 4, 2], 3).unwrap(),
            Tensor::from_slice(&device, &[0_u32, 4, 2], 3).unwrap(),
            Tensor::from_slice(&device, &[0_i32, 4, 2], 3).unwrap(),
        ];
        let negative = Tensor::from_slice(&device, &[0_i32, -1], 2).unwrap();
        let is_below = |indices: &Tensor, len| {
            let mut wide = indices.to_dtype(DType::I64).unwrap();
            wide.view_mut().unwrap().note_indices_of(indices.view());
            wide.view().are_indices_below(len)
        };
        assert!(narrow.iter().all(|indices| is_below(indices, 5) && !is_below(indices, 4)));
        assert!(!is_below(&negative, usize::MAX) && !narrow[0].view().are_indices_below(5));
        let floats = Tensor::from_slice(&device, &[0.0_f32; 4], 4).unwrap();
        assert!(!floats.view().are_indices_below(usize::MAX));

        let clamped = |low, high| narrow[2].to_dtype(DType::I64).unwrap().clamp(low, high).unwrap();
        assert!(clamped(0, 3).view().are_indices_below(4) && !clamped(0, 3).view().are_indices_below(3));
        assert!(!clamped(-1, 3).view().are_indices_below(usize::MAX));
        assert!(is_below(&narrow[2].clamp(1, 3).unwrap(), 4));

        let mut indices = Tensor::from_slice(&device, &[1_i64, 2], 2).unwrap();
        assert!(indices.view().are_indices_below(3) && indices.clone().view().are_indices_below(3));
        assert!(indices.slice(0, 1..).unwrap().view().are_indices_below(3));
        indices.view_mut().unwrap().host::<i64>().unwrap()[0] = 7;
        assert!(!indices.view().are_indices_below(3));
        let moved = Tensor::from_slice(&device, &[1_i64, 2], 2).unwrap().add_scalar(5).unwrap();
        assert!(!moved.view().are_indices_below(3));
    }

    #[test]
    fn host_slices_require_the_type_of_the_elements() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let double = Tensor::ones_of(&device, 4, DType::F64).unwrap();
        assert_eq!(double.view().host_contiguous::<f64>(), Some(&[1.0; 4][..]));
        assert_eq!(double.view().host_contiguous::<f32>(), None);
        assert_eq!(double.view().host::<i64>(), None);
        let mut truths = Tensor::ones_of(&device, 4, DType::Bool).unwrap();
        assert_eq!(truths.view_mut().unwrap().host::<u8>(), Some(&mut [1; 4][..]));
        assert_eq!(truths.view_mut().unwrap().into_host::<f32>(), None);
    }
}
