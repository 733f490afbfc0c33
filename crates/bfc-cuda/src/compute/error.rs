//! Errors of kernels, products and copies, and why a library was not used.

use std::fmt;

use bfc_core::{SourceError, printable, printable_lines};
use cudarc::driver::DriverError;

use crate::driver::{CudaDriver, CudaUnavailable, DriverVersion};

/// A command that a device refused or did not finish.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ComputeError {
    /// No compiler supports this device.
    #[error("no compiler for CUDA devices (NVRTC): {}", listed(tried))]
    NoCompiler {
        /// The libraries that were tried, with the reasons.
        tried: Vec<TriedLibrary>,
    },
    /// No library for matrix products supports this device.
    #[error("no library for matrix products on CUDA devices (cuBLAS): {}", listed(tried))]
    NoProducts {
        /// The libraries that were tried, with the reasons.
        tried: Vec<TriedLibrary>,
    },
    /// A source did not compile.
    #[error("{source_name}: {reason}", source_name = printable(source_name), reason = printable_lines(reason))]
    Compile {
        /// The name of the source.
        source_name: String,
        /// The compiler's message.
        reason: String,
    },
    /// The driver is unusable or too old.
    #[error(transparent)]
    Unavailable(#[from] CudaUnavailable),
    /// The device has no memory for a call outside of the pools.
    #[error("{call}: the device is out of memory")]
    OutOfMemory {
        /// The name of the call.
        call: &'static str,
    },
    /// The device is lost: [`SourceError::Poisoned`].
    #[error(transparent)]
    Lost(SourceError),
    /// A device call failed.
    #[error("{call}: {reason}", reason = printable(reason))]
    Device {
        /// The name of the call.
        call: &'static str,
        /// The reason.
        reason: String,
    },
}

bfc_core::debug_as_message!(ComputeError);

impl ComputeError {
    /// Converts a failed driver call.
    pub(crate) fn of_driver(call: &'static str, error: &SourceError) -> Self {
        match error {
            SourceError::Exhausted { .. } => Self::OutOfMemory { call },
            SourceError::Poisoned { .. } => Self::Lost(error.clone()),
            SourceError::Driver { reason, .. } => Self::Device { call, reason: reason.clone() },
            other => Self::Device { call, reason: other.to_string() },
        }
    }

    /// Whether the device had no memory: the call may be repeated once some is free.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. })
    }

    /// Whether the call may succeed later, as for a library that exists and did not start.
    pub(crate) fn may_pass(&self) -> bool {
        let starts_later = |tried: &TriedLibrary| matches!(tried.problem, LibraryProblem::NotStarted { .. });
        match self {
            Self::NoCompiler { tried } | Self::NoProducts { tried } => tried.iter().any(starts_later),
            Self::OutOfMemory { .. } | Self::Device { .. } => true,
            Self::Compile { .. } | Self::Unavailable(_) | Self::Lost(_) => false,
        }
    }
}

/// Calls the driver for a command. See [`CudaDriver::call`].
pub(crate) fn call_device<T>(
    driver: &CudaDriver,
    name: &'static str,
    call: impl FnOnce() -> Result<T, DriverError>,
) -> Result<T, ComputeError> {
    driver.call(name, 0, call).map_err(|error| ComputeError::of_driver(name, &error))
}

/// The device that a library must support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The architecture, such as 90 for `sm_90`.
    pub architecture: u32,
    /// The driver's version.
    pub driver: DriverVersion,
}

/// A library that was tried and not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TriedLibrary {
    /// The file, or the name that was looked up.
    pub library: String,
    /// The reason.
    pub problem: LibraryProblem,
}

impl fmt::Display for TriedLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", printable(&self.library), self.problem)
    }
}

/// The reason why a library was not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryProblem {
    /// It does not exist, does not load, or is another library.
    #[error("{reason}", reason = printable(reason))]
    NotLoaded {
        /// The system's message.
        reason: String,
    },
    /// Its CUDA version is newer than the driver's.
    #[error("of CUDA {major}, but the driver is for CUDA {driver}")]
    NewerThanDriver {
        /// The library's major version.
        major: u32,
        /// The driver's version.
        driver: DriverVersion,
    },
    /// It does not support the device.
    #[error("version {major}.{minor} does not know devices of sm_{architecture}")]
    UnknownDevice {
        /// The library's major version.
        major: u32,
        /// The library's minor version.
        minor: u32,
        /// The architecture, such as 90 for `sm_90`.
        architecture: u32,
    },
    /// It did not start. That may be temporary, for example if memory is short.
    #[error("{call}: {reason}", reason = printable(reason))]
    NotStarted {
        /// The library function that failed.
        call: &'static str,
        /// The library's message.
        reason: String,
    },
}

/// The tried libraries as one line.
pub(crate) fn listed(tried: &[TriedLibrary]) -> String {
    let texts: Vec<String> = tried.iter().map(TriedLibrary::to_string).collect();
    if texts.is_empty() { "not found".to_owned() } else { texts.join("; ") }
}

/// Refuses libraries whose CUDA version is newer than the driver's.
pub(crate) const fn not_newer(major: u32, target: &Target) -> Result<(), LibraryProblem> {
    if major > target.driver.major {
        return Err(LibraryProblem::NewerThanDriver { major, driver: target.driver });
    }
    Ok(())
}
