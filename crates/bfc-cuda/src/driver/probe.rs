//! Which CUDA devices there are.

use std::ffi::c_int;
use std::ptr;

use bfc_core::SourceError;
use cudarc::driver::sys::{CUdevice, CUdevice_attribute};
use cudarc::driver::{CudaContext, result};

use super::error::{CudaUnavailable, source_error, visible};
use super::library::{self, answer, driver_version};
use super::version::{ComputeCapability, DriverVersion};

/// One CUDA device, as the driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaDeviceInfo {
    /// Its number among the devices that the driver shows, from 0.
    pub ordinal: u32,
    /// Its name, such as `NVIDIA H200`.
    pub name: String,
    /// All memory of the device, in bytes.
    pub total_bytes: u64,
    /// What it can run.
    pub compute_capability: ComputeCapability,
    /// What the driver supports; the same for all devices.
    pub driver_version: DriverVersion,
    /// `CUDA_VISIBLE_DEVICES`, if that is set: it decides which devices are shown, and how they are numbered.
    pub visible: Option<String>,
}

impl CudaDeviceInfo {
    /// Memory that is free now, in bytes, as all processes on the device leave it.
    ///
    /// Not part of [`probe`]: only a context can ask, and making one takes a noticeable part of a second and some
    /// hundred MiB of the device until it is gone again.
    ///
    /// # Errors
    /// [`SourceError`] if the device has no room for a context, or is reserved for another process.
    pub fn free_bytes(&self) -> Result<u64, SourceError> {
        let previous =
            result::ctx::get_current().map_err(|error| source_error("cuCtxGetCurrent", 0, error))?;
        let info = CudaContext::new(self.ordinal as usize).and_then(|context| context.mem_get_info());
        // The context was current on this thread and is gone: put back what was there before.
        // SAFETY: `previous` was current on this thread a moment ago, or nothing was.
        let restored = unsafe { result::ctx::set_current(previous.unwrap_or(ptr::null_mut())) };
        let (free, _) = info.map_err(|error| source_error("cuMemGetInfo", 0, error))?;
        restored.map_err(|error| source_error("cuCtxSetCurrent", 0, error))?;
        Ok(free as u64)
    }
}

/// All CUDA devices of this machine that the driver shows, at least one.
///
/// Never panics, and makes no context: it is quick, and takes no memory on any device.
///
/// # Errors
/// [`CudaUnavailable`] says in plain words why there is none.
pub fn probe() -> Result<Vec<CudaDeviceInfo>, CudaUnavailable> {
    library::start()?;
    let driver_version = driver_version()?;
    match device_count()? {
        0 => Err(CudaUnavailable::no_device()),
        count => (0..count).map(|ordinal| describe(ordinal, driver_version)).collect(),
    }
}

/// How many devices the driver shows. The driver must have been started.
pub(crate) fn device_count() -> Result<u32, CudaUnavailable> {
    let count = answer("cuDeviceGetCount", result::device::get_count())?;
    Ok(u32::try_from(count).unwrap_or(0))
}

fn describe(ordinal: u32, driver_version: DriverVersion) -> Result<CudaDeviceInfo, CudaUnavailable> {
    // Ordinals are counted up to a `c_int` of the driver's, so they fit one.
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
