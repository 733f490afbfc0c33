//! Errors of the driver: why CUDA is unavailable, and what a failed call means to a pool.

use bfc_core::{Poison, SourceError, printable};
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;

use super::version::DriverVersion;

/// The reason why a CUDA device cannot be used. Normal on many machines.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaUnavailable {
    /// The driver library is not installed or not on the library path.
    #[error("no CUDA driver: libcuda was not found")]
    NoDriver,
    /// The library lacks required functions: it is too old, or not a CUDA driver.
    #[error("the CUDA driver is too old or damaged: function {function} is missing")]
    Incomplete {
        /// The first missing function.
        function: &'static str,
    },
    /// The driver is older than required.
    #[error("the CUDA driver is too old: it supports CUDA {found}, but {needed} is required")]
    TooOld {
        /// The version that the driver supports.
        found: DriverVersion,
        /// The oldest supported version.
        needed: DriverVersion,
    },
    /// The driver reports no device.
    #[error("no CUDA device{}", visible_devices(visible))]
    NoDevice {
        /// `CUDA_VISIBLE_DEVICES`, if set: it may hide devices.
        visible: Option<String>,
    },
    /// The driver did not start, or did not describe a device.
    #[error("CUDA is not usable: {call} failed with {reason}{}", visible_devices(visible), reason = printable(reason))]
    Init {
        /// The driver function that failed.
        call: &'static str,
        /// The driver's name for the error.
        reason: String,
        /// `CUDA_VISIBLE_DEVICES`, if set.
        visible: Option<String>,
    },
    /// There are devices, but none with this number.
    #[error(
        "no device cuda:{ordinal}: {count} devices are visible, numbered from 0{}",
        visible_devices(visible)
    )]
    NoSuchDevice {
        /// The requested number.
        ordinal: u32,
        /// The number of devices.
        count: u32,
        /// `CUDA_VISIBLE_DEVICES`, if set.
        visible: Option<String>,
    },
}

bfc_core::debug_as_message!(CudaUnavailable);

impl CudaUnavailable {
    pub(crate) fn no_device() -> Self {
        Self::NoDevice { visible: visible() }
    }

    pub(crate) fn no_such_device(ordinal: u32, count: u32) -> Self {
        Self::NoSuchDevice { ordinal, count, visible: visible() }
    }

    /// Converts a failure of `call` that makes CUDA unusable.
    pub(crate) fn from_driver(call: &'static str, error: DriverError) -> Self {
        match error.0 {
            CUresult::CUDA_ERROR_NO_DEVICE => Self::no_device(),
            result => Self::Init { call, reason: reason(result), visible: visible() },
        }
    }
}

/// Converts a failure of `call`, which requested `bytes` bytes, for a pool. A CUDA context survives only out-of-memory
/// unharmed, and only there can a pool help.
pub(crate) fn source_error(call: &'static str, bytes: u64, error: DriverError) -> SourceError {
    match error.0 {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => SourceError::Exhausted { bytes },
        result => SourceError::Driver { call, reason: reason(result) },
    }
}

/// Like [`source_error`], and marks the device as lost if it does not survive the failure.
pub(crate) fn call_error(
    poison: &Poison,
    device: &str,
    call: &'static str,
    bytes: u64,
    error: DriverError,
) -> SourceError {
    if is_sticky(error.0) {
        return poison.strike(device, call, reason(error.0));
    }
    source_error(call, bytes, error)
}

/// Whether the failure makes the context unusable for the rest of the process, by the driver's documentation.
const fn is_sticky(result: CUresult) -> bool {
    use CUresult::*;
    matches!(
        result,
        CUDA_ERROR_DEINITIALIZED
            | CUDA_ERROR_ECC_UNCORRECTABLE
            | CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUDA_ERROR_CONTAINED
            | CUDA_ERROR_ILLEGAL_ADDRESS
            | CUDA_ERROR_LAUNCH_TIMEOUT
            | CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUDA_ERROR_ASSERT
            | CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUDA_ERROR_MISALIGNED_ADDRESS
            | CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUDA_ERROR_INVALID_PC
            | CUDA_ERROR_LAUNCH_FAILED
            | CUDA_ERROR_TENSOR_MEMORY_LEAK
            | CUDA_ERROR_EXTERNAL_DEVICE
    )
}

/// The name of a driver error. `Display` would ask the driver for a text, and the driver is what fails.
fn reason(result: CUresult) -> String {
    format!("{result:?}")
}

/// The value of `CUDA_VISIBLE_DEVICES`.
pub(crate) fn visible() -> Option<String> {
    std::env::var_os("CUDA_VISIBLE_DEVICES").map(|value| value.to_string_lossy().into_owned())
}

fn visible_devices(visible: &Option<String>) -> String {
    visible.as_ref().map_or_else(String::new, |value| format!(" (CUDA_VISIBLE_DEVICES is {value:?})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_plain_and_show_what_the_environment_hides() {
        assert_eq!(CudaUnavailable::NoDriver.to_string(), "no CUDA driver: libcuda was not found");
        assert_eq!(CudaUnavailable::NoDevice { visible: None }.to_string(), "no CUDA device");
        assert_eq!(
            CudaUnavailable::NoDevice { visible: Some("-1".to_owned()) }.to_string(),
            "no CUDA device (CUDA_VISIBLE_DEVICES is \"-1\")"
        );
        let error = CudaUnavailable::NoSuchDevice { ordinal: 3, count: 2, visible: None };
        assert_eq!(error.to_string(), "no device cuda:3: 2 devices are visible, numbered from 0");
    }

    #[test]
    fn errors_are_named_without_asking_the_driver() {
        let error = DriverError(CUresult::CUDA_ERROR_STUB_LIBRARY);
        let unavailable = CudaUnavailable::from_driver("cuInit", error);
        assert!(
            unavailable
                .to_string()
                .starts_with("CUDA is not usable: cuInit failed with CUDA_ERROR_STUB_LIBRARY")
        );
        let error = DriverError(CUresult::CUDA_ERROR_NO_DEVICE);
        assert!(matches!(CudaUnavailable::from_driver("cuInit", error), CudaUnavailable::NoDevice { .. }));
    }

    #[test]
    fn sticky_errors_poison_and_out_of_memory_does_not() {
        let poison = Poison::default();
        let call = |result| call_error(&poison, "GPU", "cuMemAlloc", 7, DriverError(result));
        assert_eq!(call(CUresult::CUDA_ERROR_OUT_OF_MEMORY), SourceError::Exhausted { bytes: 7 });
        assert!(!call(CUresult::CUDA_ERROR_INVALID_VALUE).is_poisoned());
        assert_eq!(poison.check(), Ok(()));
        let first = call(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(
            first.to_string(),
            "GPU is lost to this process: cuMemAlloc failed with CUDA_ERROR_ILLEGAL_ADDRESS"
        );
        assert_eq!(call(CUresult::CUDA_ERROR_LAUNCH_FAILED), first, "what follows is a consequence");
        assert_eq!(poison.check(), Err(first));
    }

    #[test]
    fn out_of_memory_is_distinguished_from_other_errors() {
        let error = DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(source_error("cuMemAlloc", 7, error), SourceError::Exhausted { bytes: 7 });
        let error = DriverError(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(
            source_error("cuMemFree", 0, error),
            SourceError::Driver { call: "cuMemFree", reason: "CUDA_ERROR_ILLEGAL_ADDRESS".to_owned() }
        );
    }
}
