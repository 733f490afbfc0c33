//! Storage: the buffer of tensors. Only this file of the crate converts addresses to slices.
//!
//! Shared storage is immutable: kernels write through `&mut Storage`, which only the exclusive owner has. So
//! threads share views without a lock.

use bfc_core::{Allocation, Category, MemoryKind};

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
    /// Returns the storage of a new allocation, of which tensors use `bytes`. `device` is the number by which kernels
    /// compare devices: see [`DeviceRef`](crate::backend::DeviceRef).
    ///
    /// # Safety
    /// Kernels of that device can access the memory.
    ///
    /// # Panics
    /// If the block has fewer bytes, or is not aligned for the elements.
    #[must_use]
    #[inline]
    pub unsafe fn new(allocation: Allocation, device: u32, bytes: usize, dtype: DType) -> Self {
        let block = allocation.block();
        let is_aligned = block.address & (dtype.size() as u64 - 1) == 0;
        assert!(is_aligned && bytes as u64 <= block.bytes, "a tensor of {bytes} bytes exceeds {block:?}");
        let memory = allocation.allocator().memory_kind();
        Self { allocation, bytes, memory, device, dtype, index_bound: UNKNOWN }
    }

    /// Returns whether the buffer is external memory, which tensors never write.
    #[must_use]
    #[inline]
    pub const fn is_read_only(&self) -> bool {
        matches!(self.memory, MemoryKind::LentHost)
    }

    /// Returns the requested bytes.
    #[must_use]
    #[inline]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the element type.
    #[must_use]
    #[inline]
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the number of the memory's device.
    #[must_use]
    #[inline(always)]
    pub const fn device(&self) -> u32 {
        self.device
    }

    /// Asserts that a layout stays within the buffer. A violation is an error of the caller, as layouts
    /// derive from valid layouts.
    ///
    /// # Panics
    /// If the layout exceeds the buffer.
    #[inline(always)]
    pub fn assert_contains(&self, layout: &Layout) {
        // Compares bytes, which avoids a division.
        let end = layout.reach().and_then(|reach| reach.checked_mul(self.dtype.size()));
        if end.is_none_or(|end| end > self.bytes) {
            panic_out_of_buffer(layout, self);
        }
    }

    /// Returns the block and its allocator.
    #[must_use]
    #[inline]
    pub const fn allocation(&self) -> &Allocation {
        &self.allocation
    }

    /// Returns the address of the buffer in the memory of its device.
    #[must_use]
    #[inline]
    pub fn address(&self) -> u64 {
        self.allocation.block().address
    }

    /// Returns the category of the buffer; `None` if the allocator has no tags.
    #[must_use]
    pub fn category(&self) -> Option<Category> {
        self.allocation.allocator().tag(&self.allocation.block()).ok().map(|tag| tag.category)
    }

    /// Returns the whole buffer as values of one type; `None` if the host cannot read it.
    #[inline]
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
    /// Returns a view of all or a part of a buffer.
    ///
    /// # Panics
    /// If the layout exceeds the buffer.
    #[must_use]
    #[inline]
    pub fn new(storage: &'a Storage, layout: &'a Layout) -> Self {
        storage.assert_contains(layout);
        Self { storage, layout }
    }

    /// Returns a view without a check of the layout.
    ///
    /// # Safety
    /// The layout stays within the buffer: kernels of GPUs read every position.
    #[must_use]
    #[inline]
    pub const unsafe fn new_unchecked(storage: &'a Storage, layout: &'a Layout) -> Self {
        Self { storage, layout }
    }

    /// Returns the layout of the elements.
    #[must_use]
    #[inline]
    pub const fn layout(&self) -> &'a Layout {
        self.layout
    }

    /// Returns the element type.
    #[must_use]
    #[inline]
    pub const fn dtype(&self) -> DType {
        self.storage.dtype
    }

    /// Returns the buffer.
    #[must_use]
    #[inline]
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
    #[must_use]
    pub const fn are_indices_below(&self, len: usize) -> bool {
        let bound = self.storage.index_bound;
        matches!(self.storage.dtype, DType::I64) && bound <= len as u64 && bound <= i64::MAX.cast_unsigned()
    }

    /// Returns the whole buffer on the host, which the caller indexes through the layout. Returns `None` if
    /// the host cannot read the memory, and if the elements are not stored as `T`.
    #[must_use]
    #[inline]
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
    /// Returns a view of all or the first part of a buffer. Forgets the bound of the indices.
    ///
    /// # Panics
    /// If the layout exceeds the buffer, or has more elements than the buffer.
    #[must_use]
    #[inline]
    pub fn new(storage: &'a mut Storage, layout: &'a Layout) -> Self {
        storage.assert_contains(layout);
        storage.assert_contains(&Layout::row_major(layout.shape()));
        Self::of_checked(storage, layout)
    }

    /// Returns a view without a check of the layout. Forgets the bound of the indices.
    ///
    /// # Safety
    /// The layout stays within the buffer, and has no more elements than the buffer: kernels of GPUs write every position.
    #[must_use]
    #[inline]
    pub const unsafe fn new_unchecked(storage: &'a mut Storage, layout: &'a Layout) -> Self {
        Self::of_checked(storage, layout)
    }

    /// Returns a view with a layout that was made for or checked with this buffer. Forgets the bound of the
    /// indices.
    const fn of_checked(storage: &'a mut Storage, layout: &'a Layout) -> Self {
        storage.index_bound = UNKNOWN;
        Self { storage, layout }
    }

    /// Returns the layout of the elements.
    #[must_use]
    #[inline]
    pub const fn layout(&self) -> &'a Layout {
        self.layout
    }

    /// Returns the element type.
    #[must_use]
    #[inline]
    pub const fn dtype(&self) -> DType {
        self.storage.dtype
    }

    /// Returns the buffer.
    #[must_use]
    #[inline]
    pub const fn storage(&self) -> &Storage {
        self.storage
    }

    /// Returns a readable view of the same elements.
    #[must_use]
    #[inline]
    pub const fn as_view(&self) -> View<'_> {
        View { storage: self.storage, layout: self.layout }
    }

    /// Returns the elements on the host, in logical order. Returns `None` if the host cannot write the
    /// memory, and if the elements are not stored as `T`.
    #[must_use]
    #[inline]
    pub fn host<T: RawElement>(&mut self) -> Option<&mut [T]> {
        ViewMut::of_checked(self.storage, self.layout).into_host()
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
    ///
    /// # Safety
    /// All elements are indices of at most `last`: kernels do not check them.
    pub const unsafe fn note_indices_up_to(self, last: i64) {
        self.storage.index_bound = last.cast_unsigned().saturating_add(1);
    }

    /// Stores the upper bound of the indices in `other`, which were just converted to the elements of this buffer. The
    /// next writable view forgets it.
    ///
    /// # Safety
    /// All elements are those of `other`: kernels do not check them.
    pub const unsafe fn note_indices_of(self, other: View<'_>) {
        self.storage.index_bound = other.storage.index_bound;
    }

    /// Returns the same view with a shorter lifetime.
    #[must_use]
    #[inline]
    pub const fn reborrow(&mut self) -> ViewMut<'_> {
        ViewMut::of_checked(self.storage, self.layout)
    }

    /// Returns a view of the same buffer with another layout and a shorter lifetime. Only a copy into a part
    /// of a tensor uses a layout that is not contiguous from the start.
    ///
    /// # Panics
    /// If the layout exceeds the buffer, or has more elements than the buffer.
    #[must_use]
    #[inline]
    pub fn with_layout<'b>(&'b mut self, layout: &'b Layout) -> ViewMut<'b> {
        self.storage.assert_contains(layout);
        self.storage.assert_contains(&Layout::row_major(layout.shape()));
        ViewMut::of_checked(self.storage, layout)
    }

    /// Returns the whole buffer on the host, which the caller indexes through the layout. Returns `None` as
    /// [`host`](Self::host) does.
    pub(crate) fn host_buffer<T: RawElement>(&mut self) -> Option<&mut [T]> {
        if T::is_raw_of(self.storage.dtype) { self.storage.host_mut() } else { None }
    }

    /// Returns [`host`](Self::host) with the lifetime of the borrowed buffer.
    #[must_use]
    #[inline]
    pub fn into_host<T: RawElement>(self) -> Option<&'a mut [T]> {
        if !T::is_raw_of(self.storage.dtype) {
            return None;
        }
        let elements = self.layout.shape().elements();
        self.storage.host_mut()?.get_mut(..elements)
    }
}
