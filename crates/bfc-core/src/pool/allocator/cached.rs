//! The pool's use of its caches: allocation, frees, and sums over the pool and its caches.
//!
//! [`cache`](crate::pool::cache) defines the lock order. No free into a cache is lost to a waiting request. The request
//! declares its interest before it empties the caches. A later free therefore sees the interest and goes to the pool,
//! which wakes the request.

use std::borrow::Cow;
use std::collections::HashSet;

use super::slow_path::RoundedRequest;
use super::{LockedPool, PolicyAllocator, placement_request};
use crate::accounting::accounts::Accounts;
use crate::allocator::Request;
use crate::allocator::error::BlockError;
use crate::allocator::stats::Stats;
use crate::base::ledger::{Ledger, OwnerBytes, Tag};
use crate::base::memory::Block;
use crate::base::owner::OwnerId;
use crate::base::placement::Inconsistent;
use crate::base::sync::{SpinGuard, SpinMutex, ThreadNumber};
use crate::policy::{ConfiguredPolicy, PlacementRequest, Policy, Release};
use crate::pool::cache::{Caches, Shard, index_of};
use crate::pool::invariants::{check, ensure};

impl<P: ConfiguredPolicy> PolicyAllocator<P> {
    /// Allocates from the caches, if enabled and suitable for the request.
    #[inline]
    pub(super) fn allocate_cached(&self, request: &Request<'_>) -> Option<Block> {
        let caches = self.caches.as_ref()?;
        if request.bytes == 0 || !request.alignment.is_power_of_two() {
            return None;
        }
        let thread = self.enter()?;
        self.allocate_through(caches, &placement_request(request), request.tag, thread)
    }

    /// Returns a free block of the thread's cache, or a new block that the cache keeps after its free.
    fn allocate_through(
        &self,
        caches: &Caches,
        request: &PlacementRequest,
        tag: Tag,
        thread: ThreadNumber,
    ) -> Option<Block> {
        let class = caches.class_of(request);
        let shard = caches.of_thread(thread);
        if let Some(class) = class {
            let shard = &mut *shard.lock();
            shard.users.note(thread, &mut shard.accounts, &self.retry);
            if let Some(block) = shard.take(class, request.alignment, request.bytes, tag) {
                return Some(block);
            }
        }
        let state = &mut *self.state.lock();
        state.users.note(thread, &mut state.accounts, &self.retry);
        let place = state.policy.place(request)?;
        if class.is_none() || !caches.takes(place.bytes) {
            return Some(state.accounts.open(place, request.bytes, tag));
        }
        state.accounts.lease(place.bytes, tag);
        let shard = &mut *shard.lock();
        // Another thread may have used the cache meanwhile.
        shard.users.note(thread, &mut shard.accounts, &self.retry);
        Some(shard.lease(place, request.bytes, tag))
    }

    /// Frees a block whose account is in that cache.
    #[inline(never)]
    pub(super) fn deallocate_through(
        &self,
        caches: &Caches,
        shard: &SpinMutex<Shard>,
        block: &Block,
        thread: ThreadNumber,
    ) -> Result<(), BlockError> {
        let full = {
            let shard = &mut *shard.lock();
            let place = shard.live(block)?;
            shard.users.note_free(thread, &mut shard.accounts, &self.retry);
            shard.keep(place);
            caches.is_full(shard)
        };
        // Checked after the cache is locked: see the module docs.
        if full || self.retry.is_awaited() {
            self.relieve(caches, shard);
        }
        Ok(())
    }

