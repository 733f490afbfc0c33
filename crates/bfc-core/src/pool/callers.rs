//! Who calls an allocator, and when the allocator calls others.

use crate::stats::Stats;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, ThreadNumber, lock};

/// Which threads have allocated or freed. As long as it is one, nobody else can free while it waits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Users {
    latest: u64,
    several: bool,
}

impl Users {
    #[inline]
    pub(crate) fn note(&mut self, thread: ThreadNumber) {
        self.note_number(thread.get());
    }

    #[inline]
    fn note_number(&mut self, thread: u64) {
        if self.latest != thread {
            self.several = self.latest != 0;
            self.latest = thread;
        }
    }

    /// Adds those seen elsewhere.
    pub(crate) fn join(&mut self, others: Self) {
        if others.latest != 0 {
            self.note_number(others.latest);
        }
        self.several |= others.several;
    }

    /// Whether there was ever more than one.
    pub(crate) const fn several(&self) -> bool {
        self.several
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
