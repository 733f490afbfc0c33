//! The threads that may free memory, as far as a pool knows.

use crate::base::sync::{ends, retain_living};

/// The living threads that allocated memory. Once a thread frees a block of another thread, blocks change hands, and any
/// thread may free from then on. A block that an ended thread allocated has changed hands too, so an unknown thread may free
/// it; only the accounts know whether there is such a block.
#[derive(Debug, Default)]
pub(crate) struct FreeingThreads {
    threads: Vec<u64>,
    /// Any thread may free.
    is_unbounded: bool,
    /// Threads of the process that had ended at the last update.
    ends: u64,
    /// Ended threads that had allocated memory.
    ended: u64,
    /// Of these, the first so many left no live block.
    ended_without_blocks: u64,
}

impl FreeingThreads {
    /// Any thread may free from now on.
    pub(super) const fn set_unbounded(&mut self) {
        self.is_unbounded = true;
    }

    /// Adds a thread that allocates memory.
    pub(super) fn add(&mut self, thread: u64) {
        if !self.threads.contains(&thread) {
            self.threads.push(thread);
        }
    }

    /// Records that a thread frees memory.
    pub(super) fn note_free(&mut self, thread: u64) {
        self.is_unbounded |= !self.threads.contains(&thread);
    }

    /// Removes the threads that have ended. Returns whether there were any.
    pub(super) fn remove_ended(&mut self) -> bool {
        // Read first: the next update finds a thread that ends during this one.
        let ends = ends();
        if self.ends == ends {
            return false;
        }
        self.ends = ends;
        let before = self.threads.len();
        retain_living(&mut self.threads);
        let ended = before - self.threads.len();
        self.ended += ended as u64;
        ended > 0
    }

    /// How many threads that allocated memory had ended at the last update.
    pub(super) const fn ended(&self) -> u64 {
        self.ended
    }

    /// Whether ended threads may have left live blocks.
    pub(super) const fn may_have_orphans(&self) -> bool {
        self.ended > self.ended_without_blocks
    }

    /// Records that the first `ended` ended threads left no live block.
    pub(super) fn set_without_orphans(&mut self, ended: u64) {
        self.ended_without_blocks = self.ended_without_blocks.max(ended);
    }

    /// Whether a living thread other than this one may free memory.
    pub(super) fn has_others_than(&self, thread: u64) -> bool {
        self.is_unbounded || self.threads.iter().any(|&other| other != thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_have_allocated_or_freed_foreign_blocks() {
        let mut threads = FreeingThreads::default();
        assert!(!threads.has_others_than(1));
        threads.add(1);
        threads.note_free(1);
        assert!(!threads.has_others_than(1) && threads.has_others_than(2));
        threads.note_free(2);
        assert!(threads.is_unbounded && threads.has_others_than(1));
    }

    #[cfg(not(shuttle))]
    #[test]
    fn an_ended_thread_cannot_free_but_may_leave_blocks() {
        let other = || crate::base::sync::ThreadNumber::current().get();
        let me = other();
        let mut threads = FreeingThreads::default();
        threads.add(me);
        let ended = std::thread::scope(|scope| scope.spawn(other).join().unwrap());
        threads.remove_ended();
        assert!(!threads.may_have_orphans(), "a thread without allocations leaves no blocks");
        threads.add(ended);
        // Added after its end, like a thread that allocates while it ends. It counts until the next end.
        assert!(threads.has_others_than(me));
        std::thread::scope(|scope| scope.spawn(other).join().unwrap());
        assert!(threads.remove_ended());
        assert!(!threads.has_others_than(me) && threads.may_have_orphans());
        assert_eq!(threads.threads, [me]);
        threads.set_without_orphans(threads.ended());
        assert!(!threads.remove_ended() && !threads.may_have_orphans());
        // A result from before another end does not cover that thread.
        let before = threads.ended();
        threads.add(ended);
        std::thread::scope(|scope| scope.spawn(other).join().unwrap());
        assert!(threads.remove_ended());
        threads.set_without_orphans(before);
        assert!(threads.may_have_orphans());
    }

    #[cfg(not(shuttle))]
    #[test]
    fn only_live_threads_are_kept() {
        let retry = crate::AllocatorRetry::new();
        let allocate = || retry.note_allocating_thread(crate::base::sync::ThreadNumber::current().get());
        for _ in 0..100 {
            std::thread::scope(|scope| scope.spawn(allocate).join().unwrap());
        }
        assert!(crate::base::sync::lock(&retry.shared.state).freeing.threads.len() <= 1);
    }
}
