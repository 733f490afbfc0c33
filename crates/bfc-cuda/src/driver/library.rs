//! Loads and starts the driver library.

use std::ffi::c_int;
use std::sync::OnceLock;

use cudarc::driver::{DriverError, result, sys};

use super::error::CudaUnavailable;
use super::version::DriverVersion;

/// Every driver function that this crate calls, directly or through `cudarc`.
///
/// `cudarc` looks a function up at its first call and panics if it is missing. Looking all of them up first returns an
/// error instead.
const FUNCTIONS: [&str; 38] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemGetAllocationGranularity",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamWaitEvent",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuCtxSynchronize",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuGetErrorName",
    "cuGetErrorString",
];

/// Loads and starts the driver. Every path to the driver calls this first.
///
/// The result of the search is cached. The driver is started on every call: a repeated start is free, and may succeed
/// later.
pub(crate) fn start() -> Result<(), CudaUnavailable> {
    static SEARCH: OnceLock<Result<(), CudaUnavailable>> = OnceLock::new();
    SEARCH.get_or_init(search).clone()?;
    result::init().map_err(|error| CudaUnavailable::from_driver("cuInit", error))
}

fn search() -> Result<(), CudaUnavailable> {
    // SAFETY: opening a library runs its initialisers; the ones tried bear the names of the CUDA driver.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaUnavailable::NoDriver);
    }
    // An old driver may lack functions; its version is the better error.
    look_up(&["cuDriverGetVersion"])?;
    // An error here is reported when the driver starts.
    if let Ok(found) = driver_version()
        && found < DriverVersion::OLDEST
        && found.major > 0
    {
        return Err(CudaUnavailable::TooOld { found, needed: DriverVersion::OLDEST });
    }
    look_up(&FUNCTIONS)
}

/// Checks that the driver has these functions too.
#[cfg(any(feature = "compute", feature = "cudarc"))]
pub(crate) fn require(functions: &[&'static str]) -> Result<(), CudaUnavailable> {
    start()?;
    look_up(functions)
}

/// Looks functions up in the loaded library.
fn look_up(functions: &[&'static str]) -> Result<(), CudaUnavailable> {
    // SAFETY: the library was found, so that this does not panic.
    let library = unsafe { sys::culib() };
    for &function in functions {
        // SAFETY: the symbol is looked up and dropped, never called or read.
        let symbol = unsafe { library.get::<*const ()>(function.as_bytes()) };
        if symbol.is_err() {
            return Err(CudaUnavailable::Incomplete { function });
        }
    }
    Ok(())
}

pub(crate) fn driver_version() -> Result<DriverVersion, CudaUnavailable> {
    let mut number: c_int = 0;
    // SAFETY: the driver writes one integer to where it is told.
    let outcome = unsafe { sys::cuDriverGetVersion(&raw mut number) };
    answer("cuDriverGetVersion", outcome.result())?;
    Ok(DriverVersion::from_number(u32::try_from(number).unwrap_or(0)))
}

pub(super) fn answer<T>(call: &'static str, outcome: Result<T, DriverError>) -> Result<T, CudaUnavailable> {
    outcome.map_err(|error| CudaUnavailable::from_driver(call, error))
}
