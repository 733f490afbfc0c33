//! The view of an allocator without a pool.

use super::{LiveBlocks, PassthroughAllocator, place_of};
use crate::allocator::{
    AllocatorSnapshot, BlockError, LiveAllocation, OomReport, PoolView, Request, Stats, Verdict, WaitKey,
};
use crate::base::ledger::{Ledger, OwnerBytes, Tag};
use crate::base::memory::{Block, Span};
use crate::base::owner::OwnerId;
use crate::base::placement::Placement;

impl PoolView for PassthroughAllocator {
    fn requested_bytes(&self, block: &Block) -> Result<u64, BlockError> {
        self.of_block(block, 0, |_, found| found.requested)
    }

    fn block_at(&self, address: u64) -> Result<Block, BlockError> {
        self.with_state(|state| {
            let LiveBlocks { accounts, live, .. } = state;
            let slot =
                accounts.slot_at(address, |slot| live.get(slot as usize).map(|live| live.user.address))?;
            let Span { address, bytes } =
                live.get(slot as usize).ok_or(BlockError::NoBlockAt { address })?.user;
            Ok(accounts.block(Placement { address, bytes, slot }))
        })
        .unwrap_or(Err(BlockError::Reentrant))
    }

    fn tag(&self, block: &Block) -> Result<Tag, BlockError> {
        self.of_block(block, Tag::default(), |_, found| found.tag)
    }

    fn retag(&self, block: &Block, tag: Tag) -> Result<(), BlockError> {
        self.of_block(block, (), |state, _| state.accounts.retag(place_of(block), tag))
    }

    fn ledger(&self) -> Ledger {
        self.with_state(|state| state.accounts.ledger.clone()).unwrap_or_default()
    }

    fn snapshot(&self) -> AllocatorSnapshot {
        let read = |state: &mut LiveBlocks| (self.stats_of(state), state.accounts.ledger.clone());
        let (stats, ledger) =
            self.with_state(read).unwrap_or_else(|| (self.reentrancy.stats(), Ledger::default()));
        AllocatorSnapshot { stats: Stats { retry: self.retry.stats(), ..stats }, ledger }
    }

    fn owner_bytes(&self, owner: OwnerId) -> OwnerBytes {
        self.with_state(|state| state.accounts.ledger.owner(owner)).unwrap_or_default()
    }

    fn regions(&self) -> Vec<Span> {
        let regions = |state: &mut LiveBlocks| state.live.iter().map(|(_, live)| live.region).collect();
        let mut regions: Vec<Span> = self.with_state(regions).unwrap_or_default();
        regions.sort_by_key(|region| region.address);
        regions
    }

    fn live_allocations(&self) -> Vec<LiveAllocation> {
        let live = |state: &mut LiveBlocks| {
            let LiveBlocks { accounts, live, .. } = state;
            live.iter()
                .filter_map(|(slot, live)| accounts.live_allocation(slot as u32, live.user.bytes))
                .collect()
        };
        self.with_state(live).unwrap_or_default()
    }

    fn refusal(&self, request: &Request<'_>, verdict: Verdict) -> OomReport {
        self.with_state(|state| self.report(state, request, verdict, true))
            .unwrap_or_else(|| OomReport::new(self.name.clone(), request, verdict))
    }

    fn wait_key(&self, request: &Request<'_>) -> WaitKey {
        // At equal alignment, neither the limit nor a source fits more if it does not fit less.
        WaitKey { bytes: request.bytes, class: Some(u64::from(request.alignment.trailing_zeros())) }
    }

    fn max_satisfiable_bytes(&self) -> u64 {
        self.with_state(|state| self.unreserved(state)).unwrap_or(u64::MAX)
    }

    fn expect_frees(&self, begin: bool) {
        self.retry.expect_frees(begin);
    }

    fn has_orphaned_blocks(&self, besides: &[Block]) -> bool {
        self.with_state(|state| state.users.has_orphaned_blocks(&state.accounts, besides)).unwrap_or(true)
    }

    fn clear_stats(&self) -> bool {
        let cleared = self.with_state(|state| state.accounts.clear_figures()).is_some();
        if cleared {
            self.retry.clear_stats();
        }
        cleared
    }
}
