//! Totals of ops that begin and end in any order.

use super::*;
use crate::capture;
use crate::record::EventKind;
use crate::scope::{Phase, module, phase};
use crate::tally::CallTotals;
use crate::test_pool::TestPool;
use bfc_core::{AddressOnlyMemory, Allocation, BfcAllocator, BfcConfig, Category, Request, Tag};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

/// A pool that numbers its blocks and looks at the numbers.
fn bfc_pool(limit: Bytes) -> Arc<dyn Allocator> {
    Arc::new(BfcAllocator::new("bfc", Arc::new(AddressOnlyMemory::new()), BfcConfig::new(limit)))
}

fn take(allocator: &Arc<dyn Allocator>, bytes: u64, category: Category) -> Allocation {
    Allocation::new(allocator, &Request::new(bytes).with_category(category)).unwrap()
}

/// The totals of the only row called `op` that has calls.
fn row(tracker: &Tracker, op: &str) -> OpTotals {
    let rows = tracker.op_totals();
    let mut rows = rows.iter().filter(|row| row.op == op && row.totals.calls > 0);
    let row = *rows.next().unwrap();
    assert_eq!(rows.next(), None);
    row
}

fn totals(tracker: &Tracker, op: &str) -> CallTotals {
    row(tracker, op).totals
}

#[test]
fn a_finished_op_is_folded_into_the_row_of_its_place() {
    let (tracker, pool) = (Tracker::new(), TestPool::tracking());
    let mut kept = Vec::new();
    for round in 1..=2 {
        let _scope = module("tracker-net.fc1");
        let run = tracker.begin("matmul");
        let allocator = run.track(&pool);
        let scratch = take(&allocator, 100 * round, Category::Workspace);
        kept.push(take(&allocator, 10, Category::Activation));
        drop(scratch);
        kept.push(take(&allocator, 1, Category::Parameter));
    }
    let OpTotals { owner, module, phase, totals: row, .. } = row(&tracker, "matmul");
    assert_eq!((module.path(), phase), ("tracker-net.fc1".to_owned(), Phase::Forward));
    assert_eq!(owner.path(), "tracker-net.fc1.matmul");
    assert_eq!((row.calls, row.total_bytes(), row.high_water_bytes), (2, 322, 210));
    assert_eq!(row.outliving_bytes, 22);
    assert_eq!((row.temporary_bytes, row.output_bytes, row.persistent_bytes), (300, 20, 2));
    assert_eq!(pool.ledger().owner(owner).own, 22);
}

#[test]
fn phases_have_rows_and_owners_of_their_own() {
    let (tracker, pool) = (Tracker::new(), TestPool::tracking());
    let mut owners = Vec::new();
    for each in [Phase::Forward, Phase::Backward, Phase::Optimizer] {
        let _phase = phase(each);
        let run = tracker.begin("tracker-phases");
        owners.push(run.owner().path());
        let _scratch = take(&run.track(&pool), 8, Category::Temporary);
    }
    assert_eq!(owners, ["tracker-phases", "tracker-phases:backward", "tracker-phases:optimizer"]);
    assert_eq!(tracker.op_totals().len(), 3);
    assert!(tracker.op_totals().iter().all(|row| (row.totals.calls, row.totals.outliving_bytes) == (1, 0)));
}

#[test]
fn memory_charged_to_an_op_afterwards_is_the_ops_without_a_call() {
    let (tracker, pool) = (Tracker::new(), TestPool::tracking());
    let block = take(&pool, 30, Category::Parameter);
    let owner = {
        let _scope = module("tracker-afterwards");
        tracker.owner_here("init")
    };
    pool.retag(&block.block(), bfc_core::Tag { owner, category: Category::Parameter }).unwrap();
    let report = crate::Report::new(&tracker, std::slice::from_ref(&pool));
    assert_eq!(owner.path(), "tracker-afterwards.init");
    assert_eq!((report.ops[0].calls, report.ops[0].live_bytes, report.unowned_bytes), (0, 30, 0));
    // A dropped network still held its parameters at the peak.
    drop(take(&pool, 10, Category::Temporary));
    drop(block);
    let report = crate::Report::new(&tracker, std::slice::from_ref(&pool));
    assert_eq!(
        (report.ops[0].op.as_str(), report.ops[0].live_bytes, report.ops[0].peak_bytes),
        ("init", 0, 30)
    );
    assert_eq!((report.scopes[1].scope.as_str(), report.scopes[1].peak_bytes), ("tracker-afterwards", 30));
}

