//! The accounts of blocks: those of the inner allocator, or of this one where the inner one keeps none.

use bfc_core::sync::lock;
use bfc_core::{
    Accounting, AllocatorSnapshot, Block, BlockError, Category, Ledger, OwnerBytes, OwnerId, Tag,
};

use super::TrackingAllocator;
use super::sizing::Sizing;

impl Accounting for TrackingAllocator {
    fn requested_bytes(&self, block: &Block) -> Result<u64, BlockError> {
        match &self.sizing {
            Sizing::Local(blocks) if !block.is_empty() => {
                lock(blocks).find(block).map(|entry| entry.requested)
            }
            _ => self.inner().requested_bytes(block),
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

    fn ledger(&self) -> Ledger {
        self.inner().ledger()
    }

    fn snapshot(&self) -> AllocatorSnapshot {
        self.inner().snapshot()
    }

    fn owner_bytes(&self, owner: OwnerId) -> OwnerBytes {
        self.inner().owner_bytes(owner)
    }
}
