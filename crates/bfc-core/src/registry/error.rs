//! Errors of the registry.

use super::PoolError;
use crate::base::memory::MemoryKind;
use crate::base::printable::printable;
use crate::source::error::{SourceError, VisitorError};

/// An error of the registry.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// The device is not registered.
    #[error("no device {device} is registered", device = printable(device))]
    NoDevice {
        /// The requested device.
        device: String,
    },
    /// The device is already registered.
    #[error("device {device} is registered already", device = printable(device))]
    DeviceExists {
        /// The device.
        device: String,
    },
    /// The device has no memory of that kind.
    #[error("device {device} has no {kind} memory", device = printable(device))]
    NoMemory {
        /// The requested device.
        device: String,
        /// The kind that its attributes resolve to.
        kind: MemoryKind,
    },
    /// Two memories of one kind were registered for the device.
    #[error("device {device} has two memories of the kind {kind}; register one of each kind", device = printable(device))]
    MemoryExists {
        /// The device.
        device: String,
        /// The duplicate kind.
        kind: MemoryKind,
    },
    /// The factory created an allocator for another kind of memory.
    #[error("device {device}: the factory of {kind} memory created an allocator of {found} memory", device = printable(device))]
    WrongKind {
        /// The requested device.
        device: String,
        /// The registered kind of memory.
        kind: MemoryKind,
        /// The allocator's kind of memory.
        found: MemoryKind,
    },
    /// The factory of a memory requested the memory that it is creating.
    #[error("device {device}: the factory of {kind} memory requests the memory that it creates", device = printable(device))]
    Reentrant {
        /// The requested device.
        device: String,
        /// The kind of memory.
        kind: MemoryKind,
    },
    /// A visitor was added after the first region.
    #[error("device {device}, {kind} memory: {error}", device = printable(device))]
    Visitor {
        /// The device.
        device: String,
        /// The memory whose regions the visitor should see.
        kind: MemoryKind,
        /// The visitor's error.
        error: VisitorError,
    },
    /// The source of the device's memory failed to start.
    #[error("device {device}: {error}", device = printable(device))]
    Source {
        /// The requested device.
        device: String,
        /// The error of the source.
        error: SourceError,
    },
    /// The options of the pool are invalid.
    #[error("device {device}: {error}", device = printable(device))]
    Pool {
        /// The requested device.
        device: String,
        /// The error of the pool.
        error: PoolError,
    },
}

debug_as_message!(RegistryError);

impl RegistryError {
    /// Returns the error of a device whose pool could not be created.
    pub(crate) fn of_pool(device: String, error: PoolError) -> Self {
        match error {
            PoolError::Source(error) => Self::Source { device, error },
            error => Self::Pool { device, error },
        }
    }
}