#[test]
fn a_nested_op_is_a_part_of_the_outer_one() {
    let (tracker, pool) = (Tracker::new(), TestPool::tracking());
    {
        let outer = tracker.begin("outer");
        let _a = take(&outer.track(&pool), 100, Category::Temporary);
        let _scope = module("deeper");
        let nested = tracker.begin("nested");
        assert!(!outer.is_nested() && nested.is_nested());
        assert_eq!(nested.owner(), outer.owner());
        let _b = take(&nested.track(&pool), 50, Category::Temporary);
        drop(nested);
        let _c = take(&outer.track(&pool), 1, Category::Temporary);
    }
    assert_eq!(tracker.op_totals().len(), 1);
    let row = totals(&tracker, "outer");
    assert_eq!((row.calls, row.total_bytes(), row.high_water_bytes), (1, 151, 151));
}

#[test]
fn ops_of_another_tracker_do_not_nest() {
    let (ours, theirs) = (Tracker::new(), Tracker::new());
    let _outer = ours.begin("outer");
    let other = theirs.begin("other");
    assert!(!other.is_nested());
    assert!(ours.begin("inner").is_nested());
}

#[test]
fn ops_may_end_in_any_order() {
    let (pool, trackers) = (TestPool::tracking(), [Tracker::new(), Tracker::new(), Tracker::new()]);
    let [lower, upper, later] = trackers.each_ref();
    let (below, above) = (lower.begin("below"), upper.begin("above"));
    drop(below);
    assert_eq!(totals(lower, "below").calls, 1);
    // It goes on as an op, although it is not found any more.
    let running = later.begin("running");
    drop(take(&above.track(&pool), 7, Category::Temporary));
    drop(above);
    assert_eq!((totals(upper, "above").calls, totals(upper, "above").total_bytes()), (1, 7));
    assert!(later.begin("part").is_nested());
    drop(running);
    assert_eq!(totals(later, "running").calls, 1);
}

#[test]
fn an_op_begun_over_an_allocator_tracks_it() {
    let (tracker, pool) = (Tracker::new(), TestPool::tracking());
    for _ in 0..3 {
        let run = tracker.begin_over("op", &pool, None);
        let allocator = run.allocator().unwrap();
        assert!(Arc::ptr_eq(allocator, &run.track(&pool)) && !run.is_nested());
        drop(take(allocator, 10, Category::Temporary));
        let part = tracker.begin_over("part", &pool, None);
        assert!(part.is_nested() && Arc::ptr_eq(part.allocator().unwrap(), allocator));
    }
    let row = totals(&tracker, "op");
    assert_eq!((row.calls, row.total_bytes(), row.high_water_bytes), (3, 30, 10));
}

#[test]
fn a_disabled_tracker_hands_out_the_pool_itself() {
    let (tracker, pool) = (Tracker::disabled(), TestPool::tracking());
    let run = tracker.begin_over("op", &pool, None);
    assert!(run.allocator().is_none() && Arc::ptr_eq(&run.track(&pool), &pool) && run.is_nested());
    assert!(tracker.op_totals().is_empty());
}

/// A thread's stack of running ops is gone before the values that the thread stored first.
#[test]
fn an_op_on_a_thread_that_ends_is_one_like_any_other() {
    struct Late(Arc<Tracker>, Arc<dyn Allocator>, mpsc::Sender<bool>);

    impl Drop for Late {
        fn drop(&mut self) {
            let Self(tracker, pool, seen) = self;
            let run = tracker.begin_over("tracker-late", &*pool, None);
            let _ = seen.send(run.frame.is_none() && !run.is_nested());
            drop(take(run.allocator().unwrap(), 64, Category::Temporary));
        }
    }

    thread_local!(static LATE: RefCell<Option<Late>> = const { RefCell::new(None) });

    let (tracker, pool) = (Tracker::new(), TestPool::tracking());
    let (sender, seen) = mpsc::channel();
    let late = Late(Arc::clone(&tracker), Arc::clone(&pool), sender);
    let early = Arc::clone(&tracker);
    let thread = std::thread::spawn(move || {
        LATE.set(Some(late));
        drop(early.begin("tracker-early"));
    });
    thread.join().unwrap();
    assert_eq!(seen.recv(), Ok(true));
    let row = totals(&tracker, "tracker-late");
    assert_eq!((row.calls, row.temporary_bytes, row.outliving_bytes), (1, 64, 0));
    assert_eq!(totals(&tracker, "tracker-early").calls, 1);
    assert_eq!((pool.stats().live_allocs, Arc::strong_count(&pool)), (0, 1));
}

