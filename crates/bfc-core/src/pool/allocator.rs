//! A policy behind a lock, with a source of memory below it.

mod cached;
mod inspect;
mod slow_path;
mod supply;
mod what_if;

use std::fmt;
use std::sync::Arc;

use super::cache::Caches;
use super::config::{ConfiguredPolicy, PoolConfig};
use super::frontier::{SafeFrontier, TimingCounter};
use super::growth::Growth;
use crate::accounting::accounts::Accounts;
use crate::accounting::callers::{CallOut, Users};
use crate::accounting::retry::{AllocatorRetry, Want};
use crate::allocator::error::{AllocError, BlockError};
use crate::allocator::oom::{OomReport, Verdict};
use crate::allocator::stats::Stats;
use crate::allocator::{Allocator, AllocatorSnapshot, Request};
use crate::base::ledger::{Category, Ledger, OwnerBytes, Tag};
use crate::base::memory::{AddressSpace, Block, MemoryKind, PoolId, Span};
use crate::base::owner::OwnerId;
use crate::base::sync::{SpinMutex, ThreadNumber};
use crate::base::units::Bytes;
use crate::policy::planned::PlannedCounts;
use crate::policy::{Moment, Need, NotLive, Place, Policy};
use crate::source::sub_allocator::SubAllocator;

/// A pool over one source of memory, in which a [`Policy`] says where blocks go.
///
/// Nothing is taken from the source before the first request. What is taken goes back when the pool is dropped, and
/// before that when it is idle: on demand by [`trim`](Self::trim), or, with garbage
/// collection, when a larger region is needed in its place.
///
/// The source is called under the pool's lock. A source or visitor that calls back into the pool gets an error, or for
/// [`stats`](Allocator::stats) the figures as they were before the call; other look-ups come back empty.
pub struct PolicyAllocator<P: ConfiguredPolicy> {
    name: String,
    source: Arc<dyn SubAllocator>,
    config: PoolConfig<P::Options>,
    state: SpinMutex<State<P>>,
    frontier: SafeFrontier,
    retry: AllocatorRetry,
    /// What counts the frees; only for policies that can keep memory apart that is not safe yet.
    timing_counter: Option<Arc<TimingCounter>>,
    /// Where threads find blocks without the lock, if that was chosen.
    caches: Option<Caches>,
    call_out: CallOut,
}

/// What the lock protects.
#[derive(Debug)]
struct State<P> {
    policy: P,
    accounts: Accounts,
    growth: Growth,
    users: Users,
    /// Whether the source ever delivered more than it was asked for: only then may the limit be exceeded.
    over_delivered: bool,
}

impl<P: ConfiguredPolicy> PolicyAllocator<P> {
    /// A pool called `name` that takes its memory from `source`.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        source: Arc<dyn SubAllocator>,
        config: PoolConfig<P::Options>,
    ) -> Self {
        let configured = if config.allow_growth { P::configured_to_grow } else { P::configured };
        let policy = configured(&config.options);
        let pool = PoolId::next();
        let timing_counter = config.timing_counter.clone().filter(|_| policy.knows_counts());
        let cached = timing_counter.is_none() && policy.allows_caches();
        let caches = config.thread_cache.filter(|_| cached).map(|options| Caches::new(options, pool));
        // Frees that wait for a frontier may come true by whoever raises it, and not by those who wait here alone.
        let stalemate = config.stalemate.filter(|_| timing_counter.is_none());
        let retry = AllocatorRetry::with_stalemate(stalemate);
        let state = State {
            policy,
            accounts: Accounts::new(pool),
            growth: Growth::new(&config),
            users: Users::default(),
            over_delivered: false,
        };
        Self {
            name: name.into(),
            source,
            config,
            state: SpinMutex::new(state),
            frontier: SafeFrontier::default(),
            retry,
            timing_counter,
            caches,
            call_out: CallOut::default(),
        }
    }

    /// How the pool behaves.
    #[must_use]
    pub const fn config(&self) -> &PoolConfig<P::Options> {
        &self.config
    }

    /// What counts the pool's frees, so that their memory waits for the frontier. `None` if the configuration names
    /// nothing, and in pools whose policy knows no counts: there memory is free at once, whatever was configured.
    #[must_use]
    pub const fn timing_counter(&self) -> Option<&Arc<TimingCounter>> {
        self.timing_counter.as_ref()
    }

    /// The calling thread's number, unless it comes from a call into the source that this pool is making.
    #[inline]
    fn enter(&self) -> Option<ThreadNumber> {
        self.call_out.enter()
    }

    /// The block, if there are no caches and a free chunk fits as things stand.
    fn allocate_at_once(&self, request: &Request<'_>) -> Option<Block> {
        if request.bytes == 0 || !request.alignment.is_power_of_two() {
            return None;
        }
        if request.attributes.freed_before.is_some() || self.caches.is_some() {
            return None;
        }
        let thread = self.enter()?;
        let need = Need::of(request, None);
        let state = &mut *self.state.lock();
        if state.users.is_other(thread) {
            self.note(state, thread);
        }
        state.policy.merge_ripe(self.frontier.get());
        let place = state.policy.place(&need)?;
        Some(state.accounts.open(place, need.bytes, request.tag))
    }

    // Apart from the callers, which then need not have the retry at hand: it is called at changes of threads alone.
    #[cold]
    #[inline(never)]
    fn note(&self, state: &mut State<P>, thread: ThreadNumber) {
        state.users.note(thread, &mut state.accounts, &self.retry);
    }

    #[cold]
    #[inline(never)]
    fn note_free(&self, state: &mut State<P>, thread: ThreadNumber) {
        state.users.note_free(thread, &mut state.accounts, &self.retry);
    }

    /// Only the empty block has no number and may be given back: that frees nothing, but wakes those who wait, as
    /// upstream.
    #[cold]
    fn deallocate_unnumbered(&self, block: Block) -> Result<(), BlockError> {
        if block == Block::EMPTY {
            self.retry.notify();
            return Ok(());
        }
        self.of_block(&block, (), |_, _| ())
    }

    /// The figures now, but for the waits. The caller holds the pool's lock and that of no cache.
    fn stats_of(&self, state: &State<P>) -> Stats {
        self.stats_with(state, self.figures_of(state))
    }

    /// These figures, with those that the pool and its policy know.
    fn stats_with(&self, state: &State<P>, figures: Stats) -> Stats {
        Stats { bytes_limit: Some(self.config.limit), ..state.stats(figures) }
    }
}

