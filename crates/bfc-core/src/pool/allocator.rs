//! A policy behind a lock, with a source of memory below it.

mod cached;
mod expand;
mod inspect;
mod resize;
mod slow_path;
mod supply;
mod view;
mod what_if;

use std::sync::Arc;

use super::cache::Caches;
use super::config::PoolConfig;
use super::growth::Growth;
use super::limit::RegionLimit;
use super::timing::TimingCounter;
use crate::accounting::accounts::Accounts;
use crate::accounting::callers::{ReentrancyGuard, ThreadRegistry};
use crate::accounting::retry::AllocatorRetry;
use crate::allocator::error::{AllocError, BlockError};
use crate::allocator::stats::Stats;
use crate::allocator::{Allocator, PoolView, Request};
use crate::base::ledger::Tag;
use crate::base::memory::{AddressSpace, Block, MemoryKind, PoolId};
use crate::base::placement::Placement;
use crate::base::sync::{SpinMutex, ThreadNumber};
use crate::policy::{ConfiguredPolicy, PlacementRequest, Policy, Release};
use crate::source::sub_allocator::SubAllocator;

/// A pool over one source of memory, in which a [`Policy`] places the blocks.
///
/// The first request takes the first region. The pool returns its regions when it is dropped, and idle ones earlier: on
/// demand by [`trim`](Self::trim), or, with garbage collection, to make room for a larger region.
///
/// The pool calls the source under its lock. If the source or a visitor calls back into the pool, that call fails with
/// an error. [`stats`](Allocator::stats) then returns the figures from before the call, and other queries return
/// nothing.
#[derive(Debug)]
pub struct PolicyAllocator<P: ConfiguredPolicy> {
    name: String,
    source: Arc<dyn SubAllocator>,
    config: PoolConfig<P::Options>,
    /// The limit of the configuration, in whole regions of the source.
    limit: RegionLimit,
    state: SpinMutex<LockedPool<P>>,
    retry: AllocatorRetry,
    /// Counts the frees. Only for [timed](Policy::timed) policies.
    timing: Option<Arc<TimingCounter>>,
    /// Caches that serve threads without the lock, if enabled.
    caches: Option<Caches>,
    /// Whether a request needs nothing but the lock and a free chunk: there are neither caches nor a counter.
    is_plain: bool,
    /// Whether blocks may change their sizes.
    resizes: bool,
    reentrancy: ReentrancyGuard,
}

/// The state behind the lock.
#[derive(Debug)]
struct LockedPool<P> {
    policy: P,
    accounts: Accounts,
    growth: Growth,
    users: ThreadRegistry,
}

