//! Errors of allocations, frees, stream orders and attributes, as data.

use std::fmt;

use crate::allocator::damage::Damage;
use crate::allocator::oom::OomReport;
use crate::base::memory::Block;
use crate::base::printable::printable;
use crate::base::write_error;
use crate::source::error::SourceError;

/// An error of an allocation. The allocator's state is unchanged.
///
/// `{:?}` prints the message, and the complete report if memory ran out, so that a `main` that returns the error prints them.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// No memory, even after growing, waiting and returning idle regions. The report names the cause.
    #[error("{0}")]
    OutOfMemory(Box<OomReport>),
    /// The alignment is not a power of two.
    #[error("{allocator}: alignment {alignment} is not a power of two", allocator = printable(allocator))]
    BadAlignment {
        /// The allocator's name.
        allocator: String,
        /// The requested alignment.
        alignment: u64,
    },
    /// The rounded and aligned size exceeds the address space.
    #[error("{allocator}: a request for {bytes} bytes with alignment {alignment} leaves the address space", allocator = printable(allocator))]
    TooLarge {
        /// The allocator's name.
        allocator: String,
        /// The requested bytes.
        bytes: u64,
        /// The requested alignment.
        alignment: u64,
    },
    /// A sub-allocator or visitor called back into the allocator that called it.
    #[error("{allocator}: called back from its own sub-allocator or visitor", allocator = printable(allocator))]
    Reentrant {
        /// The allocator's name.
        allocator: String,
    },
    /// The source of memory failed for another reason than exhaustion.
    #[error("{allocator}: {error}", allocator = printable(allocator))]
    Source {
        /// The allocator's name.
        allocator: String,
        /// The error of the source.
        error: SourceError,
    },
}

/// The message, its causes, and the complete report if memory ran out.
impl fmt::Debug for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_error(self, f)?;
        self.out_of_memory().map_or(Ok(()), |report| write!(f, "\n\n{}", report.details()))
    }
}

impl AllocError {
    /// Returns the out-of-memory report, if this is an out-of-memory error.
    #[must_use]
    pub fn out_of_memory(&self) -> Option<&OomReport> {
        match self {
            Self::OutOfMemory(report) => Some(report),
            _ => None,
        }
    }
}

/// An error of a free or lookup. The allocator's state is unchanged, except after [`OutOfBounds`](Self::OutOfBounds).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The block was already freed. Its memory may belong to another block by now.
    #[error("block {:#x} (allocation {}) was already freed", block.address, block.id)]
    Stale {
        /// The block that the caller passed.
        block: Block,
    },
    /// The block belongs to another allocator.
    #[error("block {:#x} (allocation {}) belongs to another pool", block.address, block.id)]
    Foreign {
        /// The block that the caller passed.
        block: Block,
    },
    /// The block's fields match no block that this allocator returned.
    #[error("block {:#x} of {} bytes (allocation {}) was never allocated", block.address, block.bytes, block.id)]
    Unknown {
        /// The block that the caller passed.
        block: Block,
    },
    /// No live block starts at this address.
    #[error("no live block starts at address {address:#x}")]
    NoBlockAt {
        /// The address that the caller passed.
        address: u64,
    },
    /// The block is free, but a write outside of its bounds damaged guard bytes. The
    /// [`GuardAllocator`](crate::GuardAllocator) that reports this does not reuse the memory.
    #[error("{damage}")]
    OutOfBounds {
        /// The damage found.
        damage: Damage,
    },
    /// A sub-allocator or visitor called back into the allocator that called it.
    #[error("called back from the allocator's own sub-allocator or visitor")]
    Reentrant,
    /// The allocator records neither sizes nor addresses of its blocks.
    #[error("the allocator keeps no record of its blocks")]
    Untracked,
}

impl BlockError {
    /// Whether the block is free in spite of the error.
    #[must_use]
    pub const fn took_back(&self) -> bool {
        matches!(self, Self::OutOfBounds { .. })
    }
}

/// An error of recording the use of a block on another stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The allocator does not order memory between streams. It could reuse the block before the other stream is done.
    #[error("{allocator} does not order memory between streams", allocator = printable(allocator))]
    Unordered {
        /// The allocator's name.
        allocator: String,
    },
    /// The block is not live.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The driver failed to make the stream wait. The free of the block is deferred nonetheless.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// Conflicting attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttributeError {
    /// The attributes select two different scoped allocators.
    #[error("attributes name two scoped allocators, {lhs} and {rhs}")]
    ScopeConflict {
        /// The id on the left.
        lhs: i32,
        /// The id on the right.
        rhs: i32,
    },
}
