//! Errors of the registry.

use super::PoolError;
use crate::base::memory::MemoryKind;
use crate::source::error::{SourceError, VisitorError};

/// A device or a memory that the registry does not have.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// No such device was registered.
    #[error("no device {device} is registered")]
    NoDevice {
        /// The device asked for.
        device: String,
    },
    /// The device is registered already.
    #[error("device {device} is registered already")]
    DeviceExists {
        /// The device given.
        device: String,
    },
    /// The device has no memory of that kind.
    #[error("device {device} has no {kind} memory")]
    NoMemory {
        /// The device asked.
        device: String,
        /// The kind its attributes resolve to.
        kind: MemoryKind,
    },
    /// The device was given two memories of one kind.
    #[error("device {device} is given {kind} memory twice")]
    MemoryExists {
        /// The device given.
        device: String,
        /// The kind that came twice.
        kind: MemoryKind,
    },
    /// The allocator made for a memory is for another kind of memory.
    #[error("device {device}: the allocator made for {kind} memory is for {found} memory")]
    WrongKind {
        /// The device asked.
        device: String,
        /// The kind that the memory was registered as.
        kind: MemoryKind,
        /// The kind that the allocator says.
        found: MemoryKind,
    },
    /// The factory of a memory asked for the memory that it is making.
    #[error("device {device}: {kind} memory is being made by the factory that asks for it")]
    Reentrant {
        /// The device asked.
        device: String,
        /// The kind of memory.
        kind: MemoryKind,
    },
    /// A visitor came too late.
    #[error("device {device}, {kind} memory: {error}")]
    Visitor {
        /// The device given.
        device: String,
        /// The memory whose regions the visitor was to see.
        kind: MemoryKind,
        /// That it is too late.
        error: VisitorError,
    },
    /// The device's source of memory could not be made.
    #[error("device {device}: {error}")]
    Source {
        /// The device asked.
        device: String,
        /// What the source said.
        error: SourceError,
    },
    /// A memory's pool cannot be made as its options say.
    #[error("device {device}: {error}")]
    Pool {
        /// The device asked.
        device: String,
        /// Why not.
        error: PoolError,
    },
}

impl RegistryError {
    /// The error of a device whose pool was not made.
    pub(crate) fn of_pool(device: String, error: PoolError) -> Self {
        match error {
            PoolError::Source(error) => Self::Source { device, error },
            error => Self::Pool { device, error },
        }
    }
}
