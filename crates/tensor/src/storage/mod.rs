//! Storage: the buffer behind tensors, and the only file of this crate that turns addresses into slices.
//!
//! A shared storage is never written: kernels write through `&mut Storage`, which only the single owner has. So views
//! may be handed to any thread without a lock.

pub(crate) mod former;
pub(crate) mod leaf;

use std::sync::atomic::{AtomicBool, Ordering};

use bfc_core::{Allocation, Allocator, Category, MemoryKind, Tag};

use self::former::FormerValues;
use crate::layout::Layout;
use crate::shape::{DType, RawElement};

/// A buffer taken from an allocator, given back when the last tensor that looks into it is dropped.
#[derive(Debug)]
pub struct Storage {
    allocation: Allocation,
    /// Bytes that the tensor asked for; the block may be larger.
    bytes: usize,
    /// The allocator's kind of memory, which every kernel reads.
    memory: MemoryKind,
    /// The number of the device that the memory is for, which the check of every kernel compares.
    device: u32,
    /// The type of all elements.
    dtype: DType,
    /// What all elements are below, as indices that the host has written are; [`UNKNOWN`] since anyone else may have written.
    below: u64,
    /// Whether it is, or may be, charged as a result or a temporary: most of what is kept for backward is a parameter or an
    /// input, and the allocator need not be asked.
    may_be_result: AtomicBool,
    former: FormerValues,
}

/// No index is below it, nor is one that is negative and read without its sign.
const UNKNOWN: u64 = u64::MAX;

impl Storage {
    /// The buffer of a fresh allocation for a device, of which `bytes` are used. It is charged to `category`.
    pub(crate) fn new(
        allocation: Allocation,
        device: u32,
        bytes: usize,
        dtype: DType,
        category: Category,
    ) -> Self {
        let memory = allocation.allocator().memory_kind();
        let may_be_result = AtomicBool::new(is_result(category));
        let former = FormerValues::new();
        Self { allocation, bytes, memory, device, dtype, below: UNKNOWN, may_be_result, former }
    }

    /// Whether the buffer is never written, whoever owns the storage: memory of others, which tensors only look into.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        matches!(self.memory, MemoryKind::LentHost)
    }

    /// Bytes asked for.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The type of the elements.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// The number of the device that the memory is for.
    #[inline(always)]
    pub(crate) const fn device(&self) -> u32 {
        self.device
    }

    /// That a layout stays within the buffer. Layouts are made from tensors' own: one that does not is an error of this crate.
    #[inline(always)]
    pub(crate) fn assert_contains(&self, layout: &Layout) {
        // As bytes, so that nothing is divided.
        let end = layout.reach().and_then(|reach| reach.checked_mul(self.dtype.size()));
        if end.is_none_or(|end| end > self.bytes) {
            leaves(layout, self);
        }
    }

    /// The block and its allocator.
    #[must_use]
    pub const fn allocation(&self) -> &Allocation {
        &self.allocation
    }

    /// Where the buffer lies, in its device's memory.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.allocation.block().address
    }

    /// The allocator that the buffer came from.
    fn allocator(&self) -> &dyn Allocator {
        self.allocation.allocator().as_ref()
    }

    /// Charges the buffer to another category, keeping its owner.
    pub(crate) fn set_category(&self, category: Category) {
        let block = self.allocation.block();
        if let Ok(tag) = self.allocator().tag(&block)
            && tag.category != category
        {
            // As below.
            let _ = self.allocator().retag(&block, Tag { category, ..tag });
        }
        self.may_be_result.store(is_result(category), Ordering::Relaxed);
    }

    /// Charges a result or a temporary as what a backward pass waits for.
    pub(crate) fn keep_for_backward(&self) {
        if self.may_be_result.load(Ordering::Relaxed) {
            // A block that has a tag can be charged otherwise; an allocator without tags has nothing to say.
            let _ = self.allocator().recategorize(&self.allocation.block(), RESULTS, Category::Activation);
            self.may_be_result.store(false, Ordering::Relaxed);
        }
    }

    /// Charges what was kept for a backward pass as the gradient that it was made.
    pub(crate) fn becomes_gradient(&self) {
        // As above.
        let _ = self.allocator().recategorize(&self.allocation.block(), ACTIVATION, Category::Gradient);
    }

    /// Which parameters' former values these are.
    pub(crate) const fn former_values(&self) -> &FormerValues {
        &self.former
    }

    /// What the buffer is for; `None` from allocators that keep no tags.
    #[must_use]
    pub fn category(&self) -> Option<Category> {
        self.allocator().tag(&self.allocation.block()).ok().map(|tag| tag.category)
    }

    /// The whole buffer as numbers of one type; `None` if the host cannot read it.
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
        // SAFETY: the allocator's contract makes the block valid, initialised and aligned (buffers are asked for with
        // `bfc_core::DEFAULT_ALIGNMENT`, which exceeds that of any element, and imports are checked); `T` is plain data of a sealed set; the
        // block lives as long as `self`, and shared storages are never written.
        Some(unsafe { std::slice::from_raw_parts(address, count) })
    }

    /// The whole buffer as numbers of one type, to be written; `None` if the host cannot write it.
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

