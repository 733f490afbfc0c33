//! Collections in the pool of an op: live figures and recordings agree, also where blocks grow in place.

use std::sync::Arc;

use allocator_api2::vec::Vec as PoolVec;
use bfc_core::{
    Allocator, BfcAllocator, BfcConfig, Bytes, Category, HostMemory, KIB, PoolAllocator, Request,
};
use highwater_tracking::{Budget, Report, Tracker, TrackingAllocator, module};

fn pool() -> Arc<dyn Allocator> {
    let config = BfcConfig::new(Bytes::mib(1)).with_allow_growth(false).with_retry(false);
    Arc::new(BfcAllocator::new("cpu", Arc::new(HostMemory::new()), config))
}

/// Runs an op whose vector grows and shrinks in place, and returns the vector.
fn build(tracker: &Tracker, pool: &Arc<dyn Allocator>, category: Category) -> PoolVec<u64, PoolAllocator> {
    let _scope = module("tracked-collections");
    let run = tracker.begin("build");
    let in_pool = PoolAllocator::new(run.track(pool)).unwrap().with_category(category);
    let mut values = PoolVec::with_capacity_in(32, in_pool);
    values.extend(0..1024);
    values.reserve_exact(3072);
    values.shrink_to(2048);
    values
}

#[test]
fn live_figures_and_recordings_have_the_same_peak() {
    let (pool, tracker) = (pool(), Tracker::new());
    tracker.start_log(Bytes::mib(1));
    let values = build(&tracker, &pool, Category::Output);
    let stats = pool.stats();
    // No block moved: the peak is the largest size.
    assert_eq!((stats.peak_bytes_in_use, stats.bytes_in_use), (32 * KIB, 16 * KIB));

    let live = Report::new(&tracker, std::slice::from_ref(&pool));
    let recording = tracker.take_log();
    let recorded = Report::from_recording(&recording);
    for report in [&live, &recorded] {
        let op = &report.ops[0];
        assert_eq!((op.calls, op.high_water_bytes, op.live_bytes), (1, 32 * KIB, 16 * KIB));
        assert_eq!((op.peak_bytes, report.peak.as_ref().unwrap().bytes), (32 * KIB, 32 * KIB));
    }
    assert_eq!(live.ops[0].total_bytes, recorded.ops[0].total_bytes);
    // Growth is a free and an allocation at the same address.
    assert!(recording.blocks().len() > 2);
    assert!(recording.blocks().windows(2).all(|pair| pair[0].address == pair[1].address));

    drop(values);
    assert_eq!(pool.bytes_in_use(), 0);
}

#[test]
fn saved_bytes_follow_the_size_of_a_block() {
    let (pool, tracker) = (pool(), Tracker::new());
    let values = build(&tracker, &pool, Category::Activation);
    let saved = Report::new(&tracker, &[Arc::clone(&pool)]).saved;
    assert_eq!((saved.live_bytes, saved.high_water_bytes), (16 * KIB, 32 * KIB));
    drop(values);
    assert_eq!(Report::new(&tracker, &[pool]).saved.live_bytes, 0);
}

#[test]
fn records_show_a_free_and_an_allocation() {
    let pool = pool();
    let tracking = TrackingAllocator::with_records(pool, true);
    let block = tracking.allocate(&Request::new(1000)).unwrap();
    let wrapper: &dyn Allocator = &*tracking;
    // SAFETY: no other code uses the block.
    let grown = unsafe { wrapper.resize(&block, 2000) }.unwrap().unwrap();
    // SAFETY: as above.
    let shrunk = unsafe { wrapper.resize(&grown, 100) }.unwrap().unwrap();
    // SAFETY: as above. The block cannot grow beyond the pool.
    assert_eq!(unsafe { wrapper.resize(&shrunk, 2 << 20) }, Ok(None));
    let bytes: Vec<i64> = tracking.records().iter().map(|record| record.bytes).collect();
    assert_eq!(bytes, [1024, -1024, 2048, -2048, 256]);
    let sizes = tracking.sizes();
    assert_eq!((sizes.total_bytes, sizes.high_water_bytes, sizes.live_bytes), (3328, 2048, 256));
    // SAFETY: the block is stale, which the pool detects.
    assert!(unsafe { wrapper.resize(&block, 10) }.is_err());
    assert_eq!(tracking.sizes(), sizes);
    // SAFETY: no other code uses the block.
    unsafe { tracking.deallocate(shrunk) }.unwrap();
}

#[test]
fn a_budget_limits_growth() {
    let (pool, tracker) = (pool(), Tracker::new());
    let budget = Budget::new("tracked-budget", Bytes::kib(64));
    let _scope = module("tracked-budget");
    let run = tracker.begin("build");
    let mut values = PoolVec::new_in(PoolAllocator::new(run.track(&pool)).unwrap());
    values.extend_from_slice(&[1_u8; 20 * 1024]);
    assert!(values.try_reserve_exact(100 * 1024).is_err());
    drop(budget);
    assert!(values.try_reserve_exact(100 * 1024).is_ok());
    assert!(values.iter().all(|value| *value == 1));
}