impl<P: ConfiguredPolicy> PolicyAllocator<P> {
    /// Creates a pool called `name` that takes its memory from `source`.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        source: Arc<dyn SubAllocator>,
        config: PoolConfig<P::Options>,
    ) -> Self {
        let configured = if config.allow_growth { P::configured_to_grow } else { P::configured };
        let mut policy = configured(&config.options);
        let pool = PoolId::next();
        let timing = config.timing_counter.clone().filter(|_| policy.timed().is_some());
        let cached = timing.is_none() && policy.capabilities().supports_caches;
        let caches = config.thread_cache.filter(|_| cached).map(|options| Caches::new(options, pool));
        let resizes = timing.is_none() && !policy.capabilities().follows_packing;
        let limit = RegionLimit::new(config.limit, &*source);
        let state = LockedPool {
            policy,
            accounts: Accounts::new(pool),
            growth: Growth::new(&config),
            users: ThreadRegistry::default(),
        };
        let retry = AllocatorRetry::new();
        if let Some(counter) = &timing {
            counter.add_waiters(retry.waker());
        }
        Self {
            name: name.into(),
            source,
            config,
            limit,
            state: SpinMutex::new(state),
            retry,
            is_plain: timing.is_none() && caches.is_none(),
            resizes,
            timing,
            caches,
            reentrancy: ReentrancyGuard::default(),
        }
    }

    /// Returns the configuration.
    #[must_use]
    pub const fn config(&self) -> &PoolConfig<P::Options> {
        &self.config
    }

    /// Returns the counter of frees. `None` without one in the configuration, and if the policy does not support counts:
    /// freed memory is then reusable immediately.
    #[must_use]
    pub const fn timing_counter(&self) -> Option<&Arc<TimingCounter>> {
        self.timing.as_ref()
    }

    /// Returns the number of the calling thread, unless it calls back from a source that this pool is calling.
    #[inline]
    fn enter(&self) -> Option<ThreadNumber> {
        self.reentrancy.enter()
    }

    /// Allocates the block if the pool is plain and a free chunk fits.
    fn allocate_at_once(&self, request: &Request<'_>) -> Option<Block> {
        if !self.is_plain {
            return None;
        }
        self.allocate_free(request, |_| ())
    }

    /// Allocates the block if a free chunk fits, after `prepare`.
    #[inline(always)]
    fn allocate_free(
        &self,
        request: &Request<'_>,
        prepare: impl FnOnce(&mut LockedPool<P>),
    ) -> Option<Block> {
        if request.bytes == 0 || !request.alignment.is_power_of_two() {
            return None;
        }
        let thread = self.enter()?;
        let placement = placement_request(request);
        let state = &mut *self.state.lock();
        if state.users.is_other(thread) {
            self.note(state, thread);
        }
        prepare(state);
        let place = state.policy.place(&placement)?;
        Some(state.accounts.open(place, placement.bytes, request.tag))
    }

    // Out of line, because it runs only when the thread changes: callers then need no register for the retry.
    #[cold]
    #[inline(never)]
    fn note(&self, state: &mut LockedPool<P>, thread: ThreadNumber) {
        state.users.note(thread, &mut state.accounts, &self.retry);
    }

    /// Merges pending frees that have become reusable.
    fn merge_ripe(&self, state: &mut LockedPool<P>) {
        if let Some(counter) = &self.timing {
            counter.merge_ripe(&mut state.policy);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_free(&self, state: &mut LockedPool<P>, thread: ThreadNumber) {
        state.users.note_free(thread, &mut state.accounts, &self.retry);
    }

    /// Only the empty block has no number. Freeing it frees nothing, but wakes waiters, as upstream.
    #[cold]
    fn deallocate_unnumbered(&self, block: Block) -> Result<(), BlockError> {
        if block == Block::EMPTY {
            self.retry.notify();
            return Ok(());
        }
        self.of_block(&block, (), |_, _| ())
    }

    /// Returns the current figures without the waits. The caller holds the pool's lock and no cache's lock.
    fn stats_of(&self, state: &LockedPool<P>) -> Stats {
        self.stats_with(state, self.figures_of(state))
    }

    /// Completes these figures with those of the pool and its policy.
    fn stats_with(&self, state: &LockedPool<P>, figures: Stats) -> Stats {
        Stats { bytes_limit: Some(self.config.limit.0), ..state.stats(figures) }
    }
}

/// Converts a request for the policy.
#[inline]
const fn placement_request(request: &Request<'_>) -> PlacementRequest {
    PlacementRequest::new(request.bytes).with_alignment(request.alignment).with_stream(request.stream)
}

impl<P: Policy> LockedPool<P> {
    /// Places a request and opens its account.
    fn allocate(&mut self, request: &PlacementRequest, tag: Tag) -> Option<Block> {
        let place = self.policy.place(request)?;
        Some(self.accounts.open(place, request.bytes, tag))
    }

    /// Returns the placement of a live block.
    fn live(&self, block: &Block) -> Result<Placement, BlockError> {
        self.accounts.live(block)?;
        self.find_live(block).ok_or(BlockError::Unknown { block: *block })
    }

    /// Returns the placement without a reason for failure. Returning an error through memory would slow the success
    /// path.
    #[inline]
    fn find_live(&self, block: &Block) -> Option<Placement> {
        self.accounts.find(block)?;
        let place = self.policy.placed(block.chunk)?;
        (place.address == block.address && place.bytes == block.bytes).then_some(place)
    }

    #[cold]
    #[inline(never)]
    fn why_not_live(&self, block: &Block) -> BlockError {
        self.live(block).err().unwrap_or(BlockError::Unknown { block: *block })
    }

    fn block_at(&mut self, address: u64) -> Result<Block, BlockError> {
        let policy = &self.policy;
        let slot = self.accounts.slot_at(address, |slot| Some(policy.placed(slot)?.address))?;
        let place = self.policy.placed(slot).ok_or(BlockError::NoBlockAt { address })?;
        Ok(self.accounts.block(place))
    }

    /// Completes these figures with those of the policy.
    fn stats(&self, figures: Stats) -> Stats {
        Stats {
            largest_free_block_bytes: self.policy.largest_free_bytes(),
            regions: self.policy.regions().len() as u64,
            ..figures
        }
    }
}

impl<P: ConfiguredPolicy> Drop for PolicyAllocator<P> {
    fn drop(&mut self) {
        let state = self.state.lock();
        for span in state.policy.regions() {
            // SAFETY: the policy is dropped with the pool, and blocks are valid only while the pool lives.
            unsafe { self.give_back(&state, span) };
        }
    }
}

// SAFETY: blocks are placements in regions, which the source guarantees to be valid memory of its kind, initialized if
// the host can read it. `extend` checks that regions stay within the address space. A `ConfiguredPolicy` guarantees
// that placements lie within regions, have the requested alignment, and overlap no other live placement.
unsafe impl<P: ConfiguredPolicy> Allocator for PolicyAllocator<P> {
    fn name(&self) -> &str {
        &self.name
    }

    fn memory_kind(&self) -> MemoryKind {
        self.source.memory_kind()
    }

    fn address_space(&self) -> Option<AddressSpace> {
        self.source.address_space()
    }

    fn allocate(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        match self.allocate_at_once(request) {
            Some(block) => Ok(block.in_pairs()),
            None => self.allocate_otherwise(request),
        }
    }

    #[inline]
    unsafe fn deallocate(&self, block: Block) -> Result<(), BlockError> {
        if block.id == 0 {
            return self.deallocate_unnumbered(block);
        }
        let thread = self.enter().ok_or(BlockError::Reentrant)?;
        if let Some(caches) = &self.caches {
            if let Some(shard) = caches.of_allocation(block.id) {
                return self.deallocate_through(caches, shard, &block, thread);
            }
        }
        let awaited = {
            let state = &mut *self.state.lock();
            let Some(place) = state.find_live(&block) else { return Err(state.why_not_live(&block)) };
            if state.users.is_other(thread) {
                self.note_free(state, thread);
            }
            let freed = match &self.timing {
                None => state.policy.free(place.slot),
                Some(counter) => counter.free(&mut state.policy, place.slot),
            };
            freed.map_err(|_| BlockError::Unknown { block })?;
            state.accounts.close(place);
            self.release_unwanted(state, Release::Unwanted);
            self.retry.is_awaited().then(|| self.max_satisfiable_bytes_of(state))
        };
        if let Some(bytes) = awaited {
            self.retry.notify_up_to(bytes);
        }
        Ok(())
    }

    fn stats(&self) -> Stats {
        let stats = match self.enter() {
            Some(_) => self.stats_of(&self.state.lock()),
            None => self.reentrancy.stats(),
        };
        Stats { retry: self.retry.stats(), ..stats }
    }

    fn bytes_in_use(&self) -> u64 {
        match self.enter() {
            Some(_) => self.state.lock().accounts.figures.bytes_in_use,
            None => self.reentrancy.stats().bytes_in_use,
        }
    }

    fn tracks_sizes(&self) -> bool {
        true
    }

    fn as_pool(&self) -> Option<&dyn PoolView> {
        Some(self)
    }
}
