//! The [`Allocator`] trait and everything that its methods exchange: requests, blocks, attributes, figures and errors.
//!
//! A caller passes a [`Request`] and receives a [`Block`]; an [`Allocation`] frees its block on drop.
//! Errors are data: an [`AllocError::OutOfMemory`] carries an [`OomReport`] that names the largest holders.

mod allocation;
pub(crate) mod attributes;
pub(crate) mod damage;
pub(crate) mod error;
mod facets;
pub(crate) mod oom;
pub(crate) mod request;
pub(crate) mod stats;

use std::fmt;

use crate::base::ledger::Ledger;
use crate::base::memory::{AddressSpace, Block, MemoryKind};

pub use allocation::{Allocation, ExpectedFrees, failed_drops};
pub use attributes::{AllocationAttributes, AllocatorAttributes};
pub use damage::{Damage, DamageKind};
pub use error::{AllocError, AttributeError, BlockError, RecordError};
pub use facets::{Accounting, Inspection, StreamOrder, Upkeep, WaitHints};
pub use oom::{
    Checkpoint, ExceededBudget, Holding, Holdings, OomReport, PendingFrees, Subject, Verdict, WhatIf,
};
pub use request::{Contents, DEFAULT_ALIGNMENT, Request, WaitKey};
pub use stats::{RetryStats, Stats};

/// The figures and the ledger of an [`Allocator`], read at one moment: the ledger's total equals `stats.bytes_in_use`.
#[derive(Clone, Debug, Default)]
pub struct AllocatorSnapshot {
    /// The figures.
    pub stats: Stats,
    /// The account book; empty for allocators that keep none.
    pub ledger: Ledger,
}

/// Hands out blocks of one kind of memory.
///
/// The trait is the part that every allocator has. What only some have is a facet, reached by `as_…()`: callers with a
/// `dyn Allocator` use [its methods](#impl-dyn+Allocator), which answer for a missing facet. A wrapper returns its own
/// facet or the one of its inner allocator.
///
/// # Safety
/// Callers read and write through the addresses of blocks, so an implementation promises: each block returned by
/// [`allocate`](Self::allocate) is [`Block::EMPTY`] or lies in memory of the kind that
/// [`memory_kind`](Self::memory_kind) says, is valid for `bytes` bytes, is aligned as asked, and overlaps no other
/// live block, until it is given back or the allocator is dropped; device memory is valid in the address space that
/// [`address_space`](Self::address_space) says, if that says one; host memory is initialised (to any values), so that
/// plain numbers may be read from it. Addresses of [`MemoryKind::AddressOnly`] are never followed, and need nothing behind them.
pub unsafe trait Allocator: Send + Sync + fmt::Debug {
    /// A name for reports, unique among the allocators of a device.
    fn name(&self) -> &str;

    /// What kind of memory the blocks lie in.
    fn memory_kind(&self) -> MemoryKind;

    /// The address space of the device that the blocks are valid on, as
    /// [`SubAllocator::address_space`](crate::SubAllocator::address_space).
    fn address_space(&self) -> Option<AddressSpace>;

    /// Allocates a block of at least `request.bytes` bytes.
    ///
    /// # Errors
    /// See [`AllocError`]; the allocator is as it was before.
    fn allocate(&self, request: &Request<'_>) -> Result<Block, AllocError>;

    /// Frees a block.
    ///
    /// # Errors
    /// A stale, foreign or invented block is refused with a [`BlockError`], and the allocator is as it was before. After
    /// an error for which [`BlockError::took_back`] is true, the block is free all the same.
    ///
    /// # Safety
    /// No work uses the block's memory, now or later. An allocator that does not [track sizes](Self::tracks_sizes) cannot
    /// recognize a stale or invented block of its own: there the block must be live.
    unsafe fn deallocate(&self, block: Block) -> Result<(), BlockError>;

    /// The allocator's figures now.
    fn stats(&self) -> Stats;

    /// Granted bytes alive now; cheaper than [`stats`](Self::stats). Bytes in [thread caches](crate::ThreadCache) may count.
    fn bytes_in_use(&self) -> u64 {
        self.stats().bytes_in_use
    }

    /// Whether blocks carry their granted size and can be recognized.
    fn tracks_sizes(&self) -> bool;

    /// Accounts of blocks and owners.
    fn as_accounting(&self) -> Option<&dyn Accounting>;

    /// Questions about the allocator's memory.
    fn as_inspection(&self) -> Option<&dyn Inspection>;

    /// Hints for requests that wait for frees.
    fn as_wait_hints(&self) -> Option<&dyn WaitHints>;

    /// The order of memory between streams.
    fn as_stream_order(&self) -> Option<&dyn StreamOrder>;

    /// Maintenance between allocations.
    fn as_upkeep(&self) -> Option<&dyn Upkeep>;
}
