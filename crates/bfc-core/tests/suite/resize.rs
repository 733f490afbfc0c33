//! Blocks that change their size in place. The interpreter compares random sequences with a shadow.

use std::sync::Arc;

use bfc_core::{
    AddressOnlyMemory, Allocator, BfcAllocator, BfcConfig, Block, BlockError, BuddyAllocator, BuddyConfig,
    Bytes, KIB, Lifetime, PackedAllocator, PackedConfig, Packing, PackingOptions, PoolView, Request,
    ThreadCache, TimingCounter,
};

use crate::common::{allocate, free};

/// One region of 64 KiB from which blocks are cut in order of address.
fn pool(config: BfcConfig) -> BfcAllocator {
    let config = config.with_allow_growth(false).with_retry(false);
    BfcAllocator::new("resize", Arc::new(AddressOnlyMemory::new()), config)
}

fn small() -> BfcConfig {
    BfcConfig::new(Bytes::kib(64))
}

fn resize<A: PoolView>(pool: &A, block: &Block, bytes: u64) -> Option<Block> {
    // SAFETY: the addresses of these tests have no memory behind them.
    unsafe { pool.resize(block, bytes) }.unwrap()
}

#[test]
fn a_block_grows_into_free_memory_up_to_the_next_block() {
    let pool = pool(small());
    let [first, second, third] = [(); 3].map(|()| allocate(&pool, 1024));
    assert_eq!(resize(&pool, &first, 1025), None);
    free(&pool, second);
    let grown = resize(&pool, &first, 1700).unwrap();
    assert_eq!(
        (grown.address, grown.bytes, pool.requested_bytes(&grown)),
        (first.address, 2048 - 256, Ok(1700))
    );
    assert_eq!(resize(&pool, &grown, 2049), None);
    let whole = resize(&pool, &grown, 2048).unwrap();
    assert_eq!(whole.address + whole.bytes, third.address);
    // SAFETY: the addresses have no memory behind them.
    assert_eq!(unsafe { pool.resize(&first, 100) }, Err(BlockError::Stale { block: first }));
    pool.check_invariants().unwrap();
}

#[test]
fn growth_counts_as_a_free_and_an_allocation_in_one_step() {
    let pool = pool(small());
    let block = allocate(&pool, 16 * KIB);
    let grown = resize(&pool, &block, 40 * KIB).unwrap();
    let stats = pool.stats();
    assert_eq!((stats.num_allocs, stats.live_allocs, stats.bytes_in_use), (2, 1, 40 * KIB));
    assert_eq!((stats.peak_bytes_in_use, stats.largest_alloc_bytes), (40 * KIB, 40 * KIB));
    assert_eq!((pool.ledger().total(), pool.ledger().peak()), (40 * KIB, 40 * KIB));
    let shrunk = resize(&pool, &grown, 1).unwrap();
    assert_eq!(
        (shrunk.bytes, pool.stats().bytes_in_use, pool.stats().peak_bytes_in_use),
        (256, 256, 40 * KIB)
    );
    assert_eq!(pool.stats().largest_free_block_bytes, 64 * KIB - 256);
    free(&pool, shrunk);
    pool.check_invariants().unwrap();
}

#[test]
fn the_end_of_a_shrunk_block_wakes_a_waiting_request() {
    let config = BfcConfig::new(Bytes::kib(4)).with_allow_growth(false);
    let pool = BfcAllocator::new("waits", Arc::new(AddressOnlyMemory::new()), config);
    let block = allocate(&pool, 4 * KIB);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| allocate(&pool, 2 * KIB));
        while pool.stats().retry.waiting == 0 {
            std::thread::yield_now();
        }
        let shrunk = resize(&pool, &block, KIB).unwrap();
        free(&pool, waiting.join().unwrap());
        free(&pool, shrunk);
    });
    assert_eq!(pool.stats().bytes_in_use, 0);
}

#[test]
fn other_policies_resize_within_the_granted_bytes() {
    let buddy =
        BuddyAllocator::new("buddy", Arc::new(AddressOnlyMemory::new()), BuddyConfig::cpu(Bytes::mib(1)));
    let block = buddy.allocate(&Request::new(1000)).unwrap();
    assert_eq!(resize(&buddy, &block, block.bytes + 1), None);
    let same = resize(&buddy, &block, block.bytes).unwrap();
    assert_eq!((same.bytes, buddy.stats().bytes_requested), (block.bytes, block.bytes));
}

#[test]
fn pools_with_a_packing_a_counter_or_a_cache_keep_sizes() {
    let packing =
        Packing::solve(&[Lifetime { bytes: 1024, start: 0, end: 1 }], &PackingOptions::default()).unwrap();
    let packed = PackedAllocator::new(
        "packed",
        Arc::new(AddressOnlyMemory::new()),
        PackedConfig::packed(Bytes::mib(1), Arc::new(packing)),
    );
    let block = packed.allocate(&Request::new(1024)).unwrap();
    assert_eq!(resize(&packed, &block, 100), None);
    for config in [
        small().with_timing_counter(Arc::new(TimingCounter::default())),
        small().with_thread_cache(ThreadCache::new()),
    ] {
        let pool = pool(config);
        // The block that takes the first region is in no cache.
        let first = allocate(&pool, 64);
        let block = allocate(&pool, 1024);
        let before = pool.stats();
        assert_eq!((resize(&pool, &block, 2048), resize(&pool, &block, 100)), (None, None));
        assert_eq!(pool.stats(), before);
        free(&pool, first);
        free(&pool, block);
    }
}

#[test]
fn no_bytes_and_the_empty_block_are_no_sizes() {
    let pool = pool(small());
    let block = allocate(&pool, 1);
    assert_eq!((resize(&pool, &block, 0), resize(&pool, &Block::EMPTY, 8)), (None, None));
    assert_eq!(resize(&pool, &block, u64::MAX), None);
    free(&pool, block);
}
