//! A stream allocator's view: that of the inner pool, plus the pending frees.

use std::sync::Arc;

use super::{StreamAllocator, Used};
use crate::allocator::{
    Allocator, AllocatorSnapshot, BlockError, OomReport, PoolView, RecordError, Request, Stats, Verdict,
};
use crate::base::ledger::{Category, Tag};
use crate::base::memory::Block;
use crate::base::sync::atomic::Ordering;
use crate::base::sync::lock;
use crate::base::units::Bytes;
use crate::source::stream::Stream;

impl PoolView for StreamAllocator {
    fn forwards_to(&self) -> Option<&dyn Allocator> {
        Some(&*self.pool)
    }

    fn requested_bytes(&self, block: &Block) -> Result<u64, BlockError> {
        self.refuse_freed(block)?;
        self.pool.requested_bytes(block)
    }

    fn block_at(&self, address: u64) -> Result<Block, BlockError> {
        let block = self.pool.block_at(address)?;
        self.refuse_freed(&block).map_err(|_| BlockError::NoBlockAt { address })?;
        Ok(block)
    }

    fn tag(&self, block: &Block) -> Result<Tag, BlockError> {
        self.refuse_freed(block)?;
        self.pool.tag(block)
    }

    fn retag(&self, block: &Block, tag: Tag) -> Result<(), BlockError> {
        self.refuse_freed(block)?;
        self.pool.retag(block, tag)
    }

    fn recategorize(&self, block: &Block, from: &[Category], to: Category) -> Result<Tag, BlockError> {
        self.refuse_freed(block)?;
        self.pool.recategorize(block, from, to)
    }

    fn snapshot(&self) -> AllocatorSnapshot {
        let AllocatorSnapshot { stats, ledger } = self.pool.snapshot();
        AllocatorSnapshot { stats: Stats { retry: self.retry.stats(), ..stats }, ledger }
    }

    fn refusal(&self, request: &Request<'_>, verdict: Verdict) -> OomReport {
        self.with_pending(request, self.pool.refusal(request, verdict))
    }

    /// Pending frees may serve any request that waits for them.
    fn max_satisfiable_bytes(&self) -> u64 {
        if self.pending.len() > 0 { u64::MAX } else { self.pool.max_satisfiable_bytes() }
    }

    fn expect_frees(&self, begin: bool) {
        self.retry.expect_frees(begin);
    }

    fn stream(&self) -> Option<&Arc<Stream>> {
        Some(&self.compute)
    }

    fn record_stream(&self, block: &Block, stream: &Arc<Stream>) -> Result<(), RecordError> {
        if block.is_empty() || *stream == self.compute {
            return Ok(());
        }
        self.refuse_freed(block)?;
        match self.pool.tag(block) {
            Ok(_) | Err(BlockError::Untracked) => {}
            Err(error) => return Err(error.into()),
        }
        {
            let uses = &mut *lock(&self.uses);
            let used = uses.entry(block.address).or_insert_with(|| {
                self.used.fetch_add(1, Ordering::Relaxed);
                Used { block: *block, streams: Vec::new(), freed: false }
            });
            if !used.streams.contains(stream) {
                used.streams.push(Arc::clone(stream));
            }
        }
        // The memory may have belonged to another block, for which the compute stream still has work.
        let event = self.pending.events.record(&self.compute)?;
        let outcome = stream.wait(&event);
        self.pending.events.put(event);
        Ok(outcome?)
    }

    fn trim(&self, keep: Bytes) -> u64 {
        self.poll();
        self.pool.trim(keep)
    }

    fn clear_stats(&self) -> bool {
        self.retry.clear_stats();
        self.pool.clear_stats()
    }

    // A block that other streams use keeps its size until they are done.
    fn supports_resize(&self) -> bool {
        false
    }

    unsafe fn resize(&self, _block: &Block, _bytes: u64) -> Result<Option<Block>, BlockError> {
        Ok(None)
    }
}
