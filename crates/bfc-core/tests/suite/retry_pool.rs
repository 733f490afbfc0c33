//! Waiting in a pool: which requests wait, which fail at once, and what the figures report.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bfc_core::{
    AllocError, AllocationAttributes, Allocator, AutoGrowth, AutoGrowthConfig, AutoGrowthOptions, Bfc,
    BfcAllocator, BfcConfig, Block, Bytes, ConfiguredPolicy, ExpectedFrees, GrowthRule, Lifetime,
    PackedAllocator, PackedConfig, Packing, PackingOptions, PolicyAllocator, PoolConfig, PoolView, Request,
    ThreadCache, TimingCounter, Verdict,
};

use crate::common::source::{FakeSource, Nature};
use crate::common::{allocate, free, out_of_memory, try_free};

/// Longer than any test may take: a request that waits this long has missed its wake-up.
const LONG: Duration = Duration::from_secs(60);

/// Checks that the waiters were woken, and did not just succeed at the end of their time.
fn assert_woken(pool: &BfcAllocator) {
    let retry = pool.stats().retry;
    assert!(retry.waits > 0 && retry.waited < LONG, "{retry:?}");
}

fn pool(config: BfcConfig) -> Arc<BfcAllocator> {
    Arc::new(BfcAllocator::new("test", FakeSource::new(Nature::default()), config))
}

fn four_kib(timeout: Duration) -> Arc<BfcAllocator> {
    pool(BfcConfig::new(Bytes::kib(4)).with_retry_timeout(timeout))
}

/// Runs the closure beside a second thread that has used the pool and so could free.
fn beside_another<T>(pool: &BfcAllocator, work: impl FnOnce() -> T) -> T {
    let ((met, other), (end, ended)) = (mpsc::channel(), mpsc::channel::<()>());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            free(pool, allocate(pool, 256));
            met.send(()).unwrap();
            // Blocks until the other end is dropped.
            ended.recv().unwrap_err();
        });
        other.recv().unwrap();
        // The drop also happens on a panic.
        let _end = end;
        work()
    })
}

/// Waits until a request waits in the pool.
fn await_waiter(pool: &BfcAllocator) {
    let start = Instant::now();
    while pool.stats().retry.waiting == 0 {
        assert!(start.elapsed() < LONG, "nobody waits");
        std::thread::yield_now();
    }
}

#[test]
fn a_request_waits_for_another_threads_free() {
    let pool = four_kib(LONG);
    let held = allocate(&pool, 4096);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| allocate(&pool, 4096));
        await_waiter(&pool);
        assert_eq!(pool.stats().retry.waits, 1);
        free(&pool, held);
        assert_eq!(waiter.join().unwrap().address, held.address);
    });
    assert_woken(&pool);
    let retry = pool.stats().retry;
    assert_eq!((retry.waits, retry.waiting, retry.timeouts), (1, 0, 0));
    assert!(retry.waited > Duration::ZERO);
    assert!(pool.clear_stats());
    assert_eq!(pool.stats().retry, Default::default());
}

#[test]
fn when_the_time_is_over_the_report_says_how_long_it_was() {
    let timeout = Duration::from_millis(30);
    let pool = four_kib(timeout);
    let report = beside_another(&pool, || {
        allocate(&pool, 4096);
        out_of_memory(&pool, 4096)
    });
    assert_eq!(report.verdict, Verdict::Exhausted);
    assert!(report.waited >= timeout);
    assert_eq!(report.holders.len(), 1, "the last attempt works out who holds the memory");
    assert_eq!(pool.stats().retry.timeouts, 1);
}

#[test]
fn a_request_of_the_only_thread_fails_immediately() {
    let pool = four_kib(LONG);
    let _held = allocate(&pool, 4096);
    assert!(out_of_memory(&pool, 4096).waited.is_zero());
    assert_eq!(pool.stats().retry.waits, 0);
}

#[test]
fn a_request_above_the_limit_fails_at_once() {
    let pool = four_kib(LONG);
    let _held = allocate(&pool, 1024);
    let report = beside_another(&pool, || out_of_memory(&pool, 4097));
    assert_eq!(report.verdict, Verdict::OverLimit);
    assert_eq!(pool.stats().retry.waits, 0);
}

#[test]
fn where_nothing_is_live_a_request_fails_at_once() {
    let source = FakeSource::new(Nature { capacity: Some(1024), ..Nature::default() });
    let config = BfcConfig::new(Bytes::kib(4)).with_retry_timeout(LONG);
    let pool = BfcAllocator::new("test", source, config);
    let report = beside_another(&pool, || out_of_memory(&pool, 4096));
    assert_eq!(report.verdict, Verdict::Exhausted);
    assert_eq!(pool.stats().retry.waits, 0);
}

