//! The optional view of an allocator as a pool: accounts of blocks, queries, hints for waiting, streams and maintenance.
//!
//! The table at the end states each method once, with its answer for allocators that do not support it. It becomes the
//! trait [`PoolView`] and the methods of `dyn Allocator`, which call the view or give that answer if there is none. A
//! wrapper names its inner allocator, to which the defaults of its view forward. `tests/suite/wrappers.rs` of the tracking
//! crate calls each method through every wrapper.

use std::sync::Arc;
use std::task::Waker;

use super::oom::HOLDERS;
use super::{
    Allocator, AllocatorSnapshot, BlockError, Damage, OomReport, RecordError, Request, Verdict, WaitKey,
};
use crate::base::ledger::{Category, Ledger, OwnerBytes, Tag};
use crate::base::memory::{Block, PoolId, Span};
use crate::base::owner::OwnerId;
use crate::base::placement::{Inconsistent, PackingCounts};
use crate::base::units::Bytes;
use crate::source::stream::Stream;

/// A live allocation of a pool.
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

/// Declares the trait and the methods of `dyn Allocator` from one table. `this` is the allocator in a default answer.
macro_rules! pool_view {
    ($(
        $(#[$attribute:meta])*
        $([$unsafe:tt])? fn $name:ident($this:ident $(, $argument:ident: $type:ty)*) $(-> $answer:ty)? $default:block
    )*) => {
        /// An allocator as a pool. Callers use the methods of the same names of `dyn Allocator`.
        ///
        /// Every method has a default. For a wrapper, it forwards to the [inner](Self::forwards_to) allocator. Otherwise it
        /// says that the allocator does not support the method:
        ///
        /// - without accounts: [`BlockError::Untracked`], and empty ledgers and lists of blocks,
        /// - without knowledge of the memory: no regions, and `None` from [`would_fit`](Self::would_fit),
        /// - without streams: [`RecordError::Unordered`], and `None` from [`stream`](Self::stream),
        /// - without a guard, a packing, resets or resizing: `None` or `false`,
        /// - without hints for waiting: the answer for which requests wait and wake most often.
        pub trait PoolView: Allocator {
            /// The inner allocator of a wrapper. It answers the methods that the wrapper does not implement.
            fn forwards_to(&self) -> Option<&dyn Allocator> {
                None
            }

            $(
                $(#[$attribute])*
                #[allow(unused_variables)]
                $($unsafe)? fn $name(&self $(, $argument: $type)*) $(-> $answer)? {
                    if let Some(inner) = self.forwards_to() {
                        // SAFETY: if the method is unsafe, the caller guarantees its contract.
                        return $($unsafe)? { inner.$name($($argument),*) };
                    }
                    let $this = self;
                    $default
                }
            )*
        }

        /// The methods of [`PoolView`], which give its default answers without a view.
        impl dyn Allocator + '_ {
            $(
                $(#[$attribute])*
                #[allow(unused_variables)]
                #[inline]
                pub $($unsafe)? fn $name(&self $(, $argument: $type)*) $(-> $answer)? {
                    match self.as_pool() {
                        // SAFETY: if the method is unsafe, the caller guarantees its contract.
                        Some(pool) => $($unsafe)? { pool.$name($($argument),*) },
                        None => {
                            let $this = self;
                            $default
                        }
                    }
                }
            )*
        }

        impl dyn PoolView + '_ {
            /// The names of all methods, for tests that call each of them.
            #[doc(hidden)]
            pub const METHODS: &'static [&'static str] = &[$(stringify!($name)),*];
        }
    };
}

