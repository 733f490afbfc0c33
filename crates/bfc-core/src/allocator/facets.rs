//! The facets of an allocator: groups of methods that only some allocators have.
//!
//! [`Allocator`](super::Allocator) has one accessor for each facet. No accessor has a default, and neither has any method
//! of a facet that another method cannot answer: a wrapper forwards a whole facet, implements it, or says `None`.
//! The methods of `dyn Allocator` at the end of this file call a facet if there is one, and answer for it otherwise.

use std::sync::Arc;

use super::oom::HOLDERS;
use super::{
    Allocator, AllocatorSnapshot, BlockError, Damage, OomReport, RecordError, Request, Verdict, WaitKey,
};
use crate::base::ledger::{Category, Ledger, OwnerBytes, Tag};
use crate::base::memory::{Block, PoolId, Span};
use crate::base::owner::OwnerId;
use crate::base::placement::{Inconsistent, PlanCounts};
use crate::base::units::Bytes;
use crate::source::stream::Stream;

/// Accounts of single blocks, and the ledger of live bytes by owner and category.
pub trait Accounting {
    /// Bytes that were requested when `block` was allocated.
    ///
    /// # Errors
    /// As for [`Allocator::deallocate`]; [`BlockError::Untracked`] if the allocator records no blocks.
    fn requested_bytes(&self, block: &Block) -> Result<u64, BlockError>;

    /// The live block that starts at `address`.
    ///
    /// # Errors
    /// [`BlockError::NoBlockAt`] for every other address: interior, free, or of another allocator.
    fn block_at(&self, address: u64) -> Result<Block, BlockError>;

    /// The tag that `block` is charged to.
    ///
    /// # Errors
    /// As for [`requested_bytes`](Self::requested_bytes).
    fn tag(&self, block: &Block) -> Result<Tag, BlockError>;

    /// Charges a live block to another tag.
    ///
    /// # Errors
    /// As for [`requested_bytes`](Self::requested_bytes).
    fn retag(&self, block: &Block, tag: Tag) -> Result<(), BlockError>;

    /// Charges a live block to the category `to` if its category is one of `from`. Returns the tag before the call.
    ///
    /// # Errors
    /// As for [`tag`](Self::tag); nothing changes then.
    fn recategorize(&self, block: &Block, from: &[Category], to: Category) -> Result<Tag, BlockError> {
        let before = self.tag(block)?;
        if from.contains(&before.category) {
            self.retag(block, Tag { category: to, ..before })?;
        }
        Ok(before)
    }

    /// A copy of the ledger.
    fn ledger(&self) -> Ledger;

    /// The figures and the ledger, read under one acquisition of the allocator's lock, so that sums in reports balance
    /// while other threads allocate.
    fn snapshot(&self) -> AllocatorSnapshot;

    /// The account of one owner.
    fn owner_bytes(&self, owner: OwnerId) -> OwnerBytes {
        self.ledger().owner(owner)
    }
}

/// A live allocation of an [`Inspection`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveAllocation {
    /// The pool (see [`Block::pool`]).
    pub pool: PoolId,
    /// See [`Block::serial`].
    pub serial: Option<u64>,
    /// The granted bytes.
    pub bytes: u64,
    /// The owner and category that the block is charged to.
    pub tag: Tag,
}

/// Queries about an allocator's memory.
pub trait Inspection {
    /// The regions held from the source, in the order of addresses.
    fn regions(&self) -> Vec<Span>;

    /// The live allocations, in no particular order.
    fn live_allocations(&self) -> Vec<LiveAllocation>;

