//! WorkPointer that others may join for as long as it lasts, and that never waits for those who have not come.
//!
//! A thread that is asleep takes as long to wake as many an op takes; where two threads share a core that is all there is to lose.
//! `rayon`'s scopes wait for every thread that was called. So whoever comes passes a shared, and when the work is done the shared
//! is closed: only those running are waited for.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rayon::ThreadPool;

/// The work, which is there for as long as the shared is open or somebody is running.
struct WorkPointer(*const (dyn Fn() + Sync));

// SAFETY: what it points to is `Sync`, and whoever comes through the shared finds it there.
unsafe impl Send for WorkPointer {}
// SAFETY: as above.
unsafe impl Sync for WorkPointer {}

/// What those who come have to know.
struct ForkJoin {
    work: WorkPointer,
    state: Mutex<State>,
    worker_left: Condvar,
}

#[derive(Default)]
struct State {
    closed: bool,
    running: usize,
    panic: Option<Box<dyn Any + Send>>,
}

impl ForkJoin {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the work, unless it is done already.
    fn join(&self) {
        {
            let mut state = self.state();
            if state.closed {
                return;
            }
            state.running += 1;
        }
        // SAFETY: this thread is running, so `fork_join` has not returned.
        let work = unsafe { &*self.work.0 };
        let outcome = catch_unwind(AssertUnwindSafe(work));
        let mut state = self.state();
        state.running -= 1;
        if let Err(panic) = outcome {
            state.panic.get_or_insert(panic);
        }
        drop(state);
        self.worker_left.notify_all();
    }

    /// Lets nobody in any more, and waits for those running. The first panic among them.
    fn close(&self) -> Option<Box<dyn Any + Send>> {
        let mut state = self.state();
        state.closed = true;
        while state.running > 0 {
            state = self.worker_left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.panic.take()
    }
}

/// Closes when dropped, also while unwinding.
struct CloseGuard<'a>(&'a ForkJoin);

impl Drop for CloseGuard<'_> {
    fn drop(&mut self) {
        drop(self.0.close());
    }
}

/// Calls `work` here, and on at most `helpers` threads of `pool`, which come when they can. All have returned when this
/// returns. A panic in any of them goes on here.
pub(super) fn fork_join(pool: &ThreadPool, helpers: usize, work: &(dyn Fn() + Sync)) {
    let pointer: *const (dyn Fn() + Sync + '_) = work;
    // SAFETY: only the lifetime changes. It is followed by those running alone, and this function does not return, nor
    // unwind, before the shared is closed and nobody is running: `CloseGuard` sees to that.
    let pointer =
        unsafe { std::mem::transmute::<*const (dyn Fn() + Sync + '_), *const (dyn Fn() + Sync)>(pointer) };
    let shared = Arc::new(ForkJoin {
        work: WorkPointer(pointer),
        state: Mutex::default(),
        worker_left: Condvar::new(),
    });
    let guard = CloseGuard(&shared);
    for _ in 0..helpers {
        let shared = Arc::clone(&shared);
        pool.spawn(move || shared.join());
    }
    work();
    let panic = shared.close();
    drop(guard);
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use rayon::ThreadPoolBuilder;

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
        fork_join(&pool, 3, &|| {
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
            let running = AtomicUsize::new(0);
            let turns = AtomicUsize::new(0);
            fork_join(&pool, 3, &|| {
                running.fetch_add(1, Ordering::SeqCst);
                while turns.fetch_add(1, Ordering::SeqCst) < round % 50 {}
                running.fetch_sub(1, Ordering::SeqCst);
            });
            assert_eq!(running.into_inner(), 0);
        }
    }

    #[test]
    fn a_panic_goes_on_where_the_work_was_begun_after_all_have_left() {
        let pool = pool(2);
        let caller = std::thread::current().id();
        for by_helper in [false, true] {
            let running = AtomicUsize::new(0);
            let result = catch_unwind(AssertUnwindSafe(|| {
                fork_join(&pool, 2, &|| {
                    running.fetch_add(1, Ordering::SeqCst);
                    // Both are running before one panics.
                    while running.load(Ordering::SeqCst) < 2 {
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
