//! Who calls an allocator, and when the allocator calls others.

use crate::retry::{AllocatorRetry, Known};
use crate::stats::Stats;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, ThreadNumber, lock};

/// Which threads have come to one lock, so that the retry hears of each thread once and not with each call.
#[derive(Debug, Default)]
pub(crate) struct Users {
    latest: u64,
    /// Elsewhere, so that what every event needs lies together.
    met: Box<Known>,
}

impl Users {
    /// Whether the latest call came from another thread: only then need this one be noted.
    #[inline]
    pub(crate) fn is_other(&self, thread: ThreadNumber) -> bool {
        self.latest != thread.get()
    }

    /// Notes that a thread takes memory, before it has any: whoever waits must know that it may come from there.
    #[inline]
    pub(crate) fn note(&mut self, thread: ThreadNumber, retry: &AllocatorRetry) {
        if self.is_other(thread) {
            self.change(thread.get(), retry, AllocatorRetry::meet);
        }
    }

    /// Notes that a thread gives memory back.
    #[inline]
    pub(crate) fn note_free(&mut self, thread: ThreadNumber, retry: &AllocatorRetry) {
        if self.is_other(thread) {
            self.change(thread.get(), retry, AllocatorRetry::meet_freeing);
        }
    }

    // Called at every change of threads, but not to be in the way where there is none.
    #[cold]
    #[inline(never)]
    fn change(&mut self, thread: u64, retry: &AllocatorRetry, meet: fn(&AllocatorRetry, u64)) {
        self.latest = thread;
        if !self.met.knows(thread) {
            meet(retry, thread);
            self.met.add(thread);
        }
    }
}

/// The call into the source that an allocator is making under its lock.
#[derive(Debug, Default)]
pub(crate) struct CallOut {
    /// The thread that makes it, or 0. A thread that finds its own number here has come back from its own call; it
    /// cannot find it stale, for it wrote it itself.
    thread: AtomicU64,
    /// The figures before the call, for those who ask from within it.
    stats: Mutex<Stats>,
}

/// Ends a call into the source, also if the source panics.
struct EndCallOut<'a>(&'a CallOut);

impl Drop for EndCallOut<'_> {
    fn drop(&mut self) {
        self.0.thread.store(0, Ordering::Relaxed);
    }
}

impl CallOut {
    /// The calling thread's number, unless it comes from a call that is under way.
    #[inline]
    pub(crate) fn enter(&self) -> Option<ThreadNumber> {
        let thread = ThreadNumber::current();
        (self.thread.load(Ordering::Relaxed) != thread.get()).then_some(thread)
    }

    /// Makes a call, marked so that a call back is recognised. The allocator's lock is held; `stats` are its figures.
    pub(crate) fn call<R>(&self, stats: Stats, call: impl FnOnce() -> R) -> R {
        *lock(&self.stats) = stats;
        self.thread.store(ThreadNumber::current().get(), Ordering::Relaxed);
        let _end = EndCallOut(self);
        call()
    }

    /// The figures before the call that is under way.
    pub(crate) fn stats(&self) -> Stats {
        lock(&self.stats).clone()
    }
}
