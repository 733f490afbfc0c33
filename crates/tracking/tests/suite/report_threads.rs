//! Reports during allocations and frees by other threads. Each report balances exactly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bfc_core::sim::SimDevice;
use bfc_core::{
    AddressOnlyMemory, Allocation, AllocationAttributes, Allocator, BfcAllocator, BfcConfig, BuddyAllocator,
    BuddyConfig, Bytes, Category, DeviceMemory, GuardAllocator, GuardConfig, HostMemory,
    PassthroughAllocator, Request, Stream, StreamAllocator, ThreadCache, Verdict,
};
use highwater_tracking::{Report, Tracker, module};

/// The number of reports of each pool.
const REPORTS: usize = 2_000;

const WORKERS: u64 = 3;

fn bfc(config: BfcConfig) -> Arc<dyn Allocator> {
    Arc::new(BfcAllocator::new("bfc", Arc::new(AddressOnlyMemory::new()), config))
}

fn config() -> BfcConfig {
    BfcConfig::new(Bytes::mib(64))
}

fn guard() -> Arc<dyn Allocator> {
    let pool = BfcAllocator::new("guarded", Arc::new(HostMemory::new()), config());
    Arc::new(GuardAllocator::new(Arc::new(pool), GuardConfig::default()).unwrap())
}

fn streams() -> Arc<dyn Allocator> {
    let device = Arc::new(SimDevice::new(Bytes::mib(256)));
    let compute = Stream::new(device.clone()).unwrap();
    let pool = BfcAllocator::new("streams", Arc::new(DeviceMemory::new(device)), config());
    Arc::new(StreamAllocator::new(Arc::new(pool), compute))
}

/// Runs ops that keep some of their results until the next round, while `until` allows.
fn work(tracker: &Tracker, pool: &Arc<dyn Allocator>, worker: u64, stop: &AtomicBool, rounds: &AtomicU64) {
    let _scope = module(&format!("worker{worker}"));
    let mut kept: Vec<Allocation> = Vec::new();
    let mut size = worker + 1;
    while !stop.load(Ordering::Relaxed) {
        let run = tracker.begin(if size % 2 == 0 { "even" } else { "odd" });
        let allocator = run.track(pool);
        for category in [Category::Output, Category::Temporary, Category::Activation] {
            size = size * 6_364_136_223 % 1_000_003;
            let request = Request::new(1 + size % 5_000).with_category(category);
            kept.push(Allocation::new(&allocator, &request).unwrap());
        }
        drop(run);
        kept.truncate((size % 7) as usize);
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

/// Makes reports while workers run, and passes each to `check`.
fn while_others_allocate(pool: &Arc<dyn Allocator>, mut check: impl FnMut(&Tracker)) {
    let (tracker, stop, rounds) = (Tracker::new(), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (tracker, stop, rounds) = (&tracker, &stop, &rounds);
            scope.spawn(move || work(tracker, pool, worker, stop, rounds));
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            while rounds.load(Ordering::Relaxed) < 100 {
                std::thread::yield_now();
            }
            for _ in 0..REPORTS {
                check(&tracker);
            }
        }));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
    assert_eq!(pool.stats().live_allocs, 0);
}

/// Checks that the sums of a report equal its pool's figures: by op, by module and by category, now and at the peak.
fn assert_balanced(report: &Report, exact_peaks: bool) {
    let pool = &report.pools[0];
    let live = pool.in_use;
    assert_eq!((report.live_bytes(), report.unowned_bytes), (live, 0));
    assert_eq!(report.scopes[0].live_bytes, live, "the whole");
    assert_eq!(report.categories.iter().map(|row| row.live_bytes).sum::<u64>(), live);
    assert_eq!(report.phases.iter().map(|row| row.live_bytes).sum::<u64>(), live);
    assert!(pool.requested <= live && live <= pool.peak_in_use);
    if exact_peaks {
        let peak = pool.peak_in_use;
        assert_eq!(report.ops.iter().map(|row| row.peak_bytes).sum::<u64>(), peak);
        assert_eq!(report.categories.iter().map(|row| row.peak_bytes).sum::<u64>(), peak);
        assert_eq!(report.scopes[0].high_water_bytes, peak);
    }
}

fn reports_balance(pool: &Arc<dyn Allocator>, exact_peaks: bool) {
    while_others_allocate(pool, |tracker| {
        assert_balanced(&Report::new(tracker, std::slice::from_ref(pool)), exact_peaks);
    });
}

#[test]
fn reports_of_a_pool_balance_while_threads_allocate() {
    reports_balance(&bfc(config()), true);
    let buddy = BuddyConfig::gpu(Bytes::mib(64));
    reports_balance(
        &(Arc::new(BuddyAllocator::new("buddy", Arc::new(AddressOnlyMemory::new()), buddy)) as Arc<_>),
        true,
    );
}

#[test]
fn reports_of_a_pool_with_thread_caches_balance() {
    // The peaks of such a pool are upper bounds.
    reports_balance(&bfc(config().with_thread_cache(ThreadCache::new())), false);
}

#[test]
fn reports_of_a_guard_balance() {
    reports_balance(&guard(), true);
}

#[test]
fn reports_of_a_pool_of_several_streams_balance() {
    reports_balance(&streams(), true);
}

#[test]
fn reports_of_a_passthrough_allocator_balance() {
    let passthrough = PassthroughAllocator::new("passthrough", Arc::new(AddressOnlyMemory::new()));
    reports_balance(&(Arc::new(passthrough) as Arc<_>), true);
}

#[test]
fn holders_in_oom_reports_add_up_to_the_bytes_in_use() {
    let passthrough = PassthroughAllocator::new("passthrough", Arc::new(AddressOnlyMemory::new()));
    let pools = [
        bfc(config()),
        bfc(config().with_thread_cache(ThreadCache::new())),
        streams(),
        Arc::new(passthrough) as Arc<dyn Allocator>,
    ];
    let request = Request::new(1 << 40).with_attributes(AllocationAttributes::no_retry());
    for pool in pools {
        while_others_allocate(&pool, |_| {
            let report = pool.refusal(&request, Verdict::OverLimit);
            assert_eq!(report.holdings.total(), report.in_use, "{}", report.allocator);
            let largest = report.holdings.by_owner();
            assert_eq!(report.holders, largest[..report.holders.len()], "{}", report.allocator);
        });
    }
}
