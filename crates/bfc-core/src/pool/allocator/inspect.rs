//! Queries of a pool, and its maintenance.

use super::{LockedPool, PolicyAllocator};
use crate::accounting::accounts::Accounts;
use crate::allocator::LiveAllocation;
use crate::allocator::error::BlockError;
use crate::base::memory::{Block, PoolId, Span};
use crate::base::placement::{Inconsistent, Placement};
use crate::base::units::Bytes;
use crate::policy::{ConfiguredPolicy, Policy};
use crate::pool::info::{BinInfo, ChunkInfo, bin_infos, chunk_infos};

impl<P: ConfiguredPolicy> PolicyAllocator<P> {
    /// Returns idle regions to the source while more than `keep` bytes stay reserved. An idle region has no live block
    /// and no [pending](ChunkInfo::is_pending) chunk. A source that [takes back the end of a
    /// region](crate::SubAllocator::boundary_in), such as [`VirtualMemory`](crate::VirtualMemory), also gets the free
    /// end. Returns the bytes released.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use bfc_core::{AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Request};
    /// let pool = BfcAllocator::new("pool", Arc::new(AddressOnlyMemory::new()), BfcConfig::new(Bytes::mib(64)));
    /// let pool = Arc::new(pool);
    /// let allocator: Arc<dyn Allocator> = pool.clone();
    /// drop(Allocation::new(&allocator, &Request::new(1000))?);
    /// assert!(pool.stats().bytes_reserved > 0);
    /// assert_eq!(pool.trim(Bytes(0)), pool.stats().peak_bytes_reserved);
    /// assert_eq!(pool.stats().bytes_reserved, 0);
    /// # Ok::<(), bfc_core::AllocError>(())
    /// ```
    pub fn trim(&self, keep: Bytes) -> u64 {
        let bytes = self.write(|state| {
            self.merge_ripe(state);
            self.empty_caches(state);
            self.release_idle(state, keep.0) + self.release_tail(state, keep.0)
        });
        let bytes = bytes.unwrap_or(0);
        if bytes > 0 {
            self.retry.notify();
        }
        bytes
    }

    /// Copies the policy for what-if questions. `None` if called back from the source.
    #[must_use]
    pub fn policy(&self) -> Option<Box<dyn Policy>> {
        self.write(|state| state.policy_without(&self.accounts_of(state).cached))
    }

    /// Returns the pool's id, which its blocks carry.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.write(|state| state.accounts.pool()).unwrap_or_default()
    }

    /// Returns the regions in order of address. Adjacent regions that the source allows to merge are one.
    #[must_use]
    pub fn regions(&self) -> Vec<Span> {
        self.write(|state| state.policy.regions()).unwrap_or_default()
    }

    /// Returns all chunks by region and address.
    #[must_use]
    pub fn chunks(&self) -> Vec<ChunkInfo> {
        self.write(|state| chunk_infos(&state.policy, &self.accounts_of(state).sum)).unwrap_or_default()
    }

    /// Returns the live allocations by region and address.
    pub(super) fn live_allocations_of(&self, state: &mut LockedPool<P>) -> Vec<LiveAllocation> {
        let accounts = self.accounts_of(state).sum;
        let mut live = Vec::with_capacity(accounts.figures.live_allocs as usize);
        state.policy.visit(&mut |piece| {
            live.extend(piece.slot.and_then(|slot| accounts.live_allocation(slot, piece.span.bytes)));
        });
        live
    }

    /// Returns the 21 size classes in ascending order.
    #[must_use]
    pub fn bins(&self) -> Vec<BinInfo> {
        bin_infos(&self.chunks()).to_vec()
    }

    /// Checks all rules of the pool and its policy. Takes time proportional to the number of chunks.
    ///
    /// # Errors
    /// Fails with the first violated rule.
    pub fn check_invariants(&self) -> Result<(), Inconsistent> {
        self.write(|state| self.check_all(state)).unwrap_or(Ok(()))
    }

    /// Calls `work` with the policy under the lock; `None` if called back from the source.
    pub(crate) fn with_policy<R>(&self, work: impl FnOnce(&mut P) -> R) -> Option<R> {
        self.write(|state| work(&mut state.policy))
    }

    /// Calls `work` under the lock; `None` if called back from the source.
    pub(super) fn write<R>(&self, work: impl FnOnce(&mut LockedPool<P>) -> R) -> Option<R> {
        self.enter()?;
        Some(work(&mut self.state.lock()))
    }

    /// Calls `work` with the placement of a live block; returns `empty` for the empty block.
    pub(super) fn of_block<R>(
        &self,
        block: &Block,
        empty: R,
        work: impl FnOnce(&mut Accounts, Placement) -> R,
    ) -> Result<R, BlockError> {
        if *block == Block::EMPTY {
            return Ok(empty);
        }
        if let Some(shard) = self.caches.as_ref().and_then(|caches| caches.of_allocation(block.id)) {
            self.enter().ok_or(BlockError::Reentrant)?;
            let shard = &mut *shard.lock();
            return shard.live(block).map(|place| work(&mut shard.accounts, place));
        }
        self.write(|state| state.live(block).map(|place| work(&mut state.accounts, place)))
            .unwrap_or(Err(BlockError::Reentrant))
    }
}
