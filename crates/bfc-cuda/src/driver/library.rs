//! The driver library: found, complete and started, or a plain reason why not.

use std::ffi::c_int;
use std::sync::OnceLock;

use cudarc::driver::{DriverError, result, sys};

use super::error::CudaUnavailable;
use super::version::DriverVersion;

/// Every function of the driver that this crate calls, itself or through `cudarc`.
///
/// `cudarc` looks functions up at their first call and panics where one is missing. Looking all of them up beforehand
/// turns that into an error.
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

/// Loads and starts the driver. Everything that calls the driver comes through here first.
///
/// A machine's driver does not come and go while a process runs, so the outcome of the search is kept; starting the
/// driver is repeated, since it costs nothing once it has worked, and may work later where it did not.
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
    // An old driver may lack functions, which would not say how old it is.
    look_up(&["cuDriverGetVersion"])?;
    // What does not answer now is told when it is started.
    if let Ok(found) = driver_version()
        && found < DriverVersion::OLDEST
        && found.major > 0
    {
        return Err(CudaUnavailable::TooOld { found, needed: DriverVersion::OLDEST });
    }
    look_up(&FUNCTIONS)
}

/// Whether the driver, which was started, has these functions too.
pub(crate) fn require(functions: &[&'static str]) -> Result<(), CudaUnavailable> {
    start()?;
    look_up(functions)
}

/// Looks functions up in the library, which is there.
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