/// What is charged so becomes an activation when it is kept for backward.
const RESULTS: &[Category] = &[Category::Output, Category::Temporary];

const ACTIVATION: &[Category] = &[Category::Activation];

/// Whether it is one of these.
const fn is_result(category: Category) -> bool {
    matches!(category, Category::Output | Category::Temporary)
}

/// Ends the program rather than let a kernel leave a buffer.
#[cold]
#[inline(never)]
#[track_caller]
fn leaves(layout: &Layout, storage: &Storage) -> ! {
    panic!("{layout:?} leaves its buffer of {} bytes of {}", storage.bytes, storage.dtype)
}

/// A tensor as a kernel reads it: a buffer, and where the elements lie in it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    storage: &'a Storage,
    layout: &'a Layout,
}

impl<'a> View<'a> {
    /// A view of a whole buffer or a part of it, by a layout that was made for this buffer or checked with it.
    pub(crate) const fn new(storage: &'a Storage, layout: &'a Layout) -> Self {
        Self { storage, layout }
    }

    /// Where the elements lie.
    #[must_use]
    pub const fn layout(&self) -> &'a Layout {
        self.layout
    }

    /// The element type.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.storage.dtype
    }

    /// The buffer.
    #[must_use]
    pub const fn storage(&self) -> &'a Storage {
        self.storage
    }

    /// The same buffer seen through another layout.
    ///
    /// # Panics
    /// If the layout leaves the buffer.
    #[must_use]
    #[inline]
    pub fn with_layout<'b>(&self, layout: &'b Layout) -> View<'b>
    where
        'a: 'b,
    {
        self.storage.assert_contains(layout);
        View { storage: self.storage, layout }
    }

    /// Whether all elements are known to be indices from 0 to below `len`, so that nobody has to look.
    pub(crate) const fn are_indices_below(&self, len: usize) -> bool {
        let below = self.storage.below;
        matches!(self.storage.dtype, DType::I64) && below <= len as u64 && below <= i64::MAX.cast_unsigned()
    }

    /// The whole buffer on the host, to be indexed through the layout; `None` for memory the host cannot read, and
    /// where the elements do not lie in memory as `T`.
    #[must_use]
    pub fn host<T: RawElement>(&self) -> Option<&'a [T]> {
        if T::is_raw_of(self.storage.dtype) { self.storage.host() } else { None }
    }

    /// The elements as one slice, if they lie in order without gaps, as `T`, in memory that the host can read.
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

/// A tensor as a kernel writes it: a buffer of which this is the only user. Always contiguous from the buffer's start.
#[derive(Debug)]
pub struct ViewMut<'a> {
    storage: &'a mut Storage,
    layout: &'a Layout,
}

