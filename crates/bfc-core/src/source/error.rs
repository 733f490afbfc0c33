//! Errors of sources of memory, of devices and of visitors.

use crate::base::printable::printable;
use crate::base::units::Bytes;

/// An error of a source of memory.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The source has too little memory left.
    #[error("the source has no {} left", Bytes(*bytes))]
    Exhausted {
        /// The requested bytes.
        bytes: u64,
    },
    /// The limit of an allocator is smaller than every region of the source.
    #[error(
        "the limit of {limit} bytes is below one region of {region} bytes: set a limit of at least {}",
        Bytes(*region)
    )]
    LimitTooSmall {
        /// The limit, in bytes.
        limit: u64,
        /// The smallest region, in bytes.
        region: u64,
    },
    /// The source returned an address or a size that violates its contract.
    #[error("the source delivered {bytes} bytes at {address:#x}, which breaks its contract")]
    BadRegion {
        /// The returned address.
        address: u64,
        /// The returned size.
        bytes: u64,
    },
    /// A call of the driver failed.
    #[error("{call} failed: {reason}", reason = printable(reason))]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// The driver's reason.
        reason: String,
    },
    /// The device has failed permanently: no call works until the process ends.
    #[error("{device} is lost to this process: {call} failed with {reason}", device = printable(device), reason = printable(reason))]
    Poisoned {
        /// The device's name.
        device: String,
        /// The driver's function that failed first.
        call: &'static str,
        /// The driver's reason.
        reason: String,
    },
    /// The device lacks a feature.
    #[error("{device} has no {feature}", device = printable(device))]
    Unsupported {
        /// The device's name.
        device: String,
        /// The missing feature.
        feature: &'static str,
    },
}

debug_as_message!(SourceError);

impl SourceError {
    /// Whether the device is lost, so that no later call can succeed.
    #[must_use]
    pub const fn is_poisoned(&self) -> bool {
        matches!(self, Self::Poisoned { .. })
    }
}

/// An error of registering a visitor too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("visitors must be registered before the first region is taken")]
pub struct VisitorError;
