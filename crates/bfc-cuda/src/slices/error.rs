//! Errors of slices in a pool.

use std::fmt;

use bfc_core::{AllocError, MemoryKind, OomReport, RecordError, SourceError, printable, write_error};
use cudarc::driver::DriverError;

use crate::driver::CudaUnavailable;

/// The reason why a [`PoolSlice`](super::PoolSlice) or a [`PoolStream`](super::PoolStream) could not be made or used.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolSliceError {
    /// The pool has no memory for the slice.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The pool could not order the slice with another stream.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The device cannot be opened.
    #[error(transparent)]
    Unavailable(#[from] CudaUnavailable),
    /// A driver call of the pool failed.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A call of cudarc failed.
    #[error("cudarc: {call} failed with {reason}", reason = printable(reason))]
    Driver {
        /// The method that failed.
        call: &'static str,
        /// The driver's name for the error.
        reason: String,
    },
    /// The pool's memory is not device memory.
    #[error("{allocator} has {kind} memory; a slice needs a pool over DeviceMemory or VirtualMemory", allocator = printable(allocator))]
    NotDeviceMemory {
        /// The pool.
        allocator: String,
        /// The kind of its memory.
        kind: MemoryKind,
    },
    /// The pool's memory lies in another context than the stream.
    #[error(
        "{allocator} has memory of another context than the stream of cuda:{ordinal}; make the pool with \
         CudaDriver::new({ordinal}) and the stream with CudaContext::new({ordinal}), which share the primary context", allocator = printable(allocator)
    )]
    OtherContext {
        /// The pool.
        allocator: String,
        /// The stream's device.
        ordinal: usize,
    },
    /// The stream belongs to a context that is not the primary one of its device.
    #[error(
        "the stream of cuda:{ordinal} belongs to a context of its own; a pool needs a stream of CudaContext::new({ordinal})"
    )]
    NotPrimary {
        /// The stream's device.
        ordinal: usize,
    },
    /// The pool reuses memory in no stream's order.
    #[error("{allocator} orders memory in no stream; wrap the pool in a StreamAllocator of the stream", allocator = printable(allocator))]
    NoStreamOrder {
        /// The pool.
        allocator: String,
    },
    /// The size in bytes does not fit 64 bits.
    #[error("{elements} elements of {element_bytes} bytes are more than the address space")]
    TooLarge {
        /// The requested elements.
        elements: usize,
        /// The size of an element, in bytes.
        element_bytes: usize,
    },
}

/// The message, its causes, and the complete report if memory ran out.
impl fmt::Debug for PoolSliceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_error(self, f)?;
        self.out_of_memory().map_or(Ok(()), |report| write!(f, "\n\n{}", report.details()))
    }
}

impl PoolSliceError {
    /// Returns the report of an out-of-memory error: the holders of the pool's memory, and what would have made room.
    #[must_use]
    pub fn out_of_memory(&self) -> Option<&OomReport> {
        match self {
            Self::Alloc(error) => error.out_of_memory(),
            _ => None,
        }
    }

    /// Converts a failure of cudarc. Its text would ask the driver, which is what fails.
    pub(super) fn driver(call: &'static str) -> impl FnOnce(DriverError) -> Self {
        move |error| Self::Driver { call, reason: format!("{:?}", error.0) }
    }
}
