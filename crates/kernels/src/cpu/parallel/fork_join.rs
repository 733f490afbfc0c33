//! A fork-join that waits only for helper threads that have started.
//!
//! Waking a thread takes as long as a small op. `rayon`'s scopes wait for every job that they have spawned, even if its
//! thread wakes after the work is done. Here, helpers join a [`ForkJoin`] while it is open. When the calling thread
//! finishes, it closes the [`ForkJoin`] and waits only for the helpers that are still running. Late helpers find it
//! closed and return.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rayon::ThreadPool;

/// A pointer to the work. It is valid while the [`ForkJoin`] is open or a helper is running.
struct WorkPointer(*const (dyn Fn() + Sync));

// SAFETY: the work is `Sync`, and helpers dereference the pointer only while it is valid.
unsafe impl Send for WorkPointer {}
// SAFETY: as above.
unsafe impl Sync for WorkPointer {}

/// The state that the calling thread shares with its helpers.
struct ForkJoin {
    work: WorkPointer,
    state: Mutex<RunningTasks>,
    worker_left: Condvar,
}

#[derive(Default)]
struct RunningTasks {
    closed: bool,
    running: usize,
    panic: Option<Box<dyn Any + Send>>,
}

impl ForkJoin {
    fn state(&self) -> MutexGuard<'_, RunningTasks> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the work, unless the fork-join is closed.
    fn join(&self) {
        {
            let mut state = self.state();
            if state.closed {
                return;
            }
            state.running += 1;
        }
        // SAFETY: `running` counts this thread, so `fork_join` has not returned.
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

    /// Admits no more helpers, and waits for the running ones. Returns the first panic of a helper.
    fn close(&self) -> Option<Box<dyn Any + Send>> {
        let mut state = self.state();
        state.closed = true;
        while state.running > 0 {
            state = self.worker_left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.panic.take()
    }
}

/// Closes a fork-join when dropped, also during unwinding.
struct CloseGuard<'a>(&'a ForkJoin);

impl Drop for CloseGuard<'_> {
    fn drop(&mut self) {
        drop(self.0.close());
    }
}

/// Calls `work` on this thread, and on at most `helpers` threads of `pool` as they wake. Returns when all calls have
/// returned. Resumes a panic of any call.
pub(super) fn fork_join(pool: &ThreadPool, helpers: usize, work: &(dyn Fn() + Sync)) {
    let pointer: *const (dyn Fn() + Sync + '_) = work;
    // SAFETY: only the lifetime changes. Only running helpers dereference the pointer, and `CloseGuard` ensures that this
    // function neither returns nor unwinds before the fork-join is closed and no helper is running.
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
    fn late_helpers_do_not_delay_the_caller_and_do_no_work() {
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
    fn no_helper_is_running_after_the_return() {
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
    fn a_panic_resumes_on_the_caller_after_all_helpers_stop() {
        let pool = pool(2);
        let caller = std::thread::current().id();
        for by_helper in [false, true] {
            let running = AtomicUsize::new(0);
            let result = catch_unwind(AssertUnwindSafe(|| {
                fork_join(&pool, 2, &|| {
                    running.fetch_add(1, Ordering::SeqCst);
                    // Waits until both threads are running.
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