#[test]
fn requests_without_waiting_fail_immediately() {
    let patient = four_kib(LONG);
    let hasty = pool(BfcConfig::new(Bytes::kib(4)).with_retry_timeout(LONG).with_retry(false));
    for (pool, attributes) in
        [(&patient, AllocationAttributes::no_retry()), (&hasty, AllocationAttributes::default())]
    {
        let outcome = beside_another(pool, || {
            allocate(pool, 4096);
            pool.allocate(&Request::new(4096).with_attributes(attributes))
        });
        match outcome {
            Err(AllocError::OutOfMemory(report)) => assert_eq!(report.holders.len(), 1),
            other => panic!("{other:?}"),
        }
        assert_eq!(pool.stats().retry.waits, 0);
    }
}

#[test]
fn a_request_waits_for_the_frontier_alone() {
    let counter = Arc::new(TimingCounter::default());
    let config = BfcConfig::new(Bytes::kib(4)).with_retry_timeout(LONG).with_timing_counter(counter);
    let pool = pool(config);
    let block = allocate(&pool, 4096);
    free(&pool, block);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let before = || 0;
            let attributes = AllocationAttributes { freed_before: Some(&before), ..Default::default() };
            pool.allocate(&Request::new(4096).with_attributes(attributes))
        });
        await_waiter(&pool);
        pool.set_safe_frontier(2);
        assert_eq!(waiter.join().unwrap().unwrap().address, block.address);
    });
    assert_woken(&pool);
}

/// Each attempt evaluates the bound on the age of memory again.
#[test]
fn freed_before_is_asked_on_each_attempt() {
    let counter = Arc::new(TimingCounter::default());
    let config = BfcConfig::new(Bytes::kib(4)).with_retry_timeout(LONG).with_timing_counter(counter.clone());
    let pool = pool(config);
    let block = allocate(&pool, 4096);
    free(&pool, block);
    std::thread::scope(|scope| {
        let asked = std::sync::atomic::AtomicU64::new(0);
        let pool = &pool;
        let waiter = scope.spawn(move || {
            let before = || asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) / 2;
            let attributes = AllocationAttributes { freed_before: Some(&before), ..Default::default() };
            pool.allocate(&Request::new(4096).with_attributes(attributes))
        });
        await_waiter(pool);
        free(pool, Block::EMPTY);
        assert_eq!(waiter.join().unwrap().unwrap().address, block.address);
    });
    assert_woken(&pool);
}

/// Paddle's `retry_allocator_test`: four threads that each want nearly all of the pool take turns.
#[test]
fn threads_that_want_the_whole_pool_take_turns() {
    let pool = four_kib(LONG);
    let warm = allocate(&pool, 4000);
    free(&pool, warm);
    let (sender, addresses) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (pool, sender) = (&pool, sender.clone());
            scope.spawn(move || {
                for _ in 0..50 {
                    let block = allocate(pool, 4000);
                    sender.send(block.address).unwrap();
                    free(pool, block);
                }
            });
        }
    });
    drop(sender);
    let addresses: Vec<u64> = addresses.iter().collect();
    assert_eq!(addresses, vec![warm.address; 200]);
    pool.check_invariants().unwrap();
}

#[test]
fn giving_idle_regions_back_wakes_those_who_wait_for_room() {
    let config =
        BfcConfig::new(Bytes::kib(16)).with_garbage_collection(false).with_first_region(Bytes::kib(4));
    let config = config.with_growth(GrowthRule::DOUBLING).with_region_merging(false);
    let pool = pool(config.with_retry_timeout(LONG));
    let (first, kept) = (allocate(&pool, 4096), allocate(&pool, 4096));
    free(&pool, first);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| allocate(&pool, 8192));
        await_waiter(&pool);
        assert_eq!(pool.trim(Bytes(0)), 4096);
        assert_eq!(waiter.join().unwrap().bytes, 8192);
    });
    assert_woken(&pool);
    free(&pool, kept);
}

/// A free that cannot serve the waiter does not wake it; a sufficient free wakes it once.
#[test]
fn a_free_wakes_only_whom_it_may_serve() {
    let pool = four_kib(LONG);
    let blocks: Vec<Block> = (0..16).map(|_| allocate(&pool, 256)).collect();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| allocate(&pool, 1024));
        await_waiter(&pool);
        // The loop never frees two neighbors at once.
        for &block in blocks.iter().step_by(2) {
            free(&pool, block);
        }
        assert_eq!(pool.stats().retry.wakeups, 0);
        for &block in &blocks[1..4] {
            if block != blocks[2] {
                free(&pool, block);
            }
        }
        assert_eq!(waiter.join().unwrap().bytes, 1024);
    });
    assert_woken(&pool);
    assert_eq!(pool.stats().retry.wakeups, 1);
}

/// The free leaves a piece that is too small, but also an idle region that a larger region can replace.
#[test]
fn an_idle_region_wakes_requests_that_collection_serves() {
    let pool = pool(BfcConfig::new(Bytes::kib(16)).with_first_region(Bytes::kib(4)).with_retry_timeout(LONG));
    let (first, second) = (allocate(&pool, 4096), allocate(&pool, 4096));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| allocate(&pool, 12 * 1024));
        await_waiter(&pool);
        free(&pool, second);
        assert_eq!(waiter.join().unwrap().bytes, 12 * 1024);
    });
    assert_woken(&pool);
    free(&pool, first);
}

