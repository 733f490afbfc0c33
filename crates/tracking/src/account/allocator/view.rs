//! A tracking allocator's view: the accounts of the inner allocator, or its own ones where the inner one keeps none.

use std::sync::Arc;

use bfc_core::sync::lock;
use bfc_core::{Allocator, Block, BlockError, Category, PoolView, RecordError, Stream, Tag};

use super::TrackingAllocator;
use super::sizing::Sizing;

impl PoolView for TrackingAllocator {
    fn forwards_to(&self) -> Option<&dyn Allocator> {
        Some(&**self.inner())
    }

    fn requested_bytes(&self, block: &Block) -> Result<u64, BlockError> {
        match &self.sizing {
            Sizing::Local(_) if block.is_empty() => Ok(0),
            Sizing::Local(blocks) => lock(blocks).find(block).map(|entry| entry.requested),
            Sizing::Inner | Sizing::Untracked => self.inner().requested_bytes(block),
        }
    }

    fn block_at(&self, address: u64) -> Result<Block, BlockError> {
        match &self.sizing {
            Sizing::Local(blocks) => lock(blocks).block_at(address),
            Sizing::Inner | Sizing::Untracked => self.inner().block_at(address),
        }
    }

    fn tag(&self, block: &Block) -> Result<Tag, BlockError> {
        self.inner().tag(&self.inner_block(block)?)
    }

    fn retag(&self, block: &Block, tag: Tag) -> Result<(), BlockError> {
        let inner = self.inner_block(block)?;
        let before = self.inner().tag(&inner);
        self.inner().retag(&inner, tag)?;
        self.note_retagged(block, before.ok(), tag);
        Ok(())
    }

    fn recategorize(&self, block: &Block, from: &[Category], to: Category) -> Result<Tag, BlockError> {
        let before = self.inner().recategorize(&self.inner_block(block)?, from, to)?;
        if from.contains(&before.category) {
            self.note_retagged(block, Some(before), Tag { category: to, ..before });
        }
        Ok(before)
    }

    fn record_stream(&self, block: &Block, stream: &Arc<Stream>) -> Result<(), RecordError> {
        self.inner().record_stream(&self.inner_block(block)?, stream)
    }

    // Only the inner allocator's blocks, so that the two agree on what was replaced.
    fn supports_resize(&self) -> bool {
        matches!(self.sizing, Sizing::Inner) && self.inner().supports_resize()
    }

    unsafe fn resize(&self, block: &Block, bytes: u64) -> Result<Option<Block>, BlockError> {
        if !self.supports_resize() {
            return Ok(None);
        }
        // SAFETY: the caller guarantees the contract.
        unsafe { self.resize_block(block, bytes) }
    }
}