    /// Whether the request would succeed if these live blocks were free. `None` if the allocator cannot tell. More blocks
    /// never turn a yes into a no.
    fn would_fit(&self, request: &Request<'_>, freed: &[Block]) -> Option<bool>;

    /// The report of this request if it failed now with this verdict: figures, holders, and what would make room.
    fn refusal(&self, request: &Request<'_>, verdict: Verdict) -> OomReport;

    /// Checks all guarded memory and lists the damage found since the allocator was made. See
    /// [`GuardAllocator`](crate::GuardAllocator).
    fn find_damage(&self) -> Vec<Damage>;

    /// Checks the records of the allocator and of the allocators below it, for tests. Takes time proportional to the
    /// number of chunks.
    ///
    /// # Errors
    /// Fails with the first violated rule.
    fn check_invariants(&self) -> Result<(), Inconsistent>;

    /// How many allocations followed the plan; `None` without a [plan](crate::Plan).
    fn plan_counts(&self) -> Option<PlanCounts>;
}

/// Hints for requests that wait for frees, and for allocators that wait on top of another one.
pub trait WaitHints {
    /// Returns the key of a waiting request, which decides whether a free wakes it.
    fn wait_key(&self, request: &Request<'_>) -> WaitKey;

    /// An upper bound of the bytes for which a request may succeed now; `u64::MAX` if unknown. Frees wake waiters up to
    /// it: see [`AllocatorRetry::notify_up_to`](crate::AllocatorRetry::notify_up_to).
    fn max_satisfiable_bytes(&self) -> u64;

    /// Begins or ends to expect frees from threads that have not called the allocator yet. Called by
    /// [`ExpectedFrees`](super::ExpectedFrees).
    fn expect_frees(&self, begin: bool);

    /// Whether a live block, other than these, was allocated by a thread that has ended. An unknown thread may free such a
    /// block.
    fn has_orphaned_blocks(&self, besides: &[Block]) -> bool;
}

/// The order of memory between the streams of a device.
pub trait StreamOrder {
    /// The stream in whose order freed memory is reused.
    fn stream(&self) -> &Arc<Stream>;

    /// Announces that `stream` will use a live block. Its later work waits for all work that the memory's own stream has
    /// so far. A free of the block takes effect once the work has ended that `stream` has at that time.
    /// See [`StreamAllocator`](crate::StreamAllocator).
    ///
    /// # Errors
    /// See [`RecordError`]: the stream must not use the block.
    fn record_stream(&self, block: &Block, stream: &Arc<Stream>) -> Result<(), RecordError>;
}

/// Maintenance that a caller may request between allocations.
pub trait Upkeep {
    /// Returns unused memory to the source while more than `keep` bytes stay reserved. Returns the bytes released.
    fn trim(&self, keep: Bytes) -> u64;

    /// Resets the figures: counts to zero, peaks to the bytes in use now. `false` if that is not supported.
    fn clear_stats(&self) -> bool;

    /// Tells an allocator that follows a [plan](crate::Plan) that a step begins, so that the next request is compared with
    /// the first one of the plan. Optional between steps that follow the plan to their last allocation.
    fn begin_step(&self);

    /// Declares that all work up to `count` of the timing counter has ended, so that memory freed before may be merged.
    fn set_safe_frontier(&self, count: u64);
}

/// Other sizes for live blocks at their addresses, so that a growing array need not move.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::{AddressOnlyMemory, Allocator, BfcAllocator, BfcConfig, Bytes, Request};
/// let config = BfcConfig::new(Bytes::mib(1));
/// let pool: Arc<dyn Allocator> = Arc::new(BfcAllocator::new("pool", Arc::new(AddressOnlyMemory::new()), config));
/// let block = pool.allocate(&Request::new(1000))?;
/// // SAFETY: no other code holds the block.
/// let grown = unsafe { pool.resize(&block, 5000) }?.ok_or("the memory behind the block is in use")?;
/// assert_eq!((grown.address, grown.bytes, pool.stats().bytes_in_use), (block.address, 5120, 5120));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Resize {
    /// Replaces a live block with one of at least `bytes` bytes at the same address and with the same tag. Returns `None`
    /// without a change if the memory behind the block is not free, or if `bytes` is 0. A smaller block returns the rest
    /// to the allocator if it can be used separately.
    ///
    /// The figures, the ledger and recordings count a free and an allocation of `bytes` requested bytes in one step.
    /// The memory keeps its contents, and `block` is stale. Does not wait, grow the pool or return regions.
    ///
    /// # Errors
    /// As for [`Allocator::deallocate`]; nothing changes then.
    ///
    /// # Safety
    /// If a block is returned, no work uses the memory of `block` beyond the first `bytes` bytes, now or later, and all
    /// holders of `block` use the returned one in its place.
    unsafe fn resize(&self, block: &Block, bytes: u64) -> Result<Option<Block>, BlockError>;
}

/// The methods of all facets, with a default answer for allocators without the facet.
impl dyn Allocator + '_ {
    /// See [`Accounting::requested_bytes`]; [`BlockError::Untracked`] without accounts.
    ///
    /// # Errors
    /// As for the method of the facet.
    pub fn requested_bytes(&self, block: &Block) -> Result<u64, BlockError> {
        self.as_accounting().ok_or(BlockError::Untracked)?.requested_bytes(block)
    }

    /// See [`Accounting::block_at`]; [`BlockError::Untracked`] without accounts.
    ///
    /// # Errors
    /// As for the method of the facet.
    pub fn block_at(&self, address: u64) -> Result<Block, BlockError> {
        self.as_accounting().ok_or(BlockError::Untracked)?.block_at(address)
    }

    /// See [`Accounting::tag`]; [`BlockError::Untracked`] without accounts.
    ///
    /// # Errors
    /// As for the method of the facet.
    pub fn tag(&self, block: &Block) -> Result<Tag, BlockError> {
        self.as_accounting().ok_or(BlockError::Untracked)?.tag(block)
    }

    /// See [`Accounting::retag`]; does nothing without accounts.
    ///
    /// # Errors
    /// As for the method of the facet.
    pub fn retag(&self, block: &Block, tag: Tag) -> Result<(), BlockError> {
        self.as_accounting().map_or(Ok(()), |accounting| accounting.retag(block, tag))
    }

    /// See [`Accounting::recategorize`]; [`BlockError::Untracked`] without accounts.
    ///
    /// # Errors
    /// As for the method of the facet.
    #[inline]
    pub fn recategorize(&self, block: &Block, from: &[Category], to: Category) -> Result<Tag, BlockError> {
        self.as_accounting().ok_or(BlockError::Untracked)?.recategorize(block, from, to)
    }

    /// See [`Accounting::ledger`]; empty without accounts.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        self.as_accounting().map_or_else(Ledger::new, Accounting::ledger)
    }