pool_view! {
    /// Bytes that were requested when `block` was allocated.
    ///
    /// # Errors
    /// As for [`Allocator::deallocate`]; [`BlockError::Untracked`] if the allocator records no blocks.
    fn requested_bytes(this, block: &Block) -> Result<u64, BlockError> {
        Err(BlockError::Untracked)
    }

    /// The live block that starts at `address`.
    ///
    /// # Errors
    /// [`BlockError::NoBlockAt`] for every other address: interior, free, or of another allocator.
    /// [`BlockError::Untracked`] if the allocator records no blocks.
    fn block_at(this, address: u64) -> Result<Block, BlockError> {
        Err(BlockError::Untracked)
    }

    /// The tag that `block` is charged to.
    ///
    /// # Errors
    /// As for [`PoolView::requested_bytes`].
    fn tag(this, block: &Block) -> Result<Tag, BlockError> {
        Err(BlockError::Untracked)
    }

    /// Charges a live block to another tag. Does nothing without accounts.
    ///
    /// # Errors
    /// As for [`PoolView::requested_bytes`].
    fn retag(this, block: &Block, tag: Tag) -> Result<(), BlockError> {
        Ok(())
    }

    /// Charges a live block to the category `to` if its category is one of `from`. Returns the tag before the call.
    ///
    /// # Errors
    /// As for [`PoolView::tag`]; nothing changes then.
    fn recategorize(this, block: &Block, from: &[Category], to: Category) -> Result<Tag, BlockError> {
        let before = this.tag(block)?;
        if from.contains(&before.category) {
            this.retag(block, Tag { category: to, ..before })?;
        }
        Ok(before)
    }

    /// A copy of the ledger of live bytes by owner and category; empty without accounts.
    #[must_use]
    fn ledger(this) -> Ledger {
        Ledger::new()
    }

    /// The figures and the ledger, read under one acquisition of the allocator's lock, so that sums in reports balance
    /// while other threads allocate.
    #[must_use]
    fn snapshot(this) -> AllocatorSnapshot {
        AllocatorSnapshot { stats: this.stats(), ledger: this.ledger() }
    }

    /// The account of one owner.
    #[must_use]
    fn owner_bytes(this, owner: OwnerId) -> OwnerBytes {
        this.ledger().owner(owner)
    }

    /// The regions held from the source, in the order of addresses; empty for allocators without regions.
    #[must_use]
    fn regions(this) -> Vec<Span> {
        Vec::new()
    }

    /// The live allocations, in no particular order; empty without accounts.
    #[must_use]
    fn live_allocations(this) -> Vec<LiveAllocation> {
        Vec::new()
    }

    /// Whether the request would succeed if these live blocks were free. `None` if the allocator cannot tell. More blocks
    /// never turn a yes into a no.
    #[must_use]
    fn would_fit(this, request: &Request<'_>, freed: &[Block]) -> Option<bool> {
        None
    }

    /// The report of this request if it failed now with this verdict: figures, holders, and, from pools, what would make
    /// room.
    #[must_use]
    fn refusal(this, request: &Request<'_>, verdict: Verdict) -> OomReport {
        let AllocatorSnapshot { stats, ledger } = this.snapshot();
        OomReport {
            limit: stats.bytes_limit,
            reserved: stats.bytes_reserved,
            in_use: stats.bytes_in_use,
            free: stats.free_bytes(),
            largest_free: stats.largest_free_block_bytes,
            holders: ledger.largest_holders(HOLDERS),
            ..OomReport::new(this.name(), request, verdict)
        }
    }

    /// Checks all guarded memory and lists the damage found since the allocator was made. `None` if no
    /// [`GuardAllocator`](crate::GuardAllocator) guards the memory.
    #[must_use]
    fn find_damage(this) -> Option<Vec<Damage>> {
        None
    }

    /// Checks the records of the allocator and of the allocators below it, for tests. Takes time proportional to the
    /// number of chunks.
    ///
    /// # Errors
    /// Fails with the first violated rule.
    fn check_invariants(this) -> Result<(), Inconsistent> {
        Ok(())
    }

    /// How many allocations followed the packing; `None` without a [packing](crate::Packing).
    #[must_use]
    fn packing_counts(this) -> Option<PackingCounts> {
        None
    }

    /// Returns the key of a waiting request, which decides whether a free wakes it. By default it compares with no other.
    #[must_use]
    fn wait_key(this, request: &Request<'_>) -> WaitKey {
        WaitKey { bytes: request.bytes, class: None }
    }

    /// An upper bound of the bytes for which a request may succeed now; `u64::MAX` if unknown. Frees wake waiters up to
    /// it: see [`AllocatorRetry::notify_up_to`](crate::AllocatorRetry::notify_up_to).
    #[must_use]
    fn max_satisfiable_bytes(this) -> u64 {
        u64::MAX
    }

    /// Begins or ends to expect frees from threads that have not called the allocator yet. Called by
    /// [`ExpectedFrees`](super::ExpectedFrees).
    fn expect_frees(this, begin: bool) {}

    /// Whether a live block, other than these, was allocated by a thread that has ended. An unknown thread may free such a
    /// block. True if unknown.
    #[must_use]
    fn has_orphaned_blocks(this, besides: &[Block]) -> bool {
        true
    }

    /// Wakes these waiters too when memory returns without a free. For allocators that wait on top of this one.
    fn wake_also(this, waiters: &Waker) {}

    /// The stream in whose order freed memory is reused; `None` without an order of streams, as on the host.
    #[must_use]
    fn stream(this) -> Option<&Arc<Stream>> {
        None
    }

    /// Announces that `stream` will use a live block. Its later work waits for all work that the memory's own stream has
    /// so far. A free of the block takes effect once the work has ended that `stream` has at that time.
    /// See [`StreamAllocator`](crate::StreamAllocator).
    ///
    /// # Errors
    /// See [`RecordError`]: the stream must not use the block. [`RecordError::Unordered`] without an order of streams.
    fn record_stream(this, block: &Block, stream: &Arc<Stream>) -> Result<(), RecordError> {
        Err(RecordError::Unordered { allocator: this.name().to_owned() })
    }

    /// Returns unused memory to the source while more than `keep` bytes stay reserved. Returns the bytes released.
    fn trim(this, keep: Bytes) -> u64 {
        0
    }

    /// Resets the figures: counts to zero, peaks to the bytes in use now. `false` if that is not supported.
    fn clear_stats(this) -> bool {
        false
    }

    /// Tells an allocator that follows a [packing](crate::Packing) that a step begins, so that the next request is compared with
    /// the first one of the packing. Optional between steps that follow the packing to their last allocation.
    fn begin_step(this) {}

    /// Whether [`PoolView::resize`] may replace blocks. If not, it returns `None` for each of them.
    #[must_use]
    fn supports_resize(this) -> bool {
        false
    }

    /// Replaces a live block with one of at least `bytes` bytes at the same address and with the same tag, so that a growing
    /// array need not move. Returns `None` without a change if the memory behind the block is not free, if `bytes` is 0,
    /// and if the allocator does not [support](PoolView::supports_resize) it. A smaller block returns the rest to the
    /// allocator if it can be used separately.
    ///
    /// The figures, the ledger and recordings count a free and an allocation of `bytes` requested bytes in one step.
    /// The memory keeps its contents, and `block` is stale. Does not wait, grow the pool or return regions.
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
    ///
    /// # Errors
    /// As for [`Allocator::deallocate`]; nothing changes then.
    ///
    /// # Safety
    /// If a block is returned, no work uses the memory of `block` beyond the first `bytes` bytes, now or later, and all
    /// holders of `block` use the returned one in its place.
    [unsafe] fn resize(this, block: &Block, bytes: u64) -> Result<Option<Block>, BlockError> {
        Ok(None)
    }
}
