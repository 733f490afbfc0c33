//! An owned slice of device memory in a pool.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::RangeBounds;
use std::sync::Arc;

use bfc_core::{
    Allocation, Allocator, Block, BlockError, Category, Contents, MemoryKind, Request, Stream, StreamHandle,
    Tag,
};
use cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice,
    SyncOnDrop, ValidAsZeroBits, sys,
};

use super::error::PoolSliceError;
use crate::driver::context_of;

/// The alignment of a slice, in bytes, as for memory of the driver.
const ALIGNMENT: u64 = 256;

/// A `Vec<T>` of device memory in a pool: cudarc's `CudaSlice` with another owner of the memory.
///
/// It implements [`DeviceSlice`], [`DevicePtr`] and [`DevicePtrMut`], so cudarc's copies, memsets and libraries accept it,
/// and kernels take `&slice` and `&mut slice` as arguments. Views are cudarc's. Dropping it frees the block in the pool;
/// no call of cudarc frees it.
///
/// # Streams
///
/// The pool reuses a freed block in the order of its [own stream](bfc_core::PoolView::stream). cudarc records the uses
/// of a slice on other streams in events, unless a program turns
/// [event tracking](cudarc::driver::CudaContext::disable_event_tracking) off. Dropping the slice makes its stream wait for
/// these events. Uses that cudarc does not see require [`record_stream`](Self::record_stream): work that receives the
/// address alone, work of other libraries, and all work without event tracking.
///
/// ```no_run
/// use bfc_core::{BfcConfig, Bytes};
/// use bfc_cuda::cudarc::driver::CudaContext;
/// use bfc_cuda::{PoolSlice, PoolStream};
///
/// let context = CudaContext::new(0)?;
/// let stream = PoolStream::new(&context.default_stream(), BfcConfig::new(Bytes::gib(1)))?;
/// let x: PoolSlice<f32> = stream.clone_htod(&[1.0, 2.0, 3.0])?;
/// let mut y: PoolSlice<f32> = stream.alloc_zeros(3)?;
/// stream.memcpy_dtod(&x, &mut y)?;
/// assert_eq!(stream.clone_dtoh(&y.slice(1..))?, [2.0, 3.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PoolSlice<T> {
    /// The block as cudarc sees it. Never dropped, because that would free the memory: `drop` takes it apart.
    slice: ManuallyDrop<CudaSlice<T>>,
    /// Frees the block. Fields are dropped after `drop`.
    allocation: Allocation,
}

impl<T: DeviceRepr> PoolSlice<T> {
    /// Allocates a slice of `len` elements for work on `stream`. The memory is uninitialized.
    ///
    /// `allocator` is a [`StreamAllocator`](bfc_core::StreamAllocator), or a wrapper of one that counts memory. If
    /// `stream` is not the pool's own stream, the slice is [recorded](Self::record_stream) for it.
    ///
    /// # Errors
    /// See [`PoolSliceError`]; nothing is allocated then.
    ///
    /// # Safety
    /// The caller writes each element before it reads the element.
    pub unsafe fn alloc(
        allocator: &Arc<dyn Allocator>,
        stream: &Arc<CudaStream>,
        len: usize,
    ) -> Result<Self, PoolSliceError> {
        let own_stream = check(allocator, stream)?;
        let element_bytes = size_of::<T>();
        let too_large = PoolSliceError::TooLarge { elements: len, element_bytes };
        let bytes = len.checked_mul(element_bytes).ok_or(too_large)?;
        let extents = [len];
        let contents = Contents { extents: &extents, element: std::any::type_name::<T>() };
        let alignment = ALIGNMENT.max(align_of::<T>() as u64);
        let request = Request::new(bytes as u64).with_alignment(alignment).with_contents(contents);
        let allocation = Allocation::new(allocator, &request)?;
        if !own_stream {
            record(&allocation, stream)?;
        }
        prepare_events(stream)?;
        // SAFETY: the block has so many bytes. cudarc never frees it: see `drop`.
        let slice = unsafe { stream.upgrade_device_ptr(allocation.block().address, len) };
        Ok(Self { slice: ManuallyDrop::new(slice), allocation })
    }

