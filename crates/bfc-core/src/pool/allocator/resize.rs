//! Other sizes for live blocks of a pool.

use super::{LockedPool, PolicyAllocator};
use crate::allocator::error::BlockError;
use crate::base::memory::Block;
use crate::base::placement::Placement;
use crate::policy::{ConfiguredPolicy, Policy};

impl<P: ConfiguredPolicy> PolicyAllocator<P> {
    /// Changes the size of a block in place. Every policy serves sizes within the granted bytes of a block.
    /// [`Bfc`](crate::Bfc) also takes and returns the memory behind a block. These pools and blocks keep their sizes:
    ///
    /// - pools that follow a packing, because the packing counts their requests,
    /// - pools with a timing counter,
    /// - blocks in thread caches, which have the size of their class.
    ///
    /// # Safety
    /// As for [`PoolView::resize`](crate::PoolView::resize).
    pub(super) unsafe fn resize_block(&self, block: &Block, bytes: u64) -> Result<Option<Block>, BlockError> {
        let is_cached = self.caches.as_ref().is_some_and(|caches| caches.of_allocation(block.id).is_some());
        if bytes == 0 || *block == Block::EMPTY || is_cached || !self.resizes {
            return self.of_block(block, None, |_, _| None);
        }
        let thread = self.enter().ok_or(BlockError::Reentrant)?;
        let (resized, awaited) = {
            let state = &mut *self.state.lock();
            let before = state.live(block)?;
            let Some(after) = state.resize(before, bytes) else { return Ok(None) };
            state.users.note(thread, &mut state.accounts, &self.retry);
            let tag = state.accounts.of(before).tag;
            state.accounts.close(before);
            let resized = state.accounts.open(after, bytes, tag);
            let awaited = after.bytes < before.bytes && self.retry.is_awaited();
            (resized, awaited.then(|| self.max_satisfiable_bytes_of(state)))
        };
        if let Some(bytes) = awaited {
            self.retry.notify_up_to(bytes);
        }
        Ok(Some(resized))
    }
}

impl<P: Policy> LockedPool<P> {
    /// Changes the size of a placement. A policy that cannot keeps the placement if it suffices.
    fn resize(&mut self, place: Placement, bytes: u64) -> Option<Placement> {
        self.policy.resize(place.slot, bytes).or_else(|| (bytes <= place.bytes).then_some(place))
    }
}
