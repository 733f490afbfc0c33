//! The CUDA devices, or the reason why there are none.

use crate::devices::{Device, Unavailable};

/// What a CUDA device is good for as long as no device has run our kernels.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "there are no CUDA devices in such a build"))]
pub(crate) const USABLE_FOR: &str =
    "every op, when asked for; not chosen automatically, because no device has run its kernels yet";

/// Everything that the driver shows.
#[cfg(feature = "cuda")]
pub(crate) fn devices() -> Result<Vec<Device>, Unavailable> {
    use bfc_core::{DeviceId, DeviceKind};

    let devices = bfc_cuda::probe().map_err(|reason| unavailable(reason.to_string()))?;
    let describe = |info: bfc_cuda::CudaDeviceInfo| {
        let free = info.free_bytes();
        Device {
            id: DeviceId::new(DeviceKind::Cuda, info.ordinal).to_string(),
            name: info.name,
            memory_bytes: Some(info.total_bytes),
            free_bytes: free.as_ref().ok().copied(),
            problem: free.err().map(|error| error.to_string()),
            compute_capability: Some(info.compute_capability.to_string()),
            driver: Some(format!("CUDA {}", info.driver_version)),
            visible_devices: info.visible,
            usable_for: USABLE_FOR,
            ..Device::default()
        }
    };
    Ok(devices.into_iter().map(describe).collect())
}

/// None: the build has no code to look for them.
#[cfg(not(feature = "cuda"))]
pub(crate) fn devices() -> Result<Vec<Device>, Unavailable> {
    Err(unavailable("built without CUDA support".to_owned()))
}

fn unavailable(reason: String) -> Unavailable {
    Unavailable { kind: "cuda", reason }
}
