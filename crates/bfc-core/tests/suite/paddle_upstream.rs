//! Paddle's cases for functions of one pool: `retry_allocator_test`, `best_fit_allocator_test` and
//! `stats_test`, with upstream's values. The cases of its buddy and auto-growth allocators are in `buddy.rs`
//! and `paddle_pools.rs`.

use std::sync::{Arc, Barrier};
use std::thread::Builder;
use std::time::Duration;

use bfc_core::{
    AddressOnlyMemory, AllocError, Allocator, BfcAllocator, BfcConfig, Block, Bytes, CutRule, GIB,
    HostMemory, MIB, PoolView, Request, SourceError, ThreadCache, Verdict,
};

use crate::common::source::{Fails, FakeSource, Nature};
use crate::common::{Random, allocate, free, out_of_memory};

/// `RetryAllocator`: four threads want nearly all of a pool and hold it for 40 ms. Each waits long enough for
/// three others. Upstream allows 20 ms for each change of owner, which would fail on a busy machine.
#[test]
fn retry_allocator_gives_all_threads_the_same_address() {
    const HOLD: Duration = Duration::from_millis(40);
    let patience = 3 * (HOLD + Duration::from_secs(20));
    let config = BfcConfig::new(Bytes(MIB)).with_allow_growth(false).with_retry_timeout(patience);
    let pool = BfcAllocator::new("retry", Arc::new(AddressOnlyMemory::new()), config);
    let start = Barrier::new(4);
    let addresses: Vec<u64> = std::thread::scope(|scope| {
        let user = || {
            // The pool knows all threads before any of them requests memory that the others hold.
            free(&pool, allocate(&pool, 256));
            start.wait();
            let block = allocate(&pool, MIB - 1);
            std::thread::sleep(HOLD);
            free(&pool, block);
            block.address
        };
        let users = [0; 4].map(|_| scope.spawn(user));
        users.map(|user| user.join().unwrap()).to_vec()
    });
    assert_eq!(addresses, [addresses[0]; 4]);
    assert_eq!(pool.stats().retry.timeouts, 0);
}

/// `RetryAllocatorLastAllocFailure`: the caller receives the last error of the allocator below.
#[test]
fn the_last_failure_is_told_as_it_was() {
    let config = || BfcConfig::new(Bytes::gib(1)).with_retry_timeout(Duration::from_millis(10));
    let broken = Nature { fails: Fails::Always, broken: true, ..Nature::default() };
    let pool = BfcAllocator::new("always fails", FakeSource::new(broken), config());
    let error = pool.allocate(&Request::new(1 << 20)).unwrap_err();
    assert!(matches!(&error, AllocError::Source { error: SourceError::Driver { .. }, .. }), "{error}");

    let pool = BfcAllocator::new("cpu", Arc::new(AddressOnlyMemory::new()), config());
    let report = out_of_memory(&pool, 1 << 40);
    assert_eq!((report.verdict, report.requested), (Verdict::OverLimit, 1 << 40));
    assert!(report.to_string().contains("cpu"), "{report}");
}

/// The size of one upstream byte in these tests: all sizes are multiples of it.
const UNIT: u64 = 256;

/// `BestFitAllocator`, over 4 GiB of address-only memory.
#[test]
fn best_fit_allocator() {
    let config = BfcConfig::new(Bytes::gib(4)).with_allow_growth(false).with_cut_rule(CutRule::Low);
    let pool = BfcAllocator::new("best fit", Arc::new(AddressOnlyMemory::new()), config);
    let get = |units: u64| allocate(&pool, units * UNIT);
    free(&pool, get(64));
    let base = pool.regions()[0].address;
    let offset = |block: &Block| (block.address - base) / UNIT;

    let first = get(80);
    assert_eq!(offset(&first), 0);
    let (second, third) = (get(60), get(90));
    free(&pool, second);
    let small = get(30);
    assert_eq!(offset(&small), 80);
    free(&pool, small);
    let second = get(60);
    assert_eq!(offset(&second), 80);
    free(&pool, first);
    free(&pool, second);
    let joined = get(140);
    assert_eq!(offset(&joined), 0);
    free(&pool, joined);
    free(&pool, third);
    let chunks = pool.chunks();
    assert_eq!((chunks.len(), chunks[0].bytes), (1, 4 * GIB), "in the end one free chunk");
}

/// `BestFitAllocator, test_concurrent`: 1024 threads with 128 blocks of 8 to 8192 bytes each, in 256 MiB.
/// Each thread finds its own data again.
#[test]
fn best_fit_allocator_under_a_thousand_threads_keeps_contents() {
    let config = BfcConfig::new(Bytes::mib(256)).with_allow_growth(false);
    let pool = BfcAllocator::new("contents", Arc::new(HostMemory::new()), config);
    std::thread::scope(|scope| {
        for nth in 0..1024_u64 {
            let pool = &pool;
            let user = move || {
                let mut random = Random(nth);
                for _ in 0..128 {
                    let bytes = 8 + random.below(8185);
                    let block = allocate(pool, bytes);
                    let pattern = nth as u8;
                    let memory: *mut u8 = std::ptr::with_exposed_provenance_mut(block.address as usize);
                    // SAFETY: only this thread uses the block until it is freed.
                    let contents = unsafe { std::slice::from_raw_parts_mut(memory, bytes as usize) };
                    contents.fill(pattern);
                    std::thread::yield_now();
                    assert!(contents.iter().all(|&byte| byte == pattern));
                    free(pool, block);
                }
            };
            Builder::new().stack_size(128 * 1024).spawn_scoped(scope, user).unwrap();
        }
    });
    assert_eq!((pool.stats().bytes_in_use, pool.stats().num_allocs), (0, 1024 * 128));
    pool.check_invariants().unwrap();
}

/// `StatsTest`: three threads hold 0 to 9 bytes ten times each. The stats are one sum while they live, and a
/// reset sets the peak to the bytes in use. Also runs with caches, where each thread keeps its own accounts.
#[test]
fn stats_of_several_threads_are_one_sum() {
    for cache in [None, Some(ThreadCache::new())] {
        let config = BfcConfig::new(Bytes::mib(1));
        let config = cache.map_or(config.clone(), |cache| config.with_thread_cache(cache));
        let pool = BfcAllocator::new("stats", Arc::new(AddressOnlyMemory::new()), config);
        let (have, seen) = (Barrier::new(4), Barrier::new(4));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let get = |bytes| pool.allocate(&Request::new(bytes)).unwrap();
                    let blocks: Vec<Block> = (0..10).map(get).collect();
                    have.wait();
                    seen.wait();
                    blocks.into_iter().for_each(|block| free(&pool, block));
                });
            }
            have.wait();
            let stats = pool.stats();
            assert_eq!((stats.bytes_requested, stats.live_allocs), (135, 27));
            assert_eq!(stats.bytes_in_use, 27 * 256);
            assert!(stats.peak_bytes_in_use >= stats.bytes_in_use);
            seen.wait();
        });
        assert!(pool.stats().peak_bytes_in_use >= 27 * 256);
        assert!(pool.clear_stats());
        assert_eq!((pool.stats().bytes_in_use, pool.stats().peak_bytes_in_use), (0, 0));
    }
}
