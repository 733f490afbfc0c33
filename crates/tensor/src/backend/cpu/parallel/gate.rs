//! Work that others may join for as long as it lasts, and that never waits for those who have not come.
//!
//! A thread that is asleep takes as long to wake as many an op takes; where two threads share a core that is all there is to lose.
//! `rayon`'s scopes wait for every thread that was called. So whoever comes passes a gate, and when the work is done the gate
//! is closed: only those inside are waited for.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rayon_core::ThreadPool;

/// The work, which is there for as long as the gate is open or somebody is inside.
struct Work(*const (dyn Fn() + Sync));

// SAFETY: what it points to is `Sync`, and whoever comes through the gate finds it there.
unsafe impl Send for Work {}
// SAFETY: as above.
unsafe impl Sync for Work {}

/// What those who come have to know.
struct Gate {
    work: Work,
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Default)]
struct State {
    closed: bool,
    inside: usize,
    panic: Option<Box<dyn Any + Send>>,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the work, unless it is done already.
    fn pass(&self) {
        {
            let mut state = self.state();
            if state.closed {
                return;
            }
            state.inside += 1;
        }
        // SAFETY: this thread is inside, so `work_together` has not returned.
        let work = unsafe { &*self.work.0 };
        let outcome = catch_unwind(AssertUnwindSafe(work));
        let mut state = self.state();
        state.inside -= 1;
        if let Err(panic) = outcome {
            state.panic.get_or_insert(panic);
        }
        drop(state);
        self.left.notify_all();
    }

    /// Lets nobody in any more, and waits for those inside. The first panic among them.
    fn close(&self) -> Option<Box<dyn Any + Send>> {
        let mut state = self.state();
        state.closed = true;
        while state.inside > 0 {
            state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.panic.take()
    }
}

/// Closes when dropped, also while unwinding.
struct Closing<'a>(&'a Gate);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        drop(self.0.close());
    }
}

/// Calls `work` here, and on at most `helpers` threads of `pool`, which come when they can. All have returned when this
/// returns. A panic in any of them goes on here.
pub(super) fn work_together(pool: &ThreadPool, helpers: usize, work: &(dyn Fn() + Sync)) {
    let pointer: *const (dyn Fn() + Sync + '_) = work;
    // SAFETY: only the lifetime changes. It is followed by those inside alone, and this function does not return, nor
    // unwind, before the gate is closed and nobody is inside: `Closing` sees to that.
    let pointer =
        unsafe { std::mem::transmute::<*const (dyn Fn() + Sync + '_), *const (dyn Fn() + Sync)>(pointer) };
    let gate = Arc::new(Gate { work: Work(pointer), state: Mutex::default(), left: Condvar::new() });
    let closing = Closing(&gate);
    for _ in 0..helpers {
        let gate = Arc::clone(&gate);
        pool.spawn(move || gate.pass());
    }
    work();
    let panic = gate.close();
    drop(closing);
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use rayon_core::ThreadPoolBuilder;

    use super::*;

    fn pool(threads: usize) -> ThreadPool {
        ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
    }

    #[test]
    fn who_has_not_come_is_not_waited_for_and_finds_the_gate_closed() {
        let pool = pool(1);
        let (go_on, wait) = mpsc::channel::<()>();
        let (tell, done) = mpsc::channel();
        // The only helper is busy until the work is done.
        pool.spawn(move || wait.recv().unwrap());
        let calls = AtomicUsize::new(0);
        work_together(&pool, 3, &|| {
            calls.fetch_add(1, Ordering::SeqCst);
        });
        go_on.send(()).unwrap();
        pool.spawn(move || tell.send(()).unwrap());
        done.recv().unwrap();
        assert_eq!(calls.into_inner(), 1);
    }

    #[test]
    fn nobody_is_inside_any_more_when_it_returns() {
        let pool = pool(3);
        for round in 0..2000 {
            let inside = AtomicUsize::new(0);
            let turns = AtomicUsize::new(0);
            work_together(&pool, 3, &|| {
                inside.fetch_add(1, Ordering::SeqCst);
                while turns.fetch_add(1, Ordering::SeqCst) < round % 50 {}
                inside.fetch_sub(1, Ordering::SeqCst);
            });
            assert_eq!(inside.into_inner(), 0);
        }
    }

    #[test]
    fn a_panic_goes_on_where_the_work_was_begun_after_all_have_left() {
        let pool = pool(2);
        let caller = std::thread::current().id();
        for by_helper in [false, true] {
            let inside = AtomicUsize::new(0);
            let result = catch_unwind(AssertUnwindSafe(|| {
                work_together(&pool, 2, &|| {
                    inside.fetch_add(1, Ordering::SeqCst);
                    // Both are inside before one panics.
                    while inside.load(Ordering::SeqCst) < 2 {
                        std::thread::yield_now();
                    }
                    let here = std::thread::current().id() != caller;
                    assert!(here != by_helper, "as planned");
                });
            }));
            let message = result.unwrap_err();
            assert!(message.downcast_ref::<&str>().is_some_and(|text| text.contains("as planned")));
        }
    }
}
