//! Runs that begin where they stand, and on threads that end.

use std::cell::RefCell;
use std::sync::mpsc;

use super::*;

#[test]
fn an_idle_run_keeps_no_account_until_it_begins_where_it_stands() {
    for adopted in [false, true] {
        let (tracker, pool) = (Tracker::new(), TestPool::tracking());
        if adopted {
            tracker.adopt(&pool);
        }
        let mut run = tracker.idle_run();
        assert!(run.allocator().is_none() && run.is_nested() && Arc::ptr_eq(&run.track(&pool), &pool));
        drop(tracker.idle_run());
        assert!(tracker.op_totals().is_empty());

        // What was begun is ended before.
        run.begin_over("tracker-first", &pool);
        drop(take(run.allocator().unwrap(), 100, Category::Temporary));
        run.begin_over("tracker-second", &pool);
        assert_eq!(totals(&tracker, "tracker-first").total_bytes, 100);
        let kept = take(run.allocator().unwrap(), 30, Category::Output);

        // A part of it, which begins anew when it has ended, is a whole.
        let mut part = tracker.idle_run();
        part.begin_over("tracker-part", &pool);
        assert!(part.is_nested() && !run.is_nested());
        drop(run);
        part.begin_over("tracker-whole", &pool);
        assert!(!part.is_nested());
        drop(part);

        let second = totals(&tracker, "tracker-second");
        assert_eq!((second.calls, second.total_bytes, second.outliving_bytes), (1, 30, 30));
        assert_eq!(totals(&tracker, "tracker-whole").calls, 1);
        assert_eq!(tracker.op_totals().iter().filter(|row| row.calls > 0).count(), 3);
        drop(kept);
        tracker.release(&pool);
        assert_eq!((pool.stats().live_allocs, Arc::strong_count(&pool)), (0, 1));
    }
}

/// A thread's stack of running ops is gone before what the thread kept first.
#[test]
fn an_op_on_a_thread_that_ends_is_one_like_any_other() {
    struct Late(Arc<Tracker>, Arc<dyn Allocator>, mpsc::Sender<bool>);

    impl Drop for Late {
        fn drop(&mut self) {
            let Self(tracker, pool, seen) = self;
            let run = tracker.begin_over("tracker-late", pool);
            let _ = seen.send(matches!(run.part, Part::Held { nested: false, .. }) && !run.is_nested());
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
