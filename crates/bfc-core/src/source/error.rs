//! Errors of sources of memory, of devices and of visitors.

use crate::base::units::Bytes;

/// A source of memory that did not deliver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The source has no such amount left.
    #[error("the source has no {} left", Bytes(*bytes))]
    Exhausted {
        /// The bytes asked for.
        bytes: u64,
    },
    /// The source delivered an address or a size that breaks its contract.
    #[error("the source delivered {bytes} bytes at {address:#x}, which breaks its contract")]
    BadRegion {
        /// The address delivered.
        address: u64,
        /// The size delivered.
        bytes: u64,
    },
    /// A driver refused.
    #[error("{call} failed: {reason}")]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// What it said.
        reason: String,
    },
    /// The device has failed in a way that it does not recover from: nothing works on it until the process ends.
    #[error("{device} is lost to this process: {call} failed with {reason}")]
    Poisoned {
        /// The device's name.
        device: String,
        /// The driver's function that met the failure first.
        call: &'static str,
        /// What it said.
        reason: String,
    },
    /// The device cannot do what is needed.
    #[error("{device} has no {feature}")]
    Unsupported {
        /// The device's name.
        device: String,
        /// What it lacks.
        feature: &'static str,
    },
}

impl SourceError {
    /// Whether the device is lost, so that no later call can succeed.
    #[must_use]
    pub const fn is_poisoned(&self) -> bool {
        matches!(self, Self::Poisoned { .. })
    }
}

/// A visitor that came too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("visitors must be registered before the first region is taken")]
pub struct VisitorError;
