//! A guard's view: its own accounts, and the inner allocator for the rest.

use std::sync::Arc;

use super::{GuardAllocator, GuardedBlocks, Live, place_of, with_source_figures};
use crate::allocator::{
    Allocator, AllocatorSnapshot, BlockError, Damage, LiveAllocation, PoolView, RecordError, Request, WaitKey,
};
use crate::base::ledger::{Category, Ledger, OwnerBytes, Tag};
use crate::base::memory::Block;
use crate::base::owner::OwnerId;
use crate::base::placement::Placement;
use crate::base::sync::lock;
use crate::source::stream::Stream;

impl PoolView for GuardAllocator {
    fn forwards_to(&self) -> Option<&dyn Allocator> {
        Some(&*self.inner)
    }

    fn requested_bytes(&self, block: &Block) -> Result<u64, BlockError> {
        self.tag(block).map(|_| block.bytes)
    }

    fn block_at(&self, address: u64) -> Result<Block, BlockError> {
        let GuardedBlocks { accounts, live, .. } = &mut *lock(&self.state);
        let span_of = |slot: u32| live.get(slot as usize).map(|live: &Live| live.zones.user());
        let slot = accounts.slot_at(address, |slot| span_of(slot).map(|span| span.address))?;
        let span = span_of(slot).ok_or(BlockError::NoBlockAt { address })?;
        Ok(accounts.block(Placement { address: span.address, bytes: span.bytes, slot }))
    }

    fn tag(&self, block: &Block) -> Result<Tag, BlockError> {
        if *block == Block::EMPTY {
            return Ok(Tag::default());
        }
        lock(&self.state).tag_of(block)
    }

    fn retag(&self, block: &Block, tag: Tag) -> Result<(), BlockError> {
        if *block == Block::EMPTY {
            return Ok(());
        }
        let inner = {
            let state = &mut *lock(&self.state);
            state.tag_of(block)?;
            state.accounts.retag(place_of(block), tag);
            state.live.get(block.chunk as usize).map(|live| live.zones.inner)
        };
        inner.map_or(Ok(()), |inner| self.inner.retag(&inner, tag))
    }

    fn recategorize(&self, block: &Block, from: &[Category], to: Category) -> Result<Tag, BlockError> {
        let before = self.tag(block)?;
        if from.contains(&before.category) {
            self.retag(block, Tag { category: to, ..before })?;
        }
        Ok(before)
    }

    fn ledger(&self) -> Ledger {
        lock(&self.state).accounts.ledger.clone()
    }

    /// Returns the figures of the guard's users from one moment. Limit, reserved bytes and regions come from the inner
    /// allocator, which is called without the guard's lock.
    fn snapshot(&self) -> AllocatorSnapshot {
        let (figures, ledger) = {
            let accounts = &lock(&self.state).accounts;
            (accounts.figures.clone(), accounts.ledger.clone())
        };
        AllocatorSnapshot { stats: with_source_figures(figures, self.inner.stats()), ledger }
    }

    fn owner_bytes(&self, owner: OwnerId) -> OwnerBytes {
        lock(&self.state).accounts.ledger.owner(owner)
    }

    fn live_allocations(&self) -> Vec<LiveAllocation> {
        let GuardedBlocks { accounts, live, .. } = &*lock(&self.state);
        live.iter()
            .filter_map(|(slot, live)| accounts.live_allocation(slot as u32, live.zones.user().bytes))
            .collect()
    }

    /// Asks the inner allocator with the canaries included and the whole quarantine free.
    fn would_fit(&self, request: &Request<'_>, freed: &[Block]) -> Option<bool> {
        let inner = self.inner_request(request)?;
        let freed = {
            let state = lock(&self.state);
            state.inner_blocks(freed).chain(state.quarantine.inner_blocks()).collect::<Vec<_>>()
        };
        self.inner.would_fit(&inner, &freed)
    }

    fn find_damage(&self) -> Option<Vec<Damage>> {
        self.check_all();
        Some(lock(&self.state).findings.list())
    }

    fn wait_key(&self, request: &Request<'_>) -> WaitKey {
        self.inner_request(request)
            .map_or(WaitKey { bytes: request.bytes, class: None }, |inner| self.inner.wait_key(&inner))
    }

    /// A request can also use the quarantined memory.
    fn max_satisfiable_bytes(&self) -> u64 {
        let is_exact = lock(&self.state).quarantine.inner_blocks().next().is_none();
        if is_exact { self.inner.max_satisfiable_bytes() } else { u64::MAX }
    }

    fn has_orphaned_blocks(&self, besides: &[Block]) -> bool {
        let besides: Vec<Block> = lock(&self.state).inner_blocks(besides).collect();
        self.inner.has_orphaned_blocks(&besides)
    }

    fn clear_stats(&self) -> bool {
        lock(&self.state).accounts.clear_figures();
        self.inner.clear_stats()
    }

    fn stream(&self) -> Option<&Arc<Stream>> {
        None
    }

    fn record_stream(&self, _block: &Block, _stream: &Arc<Stream>) -> Result<(), RecordError> {
        Err(RecordError::Unordered { allocator: self.name().to_owned() })
    }

    // A canary lies behind each block.
    fn supports_resize(&self) -> bool {
        false
    }

    unsafe fn resize(&self, _block: &Block, _bytes: u64) -> Result<Option<Block>, BlockError> {
        Ok(None)
    }
}