#[test]
fn an_op_has_one_tracking_allocator_for_each_inner_allocator() {
    let (tracker, pool, other) = (Tracker::new(), TestPool::tracking(), TestPool::tracking());
    let run = tracker.begin("op");
    let first = run.track(&pool);
    assert!(Arc::ptr_eq(&first, &run.track(&pool)));
    assert!(Arc::ptr_eq(&first, &run.track(&first)));
    assert!(!Arc::ptr_eq(&first, &run.track(&other)));
    assert!(!Arc::ptr_eq(&first, &pool));
}

#[test]
fn high_water_marks_of_several_memories_are_added() {
    let (tracker, pool, other) = (Tracker::new(), TestPool::tracking(), TestPool::tracking());
    {
        let run = tracker.begin("copy");
        let _here = take(&run.track(&pool), 30, Category::Temporary);
        let _there = take(&run.track(&other), 12, Category::Output);
    }
    assert_eq!(totals(&tracker, "copy").high_water_bytes, 42);
}

#[test]
fn a_tracking_allocator_lives_until_its_last_free() {
    let (tracker, pool) = (Tracker::new(), TestPool::tracking());
    let result = take(&tracker.begin("op").track(&pool), 64, Category::Output);
    let account = Arc::downgrade(result.allocator());
    assert_eq!(result.allocator().stats().live_allocs, 1);
    drop(result);
    assert_eq!(account.strong_count(), 0);
    assert_eq!((pool.stats().live_allocs, Arc::strong_count(&pool)), (0, 1));
}

#[test]
fn executions_keep_their_figures_apart() {
    let (tracker, pool) = (Tracker::new(), TestPool::not_tracking());
    let memory = AccountedPool::new(Arc::clone(&pool));
    for op in ["first", "second"] {
        let run = tracker.begin_over(op, &pool, Some(&memory));
        let allocation = take(&run.track(&pool), 1000, Category::Output);
        assert_eq!(allocation.block().id, 1);
        assert_eq!(pool.ledger().owner(run.owner()).own, 1000);
    }
    let (first, second) = (totals(&tracker, "first"), totals(&tracker, "second"));
    assert_eq!(second, CallTotals { time_ns: second.time_ns, ..first });
}

#[test]
fn an_account_is_reused_once_nothing_refers_to_it() {
    let (ours, theirs, pool) = (Tracker::new(), Tracker::new(), TestPool::tracking());
    let memory = AccountedPool::new(Arc::clone(&pool));
    let run_op = |tracker: &Tracker, op, base| {
        let run = tracker.begin_over(op, base, Some(&memory));
        let allocator = run.allocator().unwrap();
        drop(take(allocator, 50, Category::Temporary));
        (Arc::as_ptr(allocator), take(allocator, 10, Category::Activation))
    };
    let (account, result) = run_op(&ours, "first", &pool);
    assert_ne!(run_op(&ours, "beside its result", &pool).0, account);
    drop(result);
    // The list of one pool has no accounts of another one, and each tracker takes only its own.
    let other = TestPool::tracking();
    drop(run_op(&ours, "elsewhere", &other));
    assert_eq!(Arc::strong_count(&other), 1);
    assert_ne!(run_op(&theirs, "of another tracker", &pool).0, account);

    let reused: Vec<_> = (0..8).map(|_| run_op(&ours, "next", &pool).0).collect();
    assert!(reused.contains(&account));
    let row = totals(&ours, "next");
    assert_eq!((row.calls, row.total_bytes(), row.high_water_bytes), (8, 480, 50));
    assert_eq!((row.outliving_bytes, row.live_before_bytes), (80, 0));
    drop(memory);
    assert_eq!((pool.stats().live_allocs, Arc::strong_count(&pool)), (0, 1));
}