impl<P: Policy> State<P> {
    /// Finds room for a request and opens its account.
    fn allocate(&mut self, need: &Need, tag: Tag) -> Option<Block> {
        let place = self.policy.place(need)?;
        Some(self.accounts.open(place, need.bytes, tag))
    }

    /// The place of the live block that a block says it is.
    fn live(&self, block: &Block) -> Result<Place, BlockError> {
        self.accounts.live(block)?;
        // A slot with an account holds a block: if the policy cannot say so, it has lost it.
        let place = self.policy.placed(block.chunk).ok_or(BlockError::Damaged { block: *block })?;
        let same = place.address == block.address && place.bytes == block.bytes;
        if same { Ok(place) } else { Err(BlockError::Unknown { block: *block }) }
    }

    /// The same without the reason why there is none: an error is written to memory, and then so is what comes in its place.
    #[inline]
    fn find_live(&self, block: &Block) -> Option<Place> {
        self.accounts.find(block)?;
        let place = self.policy.placed(block.chunk)?;
        (place.address == block.address && place.bytes == block.bytes).then_some(place)
    }

    #[cold]
    #[inline(never)]
    fn why_not_live(&self, block: &Block) -> BlockError {
        self.live(block).err().unwrap_or(BlockError::Unknown { block: *block })
    }

    /// Takes the block at `place` back.
    #[inline(always)]
    fn free(&mut self, place: Place, freed_at: u64) -> Result<(), NotLive> {
        self.policy.free(place.slot, freed_at)?;
        self.accounts.close(place);
        Ok(())
    }

    fn block_at(&mut self, address: u64) -> Result<Block, BlockError> {
        let policy = &self.policy;
        let slot = self.accounts.slot_at(address, |slot| Some(policy.placed(slot)?.address))?;
        let place = self.policy.placed(slot).ok_or(BlockError::NoBlockAt { address })?;
        Ok(self.accounts.block(place))
    }

    /// These figures, with those that the policy knows.
    fn stats(&self, figures: Stats) -> Stats {
        Stats {
            largest_free_block_bytes: self.policy.largest_free_bytes(),
            regions: self.policy.regions().len() as u64,
            ..figures
        }
    }
}

impl<P: ConfiguredPolicy> fmt::Debug for PolicyAllocator<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, source, config) = (&self.name, &self.source, &self.config);
        let mut debug = f.debug_struct("PolicyAllocator");
        debug.field("name", name).field("source", source).field("config", config).finish_non_exhaustive()
    }
}

impl<P: ConfiguredPolicy> Drop for PolicyAllocator<P> {
    fn drop(&mut self) {
        let state = self.state.lock();
        for span in state.policy.regions() {
            // SAFETY: the policy goes with the pool. Blocks are promised to be valid no longer than the pool lives.
            unsafe { self.give_back(&state, span) };
        }
    }
}