    /// Allocates a slice of `len` elements like [`alloc`](Self::alloc), and sets all bytes to zero.
    ///
    /// # Errors
    /// As for [`alloc`](Self::alloc), and if the memset fails.
    pub fn zeros(
        allocator: &Arc<dyn Allocator>,
        stream: &Arc<CudaStream>,
        len: usize,
    ) -> Result<Self, PoolSliceError>
    where
        T: ValidAsZeroBits,
    {
        // SAFETY: all elements are written below.
        let mut slice = unsafe { Self::alloc(allocator, stream, len) }?;
        if slice.num_bytes() > 0 {
            stream.memset_zeros(&mut slice).map_err(PoolSliceError::driver("memset_zeros"))?;
        }
        Ok(slice)
    }

    /// Copies the slice into another one of the same pool and stream.
    ///
    /// # Errors
    /// As for [`alloc`](Self::alloc), and if the copy fails.
    pub fn try_clone(&self) -> Result<Self, PoolSliceError> {
        // SAFETY: all elements are written below.
        let mut copy = unsafe { Self::alloc(self.allocator(), self.stream(), self.len()) }?;
        if self.num_bytes() > 0 {
            let copied = self.stream().memcpy_dtod(self, &mut copy);
            copied.map_err(PoolSliceError::driver("memcpy_dtod"))?;
        }
        Ok(copy)
    }
}

/// Whether `stream` is the own stream of the pool. Fails unless the pool has device memory of the stream's context.
pub(super) fn check(allocator: &Arc<dyn Allocator>, stream: &CudaStream) -> Result<bool, PoolSliceError> {
    let (name, kind) = (|| allocator.name().to_owned(), allocator.memory_kind());
    if kind != MemoryKind::Device {
        return Err(PoolSliceError::NotDeviceMemory { allocator: name(), kind });
    }
    let context = stream.context();
    let space = allocator.address_space();
    if space.and_then(context_of) != Some(context.cu_ctx().expose_provenance() as u64) {
        return Err(PoolSliceError::OtherContext { allocator: name(), ordinal: context.ordinal() });
    }
    let own = allocator.stream().ok_or_else(|| PoolSliceError::NoStreamOrder { allocator: name() })?;
    Ok(own.handle() == handle(stream))
}

/// Fails if cudarc cannot make the events of a slice, where it would panic.
fn prepare_events(stream: &CudaStream) -> Result<(), PoolSliceError> {
    let context = stream.context();
    if context.is_event_tracking() {
        drop(context.new_event(None).map_err(PoolSliceError::driver("new_event"))?);
    }
    Ok(())
}

/// The driver's handle of a stream.
pub(super) fn handle(stream: &CudaStream) -> StreamHandle {
    StreamHandle(stream.cu_stream().expose_provenance() as u64)
}

/// Announces that `stream`, which is of the pool's context, uses the block.
fn record(allocation: &Allocation, stream: &Arc<CudaStream>) -> Result<(), PoolSliceError> {
    let allocator = allocation.allocator();
    let Some(own) = allocator.stream() else {
        return Err(PoolSliceError::NoStreamOrder { allocator: allocator.name().to_owned() });
    };
    let driver = Arc::clone(own.driver());
    // SAFETY: the stream is of this context, and the value keeps it alive.
    let stream = unsafe { Stream::from_raw(driver, handle(stream), Arc::clone(stream) as _) };
    Ok(allocator.record_stream(&allocation.block(), &stream)?)
}

impl<T> PoolSlice<T> {
    /// The slice as cudarc sees it.
    pub(super) fn lent(&self) -> &CudaSlice<T> {
        &self.slice
    }

    /// Not public: a caller could put another `CudaSlice` in its place, and free this one.
    pub(super) fn lent_mut(&mut self) -> &mut CudaSlice<T> {
        &mut self.slice
    }

