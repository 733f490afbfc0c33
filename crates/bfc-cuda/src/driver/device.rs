//! An opened CUDA device as a [`Driver`](bfc_core::Driver).

use std::ffi::c_void;
use std::ptr::{null_mut, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bfc_core::{
    AddressSpace, Driver, EventHandle, FreeFaults, MemoryCopy, MemoryInfo, PhysicalHandle, Poison,
    SourceError, Span, StreamHandle,
};
use cudarc::driver::result::stream::StreamKind;
use cudarc::driver::sys::{
    CUdevice_attribute, CUevent, CUevent_flags, CUevent_wait_flags, CUmemAccess_flags, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUresult, CUstream,
};
use cudarc::driver::{CudaContext, DriverError, result, sys};

use super::calls::{address, location, properties, size};
use super::capture::wait_without_capture;
use super::contexts::{ContextOf, add_context};
use super::deferred::{DeferredList, DeferredWork};
use super::error::{CudaUnavailable, call_error};
use super::version::ComputeCapability;
use super::{library, probe};

/// An opened CUDA device. It holds the primary context, which it shares with other users of CUDA in this process.
///
/// Memory comes from plain driver calls, which may wait for the device; pools avoid them. Every call makes the context
/// current on its thread first, so any thread may call. After a failure that CUDA does not recover from, such as an
/// illegal address in a kernel, no call reaches the driver.
#[derive(Debug)]
pub struct CudaDriver {
    /// Dropped before the context.
    _known: ContextOf,
    context: Context,
    space: AddressSpace,
    ordinal: u32,
    name: String,
    poison: Poison,
    free_faults: Mutex<FreeFaults>,
    deferred: DeferredList,
}

/// The device's context. Dropping it does not leave it current on the thread.
#[derive(Debug)]
struct Context(Option<Arc<CudaContext>>);

impl std::ops::Deref for Context {
    type Target = CudaContext;

    fn deref(&self) -> &CudaContext {
        self.0.as_ref().unwrap_or_else(|| unreachable!("taken out when it is dropped alone"))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let Some(context) = self.0.take() else { return };
        let (ours, before) = (context.cu_ctx(), result::ctx::get_current().ok().flatten());
        // Dropping makes it current.
        drop(context);
        let after = before.filter(|&before| before != ours).unwrap_or(null_mut());
        // SAFETY: it was current on this thread a moment ago and is not the one let go of, or it is none.
        let _ = unsafe { result::ctx::set_current(after) };
    }
}

impl CudaDriver {
    /// Opens the device with this number, as counted by [`probe`](crate::probe()).
    ///
    /// # Errors
    /// [`CudaUnavailable`] if there is no such device, or it provides no context.
    pub fn new(ordinal: u32) -> Result<Arc<Self>, CudaUnavailable> {
        library::start()?;
        let count = probe::device_count()?;
        if ordinal >= count {
            return Err(match count {
                0 => CudaUnavailable::no_device(),
                count => CudaUnavailable::no_such_device(ordinal, count),
            });
        }
        let context = CudaContext::new(ordinal as usize)
            .map_err(|error| CudaUnavailable::from_driver("cuDevicePrimaryCtxRetain", error))?;
        let context = Context(Some(context));
        // SAFETY: the order of work is kept by the pools above, which own all memory; the binding's own slices, whose
        // events this turns off, are never made.
        unsafe { context.disable_event_tracking() };
        let name = context.name().map_err(|error| CudaUnavailable::from_driver("cuDeviceGetName", error))?;
        // With the number, so that errors distinguish two devices of one model.
        let name = format!("cuda:{ordinal} ({name})");
        let (poison, free_faults) = (Poison::default(), Mutex::default());
        let space = AddressSpace::new();
        let deferred = DeferredList::default();
        let _known = add_context(space, address(context.cu_ctx()));
        Ok(Arc::new(Self { _known, context, space, ordinal, name, poison, free_faults, deferred }))
    }

    /// Registers commands that are flushed before a caller waits for the device, orders other work or frees memory.
    #[cfg_attr(not(feature = "compute"), allow(dead_code, reason = "only graphs hold commands back"))]
    pub(crate) fn register_deferred(&self, work: Weak<dyn DeferredWork>) {
        self.deferred.register(work);
    }

    /// Submits the commands that are held back, before other work that may depend on them.
    #[cfg_attr(not(feature = "nccl"), allow(dead_code, reason = "only collectives are such work"))]
    pub(crate) fn flush_deferred(&self) {
        self.deferred.flush();
    }

    /// The device's number, as counted by [`probe`](crate::probe()).
    #[must_use]
    pub const fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The compute capability of the device.
    ///
    /// # Errors
    /// [`SourceError::Driver`] if the driver does not answer.
    pub fn compute_capability(&self) -> Result<ComputeCapability, SourceError> {
        let (major, minor) = self.call("cuDeviceGetAttribute", 0, || self.context.compute_capability())?;
        let number = |number| u32::try_from(number).unwrap_or(0);
        Ok(ComputeCapability { major: number(major), minor: number(minor) })
    }

    /// Calls the driver with the device's context current on this thread. `bytes` is reported if memory runs out.
    pub(crate) fn call<T>(
        &self,
        name: &'static str,
        bytes: u64,
        call: impl FnOnce() -> Result<T, DriverError>,
    ) -> Result<T, SourceError> {
        self.poison.check()?;
        let outcome = self.context.bind_to_thread().and_then(|()| call());
        outcome.map_err(|error| call_error(&self.poison, &self.name, name, bytes, error))
    }

    /// Makes a call that frees something, and records its failure.
    fn call_free(
        &self,
        name: &'static str,
        call: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<(), SourceError> {
        self.call(name, 0, call).inspect_err(|error| {
            let mut faults = self.free_faults.lock().unwrap_or_else(PoisonError::into_inner);
            faults.record(error.clone());
        })
    }
}

/// Converts a handle to the driver's stream.
fn stream(handle: StreamHandle) -> CUstream {
    with_exposed_provenance_mut(handle.0 as usize)
}

/// Converts a handle to the driver's event.
fn event(handle: EventHandle) -> CUevent {
    with_exposed_provenance_mut(handle.0 as usize)
}

// SAFETY: the driver returns distinct memory of the requested size at multiples of 256. This crate never dereferences
// device addresses and zeroes pinned memory. Events and streams are CUDA's, which keep this order.
unsafe impl Driver for CudaDriver {
    fn name(&self) -> &str {
        &self.name
    }

    fn address_space(&self) -> Option<AddressSpace> {
        Some(self.space)
    }

    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        let (free, total) = self.call("cuMemGetInfo", 0, result::mem_get_info)?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    fn poison(&self) -> Option<SourceError> {
        self.poison.get()
    }

    fn free_faults(&self) -> FreeFaults {
        self.free_faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn allocate_device(&self, bytes: u64) -> Result<u64, SourceError> {
        let size = size(bytes)?;
        // SAFETY: the memory is uninitialized, and the host never reads it.
        self.call("cuMemAlloc", bytes, || unsafe { result::malloc_sync(size) })
    }

    unsafe fn free_device(&self, address: u64) {
        self.deferred.flush();
        // The failure is recorded.
        // SAFETY: the caller gives back memory of `allocate_device`, once, that no work to come uses.
        let _ = self.call_free("cuMemFree", || unsafe { result::free_sync(address) });
    }

    fn allocate_pinned(&self, bytes: u64) -> Result<u64, SourceError> {
        let size = size(bytes)?;
        // No flags: write-combined memory is slow for the host to read.
        // SAFETY: the memory is written below before anyone can read it.
        let pointer = self.call("cuMemHostAlloc", bytes, || unsafe { result::malloc_host(size, 0) })?;
        // The driver does not initialize the memory. Its pages are present, so writing them commits nothing new.
        // SAFETY: the driver has just given these bytes to us alone, and they are host memory.
        unsafe { pointer.cast::<u8>().write_bytes(0, size) };
        Ok(pointer.expose_provenance() as u64)
    }

    unsafe fn free_pinned(&self, address: u64) {
        let pointer: *mut c_void = with_exposed_provenance_mut(address as usize);
        // The failure is recorded.
        // SAFETY: the caller gives back memory of `allocate_pinned`, once, that no work uses; that is never null.
        let _ = self.call_free("cuMemFreeHost", || unsafe { result::free_host(pointer) });
    }

    fn granularity(&self) -> Result<u64, SourceError> {
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        let supported = self.call("cuDeviceGetAttribute", 0, || self.context.attribute(attribute))?;
        if supported == 0 {
            let feature = "virtual memory management";
            return Err(SourceError::Unsupported { device: self.name.clone(), feature });
        }
        let properties = properties(self.ordinal);
        let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        let mut granularity = 0;
        self.call("cuMemGetAllocationGranularity", 0, || {
            // SAFETY: the driver reads the properties and writes one number.
            unsafe { sys::cuMemGetAllocationGranularity(&raw mut granularity, &raw const properties, least) }
                .result()
        })?;
        Ok(granularity as u64)
    }

    fn reserve(&self, bytes: u64) -> Result<u64, SourceError> {
        let size = size(bytes)?;
        let mut address = 0;
        self.call("cuMemAddressReserve", bytes, || {
            // SAFETY: the driver writes one address; any place and alignment will do.
            unsafe { sys::cuMemAddressReserve(&raw mut address, size, 0, 0, 0) }.result()
        })?;
        Ok(address)
    }

    unsafe fn release_range(&self, range: Span) -> Result<(), SourceError> {
        let size = size(range.bytes)?;
        self.call_free("cuMemAddressFree", || {
            // SAFETY: the caller gives back a range of `reserve`, once, in which nothing is mapped.
            unsafe { sys::cuMemAddressFree(range.address, size) }.result()
        })
    }

    fn create(&self, bytes: u64) -> Result<PhysicalHandle, SourceError> {
        let (size, properties) = (size(bytes)?, properties(self.ordinal));
        let mut handle = 0;
        self.call("cuMemCreate", bytes, || {
            // SAFETY: the driver reads the properties and writes one handle.
            unsafe { sys::cuMemCreate(&raw mut handle, size, &raw const properties, 0) }.result()
        })?;
        Ok(PhysicalHandle(handle))
    }

    unsafe fn release(&self, handle: PhysicalHandle) -> Result<(), SourceError> {
        // SAFETY: the caller releases a handle of `create`, once.
        self.call_free("cuMemRelease", || unsafe { sys::cuMemRelease(handle.0) }.result())
    }

    unsafe fn map(&self, range: Span, handle: PhysicalHandle) -> Result<(), SourceError> {
        let size = size(range.bytes)?;
        self.call("cuMemMap", 0, || {
            // SAFETY: the caller maps a handle of this size into addresses that are reserved and behind which is nothing.
            unsafe { sys::cuMemMap(range.address, size, 0, handle.0, 0) }.result()
        })
    }

    unsafe fn unmap(&self, range: Span) -> Result<(), SourceError> {
        self.deferred.flush();
        let size = size(range.bytes)?;
        self.call_free("cuMemUnmap", || {
            // SAFETY: the caller unmaps what was mapped at once, and no work uses it.
            unsafe { sys::cuMemUnmap(range.address, size) }.result()
        })
    }

    unsafe fn set_access(&self, range: Span) -> Result<(), SourceError> {
        let size = size(range.bytes)?;
        let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = CUmemAccessDesc { location: location(self.ordinal), flags };
        self.call("cuMemSetAccess", 0, || {
            // SAFETY: memory is mapped throughout the range, and the driver reads one description.
            unsafe { sys::cuMemSetAccess(range.address, size, &raw const access, 1) }.result()
        })
    }

    fn create_stream(&self) -> Result<StreamHandle, SourceError> {
        // Other streams are ordered with the default stream, which unknown code may use.
        let stream = self.call("cuStreamCreate", 0, || result::stream::create(StreamKind::NonBlocking))?;
        Ok(StreamHandle(address(stream)))
    }

    unsafe fn destroy_stream(&self, handle: StreamHandle) {
        // The failure is recorded.
        // SAFETY: the caller destroys a stream of `create_stream`, once.
        let _ = self.call_free("cuStreamDestroy", || unsafe { result::stream::destroy(stream(handle)) });
    }

    fn create_event(&self) -> Result<EventHandle, SourceError> {
        // Events without timing are cheaper.
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let event = self.call("cuEventCreate", 0, || result::event::create(flags))?;
        Ok(EventHandle(address(event)))
    }

    unsafe fn destroy_event(&self, handle: EventHandle) {
        // The failure is recorded.
        // SAFETY: the caller destroys an event of `create_event`, once.
        let _ = self.call_free("cuEventDestroy", || unsafe { result::event::destroy(event(handle)) });
    }

    unsafe fn record(&self, of: EventHandle, on: StreamHandle) -> Result<(), SourceError> {
        self.deferred.flush();
        // SAFETY: both are alive, as the caller promises.
        self.call("cuEventRecord", 0, || unsafe { result::event::record(event(of), stream(on)) })
    }

    unsafe fn wait(&self, waiting: StreamHandle, of: EventHandle) -> Result<(), SourceError> {
        self.deferred.flush();
        let flags = CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        self.call("cuStreamWaitEvent", 0, || {
            // SAFETY: both are alive, as the caller promises.
            unsafe { result::stream::wait_event(stream(waiting), event(of), flags) }
        })
    }

    unsafe fn query(&self, of: EventHandle) -> Result<bool, SourceError> {
        self.call("cuEventQuery", 0, || {
            // SAFETY: the event is alive, as the caller promises.
            match unsafe { result::event::query(event(of)) } {
                Ok(()) => Ok(true),
                Err(DriverError(CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
                Err(error) => Err(error),
            }
        })
    }

    unsafe fn synchronize_event(&self, of: EventHandle) -> Result<(), SourceError> {
        // SAFETY: the event is alive, as the caller promises.
        self.call("cuEventSynchronize", 0, || unsafe { result::event::synchronize(event(of)) })
    }

    fn synchronize(&self) -> Result<(), SourceError> {
        self.deferred.flush();
        wait_without_capture(|| self.call("cuCtxSynchronize", 0, result::ctx::synchronize))
    }

    unsafe fn copy(&self, copy: MemoryCopy, on: StreamHandle) -> Result<(), SourceError> {
        self.deferred.flush();
        match copy {
            MemoryCopy::ToDevice { from, to, bytes } => {
                let (from, size): (*const c_void, usize) =
                    (with_exposed_provenance(from as usize), size(bytes)?);
                self.call("cuMemcpyHtoDAsync", 0, || {
                    // SAFETY: both places are valid until the copy has ended, as the caller promises.
                    unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, size, stream(on)) }.result()
                })
            }
            MemoryCopy::ToHost { from, to, bytes } => {
                let (to, size): (*mut c_void, usize) =
                    (with_exposed_provenance_mut(to as usize), size(bytes)?);
                self.call("cuMemcpyDtoHAsync", 0, || {
                    // SAFETY: both places are valid until the copy has ended, as the caller promises.
                    unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, size, stream(on)) }.result()
                })
            }
            MemoryCopy::OnDevice { from, to, bytes } => {
                let size = size(bytes)?;
                self.call("cuMemcpyDtoDAsync", 0, || {
                    // SAFETY: both places are valid until the copy has ended, as the caller promises.
                    unsafe { result::memcpy_dtod_async(to, from, size, stream(on)) }
                })
            }
            _ => Err(SourceError::Unsupported { device: self.name.clone(), feature: "copy of this kind" }),
        }
    }
}
