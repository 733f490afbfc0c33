use super::*;
use crate::test_pool::TestPool;
use crate::trace::TraceLimits;

fn trace(text: &str) -> Trace {
    Trace::parse(text.as_bytes(), &TraceLimits::default()).unwrap()
}

#[test]
fn a_replay_follows_the_trace_and_frees_what_it_leaves_live() {
    let pool = TestPool::build(true, 1000);
    let summary = replay(&trace("a 0 100 x\na 1 50 x\nf 0\na 2 70 x\na 3 0 x\n"), &*pool).unwrap();
    assert_eq!((summary.events, summary.allocations, summary.peak_in_use), (5, 4, 150));
    assert_eq!(pool.stats().peak_bytes_in_use, 150);
    assert_eq!(pool.stats().live_allocs, 0);
}

#[test]
fn an_allocation_that_fails_is_named_and_everything_is_given_back() {
    let pool = TestPool::build(true, 100);
    let error = replay(&trace("a 0 60 first\nf 0\na 1 60 second\na 2 50 third\n"), &*pool).unwrap_err();
    assert!(matches!(&error, ReplayError::Alloc { event: 3, label, bytes: 50, .. } if label == "third"));
    assert!(error.to_string().starts_with("event 3 (third, 50 bytes): "), "{error}");
    assert_eq!(pool.stats().live_allocs, 0);
}

#[test]
fn the_same_trace_gives_the_same_summary_again() {
    let trace = trace("a 0 1 x\na 1 2 x\nf 1\na 2 4 x\nf 0\nf 2\n");
    let once = replay(&trace, &*TestPool::tracking()).unwrap();
    assert_eq!(replay(&trace, &*TestPool::tracking()), Ok(once));
    assert_eq!(once.peak_in_use, trace.peak_live_bytes());
}