    /// Announces that work on another stream uses the slice in a way that cudarc does not record; see
    /// [Streams](Self#streams).
    ///
    /// The stream waits for the work that the pool's stream has so far. After the slice is dropped, its block stays
    /// pending until the work has ended that `stream` has at that time. Call it before the work is submitted.
    ///
    /// # Errors
    /// [`PoolSliceError::OtherContext`], [`PoolSliceError::Record`]; the stream must not use the slice.
    pub fn record_stream(&self, stream: &Arc<CudaStream>) -> Result<(), PoolSliceError> {
        check(self.allocator(), stream)?;
        record(&self.allocation, stream)
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slice.len()
    }

    /// Whether the slice has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slice.is_empty()
    }

    /// The size in bytes.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        self.slice.num_bytes()
    }

    /// The stream that the slice was allocated for.
    #[must_use]
    pub fn stream(&self) -> &Arc<CudaStream> {
        self.slice.stream()
    }

    /// The allocator of the slice.
    #[must_use]
    pub const fn allocator(&self) -> &Arc<dyn Allocator> {
        self.allocation.allocator()
    }

    /// The slice's block in the pool.
    #[must_use]
    pub const fn block(&self) -> Block {
        self.allocation.block()
    }

    /// Charges the slice to a category of the reports, such as [`Category::Parameter`].
    ///
    /// # Errors
    /// [`BlockError`] if the pool keeps no accounts of blocks.
    pub fn set_category(&self, category: Category) -> Result<(), BlockError> {
        let block = self.block();
        let tag = self.allocator().tag(&block)?;
        self.allocator().retag(&block, Tag { category, ..tag })
    }

    /// A view of all elements.
    #[must_use]
    pub fn as_view(&self) -> CudaView<'_, T> {
        self.slice.as_view()
    }

    /// A mutable view of all elements.
    #[must_use]
    pub fn as_view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.slice.as_view_mut()
    }

    /// A view of a range of elements.
    ///
    /// # Panics
    /// If the range is not in the slice; [`try_slice`](Self::try_slice) returns `None`.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> CudaView<'_, T> {
        self.slice.slice(range)
    }

    /// A view of a range of elements, or `None` if the range is not in the slice.
    #[must_use]
    pub fn try_slice(&self, range: impl RangeBounds<usize>) -> Option<CudaView<'_, T>> {
        self.slice.try_slice(range)
    }

    /// A mutable view of a range of elements.
    ///
    /// # Panics
    /// If the range is not in the slice; [`try_slice_mut`](Self::try_slice_mut) returns `None`.
    #[must_use]
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> CudaViewMut<'_, T> {
        self.slice.slice_mut(range)
    }

    /// A mutable view of a range of elements, or `None` if the range is not in the slice.
    #[must_use]
    pub fn try_slice_mut(&mut self, range: impl RangeBounds<usize>) -> Option<CudaViewMut<'_, T>> {
        self.slice.try_slice_mut(range)
    }

    /// Two views that meet at element `mid`, or `None` if the slice has fewer elements.
    #[must_use]
    pub fn try_split_at(&self, mid: usize) -> Option<(CudaView<'_, T>, CudaView<'_, T>)> {
        self.slice.try_split_at(mid)
    }

    /// Two mutable views that meet at element `mid`, or `None` if the slice has fewer elements.
    #[must_use]
    pub fn try_split_at_mut(&mut self, mid: usize) -> Option<(CudaViewMut<'_, T>, CudaViewMut<'_, T>)> {
        self.slice.try_split_at_mut(mid)
    }
}

impl<T> Drop for PoolSlice<T> {
    fn drop(&mut self) {
        // SAFETY: nothing uses the field after this.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        // Makes the slice's stream wait for recorded uses on other streams, and frees nothing.
        let _ = slice.leak();
    }
}

impl<T> fmt::Debug for PoolSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (element, name) = (std::any::type_name::<T>(), self.allocator().name());
        write!(f, "PoolSlice<{element}>({} elements in {name})", self.len())
    }
}

impl<T> DeviceSlice<T> for PoolSlice<T> {
    fn len(&self) -> usize {
        self.slice.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.slice.stream()
    }
}

impl<T> DevicePtr<T> for PoolSlice<T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        self.slice.device_ptr(stream)
    }
}

impl<T> DevicePtrMut<T> for PoolSlice<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        self.slice.device_ptr_mut(stream)
    }
}
