//! Which CUDA devices there are.

use std::ffi::c_int;
use std::fmt;
use std::ptr;

use bfc_core::SourceError;
use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute};
use cudarc::driver::{CudaContext, DriverError, result};

use crate::error::{CudaUnavailable, source_error, visible};
use crate::library;

/// What a device can run: NVIDIA's compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeCapability {
    /// The generation.
    pub major: u32,
    /// The variant within it.
    pub minor: u32,
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The newest CUDA version that the installed driver supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverVersion {
    /// As in CUDA 13.
    pub major: u32,
    /// As in CUDA 12.8.
    pub minor: u32,
}

impl DriverVersion {
    /// The oldest that has all that this crate calls.
    pub const OLDEST: Self = Self { major: 12, minor: 0 };

    /// Reads the driver's own notation, 1000 × major + 10 × minor.
    pub(crate) const fn from_number(number: u32) -> Self {
        Self { major: number / 1000, minor: number % 1000 / 10 }
    }
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

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

pub(crate) fn driver_version() -> Result<DriverVersion, CudaUnavailable> {
    let mut number: c_int = 0;
    // SAFETY: the driver writes one integer to where it is told.
    let outcome = unsafe { sys::cuDriverGetVersion(&raw mut number) };
    answer("cuDriverGetVersion", outcome.result())?;
    Ok(DriverVersion::from_number(u32::try_from(number).unwrap_or(0)))
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

fn answer<T>(call: &'static str, outcome: Result<T, DriverError>) -> Result<T, CudaUnavailable> {
    outcome.map_err(|error| CudaUnavailable::from_driver(call, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_version_number_splits_into_major_and_minor() {
        assert_eq!(DriverVersion::from_number(12_080), DriverVersion { major: 12, minor: 8 });
        assert_eq!(DriverVersion::from_number(13_000).to_string(), "13.0");
    }
}