    /// Returns half of a cache's free blocks to the pool, or all of them if a request waits.
    #[cold]
    fn relieve(&self, caches: &Caches, shard: &SpinMutex<Shard>) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let awaited = self.retry.is_awaited();
        {
            let shard = &mut *shard.lock();
            while awaited || caches.is_half_full(shard) {
                if !state.take_back(shard) {
                    break;
                }
            }
        }
        self.release_unwanted(state, Release::Unwanted);
        if awaited {
            let bytes = self.max_satisfiable_bytes_of(state);
            drop(guard);
            self.retry.notify_up_to(bytes);
        }
    }

    /// Returns all free blocks of the caches to the pool. Returns whether there were any.
    pub(super) fn empty_caches(&self, state: &mut LockedPool<P>) -> bool {
        let mut shards = self.lock_caches();
        let mut any = false;
        for shard in &mut shards {
            while state.take_back(shard) {
                any = true;
            }
        }
        any
    }

    /// Empties the caches and retries, if they held any block.
    pub(super) fn allocate_from_caches(
        &self,
        state: &mut LockedPool<P>,
        request: &RoundedRequest,
    ) -> Option<Block> {
        self.caches.as_ref()?;
        if !self.empty_caches(state) {
            return None;
        }
        state.allocate(&request.placement, request.tag)
    }

    /// Returns the figures of the pool and the caches.
    pub(super) fn figures_of(&self, state: &LockedPool<P>) -> Stats {
        add_figures(&state.accounts.figures, &self.lock_caches())
    }

    /// Returns the ledger of the pool and the caches.
    pub(super) fn ledger_of(&self, state: &LockedPool<P>) -> Ledger {
        add_ledgers(&state.accounts.ledger, &self.lock_caches())
    }

    /// Returns the figures and ledger of the pool and the caches, with all caches locked once.
    pub(super) fn figures_and_ledger_of(&self, state: &LockedPool<P>) -> (Stats, Ledger) {
        let shards = self.lock_caches();
        (add_figures(&state.accounts.figures, &shards), add_ledgers(&state.accounts.ledger, &shards))
    }

    /// Returns one owner's account over the pool and the caches.
    pub(super) fn bytes_of(&self, state: &LockedPool<P>, owner: OwnerId) -> OwnerBytes {
        let mut sum = state.accounts.ledger.owner(owner);
        for shard in self.lock_caches() {
            let OwnerBytes { own, live, peak } = shard.accounts.ledger.owner(owner);
            sum = OwnerBytes { own: sum.own + own, live: sum.live + live, peak: sum.peak + peak };
        }
        sum
    }

    /// Returns the accounts of the pool and the caches, with all caches locked once.
    pub(super) fn accounts_of<'a>(&self, state: &'a LockedPool<P>) -> MergedAccounts<'a> {
        state.accounts_with(&self.lock_caches())
    }

    /// Resets counts to zero and peaks to the current values. Empties the caches, because the current values of full
    /// ones are unknown.
    pub(super) fn clear_figures(&self, state: &mut LockedPool<P>) {
        let mut shards = self.lock_caches();
        for shard in &mut shards {
            while state.take_back(shard) {}
            shard.accounts.clear_figures();
        }
        state.accounts.clear_figures();
    }

    /// Returns the live block at `address` from the accounts that hold it.
    pub(super) fn find(&self, state: &mut LockedPool<P>, address: u64) -> Result<Block, BlockError> {
        let found = state.block_at(address);
        let mut shards = self.lock_caches();
        shards.iter_mut().fold(found, |found, shard| found.or_else(|_| shard.block_at(address)))
    }

    /// Returns the policy's slots of the live ones among these blocks.
    pub(super) fn slots_of(&self, state: &LockedPool<P>, blocks: &[Block]) -> Vec<u32> {
        let shards = self.lock_caches();
        let slot_of = |block: &Block| match index_of(block.id) {
            Some(index) => shards.get(index)?.leased_slot(block),
            None => state.live(block).ok().map(|place| place.slot),
        };
        blocks.iter().filter_map(slot_of).collect()
    }

    /// Checks all rules.
    pub(super) fn check_all(&self, state: &LockedPool<P>) -> Result<(), Inconsistent> {
        let shards = self.lock_caches();
        let MergedAccounts { sum, cached } = state.accounts_with(&shards);
        check(&state.policy, &sum, &cached, self.limit.bytes)?;
        state.check_caches(&shards, &sum)
    }

    /// Whether a thread that has ended allocated a live block, other than these.
    pub(super) fn has_orphaned_blocks_of(&self, state: &LockedPool<P>, besides: &[Block]) -> bool {
        let of_cache =
            |shard: &SpinGuard<'_, Shard>| shard.users.has_orphaned_blocks(&shard.accounts, besides);
        state.users.has_orphaned_blocks(&state.accounts, besides) || self.lock_caches().iter().any(of_cache)
    }

    /// Locks all caches; none if there are none.
    fn lock_caches(&self) -> Vec<SpinGuard<'_, Shard>> {
        self.caches.as_ref().map_or_else(Vec::new, Caches::lock_all)
    }
}

