//! When a pool may refuse a request: only if nothing fits, the pool cannot grow, and no pending free helps.

use std::sync::Arc;

use bfc_core::{Allocator, BfcAllocator, BfcConfig, Block, Bytes, KIB, MIB, Request, TimingCounter};

use crate::common::source::{FakeSource, Nature};
use crate::common::{Random, allocate, free, out_of_memory};

fn pool(config: BfcConfig) -> BfcAllocator {
    BfcAllocator::new("promises", FakeSource::new(Nature::default()), config.with_retry(false))
}

/// RMM #1957: a pool that started with a smaller region could not give its own maximum.
#[test]
fn an_empty_pool_delivers_its_limit_whatever_it_held_before() {
    for first_region in [256, 4 * KIB, MIB, 64 * MIB] {
        let pool = pool(BfcConfig::new(Bytes::mib(64)).with_first_region(Bytes(first_region)));
        let mut random = Random(first_region);
        for _ in 0..20 {
            let blocks: Vec<Block> = (0..30).map(|_| allocate(&pool, 1 + random.below(MIB))).collect();
            blocks.into_iter().for_each(|block| free(&pool, block));
            let whole = allocate(&pool, 64 * MIB);
            free(&pool, whole);
        }
        pool.check_invariants().unwrap();
    }
}

/// PyTorch #189504: after the last wait for pending frees the pool was not searched again.
#[test]
fn newly_safe_frees_are_found_before_a_refusal() {
    let counter = Arc::new(TimingCounter::default());
    let config = BfcConfig::new(Bytes::mib(1)).with_allow_growth(false);
    let pool = pool(config.with_timing_counter(Arc::clone(&counter)));
    let blocks: Vec<Block> = (0..4).map(|_| allocate(&pool, 256 * KIB)).collect();
    blocks.into_iter().for_each(|block| free(&pool, block));
    // Nothing has passed the frontier, but this request may use memory whenever it was freed.
    let whole = allocate(&pool, MIB);
    assert_eq!(whole.bytes, MIB);
    free(&pool, whole);
    pool.check_invariants().unwrap();
}

/// PyTorch #171771: of many pending frees, the pool should give up only the necessary ones.
#[test]
fn of_pending_frees_no_more_are_joined_than_the_request_needs() {
    let counter = Arc::new(TimingCounter::default());
    let config = BfcConfig::new(Bytes::kib(64)).with_allow_growth(false);
    let pool = pool(config.with_timing_counter(Arc::clone(&counter)));
    let blocks: Vec<Block> = (0..16).map(|_| allocate(&pool, 4 * KIB)).collect();
    for block in &blocks {
        free(&pool, *block);
    }
    let pending = |pool: &BfcAllocator| pool.chunks().iter().filter(|chunk| chunk.freed_at > 0).count();
    assert_eq!(pending(&pool), 16);
    let block = allocate(&pool, 8 * KIB);
    assert_eq!((block.bytes, pending(&pool)), (8 * KIB, 14), "two of sixteen had to be joined");
}

/// The pool returns idle regions when only that makes room, even beside regions in use.
#[test]
fn idle_regions_make_room_for_a_larger_one() {
    let pool = pool(BfcConfig::new(Bytes::mib(16)).with_first_region(Bytes(MIB)));
    let kept = allocate(&pool, 100);
    let blocks: Vec<Block> = (0..12).map(|_| allocate(&pool, MIB)).collect();
    blocks.into_iter().for_each(|block| free(&pool, block));
    let large = allocate(&pool, 12 * MIB);
    assert_eq!(large.bytes, 12 * MIB);
    free(&pool, large);
    free(&pool, kept);
}

/// Idle regions serve later requests: a request that needs more than all of them leaves them in place.
#[test]
fn a_request_that_cannot_be_met_gives_no_idle_region_back() {
    for collect in [true, false] {
        let config = BfcConfig::new(Bytes::mib(16)).with_first_region(Bytes(MIB));
        let pool = pool(config.with_garbage_collection(collect));
        assert!(pool.config().region_merging);
        let kept = allocate(&pool, 100);
        let blocks: Vec<Block> = (0..6).map(|_| allocate(&pool, MIB)).collect();
        blocks.into_iter().for_each(|block| free(&pool, block));
        let before = pool.regions();
        assert!(before.len() > 1);
        for bytes in [16 * MIB, 17 * MIB, 1 << 40] {
            out_of_memory(&pool, bytes);
            assert_eq!(pool.regions(), before, "{bytes} bytes");
        }
        free(&pool, kept);
    }
}

#[test]
fn trimming_keeps_the_given_bytes_and_reports_the_rest() {
    let pool = pool(BfcConfig::new(Bytes::mib(64)).with_first_region(Bytes(MIB)));
    let kept = allocate(&pool, 100);
    let blocks: Vec<Block> = (0..8).map(|_| allocate(&pool, MIB)).collect();
    blocks.into_iter().for_each(|block| free(&pool, block));
    let before = pool.stats().bytes_reserved;
    assert_eq!(pool.trim(Bytes(before)), 0);
    let given = pool.trim(Bytes::mib(4));
    let after = pool.stats().bytes_reserved;
    assert!(given > 0 && after == before - given && after >= 4 * MIB, "{before}, {given}, {after}");
    pool.trim(Bytes(0));
    assert_eq!(pool.regions().len(), 1, "the region with the live block stays");
    free(&pool, kept);
    pool.trim(Bytes(0));
    assert_eq!(pool.stats().bytes_reserved, 0);
}

/// Whenever a request is refused, no free chunk of the pool is large enough and the limit leaves too little.
#[test]
fn a_refusal_is_always_justified() {
    let mut random = Random(17);
    let pool = pool(BfcConfig::new(Bytes::mib(4)).with_first_region(Bytes(64 * KIB)));
    let mut live: Vec<Block> = Vec::new();
    let mut refused = 0;
    for _ in 0..6000 {
        if random.below(5) < 3 {
            let bytes = 1 + random.below(512 * KIB);
            match pool.allocate(&Request::new(bytes)) {
                Ok(block) => live.push(block),
                Err(_) => {
                    refused += 1;
                    let report = out_of_memory(&pool, bytes);
                    let largest =
                        pool.chunks().iter().filter(|chunk| !chunk.in_use()).map(|chunk| chunk.bytes).max();
                    assert!(largest.unwrap_or(0) < report.rounded);
                    let idle: u64 = idle_bytes(&pool);
                    assert!(4 * MIB - report.reserved + idle < report.rounded, "{report:?}");
                }
            }
        } else if !live.is_empty() {
            let pick = random.below(live.len() as u64) as usize;
            free(&pool, live.swap_remove(pick));
        }
    }
    assert!(refused > 100, "only {refused} requests were refused");
}

fn idle_bytes(pool: &BfcAllocator) -> u64 {
    let chunks = pool.chunks();
    let used = |region| chunks.iter().any(|chunk| chunk.region == region && chunk.in_use());
    let idle = pool.regions().into_iter().enumerate().filter(|(region, _)| !used(*region));
    idle.map(|(_, span)| span.bytes).sum()
}