impl<'a> ViewMut<'a> {
    /// A view by a layout that was made for this buffer or checked with it. From now on nothing is known of its elements.
    pub(crate) const fn new(storage: &'a mut Storage, layout: &'a Layout) -> Self {
        storage.below = UNKNOWN;
        Self { storage, layout }
    }

    /// Where the elements lie.
    #[must_use]
    pub const fn layout(&self) -> &'a Layout {
        self.layout
    }

    /// The element type.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.storage.dtype
    }

    /// The buffer.
    #[must_use]
    pub const fn storage(&self) -> &Storage {
        self.storage
    }

    /// The same elements, to be read.
    #[must_use]
    pub const fn as_view(&self) -> View<'_> {
        View::new(self.storage, self.layout)
    }

    /// The elements on the host, in logical order; `None` for memory the host cannot write, and where the elements do
    /// not lie in memory as `T`.
    #[must_use]
    pub fn host<T: RawElement>(&mut self) -> Option<&mut [T]> {
        ViewMut::new(self.storage, self.layout).into_host()
    }

    /// Notes how large the indices are with which the whole buffer was filled: these bytes. Whoever makes another view to
    /// write ends that.
    pub(crate) fn note_indices(self, values: &[u8]) {
        if self.storage.dtype == DType::I64 && values.len() == self.storage.bytes {
            let (indices, _) = values.as_chunks::<8>();
            // Those below 0 are the largest of all, without their sign.
            let largest = indices.iter().map(|&bytes| u64::from_ne_bytes(bytes)).max();
            self.storage.below = largest.map_or(0, |largest| largest.saturating_add(1));
        }
    }

    /// The same view for a shorter time.
    pub(crate) const fn reborrow(&mut self) -> ViewMut<'_> {
        ViewMut::new(self.storage, self.layout)
    }

    /// All or some of the same elements seen with another layout of the same buffer, for a shorter time. Only a copy into a
    /// part takes one that is not contiguous from the start; but as many elements lie in the buffer.
    ///
    /// # Panics
    /// If the layout leaves the buffer, or repeats elements beyond what the buffer holds.
    #[inline]
    pub(crate) fn with_layout<'b>(&'b mut self, layout: &'b Layout) -> ViewMut<'b> {
        self.storage.assert_contains(layout);
        self.storage.assert_contains(&Layout::row_major(layout.shape()));
        ViewMut::new(self.storage, layout)
    }

    /// The whole buffer on the host, for those who find the elements by the layout; else as [`host`](Self::host).
    pub(crate) fn host_buffer<T: RawElement>(&mut self) -> Option<&mut [T]> {
        if T::is_raw_of(self.storage.dtype) { self.storage.host_mut() } else { None }
    }

    /// As [`host`](Self::host), for as long as the buffer is borrowed.
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
    fn indices_of_the_host_are_known_until_someone_writes() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let below = |values: &[i64], len| {
            Tensor::from_slice(&device, values, values.len()).unwrap().view().are_indices_below(len)
        };
        assert!(below(&[0, 4, 2], 5) && !below(&[0, 4, 2], 4));
        assert!(!below(&[0, -1], usize::MAX) && !below(&[i64::MIN], usize::MAX) && below(&[], 0));
        let floats = Tensor::from_slice(&device, &[0.0_f32; 4], 4).unwrap();
        assert!(!floats.view().are_indices_below(usize::MAX));

        let mut indices = Tensor::from_slice(&device, &[1_i64, 2], 2).unwrap();
        assert!(indices.view().are_indices_below(3) && indices.clone().view().are_indices_below(3));
        assert!(indices.slice(0, 1..).unwrap().view().are_indices_below(3));
        indices.view_mut().unwrap().host::<i64>().unwrap()[0] = 7;
        assert!(!indices.view().are_indices_below(3));
        let moved = Tensor::from_slice(&device, &[1_i64, 2], 2).unwrap().add_scalar(5).unwrap();
        assert!(!moved.view().are_indices_below(3));
    }

    #[test]
    fn elements_are_had_as_the_type_that_they_have_and_no_other() {
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
