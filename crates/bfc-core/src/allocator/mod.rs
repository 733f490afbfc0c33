//! The [`Allocator`] trait and the types of its methods: requests, blocks, attributes, figures and errors.
//!
//! A caller passes a [`Request`] and receives a [`Block`]; an [`Allocation`] frees its block on drop.
//! Errors are data: an [`AllocError::OutOfMemory`] carries an [`OomReport`] that names the largest holders.

pub(crate) mod allocation;
pub(crate) mod attributes;
pub(crate) mod damage;
pub(crate) mod error;
pub(crate) mod oom;
mod pool_view;
pub(crate) mod request;
pub(crate) mod stats;

use std::fmt;

use crate::base::ledger::Ledger;
use crate::base::memory::{AddressSpace, Block, MemoryKind};

pub use allocation::{Allocation, ExpectedFrees, failed_drops};
pub use attributes::{AllocationAttributes, AllocatorAttributes};
pub use damage::{Damage, DamageKind};
pub use error::{AllocError, AttributeError, BlockError, RecordError};
pub use oom::{
    CheckpointedScope, ExceededBudget, Holding, Holdings, OomReport, PendingFrees, RegionUse, Subject,
    Verdict, WhatIf,
};
pub use pool_view::{LiveAllocation, PoolView};
pub use request::{Contents, DEFAULT_ALIGNMENT, Request, WaitKey};
pub use stats::{RetryStats, Stats};

/// The figures and the ledger of an [`Allocator`], read under one lock: the ledger's total equals `stats.bytes_in_use`.
#[derive(Clone, Debug, Default)]
pub struct AllocatorSnapshot {
    /// The figures.
    pub stats: Stats,
    /// The ledger; empty for allocators without accounts.
    pub ledger: Ledger,
}

/// An allocator of one kind of memory.
///
/// The trait contains the methods that every allocator supports. An allocator with more to tell is a [`PoolView`] too. [The
/// methods of `dyn Allocator`](#impl-dyn+Allocator) call the view, and give its default answers if there is none. A
/// wrapper is a view that forwards every method.
///
/// # Safety
/// Callers read and write through the addresses of blocks. For each block that [`allocate`](Self::allocate) or
/// [`PoolView::resize`] returns, other than [`Block::EMPTY`], an implementation guarantees until the block is freed, resized
/// or the allocator is dropped:
///
/// - The block lies in memory of the kind [`memory_kind`](Self::memory_kind).
/// - It is valid for `bytes` bytes, has the requested alignment, and overlaps no other live block.
/// - Device memory is valid in the [`address_space`](Self::address_space), if that is `Some`.
/// - Host memory is initialized (to any values), so that plain numbers may be read from it.
/// - [`PoolView::block_at`] returns the block for its address, and no block for other addresses.
///
/// Addresses of [`MemoryKind::AddressOnly`] are never dereferenced and may be unmapped.
pub unsafe trait Allocator: Send + Sync + fmt::Debug {
    /// A name for reports, unique among the allocators of a device.
    fn name(&self) -> &str;

    /// The kind of memory of the blocks.
    fn memory_kind(&self) -> MemoryKind;

    /// The address space of the device in which the blocks are valid. See
    /// [`SubAllocator::address_space`](crate::SubAllocator::address_space).
    fn address_space(&self) -> Option<AddressSpace>;

    /// Allocates a block of at least `request.bytes` bytes.
    ///
    /// # Errors
    /// See [`AllocError`]. The allocator's state is unchanged after an error.
    fn allocate(&self, request: &Request<'_>) -> Result<Block, AllocError>;

    /// Frees a block.
    ///
    /// # Errors
    /// Fails with a [`BlockError`] for a stale, foreign or invalid block; the allocator's state is then unchanged.
    /// After an error for which [`BlockError::took_back`] is true, the block is free nonetheless.
    ///
    /// # Safety
    /// No work uses the block's memory, now or later. An allocator that does not [track sizes](Self::tracks_sizes)
    /// cannot detect stale or invalid blocks of its own: there the block must be live.
    unsafe fn deallocate(&self, block: Block) -> Result<(), BlockError>;

    /// Returns the allocator's current figures.
    fn stats(&self) -> Stats;

    /// Returns the bytes of live blocks; cheaper than [`stats`](Self::stats). May include bytes in [thread
    /// caches](crate::ThreadCache).
    fn bytes_in_use(&self) -> u64 {
        self.stats().bytes_in_use
    }

    /// Whether the allocator records the size of each block and detects invalid blocks.
    fn tracks_sizes(&self) -> bool;

    /// The allocator as a pool: accounts, queries, waiting, streams and maintenance.
    fn as_pool(&self) -> Option<&dyn PoolView> {
        None
    }
}
