//! A stream of cudarc that allocates from a pool.

use std::ops::Deref;
use std::sync::Arc;

use bfc_core::{Allocator, BfcAllocator, BfcConfig, DeviceMemory, Driver, Stream, StreamAllocator};
use cudarc::driver::{CudaStream, DevicePtr, DeviceRepr, HostSlice, ValidAsZeroBits};

use super::error::PoolSliceError;
use super::slice::{PoolSlice, check, handle};
use crate::driver::{CudaDriver, context_of, require};

/// The functions that a program calls through cudarc with slices, besides those of [`CudaDriver`].
const FUNCTIONS: [&str; 2] = ["cuMemsetD8Async", "cuStreamSynchronize"];

/// A `CudaStream` whose `alloc`, `alloc_zeros`, `clone_htod` and `clone_dtod` return a [`PoolSlice`].
///
/// It derefs to `Arc<CudaStream>` for everything else. A program of cudarc therefore changes the line that makes its
/// stream, and the name of the slice type. `fork` and `new_stream` return plain streams, which allocate from cudarc.
///
/// ```no_run
/// use std::sync::Arc;
/// use bfc_core::{BfcConfig, Bytes};
/// use bfc_cuda::PoolStream;
/// use bfc_cuda::cudarc::driver::CudaContext;
/// use highwater_tracking::{Report, ScopedAllocator, Tracker, module};
///
/// let (context, tracker) = (CudaContext::new(0)?, Tracker::new());
/// let stream = PoolStream::new(&context.default_stream(), BfcConfig::new(Bytes::gib(1)))?
///     .wrapped(|pool| ScopedAllocator::new(&tracker, pool));
/// let _weights = {
///     let _scope = module("model");
///     stream.alloc_zeros::<f32>(1 << 20)?
/// };
/// println!("{}", Report::new(&tracker, &[stream.allocator().clone()]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PoolStream {
    stream: Arc<CudaStream>,
    allocator: Arc<dyn Allocator>,
}

impl PoolStream {
    /// Creates a pool of the memory of the stream's device, which reuses memory in the order of `stream`.
    ///
    /// # Errors
    /// See [`PoolSliceError`].
    pub fn new(stream: &Arc<CudaStream>, config: BfcConfig) -> Result<Self, PoolSliceError> {
        let ordinal = stream.context().ordinal();
        let driver = CudaDriver::new(u32::try_from(ordinal).unwrap_or(u32::MAX))?;
        require(&FUNCTIONS)?;
        let context = stream.context().cu_ctx().expose_provenance() as u64;
        if driver.address_space().and_then(context_of) != Some(context) {
            return Err(PoolSliceError::NotPrimary { ordinal });
        }
        // SAFETY: the stream is of the driver's context, and the value keeps it alive.
        let compute = unsafe { Stream::from_raw(driver.clone(), handle(stream), Arc::clone(stream) as _) };
        let memory = Arc::new(DeviceMemory::new(driver));
        let pool = Arc::new(BfcAllocator::new(format!("cuda:{ordinal}"), memory, config));
        Self::over(stream, Arc::new(StreamAllocator::new(pool, compute)))
    }

    /// Allocates from an existing pool. Use it for further streams of one pool: slices of a stream that is not the pool's
    /// own are [recorded](PoolSlice::record_stream) for it.
    ///
    /// # Errors
    /// [`PoolSliceError::NotDeviceMemory`], [`PoolSliceError::OtherContext`] and [`PoolSliceError::NoStreamOrder`].
    pub fn over(stream: &Arc<CudaStream>, allocator: Arc<dyn Allocator>) -> Result<Self, PoolSliceError> {
        check(&allocator, stream)?;
        Ok(Self { stream: Arc::clone(stream), allocator })
    }

    /// Puts an allocator before the pool, such as one that charges memory to scopes. Slices fail with an error if it does
    /// not forward the pool's [stream](bfc_core::PoolView::stream).
    #[must_use]
    pub fn wrapped<A: Allocator + 'static>(self, wrap: impl FnOnce(Arc<dyn Allocator>) -> Arc<A>) -> Self {
        Self { allocator: wrap(self.allocator), ..self }
    }

    /// The allocator of the slices, for reports.
    #[must_use]
    pub const fn allocator(&self) -> &Arc<dyn Allocator> {
        &self.allocator
    }

    /// Allocates `len` elements. The memory is uninitialized.
    ///
    /// # Errors
    /// See [`PoolSliceError`].
    ///
    /// # Safety
    /// The caller writes each element before it reads the element.
    pub unsafe fn alloc<T: DeviceRepr>(&self, len: usize) -> Result<PoolSlice<T>, PoolSliceError> {
        // SAFETY: as the caller says.
        unsafe { PoolSlice::alloc(&self.allocator, &self.stream, len) }
    }

    /// Allocates `len` elements of zero bits.
    ///
    /// # Errors
    /// See [`PoolSliceError`].
    pub fn alloc_zeros<T: DeviceRepr + ValidAsZeroBits>(
        &self,
        len: usize,
    ) -> Result<PoolSlice<T>, PoolSliceError> {
        PoolSlice::zeros(&self.allocator, &self.stream, len)
    }

    /// Copies elements of the host to a new slice.
    ///
    /// # Errors
    /// See [`PoolSliceError`].
    pub fn clone_htod<T: DeviceRepr, Source: HostSlice<T> + ?Sized>(
        &self,
        source: &Source,
    ) -> Result<PoolSlice<T>, PoolSliceError> {
        // SAFETY: the copy writes all elements.
        let mut slice = unsafe { self.alloc(source.len()) }?;
        if slice.num_bytes() > 0 {
            let copied = self.stream.memcpy_htod(source, &mut slice);
            copied.map_err(PoolSliceError::driver("memcpy_htod"))?;
        }
        Ok(slice)
    }

    /// Copies elements of the device to a new slice.
    ///
    /// # Errors
    /// See [`PoolSliceError`].
    pub fn clone_dtod<T: DeviceRepr, Source: DevicePtr<T>>(
        &self,
        source: &Source,
    ) -> Result<PoolSlice<T>, PoolSliceError> {
        // SAFETY: the copy writes all elements.
        let mut slice = unsafe { self.alloc(source.len()) }?;
        if slice.num_bytes() > 0 {
            let copied = self.stream.memcpy_dtod(source, &mut slice);
            copied.map_err(PoolSliceError::driver("memcpy_dtod"))?;
        }
        Ok(slice)
    }
}

impl Deref for PoolStream {
    type Target = Arc<CudaStream>;

    fn deref(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}