    /// See [`Accounting::snapshot`]; the figures and an empty ledger without accounts.
    #[must_use]
    pub fn snapshot(&self) -> AllocatorSnapshot {
        match self.as_accounting() {
            Some(accounting) => accounting.snapshot(),
            None => AllocatorSnapshot { stats: self.stats(), ledger: Ledger::new() },
        }
    }

    /// See [`Accounting::owner_bytes`]; zeros without accounts.
    #[must_use]
    pub fn owner_bytes(&self, owner: OwnerId) -> OwnerBytes {
        self.as_accounting().map_or_else(OwnerBytes::default, |accounting| accounting.owner_bytes(owner))
    }

    /// See [`Inspection::regions`]; empty without inspection.
    #[must_use]
    pub fn regions(&self) -> Vec<Span> {
        self.as_inspection().map_or_else(Vec::new, Inspection::regions)
    }

    /// See [`Inspection::live_allocations`]; empty without inspection.
    #[must_use]
    pub fn live_allocations(&self) -> Vec<LiveAllocation> {
        self.as_inspection().map_or_else(Vec::new, Inspection::live_allocations)
    }

    /// See [`Inspection::would_fit`]; `None` without inspection.
    #[must_use]
    pub fn would_fit(&self, request: &Request<'_>, freed: &[Block]) -> Option<bool> {
        self.as_inspection()?.would_fit(request, freed)
    }

    /// See [`Inspection::refusal`]; built from the figures and the ledger without inspection.
    #[must_use]
    pub fn refusal(&self, request: &Request<'_>, verdict: Verdict) -> OomReport {
        if let Some(inspection) = self.as_inspection() {
            return inspection.refusal(request, verdict);
        }
        let AllocatorSnapshot { stats, ledger } = self.snapshot();
        OomReport {
            limit: stats.bytes_limit,
            reserved: stats.bytes_reserved,
            in_use: stats.bytes_in_use,
            free: stats.free_bytes(),
            largest_free: stats.largest_free_block_bytes,
            holders: ledger.largest_holders(HOLDERS),
            ..OomReport::new(self.name(), request, verdict)
        }
    }