/// As above, where growth merges or frees regions and collection is off.
#[test]
fn a_free_that_leaves_a_region_idle_wakes_whoever_else_gets_it() {
    let merging =
        BfcConfig::new(Bytes::kib(16)).with_garbage_collection(false).with_first_region(Bytes::kib(4));
    assert!(merging.region_merging);
    idle_region_serves_a_waiter::<Bfc>(merging);
    let options = AutoGrowthOptions::cpu().with_free_before_growth(true);
    let freeing = AutoGrowthConfig::with_options(Bytes::kib(16), options).with_garbage_collection(false);
    idle_region_serves_a_waiter::<AutoGrowth>(freeing);
}

fn idle_region_serves_a_waiter<P: ConfiguredPolicy>(config: PoolConfig<P::Options>) {
    let source = FakeSource::new(Nature::default());
    let pool = PolicyAllocator::<P>::new("test", source, config.with_retry_timeout(LONG));
    let get = |bytes| pool.allocate(&Request::new(bytes)).unwrap();
    let (first, second) = (get(3 << 10), get(7 << 10));
    assert_eq!(pool.regions().len(), 2);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| get(11 << 10));
        let start = Instant::now();
        while pool.stats().retry.waiting == 0 {
            assert!(start.elapsed() < LONG, "nobody waits");
            std::thread::yield_now();
        }
        try_free(&pool, second).unwrap();
        try_free(&pool, waiter.join().unwrap()).unwrap();
    });
    let retry = pool.stats().retry;
    assert!(retry.waits > 0 && retry.waited < LONG, "{retry:?}");
    try_free(&pool, first).unwrap();
}

/// A thread frees the last block of a packing's range: with the room beside it, the range serves a waiter.
#[test]
fn a_waiter_gets_a_packings_range_with_what_is_free_beside_it() {
    let packing =
        Packing::solve(&[Lifetime { bytes: 4096, start: 0, end: 1 }], &PackingOptions::default()).unwrap();
    let config = PackedConfig::packed(Bytes::kib(16), Arc::new(packing)).with_allow_growth(false);
    let source = FakeSource::new(Nature::default());
    let pool = PackedAllocator::new("test", source, config.with_retry_timeout(LONG));
    let get = |bytes| pool.allocate(&Request::new(bytes)).unwrap();
    let (packed, others) = (get(4096), [get(4000), get(4000), get(4000)]);
    assert_eq!(pool.counts().packed, 1);
    let beside = others.iter().find(|other| other.address.abs_diff(packed.address) == 4096).unwrap();
    try_free(&pool, *beside).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| pool.allocate(&Request::new(8192)).unwrap());
        let start = Instant::now();
        while pool.stats().retry.waiting == 0 {
            assert!(start.elapsed() < LONG, "nobody waits");
            std::thread::yield_now();
        }
        try_free(&pool, packed).unwrap();
        assert_eq!(waiter.join().unwrap().bytes, 8192);
    });
    assert!(pool.stats().retry.waited < LONG);
}

/// A consumer that has not called the pool yet: the pool learns of it only if the producer announces it.
#[test]
fn a_request_waits_for_frees_by_an_unknown_thread() {
    let pool: Arc<BfcAllocator> = four_kib(LONG);
    let handle: Arc<dyn Allocator> = pool.clone();
    let held = allocate(&pool, 4096);
    assert!(out_of_memory(&pool, 4096).waited.is_zero(), "nobody is expected");
    let expected = [ExpectedFrees::new(&handle), ExpectedFrees::new(&handle)];
    std::thread::scope(|scope| {
        let consumer = scope.spawn(|| {
            await_waiter(&pool);
            free(&pool, held);
        });
        let block = allocate(&pool, 4096);
        consumer.join().unwrap();
        free(&pool, block);
    });
    assert_woken(&pool);
    drop(expected);
}

#[test]
fn frees_are_expected_no_longer_than_somebody_says_so() {
    let pool: Arc<BfcAllocator> = four_kib(LONG);
    let handle: Arc<dyn Allocator> = pool.clone();
    let _held = allocate(&pool, 4096);
    drop([ExpectedFrees::new(&handle), ExpectedFrees::new(&handle)]);
    assert!(out_of_memory(&pool, 4096).waited.is_zero());
    assert_eq!(pool.stats().retry.waits, 0);
}

/// One free is enough to show that blocks change owners.
#[test]
fn after_a_free_by_a_thread_that_took_nothing_requests_wait() {
    for cache in [None, Some(ThreadCache::new())] {
        let config = BfcConfig::new(Bytes::kib(4)).with_retry_timeout(LONG);
        let pool = pool(cache.map_or(config.clone(), |cache| config.with_thread_cache(cache)));
        let sent = allocate(&pool, 256);
        std::thread::scope(|scope| drop(scope.spawn(|| free(&pool, sent))));
        let held = allocate(&pool, 4096);
        std::thread::scope(|scope| {
            let consumer = scope.spawn(|| {
                await_waiter(&pool);
                free(&pool, held);
            });
            allocate(&pool, 4096);
            consumer.join().unwrap();
        });
        assert_woken(&pool);
    }
}
