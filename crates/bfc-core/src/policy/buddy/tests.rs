//! Tests of overwritten descriptors under a pool.

mod overwritten;

use std::sync::Arc;

use super::*;
use crate::allocator::error::{AllocError, BlockError};
use crate::allocator::{Allocator, Request};
use crate::base::memory::Block;
use crate::base::units::Bytes;
use crate::pool::{BuddyAllocator, BuddyConfig};
use crate::source::address_only::AddressOnlyMemory;

/// Creates a pool with three live blocks, and its memory.
fn pool_of_three() -> (BuddyAllocator, Arc<AddressOnlyMemory>, [Block; 3]) {
    let memory = Arc::new(AddressOnlyMemory::new());
    let options = BuddyOptions::new(Bytes(256), Bytes(4096)).unwrap();
    let pool = BuddyAllocator::new("pool", memory.clone(), BuddyConfig::with_options(Bytes::mib(1), options));
    let blocks = [512; 3].map(|bytes| pool.allocate(&Request::new(bytes)).unwrap());
    (pool, memory, blocks)
}

fn free(pool: &BuddyAllocator, block: Block) -> Result<(), BlockError> {
    // SAFETY: the addresses have no memory behind them.
    unsafe { pool.deallocate(block) }
}

#[test]
fn an_overwritten_descriptor_causes_no_growth_or_oom() {
    let (pool, memory, blocks) = pool_of_three();
    free(&pool, blocks[1]).unwrap();
    assert!(pool.with_policy(|buddy| buddy.overwrite_descriptor(blocks[1].chunk, 2, 4)).unwrap());
    assert!(pool.check_invariants().is_err());
    let reserved = memory.live_bytes();
    for _ in 0..2 {
        let error = pool.allocate(&Request::new(512)).unwrap_err();
        assert!(matches!(&error, AllocError::Damaged { .. }), "{error:?}");
        assert_eq!(error.to_string(), "pool: buddy: the descriptor of slot 1 was overwritten");
    }
    assert_eq!(memory.live_bytes(), reserved);
    free(&pool, blocks[0]).unwrap();
    free(&pool, blocks[2]).unwrap();
    assert_eq!(pool.stats().bytes_in_use, 0);
    drop(pool);
    assert_eq!(memory.live_bytes(), 0);
}

#[test]
fn an_overwritten_descriptor_keeps_its_block_charged() {
    let (pool, memory, blocks) = pool_of_three();
    pool.with_policy(|buddy| buddy.overwrite_descriptor(blocks[1].chunk, 1, 1 << 40)).unwrap();
    assert_eq!(free(&pool, blocks[1]), Err(BlockError::Damaged { block: blocks[1] }));
    assert_eq!(pool.stats().bytes_in_use, 3 * 512);
    // The adjacent block can be freed, and meets the damage.
    free(&pool, blocks[0]).unwrap();
    assert_eq!(pool.stats().bytes_in_use, 2 * 512);
    assert!(matches!(pool.allocate(&Request::new(1)), Err(AllocError::Damaged { .. })));
    assert_eq!(pool.trim(Bytes(0)), 0);
    drop(pool);
    assert_eq!(memory.live_bytes(), 0);
}
