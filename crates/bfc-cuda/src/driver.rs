//! One CUDA device behind the narrow driver trait.

use std::ffi::c_void;
use std::ptr::with_exposed_provenance_mut;
use std::sync::{Arc, Mutex, PoisonError};

use bfc_core::{Driver, FreeFaults, MemoryInfo, SourceError};
use cudarc::driver::{CudaContext, DriverError, result};

use crate::error::{CudaUnavailable, source_error};
use crate::{library, probe};

/// A CUDA device that was opened: its primary context, shared with whatever else uses CUDA in this process.
///
/// Memory comes from the driver's plain calls, each of which may wait for the device; that is what pools are for.
/// Every call makes the context current on its thread first, so any thread may call.
#[derive(Debug)]
pub struct CudaDriver {
    context: Arc<CudaContext>,
    name: String,
    free_faults: Mutex<FreeFaults>,
}

impl CudaDriver {
    /// Opens the device with this number, as [`probe`](crate::probe()) counts.
    ///
    /// # Errors
    /// [`CudaUnavailable`] if there is no such device, or none at all, or it gives no context.
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
        // SAFETY: the order of work is kept by the pools above, which own all memory; the binding's own slices, whose
        // events this turns off, are never made.
        unsafe { context.disable_event_tracking() };
        let name = context.name().map_err(|error| CudaUnavailable::from_driver("cuDeviceGetName", error))?;
        Ok(Arc::new(Self { context, name, free_faults: Mutex::default() }))
    }

    /// Calls the driver with the device's context current on this thread.
    fn call<T>(&self, call: impl FnOnce() -> Result<T, DriverError>) -> Result<T, DriverError> {
        self.context.bind_to_thread()?;
        call()
    }

    fn record(&self, call: &'static str, outcome: Result<(), DriverError>) {
        if let Err(error) = outcome {
            let mut faults = self.free_faults.lock().unwrap_or_else(PoisonError::into_inner);
            faults.record(source_error(call, 0, error));
        }
    }
}

/// The size as the driver takes it.
fn size(bytes: u64) -> Result<usize, SourceError> {
    usize::try_from(bytes).map_err(|_| SourceError::Exhausted { bytes })
}

// SAFETY: the driver hands out distinct memory of the size asked for, with addresses that are multiples of 256; device
// addresses are never followed here, and pinned memory is zeroed before it is handed out.
unsafe impl Driver for CudaDriver {
    fn name(&self) -> &str {
        &self.name
    }

    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        let (free, total) =
            self.call(result::mem_get_info).map_err(|error| source_error("cuMemGetInfo", 0, error))?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    fn allocate_device(&self, bytes: u64) -> Result<u64, SourceError> {
        let size = size(bytes)?;
        // SAFETY: the memory is uninitialised, and nobody on the host will ever read it.
        self.call(|| unsafe { result::malloc_sync(size) })
            .map_err(|error| source_error("cuMemAlloc", bytes, error))
    }

    unsafe fn free_device(&self, address: u64) {
        // SAFETY: the caller gives back memory of `allocate_device`, once, that no work uses.
        let outcome = self.call(|| unsafe { result::free_sync(address) });
        self.record("cuMemFree", outcome);
    }

    fn allocate_pinned(&self, bytes: u64) -> Result<u64, SourceError> {
        let size = size(bytes)?;
        // No flags: write-combined memory, which the binding's own pinned slices use, is slow for the host to read.
        // SAFETY: the memory is written below before anyone can read it.
        let pointer = self
            .call(|| unsafe { result::malloc_host(size, 0) })
            .map_err(|error| source_error("cuMemHostAlloc", bytes, error))?;
        // The driver does not say what is in there. Its pages are all present, so writing them takes none anew.
        // SAFETY: the driver has just given these bytes to us alone, and they are host memory.
        unsafe { pointer.cast::<u8>().write_bytes(0, size) };
        Ok(pointer.expose_provenance() as u64)
    }

    unsafe fn free_pinned(&self, address: u64) {
        let pointer: *mut c_void = with_exposed_provenance_mut(address as usize);
        // SAFETY: the caller gives back memory of `allocate_pinned`, once, that no work uses; that is never null.
        let outcome = self.call(|| unsafe { result::free_host(pointer) });
        self.record("cuMemFreeHost", outcome);
    }

    fn free_faults(&self) -> FreeFaults {
        self.free_faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
