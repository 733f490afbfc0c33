//! Lists the CUDA devices, or the reason why there are none.

use super::device::{Device, Unavailable};

/// All devices of the driver, and whether each passes the self-check.
#[cfg(feature = "cuda")]
pub(crate) fn devices() -> Result<Vec<Device>, Unavailable> {
    use bfc_core::{DeviceId, DeviceKind};

    let devices = bfc_cuda::probe().map_err(|reason| unavailable(reason.to_string()))?;
    let describe = |info: bfc_cuda::CudaDeviceInfo| {
        let free = info.free_bytes();
        let id = DeviceId::new(DeviceKind::Cuda, info.ordinal);
        let mut device = Device {
            id: id.to_string(),
            name: info.name,
            memory_bytes: Some(info.total_bytes),
            free_bytes: free.as_ref().ok().copied(),
            problem: free.err().map(|error| error.to_string()),
            compute_capability: Some(info.compute_capability.to_string()),
            driver: Some(format!("CUDA {}", info.driver_version)),
            visible_devices: info.visible,
            ..Device::default()
        };
        match check(info.ordinal, &mut device) {
            Ok(()) => device.computes = true,
            Err(problem) => device.problem = Some(problem),
        }
        device
    };
    Ok(devices.into_iter().map(describe).collect())
}

/// Opens a device, names its libraries, and runs the self-check of an automatic choice.
#[cfg(feature = "cuda")]
fn check(ordinal: u32, device: &mut Device) -> Result<(), String> {
    use bfc_core::Stream;
    use bfc_cuda::{CudaDriver, StreamCompute};

    let driver = CudaDriver::new(ordinal).map_err(|error| error.to_string())?;
    let stream = Stream::new(driver.clone()).map_err(|error| error.to_string())?;
    let compute = StreamCompute::new(driver.clone(), stream).map_err(|error| error.to_string())?;
    device.compiler = Some(compute.compiler().map_or_else(
        |error| error.to_string(),
        |compiler| {
            let (major, minor) = compiler.version();
            format!("NVRTC {major}.{minor} ({})", compiler.file())
        },
    ));
    device.products = Some(compute.products().map_or_else(
        |error| format!("by a kernel: {error}"),
        |library| {
            let version = library.version();
            let [major, minor, patch] = [version / 10_000, version / 100 % 100, version % 100];
            format!("cuBLAS {major}.{minor}.{patch} ({})", library.file())
        },
    ));
    bfc_cuda::self_check(&driver, &compute).map_err(|error| error.to_string())
}

/// This build has no CUDA support.
#[cfg(not(feature = "cuda"))]
pub(crate) fn devices() -> Result<Vec<Device>, Unavailable> {
    Err(unavailable("built without CUDA support".to_owned()))
}

fn unavailable(reason: String) -> Unavailable {
    Unavailable { kind: "cuda", reason }
}