#[test]
fn a_handle_that_outlives_its_op_keeps_the_pool_no_longer() {
    let (tracker, pool) = (Tracker::new(), TestPool::tracking());
    let run = tracker.begin("op");
    let handle = run.track(&pool);
    // The block of no bytes is no live allocation, but holds a handle too.
    let nothing = take(&handle, 0, Category::Output);
    drop(take(&handle, 8, Category::Temporary));
    drop(run);
    drop((handle, nothing));
    assert_eq!(Arc::strong_count(&pool), 1);
}

#[test]
fn later_allocations_of_a_leaked_handle_have_no_op() {
    let (tracker, pool) = (Tracker::new(), TestPool::tracking());
    let (leaked, owner) = {
        let run = tracker.begin("op");
        let allocator = run.track(&pool);
        drop(take(&allocator, 10, Category::Temporary));
        (allocator, run.owner())
    };
    let folded = totals(&tracker, "op");
    let late = take(&leaked, 500, Category::Output);
    assert_eq!(totals(&tracker, "op"), folded);
    assert_eq!(pool.ledger().owner(owner).own, 500);

    // Another op has another allocator.
    let next = tracker.begin("next").track(&pool);
    assert!(!Arc::ptr_eq(&next, &leaked));
    drop(late);
    assert_eq!(pool.stats().live_allocs, 0);
}

#[test]
fn allocations_outlive_their_tracker() {
    let (tracker, pool) = (Tracker::new(), TestPool::tracking());
    let result = take(&tracker.begin("op").track(&pool), 8, Category::Output);
    drop(tracker);
    drop(result);
    assert_eq!(pool.stats().live_allocs, 0);
    assert_eq!(Arc::strong_count(&pool), 1);
}

#[test]
fn a_nested_run_that_outlives_the_op_tracks_nothing_more() {
    let (tracker, pool) = (Tracker::new(), TestPool::tracking());
    let outer = tracker.begin("outer");
    let nested = tracker.begin("nested");
    drop(outer);
    assert!(Arc::ptr_eq(&nested.track(&pool), &pool));
    assert!(!tracker.begin("next").is_nested());
}

#[test]
fn an_op_ends_while_unwinding_and_its_memory_is_back() {
    let (tracker, pool) = (Tracker::new(), TestPool::tracking());
    let result = catch_unwind(AssertUnwindSafe(|| {
        let run = tracker.begin("op");
        let _scratch = take(&run.track(&pool), 10, Category::Temporary);
        panic!("on purpose");
    }));
    assert!(result.is_err());
    assert_eq!(totals(&tracker, "op").calls, 1);
    assert_eq!(pool.stats().live_allocs, 0);
    assert!(!tracker.begin("next").is_nested());
}

#[test]
fn workers_that_enter_the_ops_context_work_for_it() {
    let (tracker, pool) = (Tracker::new(), TestPool::tracking());
    {
        let _scope = module("tracker-workers");
        let run = tracker.begin("op");
        let context = capture();
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    assert!(!tracker.begin("stranger").is_nested());
                    {
                        let _context = context.enter();
                        let part = tracker.begin("part");
                        assert!(part.is_nested());
                        assert_eq!(part.owner(), run.owner());
                        assert_eq!(here(), context.place());
                        drop(take(&part.track(&pool), 25, Category::Temporary));
                    }
                    assert!(!tracker.begin("stranger").is_nested());
                });
            }
        });
    }
    let row = totals(&tracker, "op");
    assert_eq!((row.calls, row.total_bytes(), row.outliving_bytes), (1, 100, 0));
    assert!((25..=100).contains(&row.high_water_bytes));
}

#[test]
fn stolen_work_is_not_charged_to_the_current_op() {
    let (ours, theirs) = (Tracker::new(), Tracker::new());
    let context = std::thread::scope(|threads| {
        threads
            .spawn(|| {
                let _run = theirs.begin("theirs");
                capture()
            })
            .join()
            .unwrap()
    });
    let own = ours.begin("own");
    {
        let _stolen = context.enter();
        assert!(!ours.begin("of the stolen work").is_nested());
        assert!(!theirs.begin("after the op has finished").is_nested());
    }
    let part = ours.begin("part");
    assert!(part.is_nested());
    assert_eq!(part.owner(), own.owner());
}

