use std::sync::Arc;

use bfc_core::{AddressOnlyMemory, Bytes, PassthroughAllocator};

use super::*;
use crate::trace::TraceLimits;

/// A pool of exact sizes and at most `limit` bytes.
fn pool_of(limit: u64) -> Arc<dyn Allocator> {
    let memory = Arc::new(AddressOnlyMemory::new());
    Arc::new(PassthroughAllocator::new("test", memory).with_limit(Bytes(limit)))
}

fn trace(text: &str) -> Trace {
    Trace::parse(text.as_bytes(), &TraceLimits::default()).unwrap()
}

#[test]
fn a_replay_follows_the_trace_and_frees_what_it_leaves_live() {
    let pool = pool_of(1000);
    let summary = replay(&trace("a 0 100 x\na 1 50 x\nf 0\na 2 70 x\na 3 0 x\n"), &*pool).unwrap();
    assert_eq!((summary.events, summary.allocations, summary.peak_in_use), (5, 4, 150));
    assert_eq!(pool.stats().peak_bytes_in_use, 150);
    assert_eq!(pool.stats().live_allocs, 0);
}

#[test]
fn a_failed_allocation_is_named_and_leaks_nothing() {
    let pool = pool_of(100);
    let error = replay(&trace("a 0 60 first\nf 0\na 1 60 second\na 2 50 third\n"), &*pool).unwrap_err();
    assert!(matches!(&error, ReplayError::Alloc { event: 3, label, bytes: 50, .. } if label == "third"));
    assert!(error.to_string().starts_with("event 3 (third, 50 bytes): "), "{error}");
    assert_eq!(pool.stats().live_allocs, 0);
}

#[test]
fn the_same_trace_gives_the_same_summary_again() {
    let trace = trace("a 0 1 x\na 1 2 x\nf 1\na 2 4 x\nf 0\nf 2\n");
    let once = replay(&trace, &*pool_of(u64::MAX)).unwrap();
    assert_eq!(replay(&trace, &*pool_of(u64::MAX)), Ok(once));
    assert_eq!(once.peak_in_use, trace.peak_live_bytes());
}

#[test]
fn slots_are_used_again_and_never_shared_by_two_live_blocks() {
    let trace = trace("a 0 1 x\na 1 2 x\nf 0\na 2 4 x\na 3 8 x\nf 1\nf 3\na 4 16 x\n");
    let replayer = Replayer::new(&trace);
    let slots: Vec<_> = replayer.steps.iter().map(|step| (step.slot, step.action == Action::Free)).collect();
    let (taken, freed) = (false, true);
    let expected =
        [(0, taken), (1, taken), (0, freed), (0, taken), (2, taken), (1, freed), (2, freed), (2, taken)];
    assert_eq!(slots, expected);
    assert_eq!(replayer.rest, [0, 2]);
    assert_eq!(replayer.blocks.len(), 3);
}

#[test]
fn watchers_see_the_pool_after_each_interval() {
    let trace = trace("a 0 1 x\na 1 2 x\na 2 4 x\nf 0\na 3 8 x\n");
    let pool = pool_of(u64::MAX);
    let mut seen = Vec::new();
    let interval = NonZero::new(2).unwrap();
    let summary = Replayer::new(&trace)
        .run_watched(&*pool, interval, |event, pool| seen.push((event, pool.stats().bytes_in_use)))
        .unwrap();
    assert_eq!(seen, [(2, 3), (4, 6), (5, 14)]);
    assert_eq!(summary, Replayer::new(&trace).run(&*pool_of(u64::MAX)).unwrap());
    assert_eq!(pool.stats().live_allocs, 0);
}

#[test]
fn a_replay_that_failed_can_be_tried_again() {
    let trace = trace("a 0 60 x\na 1 0 x\nf 0\na 2 30 x\na 3 50 x\nf 2\n");
    let mut replayer = Replayer::new(&trace);
    let small = pool_of(70);
    for _ in 0..2 {
        assert_eq!(replayer.run(&*small).unwrap_err().event(), 4);
        assert_eq!(small.stats().live_allocs, 0);
    }
    assert_eq!(replayer.run(&*pool_of(80)).unwrap().peak_in_use, 80);
}
