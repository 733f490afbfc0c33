//! What can go wrong, as data.

use crate::allocator::damage::Damage;
use crate::allocator::oom::OomReport;
use crate::base::memory::Block;
use crate::base::placement::Inconsistent;
use crate::source::error::SourceError;

/// An allocation that did not happen. The pool is as it was before.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// No memory, even after growing, waiting and giving back what was idle. The report says why.
    #[error("{0}")]
    OutOfMemory(Box<OomReport>),
    /// The alignment is not a power of two.
    #[error("{allocator}: alignment {alignment} is not a power of two")]
    BadAlignment {
        /// The allocator's name.
        allocator: String,
        /// The alignment asked for.
        alignment: u64,
    },
    /// The size leaves the address space once rounded and aligned.
    #[error("{allocator}: a request for {bytes} bytes with alignment {alignment} leaves the address space")]
    TooLarge {
        /// The allocator's name.
        allocator: String,
        /// The bytes asked for.
        bytes: u64,
        /// The alignment asked for.
        alignment: u64,
    },
    /// A sub-allocator or a visitor called back into the allocator that was calling it.
    #[error("{allocator}: called back from its own sub-allocator or visitor")]
    Reentrant {
        /// The allocator's name.
        allocator: String,
    },
    /// The source of memory failed for a reason other than being out of it.
    #[error("{allocator}: {error}")]
    Source {
        /// The allocator's name.
        allocator: String,
        /// What the source said.
        error: SourceError,
    },
    /// The pool's own bookkeeping was overwritten. It places nothing more by it.
    #[error("{allocator}: {error}")]
    Damaged {
        /// The allocator's name.
        allocator: String,
        /// What was overwritten.
        error: Inconsistent,
    },
}

impl AllocError {
    /// The out-of-memory report, if that is what happened.
    #[must_use]
    pub fn out_of_memory(&self) -> Option<&OomReport> {
        match self {
            Self::OutOfMemory(report) => Some(report),
            _ => None,
        }
    }
}

/// A block that was not given back, or not found. The pool is as it was before, but for [`OutOfBounds`](Self::OutOfBounds).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The block was given back before; its memory may be somebody else's by now.
    #[error("block {:#x} (allocation {}) was already given back", block.address, block.id)]
    Stale {
        /// The block as given.
        block: Block,
    },
    /// The block came from another allocator.
    #[error("block {:#x} (allocation {}) belongs to another pool", block.address, block.id)]
    Foreign {
        /// The block as given.
        block: Block,
    },
    /// The block's fields are not those of any block this allocator handed out.
    #[error("block {:#x} of {} bytes (allocation {}) was never handed out", block.address, block.bytes, block.id)]
    Unknown {
        /// The block as given.
        block: Block,
    },
    /// What the pool knew of the block was overwritten.
    #[error("what is known of block {:#x} (allocation {}) was overwritten", block.address, block.id)]
    Damaged {
        /// The block as given.
        block: Block,
    },
    /// No live block starts at this address.
    #[error("no live block starts at address {address:#x}")]
    NoBlockAt {
        /// The address as given.
        address: u64,
    },
    /// The block was given back, but something had written outside of it. It counts as given back, and its memory is
    /// kept out of use by the [`GuardAllocator`](crate::GuardAllocator) that says so.
    #[error("{damage}")]
    OutOfBounds {
        /// What was found.
        damage: Damage,
    },
    /// A sub-allocator or a visitor called back into the allocator that was calling it.
    #[error("called back from the allocator's own sub-allocator or visitor")]
    Reentrant,
    /// The allocator cannot answer: it keeps no sizes, or no index.
    #[error("the allocator keeps no record of its blocks")]
    Untracked,
}

impl BlockError {
    /// Whether the block counts as given back although there is an error to tell.
    #[must_use]
    pub const fn took_back(&self) -> bool {
        matches!(self, Self::OutOfBounds { .. })
    }
}

/// A block that another stream cannot use, or not yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The allocator does not know of streams: it would hand the memory out again before the other stream is done.
    #[error("{allocator} does not order memory between streams")]
    Unordered {
        /// The allocator's name.
        allocator: String,
    },
    /// The block is not one that is live.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The driver refused to make the stream wait. The block will be given back late all the same.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// Attributes that contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttributeError {
    /// Two different scoped allocators are named.
    #[error("attributes name two scoped allocators, {lhs} and {rhs}")]
    ScopeConflict {
        /// The one on the left.
        lhs: i32,
        /// The one on the right.
        rhs: i32,
    },
}
