//! Errors of computing, and why a library was not used.

use std::fmt;

use bfc_core::SourceError;

use crate::driver::{CudaUnavailable, DriverVersion};

/// Work that a device did not take, or did not finish.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ComputeError {
    /// There is no compiler for devices that suits this one.
    #[error("no compiler for CUDA devices (NVRTC): {}", listed(tried))]
    NoCompiler {
        /// The libraries that were tried, and why each was not taken.
        tried: Vec<TriedLibrary>,
    },
    /// There is no library that multiplies matrices on this device.
    #[error("no library for matrix products on CUDA devices (cuBLAS): {}", listed(tried))]
    NoProducts {
        /// The libraries that were tried, and why each was not taken.
        tried: Vec<TriedLibrary>,
    },
    /// A source could not be compiled.
    #[error("{source_name}: {reason}")]
    Compile {
        /// Which source.
        source_name: String,
        /// What the compiler says.
        reason: String,
    },
    /// The driver cannot be used for this: too old, most likely.
    #[error(transparent)]
    Unavailable(#[from] CudaUnavailable),
    /// A call needs memory of the device beside the pools, and there is none.
    #[error("{call}: the device is out of memory")]
    OutOfMemory {
        /// The call.
        call: &'static str,
    },
    /// The device failed in a way from which CUDA does not recover: [`SourceError::Poisoned`].
    #[error(transparent)]
    Lost(SourceError),
    /// A call to the device failed.
    #[error("{call}: {reason}")]
    Device {
        /// The call.
        call: &'static str,
        /// Why.
        reason: String,
    },
}

impl ComputeError {
    /// A call of the driver that failed.
    pub(crate) fn of_driver(call: &'static str, error: &SourceError) -> Self {
        match error {
            SourceError::Exhausted { .. } => Self::OutOfMemory { call },
            SourceError::Poisoned { .. } => Self::Lost(error.clone()),
            SourceError::Driver { reason, .. } => Self::Device { call, reason: reason.clone() },
            other => Self::Device { call, reason: other.to_string() },
        }
    }

    /// Whether the device lacked memory for a call: once some was given back, the call may be made again.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. })
    }

    /// Whether the same may work later, as a library that is there and did not start.
    pub(crate) fn may_pass(&self) -> bool {
        let starts_later = |tried: &TriedLibrary| matches!(tried.problem, LibraryProblem::NotStarted { .. });
        match self {
            Self::NoCompiler { tried } | Self::NoProducts { tried } => tried.iter().any(starts_later),
            Self::OutOfMemory { .. } | Self::Device { .. } => true,
            Self::Compile { .. } | Self::Unavailable(_) | Self::Lost(_) => false,
        }
    }
}

/// The device that a library shall serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The device's architecture, as in 90 for `sm_90`.
    pub architecture: u32,
    /// What its driver supports.
    pub driver: DriverVersion,
}

/// A library that was tried and not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TriedLibrary {
    /// Its file, or the name that the system was asked for.
    pub library: String,
    /// Why it was not taken.
    pub problem: LibraryProblem,
}

impl fmt::Display for TriedLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.library, self.problem)
    }
}

/// Why a library was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryProblem {
    /// It is not there, or cannot be loaded, or is not the one that it is called.
    #[error("{reason}")]
    NotLoaded {
        /// What the system says.
        reason: String,
    },
    /// It is of a newer CUDA than the driver.
    #[error("of CUDA {major}, but the driver is for CUDA {driver}")]
    NewerThanDriver {
        /// The library's major version.
        major: u32,
        /// What the driver supports.
        driver: DriverVersion,
    },
    /// It does not know the device.
    #[error("version {major}.{minor} does not know devices of sm_{architecture}")]
    UnknownDevice {
        /// The first number of the library's version.
        major: u32,
        /// The second.
        minor: u32,
        /// The device's architecture, as in 90 for `sm_90`.
        architecture: u32,
    },
    /// It was loaded and does not start. That may pass, as where memory is short.
    #[error("{call}: {reason}")]
    NotStarted {
        /// The library's function.
        call: &'static str,
        /// What it says.
        reason: String,
    },
}

/// What was tried, as a sentence.
fn listed(tried: &[TriedLibrary]) -> String {
    let texts: Vec<String> = tried.iter().map(TriedLibrary::to_string).collect();
    if texts.is_empty() { "not found".to_owned() } else { texts.join("; ") }
}

/// A library of a newer CUDA than the driver's does not work with it.
pub(crate) const fn not_newer(major: u32, target: &Target) -> Result<(), LibraryProblem> {
    if major > target.driver.major {
        return Err(LibraryProblem::NewerThanDriver { major, driver: target.driver });
    }
    Ok(())
}