    /// See [`Inspection::find_damage`]; empty without inspection.
    #[must_use]
    pub fn find_damage(&self) -> Vec<Damage> {
        self.as_inspection().map_or_else(Vec::new, Inspection::find_damage)
    }

    /// See [`Inspection::check_invariants`]; `Ok` without inspection.
    ///
    /// # Errors
    /// As for the method of the facet.
    pub fn check_invariants(&self) -> Result<(), Inconsistent> {
        self.as_inspection().map_or(Ok(()), Inspection::check_invariants)
    }

    /// See [`Inspection::plan_counts`]; `None` without inspection.
    #[must_use]
    pub fn plan_counts(&self) -> Option<PlanCounts> {
        self.as_inspection()?.plan_counts()
    }

    /// See [`WaitHints::wait_key`]; a key that compares with no other without hints.
    #[must_use]
    pub fn wait_key(&self, request: &Request<'_>) -> WaitKey {
        let unknown = WaitKey { bytes: request.bytes, class: None };
        self.as_wait_hints().map_or(unknown, |hints| hints.wait_key(request))
    }

    /// See [`WaitHints::max_satisfiable_bytes`]; `u64::MAX` without hints.
    #[must_use]
    pub fn max_satisfiable_bytes(&self) -> u64 {
        self.as_wait_hints().map_or(u64::MAX, WaitHints::max_satisfiable_bytes)
    }

    /// See [`WaitHints::expect_frees`]; does nothing without hints.
    pub(crate) fn expect_frees(&self, begin: bool) {
        if let Some(hints) = self.as_wait_hints() {
            hints.expect_frees(begin);
        }
    }

    /// See [`WaitHints::has_orphaned_blocks`]; true without hints.
    #[must_use]
    pub fn has_orphaned_blocks(&self, besides: &[Block]) -> bool {
        self.as_wait_hints().is_none_or(|hints| hints.has_orphaned_blocks(besides))
    }

    /// The stream in whose order freed memory is reused; `None` without an order of streams, as on the host.
    #[must_use]
    pub fn stream(&self) -> Option<&Arc<Stream>> {
        self.as_stream_order().map(StreamOrder::stream)
    }

    /// See [`StreamOrder::record_stream`]; [`RecordError::Unordered`] without an order of streams.
    ///
    /// # Errors
    /// As for the method of the facet.
    pub fn record_stream(&self, block: &Block, stream: &Arc<Stream>) -> Result<(), RecordError> {
        match self.as_stream_order() {
            Some(order) => order.record_stream(block, stream),
            None => Err(RecordError::Unordered { allocator: self.name().to_owned() }),
        }
    }

    /// See [`Resize::resize`]; `None` without the facet.
    ///
    /// # Errors
    /// As for the method of the facet.
    ///
    /// # Safety
    /// As for the method of the facet.
    pub unsafe fn resize(&self, block: &Block, bytes: u64) -> Result<Option<Block>, BlockError> {
        match self.as_resize() {
            // SAFETY: the caller guarantees the contract of the facet.
            Some(resize) => unsafe { resize.resize(block, bytes) },
            None => Ok(None),
        }
    }

    /// See [`Upkeep::trim`]; 0 without upkeep.
    pub fn trim(&self, keep: Bytes) -> u64 {
        self.as_upkeep().map_or(0, |upkeep| upkeep.trim(keep))
    }

    /// See [`Upkeep::clear_stats`]; false without upkeep.
    pub fn clear_stats(&self) -> bool {
        self.as_upkeep().is_some_and(Upkeep::clear_stats)
    }

    /// See [`Upkeep::begin_step`]; does nothing without upkeep.
    pub fn begin_step(&self) {
        if let Some(upkeep) = self.as_upkeep() {
            upkeep.begin_step();
        }
    }

    /// See [`Upkeep::set_safe_frontier`]; does nothing without upkeep.
    pub fn set_safe_frontier(&self, count: u64) {
        if let Some(upkeep) = self.as_upkeep() {
            upkeep.set_safe_frontier(count);
        }
    }
}
