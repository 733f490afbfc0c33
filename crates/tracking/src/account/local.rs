//! The blocks of an allocator that does not store their sizes.

use std::collections::HashMap;

use bfc_core::{Block, BlockError};

/// One live block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalBlock {
    pub(crate) requested: u64,
    /// The block returned to the caller, with an id of this allocator.
    outer: Block,
    /// The block of the inner allocator.
    pub(crate) inner: Block,
}

/// Live blocks by address, numbered from 1.
#[derive(Debug, Default)]
pub(crate) struct LocalBlocks {
    last_id: u64,
    by_address: HashMap<u64, LocalBlock>,
}

impl LocalBlocks {
    /// Stores a block and returns it with its id.
    pub(crate) fn insert(&mut self, inner: Block, requested: u64) -> Block {
        self.last_id += 1;
        let outer = Block { id: self.last_id, ..inner };
        self.by_address.insert(inner.address, LocalBlock { requested, outer, inner });
        outer
    }

    /// The entry of a live block.
    pub(crate) fn find(&self, block: &Block) -> Result<LocalBlock, BlockError> {
        match self.by_address.get(&block.address) {
            Some(entry) if entry.outer == *block => Ok(*entry),
            _ if (1..=self.last_id).contains(&block.id) => Err(BlockError::Stale { block: *block }),
            _ => Err(BlockError::Unknown { block: *block }),
        }
    }

    /// Removes a live block and returns its entry.
    pub(crate) fn remove(&mut self, block: &Block) -> Result<LocalBlock, BlockError> {
        let entry = self.find(block)?;
        self.by_address.remove(&block.address);
        Ok(entry)
    }

    /// Undoes [`remove`](Self::remove).
    pub(crate) fn restore(&mut self, entry: LocalBlock) {
        self.by_address.insert(entry.outer.address, entry);
    }

    pub(crate) fn block_at(&self, address: u64) -> Result<Block, BlockError> {
        self.by_address.get(&address).map(|entry| entry.outer).ok_or(BlockError::NoBlockAt { address })
    }
}