#[test]
fn a_context_of_a_finished_op_never_comes_to_mean_another_op() {
    let (tracker, memory) = (Tracker::new(), AccountedPool::new(TestPool::tracking()));
    let context = {
        let _run = tracker.begin_over("first", memory.pool(), Some(&memory));
        capture()
    };
    let _second = tracker.begin_over("second", memory.pool(), Some(&memory));
    let _context = context.enter();
    assert!(!tracker.begin("third").is_nested());
}

#[test]
fn many_threads_begin_and_finish_ops_and_the_sums_are_exact() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 300;
    let (tracker, pool) = (Tracker::new(), TestPool::tracking());
    let kept: Vec<Allocation> = std::thread::scope(|threads| {
        let workers: Vec<_> = (0..THREADS)
            .map(|_| {
                threads.spawn(|| {
                    let mut last = Vec::new();
                    for round in 0..ROUNDS {
                        let run = tracker.begin("op");
                        let allocator = run.track(&pool);
                        let _scratch = take(&allocator, 7, Category::Temporary);
                        last.push(take(&allocator, 3, Category::Output));
                        if round % 2 == 0 {
                            last.swap_remove(0);
                        }
                    }
                    last
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let OpTotals { owner, totals: row, .. } = row(&tracker, "op");
    assert_eq!(row.calls, THREADS * ROUNDS);
    assert_eq!(row.temporary_bytes, 7 * THREADS * ROUNDS);
    assert_eq!(row.output_bytes, 3 * THREADS * ROUNDS);
    assert_eq!(row.high_water_bytes, 10);
    assert_eq!(pool.ledger().owner(owner).own, 3 * kept.len() as u64);
    assert_eq!(pool.stats().bytes_in_use, 3 * kept.len() as u64);
    drop(kept);
    assert_eq!(pool.stats().bytes_in_use, 0);
    assert_eq!(bfc_core::failed_drops(), 0);
}

#[test]
fn running_ops_are_counted_after_a_reset() {
    let (tracker, pool) = (Tracker::new(), TestPool::tracking());
    drop(take(&tracker.begin("op").track(&pool), 8, Category::Output));
    let run = tracker.begin("op");
    tracker.reset();
    assert!(tracker.op_totals().iter().all(|row| row.totals == CallTotals::default()));
    drop(take(&run.track(&pool), 5, Category::Output));
    drop(run);
    assert_eq!(totals(&tracker, "op").total_bytes(), 5);
}

#[test]
fn a_recording_has_every_event_in_order_with_blocks_from_zero() {
    let (tracker, pool) = (Tracker::new(), TestPool::tracking());
    let before = take(&tracker.begin("before").track(&pool), 1, Category::Output);
    tracker.start_log(Bytes::mib(1));
    let run = tracker.begin("tracker-log");
    let allocator = run.track(&pool);
    let a = take(&allocator, 10, Category::Output);
    let b = take(&allocator, 20, Category::Workspace);
    let addresses = [a.block().address, b.block().address];
    let owner = run.owner();
    allocator.retag(&a.block(), Tag { owner, category: Category::Activation }).unwrap();
    drop(before);
    drop(b);
    drop(run);
    tracker.mark("over");
    drop(a);
    let log = tracker.take_log();
    assert!(!log.overflowed());
    let kinds: Vec<EventKind> = log.events().iter().map(|event| event.kind).collect();
    use EventKind::{Alloc, Enter, Free, Leave, Mark, Retag};
    assert_eq!(kinds, [Enter(0), Alloc(0), Alloc(1), Retag(0), Free(1), Leave(0), Mark(0), Free(0)]);
    assert_eq!(log.skipped_events(), 1, "the free of a block from before");
    assert!(log.events().is_sorted_by_key(|event| event.at_ns));
    let [a, b] = [log.block(0), log.block(1)];
    assert_eq!([a.address, b.address], addresses);
    assert_eq!((a.requested, a.category, a.last_category), (10, Category::Output, Category::Activation));
    assert_eq!((b.requested, b.category, b.freed), (20, Category::Workspace, Some(4)));
    assert_eq!(log.owner_path(a.owner), "tracker-log");
    assert_eq!(log.owner(a.owner).phase, Some(Phase::Forward));
    let execution = &log.executions()[0];
    assert_eq!((execution.high_water, execution.outliving, execution.live_peak), (30, 10, 30));
    assert_eq!(log.marks(), ["over"]);
    assert_eq!((log.pools()[0].name.as_str(), log.pools().len()), ("test", 1));

    drop(take(&allocator, 10, Category::Output));
    assert_eq!(tracker.take_log(), Recording::default());
}

#[test]
fn failed_calls_leave_the_recorded_sums_correct() {
    let (tracker, pool) = (Tracker::new(), bfc_pool(Bytes(512)));
    tracker.start_log(Bytes::mib(1));
    let run = tracker.begin("tracker-refused");
    let allocator = run.track(&pool);
    let kept = take(&allocator, 60, Category::Output);
    let stale = take(&allocator, 40, Category::Output);
    let stale_block = stale.block();
    assert!(Allocation::new(&allocator, &Request::new(1)).is_err());
    drop(stale);
    let again = take(&allocator, 40, Category::Output);
    // SAFETY: nothing uses the memory, which is address-only.
    assert!(unsafe { allocator.deallocate(stale_block) }.is_err());
    let log = tracker.take_log();
    assert_eq!(log.timeline().last().unwrap().bytes, pool.stats().bytes_in_use);
    let failure = log.failures()[0];
    assert_eq!((failure.requested, log.owner_path(failure.owner).as_str()), (1, "tracker-refused"));
    drop((kept, again));
}

#[test]
fn a_full_log_keeps_the_latest_events() {
    let (tracker, pool) = (Tracker::new(), TestPool::tracking());
    tracker.start_log(Bytes(1024));
    let allocator = tracker.begin("tracker-full").track(&pool);
    let kept = [take(&allocator, 8, Category::Parameter), take(&allocator, 9, Category::Output)];
    for _ in 0..1000 {
        drop(take(&allocator, 16, Category::Temporary));
    }
    let log = tracker.take_log();
    assert!(log.overflowed());
    // An op's beginning and end, two allocations, and a thousand of them with their frees.
    assert_eq!(log.lost_events() + (log.events().len() - log.carried_events()) as u64, 2004);
    assert!(log.events().len() > 20);
    // One of the thousand may have been live at the boundary.
    assert!((2..=3).contains(&log.carried_events()));
    assert_eq!(log.timeline().last().unwrap().bytes, 17);
    assert_eq!(log.peak().unwrap().bytes, 33);
    assert_eq!(log.owner_path(log.block(0).owner), "tracker-full");
    drop(kept);
}

#[test]
fn regions_are_recorded_under_the_pool_that_takes_them() {
    let (tracker, mut visitors) = (Tracker::new(), bfc_core::Visitors::new());
    for taken in [true, false] {
        let tracker = Arc::downgrade(&tracker);
        let record = move |region, _| {
            tracker.upgrade().unwrap().record_region("bfc", MemoryKind::AddressOnly, region, taken);
        };
        if taken { visitors.on_alloc(record) } else { visitors.on_free(record) }
    }
    let memory = Arc::new(bfc_core::VisitedMemory::new(Arc::new(AddressOnlyMemory::new()), 0, visitors));
    let config = BfcConfig::new(Bytes(4096)).with_allow_growth(false);
    let pool: Arc<dyn Allocator> = Arc::new(BfcAllocator::new("bfc", memory, config));
    tracker.start_log(Bytes::mib(1));
    drop(take(&tracker.begin("tracker-region").track(&pool), 100, Category::Output));
    drop(pool);
    let log = tracker.take_log();
    let [taken, given_back] = log.regions() else { panic!("one region, twice") };
    assert_eq!((taken.bytes, taken.taken, given_back.taken), (4096, true, false));
    assert_eq!((taken.address, taken.pool), (given_back.address, log.block(0).pool));
    assert_eq!(log.pools().len(), 1);
}
