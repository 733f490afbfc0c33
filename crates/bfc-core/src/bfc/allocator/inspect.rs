//! Questions to a pool, and the upkeep it offers.

use super::super::arena::Arena;
use super::super::chunk::ChunkId;
use super::super::info::{BinInfo, ChunkInfo};
use super::super::invariants::{InvariantError, check_limit};
use super::BfcAllocator;
use crate::allocator::Allocator;
use crate::error::BlockError;
use crate::memory::{Block, PoolId, Span};
use crate::stats::RetryStats;
use crate::sync::lock;

impl BfcAllocator {
    /// Gives every idle region back to the source: one in which no block is live and no free waits for the frontier.
    /// Returns the bytes given back.
    pub fn release_idle_regions(&self) -> u64 {
        if self.enter().is_none() {
            return 0;
        }
        let bytes = {
            let state = &mut *lock(&self.state);
            state.arena.merge_ripe(self.frontier.get());
            self.release_idle(state)
        };
        if bytes > 0 {
            self.retry.notify();
        }
        bytes
    }

    /// The pool's number, which its blocks bear.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.write(|arena| arena.pool()).unwrap_or_default()
    }

    /// The regions held, in the order of their addresses. Adjacent ones that the source allows to be joined are one.
    #[must_use]
    pub fn regions(&self) -> Vec<Span> {
        self.write(|arena| arena.region_spans().collect()).unwrap_or_default()
    }

    /// All chunks by region and address.
    #[must_use]
    pub fn chunks(&self) -> Vec<ChunkInfo> {
        self.write(|arena| arena.chunk_infos().collect()).unwrap_or_default()
    }

    /// The 21 size classes, from the smallest up.
    #[must_use]
    pub fn bins(&self) -> Vec<BinInfo> {
        self.write(|arena| arena.bin_infos().to_vec()).unwrap_or_default()
    }

    /// What waiting for frees has cost.
    #[must_use]
    pub fn retry_stats(&self) -> RetryStats {
        self.retry.stats()
    }

    /// The pool in 100 characters over all its regions: `*` bytes asked for, `x` bytes granted beyond that, `_` free.
    #[must_use]
    pub fn render_occupancy(&self) -> String {
        self.write(|arena| arena.render_occupancy()).unwrap_or_default()
    }

    /// The pool at length, as one wants to see it after a request for `rounded` bytes failed: bins, regions, chunks,
    /// sizes and figures.
    #[must_use]
    pub fn memory_log(&self, rounded: u64) -> String {
        let retry = self.retry.stats();
        self.write(|arena| {
            let mut stats = self.stats_of(arena);
            stats.retry = retry;
            arena.memory_log(self.name(), rounded, &stats)
        })
        .unwrap_or_default()
    }

    /// Checks every rule of [`INVARIANTS`](crate::INVARIANTS). Takes time in proportion to the number of chunks.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn check_invariants(&self) -> Result<(), InvariantError> {
        if self.enter().is_none() {
            return Ok(());
        }
        let state = lock(&self.state);
        state.arena.check_invariants()?;
        check_limit(&state.arena, self.config.limit, state.over_delivered)
    }

    /// Runs `work` under the lock; `None` if called back from the source.
    pub(super) fn write<R>(&self, work: impl FnOnce(&mut Arena) -> R) -> Option<R> {
        self.enter()?;
        Some(work(&mut lock(&self.state).arena))
    }

    /// Runs `work` on the live chunk behind a block; the answer for the empty block is `empty`.
    pub(super) fn of_block<R>(
        &self,
        block: &Block,
        empty: R,
        work: impl FnOnce(&mut Arena, ChunkId) -> R,
    ) -> Result<R, BlockError> {
        if *block == Block::EMPTY {
            return Ok(empty);
        }
        self.write(|arena| arena.live(block).map(|chunk| work(arena, chunk)))
            .unwrap_or(Err(BlockError::Reentrant))
    }
}
