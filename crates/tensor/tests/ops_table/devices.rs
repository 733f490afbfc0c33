//! The devices on which the tests run.

use highwater_tensor::{Device, DeviceProfile, Runtime, RuntimeBuilder};

/// Returns a separate runtime with one thread, so that tests do not see each other's memory.
pub(crate) fn runtime() -> Runtime {
    Runtime::builder().threads(1).build().unwrap()
}

/// The device under test: `cpu:0`, or in test programs whose name begins with `cuda` the emulated CUDA device, or a real one
/// if the environment says so, as in `KERNELS_ON=cuda:0`.
pub(crate) fn device() -> Device {
    device_of(Runtime::builder().threads(1))
}

/// Returns the device under test in a runtime with the test's own settings.
pub(crate) fn device_of(runtime: RuntimeBuilder) -> Device {
    if is_of_cuda() { cuda(runtime) } else { runtime.build().unwrap().cpu().unwrap() }
}

fn is_of_cuda() -> bool {
    env!("CARGO_CRATE_NAME").starts_with("cuda")
}

/// A dry device that stands for the device under test.
pub(crate) fn dry_device() -> Device {
    let profile = if is_of_cuda() {
        DeviceProfile::cuda(bfc_core::Bytes::gib(8), (8, 0))
    } else {
        DeviceProfile::this_machine()
    };
    Runtime::builder().threads(1).dry_profile(profile).build().unwrap().dry().unwrap()
}

#[cfg(feature = "cuda")]
fn cuda(runtime: RuntimeBuilder) -> Device {
    match super::computing::real() {
        // The device gets all services of the runtime, as in programs.
        Some(id) => runtime.build().unwrap().device(id).unwrap(),
        None => super::computing::Computing::by_kernels().device(runtime),
    }
}

#[cfg(not(feature = "cuda"))]
fn cuda(_: RuntimeBuilder) -> Device {
    panic!("built without CUDA support")
}

/// A CUDA device, emulated or real, whose counters show the requests of the host.
#[cfg(feature = "cuda")]
pub(crate) fn computed_by(counting: std::sync::Arc<super::counting::Counting>) -> Device {
    computed_in(Runtime::builder().threads(1), counting)
}

/// Returns this device in a runtime with the test's own settings.
#[cfg(feature = "cuda")]
pub(crate) fn computed_in(
    runtime: RuntimeBuilder,
    counting: std::sync::Arc<super::counting::Counting>,
) -> Device {
    let memory = counting.memory();
    super::computing::Computing { compute: counting, memory }.device(runtime)
}