/// The accounts of a pool and its caches combined, by the policy's slots.
#[derive(Debug)]
pub(super) struct MergedAccounts<'a> {
    /// The sum of all accounts.
    pub(super) sum: Cow<'a, Accounts>,
    /// The slots that caches keep free.
    pub(super) cached: HashSet<u32>,
}

impl<P: Policy> LockedPool<P> {
    /// Removes one free block from a cache. Returns whether there was one.
    fn take_back(&mut self, shard: &mut Shard) -> bool {
        let Some(place) = shard.give_up() else { return false };
        self.accounts.end_lease(place.bytes);
        let freed = self.policy.free(place.slot);
        debug_assert_eq!(freed, Ok(()), "a leased block is live in the policy");
        true
    }

    fn accounts_with(&self, shards: &[SpinGuard<'_, Shard>]) -> MergedAccounts<'_> {
        let mut cached = HashSet::new();
        if shards.is_empty() {
            return MergedAccounts { sum: Cow::Borrowed(&self.accounts), cached };
        }
        let mut sum = self.accounts.clone();
        sum.figures = add_figures(&sum.figures, shards);
        sum.ledger = add_ledgers(&sum.ledger, shards);
        for shard in shards {
            for leased in shard.leased() {
                if leased.in_use {
                    let account = shard.accounts.by_slot[leased.slot as usize];
                    sum.overlay(leased.place, account);
                } else {
                    cached.insert(leased.place.slot);
                }
            }
        }
        MergedAccounts { sum: Cow::Owned(sum), cached }
    }

    /// Copies the policy and frees these cached slots in the copy.
    pub(super) fn policy_without(&self, cached: &HashSet<u32>) -> Box<dyn Policy> {
        let mut copy = self.policy.boxed_clone();
        for &slot in cached {
            // The slot is live in the policy. An error would mean that it is already free.
            let _ = copy.free(slot);
        }
        copy
    }

    /// Checks the rule of caches. `sum` holds the accounts of the pool and the caches.
    fn check_caches(&self, shards: &[SpinGuard<'_, Shard>], sum: &Accounts) -> Result<(), Inconsistent> {
        let mut slots = HashSet::new();
        let (mut kept, mut leased) = (0, 0);
        for shard in shards {
            let fault = shard.fault(&self.policy);
            ensure(8, fault.is_none(), || fault.unwrap_or_default())?;
            kept += shard.cached_bytes();
            for block in shard.leased() {
                leased += block.place.bytes;
                let slot = block.place.slot;
                ensure(8, slots.insert(slot), || format!("slot {slot} is leased twice"))?;
                let account = self.accounts.of(block.place);
                ensure(8, account.allocation == 0, || format!("leased slot {slot} has {account:?}"))?;
            }
        }
        let (in_use, said) = (sum.figures.bytes_in_use, self.accounts.figures.bytes_in_use);
        let own = self.accounts.ledger.total();
        let holds = in_use + kept == said && own + leased == said;
        ensure(8, holds, || format!("{in_use} and {kept}, {own} and {leased} are {said}"))
    }
}

/// Combines the figures of a pool, in which all leased bytes are in use, and of its caches.
fn add_figures(pool: &Stats, shards: &[SpinGuard<'_, Shard>]) -> Stats {
    let mut sum = pool.clone();
    for shard in shards {
        let figures = &shard.accounts.figures;
        sum.num_allocs += figures.num_allocs;
        sum.live_allocs += figures.live_allocs;
        sum.bytes_requested += figures.bytes_requested;
        sum.largest_alloc_bytes = sum.largest_alloc_bytes.max(figures.largest_alloc_bytes);
        sum.bytes_in_use -= shard.cached_bytes();
    }
    sum
}

/// Combines the ledger of a pool, without leased blocks, and those of its caches.
fn add_ledgers(pool: &Ledger, shards: &[SpinGuard<'_, Shard>]) -> Ledger {
    let mut sum = pool.clone();
    shards.iter().for_each(|shard| sum.add_all(&shard.accounts.ledger));
    sum
}
