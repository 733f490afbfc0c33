//! A pool's view of itself.

use std::task::Waker;

use super::PolicyAllocator;
use crate::allocator::error::BlockError;
use crate::allocator::oom::{OomReport, Verdict};
use crate::allocator::stats::Stats;
use crate::allocator::{AllocatorSnapshot, LiveAllocation, PoolView, Request, WaitKey};
use crate::base::ledger::{Category, Ledger, OwnerBytes, Tag};
use crate::base::memory::{Block, Span};
use crate::base::owner::OwnerId;
use crate::base::placement::{Inconsistent, PackingCounts};
use crate::base::units::Bytes;
use crate::policy::ConfiguredPolicy;

impl<P: ConfiguredPolicy> PoolView for PolicyAllocator<P> {
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
            None => (self.reentrancy.stats(), Ledger::default()),
        };
        AllocatorSnapshot { stats: Stats { retry: self.retry.stats(), ..stats }, ledger }
    }

    fn owner_bytes(&self, owner: OwnerId) -> OwnerBytes {
        self.write(|state| self.bytes_of(state, owner)).unwrap_or_default()
    }

    fn regions(&self) -> Vec<Span> {
        // Calls the pool's own method of the same name.
        Self::regions(self)
    }

    fn live_allocations(&self) -> Vec<LiveAllocation> {
        self.write(|state| self.live_allocations_of(state)).unwrap_or_default()
    }

    fn would_fit(&self, request: &Request<'_>, freed: &[Block]) -> Option<bool> {
        self.what_if_freed(request, freed)
    }

    fn refusal(&self, request: &Request<'_>, verdict: Verdict) -> OomReport {
        self.refusal_of(request, verdict)
            .unwrap_or_else(|| OomReport::new(self.name.clone(), request, verdict))
    }

    fn check_invariants(&self) -> Result<(), Inconsistent> {
        // Calls the pool's own method of the same name.
        Self::check_invariants(self)
    }

    fn packing_counts(&self) -> Option<PackingCounts> {
        self.with_policy(|policy| policy.packing_follower().map(|follower| follower.counts()))?
    }

    fn wait_key(&self, request: &Request<'_>) -> WaitKey {
        self.wait_key_of(request)
    }

    fn max_satisfiable_bytes(&self) -> u64 {
        self.write(|state| self.max_satisfiable_bytes_of(state)).unwrap_or(u64::MAX)
    }

    fn expect_frees(&self, begin: bool) {
        self.retry.expect_frees(begin);
    }

    fn has_orphaned_blocks(&self, besides: &[Block]) -> bool {
        self.write(|state| self.has_orphaned_blocks_of(state, besides)).unwrap_or(true)
    }

    fn wake_also(&self, waiters: &Waker) {
        if let Some(counter) = &self.timing {
            counter.add_waiters(waiters.clone());
        }
    }

    fn trim(&self, keep: Bytes) -> u64 {
        // Calls the pool's own method of the same name.
        Self::trim(self, keep)
    }

    fn clear_stats(&self) -> bool {
        let cleared = self.write(|state| self.clear_figures(state)).is_some();
        if cleared {
            self.retry.clear_stats();
        }
        cleared
    }

    fn begin_step(&self) {
        self.with_policy(|policy| {
            if let Some(follower) = policy.packing_follower() {
                follower.begin_step();
            }
        });
    }

    fn supports_resize(&self) -> bool {
        self.resizes
    }

    unsafe fn resize(&self, block: &Block, bytes: u64) -> Result<Option<Block>, BlockError> {
        // SAFETY: the caller guarantees the same contract.
        unsafe { self.resize_block(block, bytes) }
    }
}
