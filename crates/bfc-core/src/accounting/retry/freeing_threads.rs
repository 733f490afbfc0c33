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
    /// The living threads that allocated memory, as of the last update.
    pub(super) fn threads(&self) -> &[u64] {
        &self.threads
    }

    /// Whether any thread may free, known or not.
    pub(super) const fn is_unbounded(&self) -> bool {
        self.is_unbounded
    }

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
        self.is_unbounded || self.threads.iter().any(|&known| known != thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_active_threads_count_as_others() {
        let mut known = FreeingThreads::default();
        assert!(!known.has_others_than(1));
        known.add(1);
        known.note_free(1);
        assert!(!known.has_others_than(1) && known.has_others_than(2));
        known.note_free(2);
        assert!(known.is_unbounded() && known.has_others_than(1));
    }

    #[cfg(not(shuttle))]
    #[test]
    fn a_thread_that_has_ended_is_no_other_but_may_have_left_memory() {
        let other = || crate::base::sync::ThreadNumber::current().get();
        let me = other();
        let mut known = FreeingThreads::default();
        known.add(me);
        let ended = std::thread::scope(|scope| scope.spawn(other).join().unwrap());
        known.remove_ended();
        assert!(!known.may_have_orphans(), "one that took nothing leaves nothing");
        known.add(ended);
        // Added after its end, as none is but one that comes while it ends: it counts until the next end.
        assert!(known.has_others_than(me));
        std::thread::scope(|scope| scope.spawn(other).join().unwrap());
        assert!(known.remove_ended());
        assert!(!known.has_others_than(me) && known.may_have_orphans());
        assert_eq!(known.threads(), [me]);
        known.set_without_orphans(known.ended());
        assert!(!known.remove_ended() && !known.may_have_orphans());
        // An answer from before another ended says nothing of that one.
        let before = known.ended();
        known.add(ended);
        std::thread::scope(|scope| scope.spawn(other).join().unwrap());
        assert!(known.remove_ended());
        known.set_without_orphans(before);
        assert!(known.may_have_orphans());
    }

    #[cfg(not(shuttle))]
    #[test]
    fn however_many_threads_come_and_go_no_more_are_known_than_live() {
        let retry = crate::AllocatorRetry::new();
        let meet = || retry.meet(crate::base::sync::ThreadNumber::current().get());
        for _ in 0..100 {
            std::thread::scope(|scope| scope.spawn(meet).join().unwrap());
        }
        assert!(crate::base::sync::lock(&retry.shared.state).freeing.threads().len() <= 1);
    }
}
