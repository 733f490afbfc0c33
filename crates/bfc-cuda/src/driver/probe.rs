//! Lists the CUDA devices.

use std::ffi::c_int;
use std::ptr;

use bfc_core::SourceError;
use cudarc::driver::sys::{CUdevice, CUdevice_attribute};
use cudarc::driver::{CudaContext, result};

use super::error::{CudaUnavailable, source_error, visible};
use super::library::{self, answer, driver_version};
use super::version::{ComputeCapability, DriverVersion};

/// A CUDA device as the driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaDeviceInfo {
    /// The number of the device, from 0.
    pub ordinal: u32,
    /// The name, such as `NVIDIA H200`.
    pub name: String,
    /// The device's total memory, in bytes.
    pub total_bytes: u64,
    /// The compute capability.
    pub compute_capability: ComputeCapability,
    /// The newest CUDA version that the driver supports; the same for all devices.
    pub driver_version: DriverVersion,
    /// `CUDA_VISIBLE_DEVICES`, if set: it selects and renumbers devices.
    pub visible: Option<String>,
}

impl CudaDeviceInfo {
    /// Free device memory now, in bytes, over all processes.
    ///
    /// Not part of [`probe`]: this needs a context, which takes part of a second and some hundred MiB until it is
    /// dropped.
    ///
    /// # Errors
    /// [`SourceError`] if the device has no memory for a context, or is reserved for another process.
    pub fn free_bytes(&self) -> Result<u64, SourceError> {
        let previous =
            result::ctx::get_current().map_err(|error| source_error("cuCtxGetCurrent", 0, error))?;
        let info = CudaContext::new(self.ordinal as usize).and_then(|context| context.mem_get_info());
        // The dropped context was current on this thread: restore the previous one.
        // SAFETY: `previous` was current on this thread a moment ago, or nothing was.
        let restored = unsafe { result::ctx::set_current(previous.unwrap_or(ptr::null_mut())) };
        let (free, _) = info.map_err(|error| source_error("cuMemGetInfo", 0, error))?;
        restored.map_err(|error| source_error("cuCtxSetCurrent", 0, error))?;
        Ok(free as u64)
    }
}

/// Lists the CUDA devices of this machine, at least one.
///
/// Never panics and creates no context, so it is fast and takes no device memory.
///
/// # Errors
/// [`CudaUnavailable`] if there is none, with the reason.
pub fn probe() -> Result<Vec<CudaDeviceInfo>, CudaUnavailable> {
    library::start()?;
    let driver_version = driver_version()?;
    match device_count()? {
        0 => Err(CudaUnavailable::no_device()),
        count => (0..count).map(|ordinal| describe(ordinal, driver_version)).collect(),
    }
}

/// The number of devices. The driver must have been started.
pub(crate) fn device_count() -> Result<u32, CudaUnavailable> {
    let count = answer("cuDeviceGetCount", result::device::get_count())?;
    Ok(u32::try_from(count).unwrap_or(0))
}

fn describe(ordinal: u32, driver_version: DriverVersion) -> Result<CudaDeviceInfo, CudaUnavailable> {
    // Ordinals are below a count that was a `c_int`.
    let device = answer("cuDeviceGet", result::device::get(ordinal as c_int))?;
    let name = answer("cuDeviceGetName", result::device::get_name(device))?;
    // SAFETY: `device` came from `cuDeviceGet`.
    let total = unsafe { result::device::total_mem(device) };
    Ok(CudaDeviceInfo {
        ordinal,
        name,
        total_bytes: answer("cuDeviceTotalMem", total)? as u64,
        compute_capability: ComputeCapability {
            major: attribute(device, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            minor: attribute(device, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        },
        driver_version,
        visible: visible(),
    })
}

fn attribute(device: CUdevice, attribute: CUdevice_attribute) -> Result<u32, CudaUnavailable> {
    // SAFETY: `device` came from `cuDeviceGet`.
    let value = unsafe { result::device::get_attribute(device, attribute) };
    Ok(u32::try_from(answer("cuDeviceGetAttribute", value)?).unwrap_or(0))
}
