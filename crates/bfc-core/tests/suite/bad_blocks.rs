//! Invalid blocks and addresses: freed twice, of another pool, invented, within a block, between blocks.
//! Every policy returns the matching error and changes nothing.

use bfc_core::{
    Allocator, Block, BlockError, ChunkInfo, ConfiguredPolicy, PolicyAllocator, PoolConfig, PoolId, PoolView,
    Request, Span, Stats, Tag,
};

use crate::common::op::USUAL_BYTES;
use crate::common::source::{FakeSource, Nature};
use crate::common::{on_every_policy, try_free};

/// The visible state of a pool.
fn seen<P: ConfiguredPolicy>(pool: &PolicyAllocator<P>) -> (Stats, Vec<ChunkInfo>, Vec<Span>, u64) {
    (pool.stats(), pool.chunks(), pool.regions(), pool.ledger().total())
}

/// Every method that accepts a block refuses this one with this error and changes nothing.
fn assert_refused<P: ConfiguredPolicy>(pool: &PolicyAllocator<P>, block: Block, error: BlockError) {
    let before = seen(pool);
    assert_eq!(try_free(pool, block), Err(error), "{block:?}");
    assert_eq!(pool.requested_bytes(&block), Err(error));
    assert_eq!(pool.tag(&block), Err(error));
    assert_eq!(pool.retag(&block, Tag::default()), Err(error));
    assert_eq!(seen(pool), before);
    pool.check_invariants().unwrap();
}

/// A pool with blocks of the usual sizes, every third of them freed. Returns the live blocks and the freed
/// blocks.
fn pool<P: ConfiguredPolicy>(config: PoolConfig<P::Options>) -> (PolicyAllocator<P>, Vec<Block>, Vec<Block>) {
    let source = FakeSource::new(Nature { gap: 4096, ..Nature::default() });
    let pool = PolicyAllocator::new("bad blocks", source, config.with_retry(false));
    let sizes = USUAL_BYTES.iter().cycle().take(18);
    let blocks: Vec<Block> = sizes.map(|&bytes| pool.allocate(&Request::new(bytes)).unwrap()).collect();
    let (dead, live): (Vec<_>, Vec<_>) = blocks.iter().enumerate().partition(|(nth, _)| nth % 3 == 1);
    let blocks = |numbered: Vec<(usize, &Block)>| numbered.into_iter().map(|(_, block)| *block).collect();
    let (live, dead): (Vec<Block>, Vec<Block>) = (blocks(live), blocks(dead));
    dead.iter().for_each(|block| try_free(&pool, *block).unwrap());
    (pool, live, dead)
}

fn handles_are_checked<P: ConfiguredPolicy>(config: PoolConfig<P::Options>) {
    let (pool, live, dead) = pool::<P>(config.clone());
    let (other, others, _) = self::pool::<P>(config);
    for block in dead {
        assert_refused(&pool, block, BlockError::Stale { block });
        let block = Block { pool: other.id(), ..block };
        assert_refused(&pool, block, BlockError::Foreign { block });
    }
    for block in others {
        assert_refused(&pool, block, BlockError::Foreign { block });
    }
    for (nth, &block) in live.iter().enumerate() {
        let neighbour = live[(nth + 1) % live.len()];
        let never = [
            Block { id: 0, ..block },
            Block { id: neighbour.id, ..block },
            Block { id: u64::MAX, ..block },
            Block { chunk: neighbour.chunk, ..block },
            Block { chunk: u32::MAX, ..block },
            Block { address: block.address + 1, ..block },
            Block { address: block.address.wrapping_sub(256), ..block },
            Block { address: neighbour.address, ..block },
            Block { address: 0, ..block },
            Block { bytes: 0, ..block },
            Block { bytes: block.bytes - 1, ..block },
            Block { bytes: u64::MAX, ..block },
        ];
        for block in never {
            assert_refused(&pool, block, BlockError::Unknown { block });
        }
        let block = Block { pool: PoolId::default(), ..block };
        assert_refused(&pool, block, BlockError::Foreign { block });
    }
    for block in live {
        try_free(&pool, block).unwrap();
        assert_refused(&pool, block, BlockError::Stale { block });
    }
    assert_eq!(pool.stats().live_allocs, 0);
}

fn addresses_are_checked<P: ConfiguredPolicy>(config: PoolConfig<P::Options>) {
    let (pool, live, dead) = pool::<P>(config);
    let before = seen(&pool);
    let unknown = |address| assert_eq!(pool.block_at(address), Err(BlockError::NoBlockAt { address }));
    for &block in &live {
        assert_eq!(pool.block_at(block.address), Ok(block));
        for inside in [1, 8, block.bytes / 2, block.bytes - 1] {
            unknown(block.address + inside);
        }
    }
    for block in dead {
        unknown(block.address);
    }
    for region in pool.regions() {
        unknown(region.address - 1);
        unknown(region.address + region.bytes);
        unknown(region.address + region.bytes + 2048);
    }
    [0, 1, u64::MAX].into_iter().for_each(unknown);
    assert_eq!(seen(&pool), before);
    pool.check_invariants().unwrap();

    // The pool maintains the index that the look-ups created.
    for &block in &live[1..] {
        try_free(&pool, block).unwrap();
        unknown(block.address);
    }
    let next = pool.allocate(&Request::new(700)).unwrap();
    assert_eq!((pool.block_at(next.address), pool.block_at(live[0].address)), (Ok(next), Ok(live[0])));
    pool.check_invariants().unwrap();
}

/// A block of the same size reuses a slot: the old handle still refers to the old block.
fn old_handles_are_not_new_ones<P: ConfiguredPolicy>(config: PoolConfig<P::Options>) {
    let pool = PolicyAllocator::<P>::new("bad blocks", FakeSource::new(Nature::default()), config);
    let mut old: Vec<Block> = Vec::new();
    for _ in 0..20 {
        let block = pool.allocate(&Request::new(1000)).unwrap();
        for &block in &old {
            assert_refused(&pool, block, BlockError::Stale { block });
        }
        try_free(&pool, block).unwrap();
        old.push(block);
    }
    let last = old[19];
    assert!(old[..19].iter().any(|block| block.chunk == last.chunk), "no slot was used again");
}

#[test]
fn every_policy_refuses_handles_that_are_not_live() {
    on_every_policy!(handles_are_checked);
}

#[test]
fn every_policy_finds_only_the_starts_of_live_blocks() {
    on_every_policy!(addresses_are_checked);
}

#[test]
fn on_every_policy_a_handle_outlives_its_slot_as_a_stale_one() {
    on_every_policy!(old_handles_are_not_new_ones);
}
