//! The live blocks of a pool by address, so that callers free by pointer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bfc_core::sync::lock;
use bfc_core::{Allocator, Block};
use highwater_tracking::ScopePath;

/// The number of shards, a power of two: threads that use different addresses rarely wait for each other.
const SHARDS: usize = 16;

/// A live block, and what a reallocation needs.
#[derive(Clone, Debug)]
pub(crate) struct LiveBlock {
    /// The account of the op that allocated the block.
    pub(crate) allocator: Arc<dyn Allocator>,
    pub(crate) block: Block,
    pub(crate) requested: u64,
    pub(crate) alignment: u64,
    pub(crate) op: &'static str,
    pub(crate) place: ScopePath,
}

/// The live blocks of one pool.
#[derive(Debug, Default)]
pub(crate) struct LiveBlocks {
    shards: [Mutex<HashMap<u64, LiveBlock>>; SHARDS],
}

impl LiveBlocks {
    pub(crate) fn insert(&self, block: LiveBlock) {
        let address = block.block.address;
        lock(self.shard(address)).insert(address, block);
    }

    pub(crate) fn remove(&self, address: u64) -> Option<LiveBlock> {
        lock(self.shard(address)).remove(&address)
    }

    pub(crate) fn get(&self, address: u64) -> Option<LiveBlock> {
        lock(self.shard(address)).get(&address).cloned()
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        lock(self.shard(address)).contains_key(&address)
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    fn shard(&self, address: u64) -> &Mutex<HashMap<u64, LiveBlock>> {
        // Blocks begin at multiples of 256 bytes in most pools. The multiplication spreads the other bits.
        let hash = (address >> 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(hash >> 60) as usize % SHARDS]
    }
}