// SAFETY: blocks are places in regions that the source promised to be valid memory of its kind, and initialised if the
// host can read it; `extend` checks that regions stay within the address space. A `ConfiguredPolicy` promises that
// places lie within regions, are aligned as asked, and overlap no other place that was not freed.
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
            Some(block) => Ok(block),
            None => self.allocate_otherwise(request),
        }
    }

    #[inline]
    unsafe fn deallocate(&self, block: Block) -> Result<(), BlockError> {
        if block.id == 0 {
            return self.deallocate_unnumbered(block);
        }
        let thread = self.enter().ok_or(BlockError::Reentrant)?;
        if let Some(caches) = &self.caches
            && let Some(shard) = caches.of_allocation(block.id)
        {
            return self.deallocate_through(caches, shard, &block, thread);
        }
        let awaited = {
            let state = &mut *self.state.lock();
            let Some(place) = state.find_live(&block) else { return Err(state.why_not_live(&block)) };
            if state.users.is_other(thread) {
                self.note_free(state, thread);
            }
            let freed_at = self.timing_counter.as_ref().map_or(0, |counter| counter.next());
            state.free(place, freed_at).map_err(|_| BlockError::Damaged { block })?;
            self.release_unwanted(state, Moment::AfterFree);
            self.retry.is_awaited().then(|| self.within_reach_of(state))
        };
        if let Some(bytes) = awaited {
            self.retry.notify_up_to(bytes);
        }
        Ok(())
    }

    fn stats(&self) -> Stats {
        let stats = match self.enter() {
            Some(_) => self.stats_of(&self.state.lock()),
            None => self.call_out.stats(),
        };
        Stats { retry: self.retry.stats(), ..stats }
    }

    fn bytes_in_use(&self) -> u64 {
        match self.enter() {
            Some(_) => self.state.lock().accounts.figures.bytes_in_use,
            None => self.call_out.stats().bytes_in_use,
        }
    }

    fn regions(&self) -> Vec<Span> {
        // The method of the pool itself, which has the same name.
        Self::regions(self)
    }

    fn clear_stats(&self) -> bool {
        let cleared = self.write(|state| self.clear_figures(state)).is_some();
        if cleared {
            self.retry.clear_stats();
        }
        cleared
    }

    fn requested_bytes(&self, block: &Block) -> Result<u64, BlockError> {
        self.of_block(block, 0, |accounts, place| accounts.of(place).requested)
    }

    fn block_at(&self, address: u64) -> Result<Block, BlockError> {
        self.write(|state| self.find(state, address)).unwrap_or(Err(BlockError::Reentrant))
    }

    fn tag(&self, block: &Block) -> Result<Tag, BlockError> {
        self.of_block(block, Tag::default(), |accounts, place| accounts.of(place).tag)
    }

    fn retag(&self, block: &Block, tag: Tag) -> Result<(), BlockError> {
        self.of_block(block, (), |accounts, place| accounts.retag(place, tag))
    }

    fn recategorize(&self, block: &Block, from: &[Category], to: Category) -> Result<Tag, BlockError> {
        self.of_block(block, Tag::default(), |accounts, place| {
            let before = accounts.of(place).tag;
            if from.contains(&before.category) {
                accounts.retag(place, Tag { category: to, ..before });
            }
            before
        })
    }

    fn ledger(&self) -> Ledger {
        self.write(|state| self.ledger_of(state)).unwrap_or_default()
    }

    fn snapshot(&self) -> AllocatorSnapshot {
        let (stats, ledger) = match self.enter() {
            Some(_) => {
                let state = self.state.lock();
                let (figures, ledger) = self.figures_and_ledger_of(&state);
                (self.stats_with(&state, figures), ledger)
            }
            None => (self.call_out.stats(), Ledger::default()),
        };
        AllocatorSnapshot { stats: Stats { retry: self.retry.stats(), ..stats }, ledger }
    }

    fn owner_bytes(&self, owner: OwnerId) -> OwnerBytes {
        self.write(|state| self.bytes_of(state, owner)).unwrap_or_default()
    }

    fn refusal(&self, request: &Request<'_>, verdict: Verdict) -> OomReport {
        self.refusal_of(request, verdict)
            .unwrap_or_else(|| OomReport::new(self.name.clone(), request, verdict))
    }

    fn trim(&self, keep: Bytes) -> u64 {
        // The method of the pool itself, which has the same name.
        Self::trim(self, keep)
    }

    fn would_fit(&self, request: &Request<'_>, freed: &[Block]) -> Option<bool> {
        self.what_if_freed(request, freed)
    }

    fn want(&self, request: &Request<'_>) -> Want {
        self.want_of(request)
    }

    fn within_reach(&self) -> u64 {
        self.write(|state| self.within_reach_of(state)).unwrap_or(u64::MAX)
    }

    fn expect_frees(&self, begin: bool) {
        self.retry.expect_frees(begin);
    }

    fn left_behind(&self, besides: &[Block]) -> bool {
        self.write(|state| self.is_left_behind(state, besides)).unwrap_or(true)
    }

    fn set_safe_frontier(&self, count: u64) {
        if self.frontier.advance(count) {
            self.retry.notify();
        }
    }

    fn begin_step(&self) {
        self.with_policy(P::begin_step);
    }

    fn plan_counts(&self) -> Option<PlannedCounts> {
        self.with_policy(|policy| policy.plan_counts())?
    }
}
