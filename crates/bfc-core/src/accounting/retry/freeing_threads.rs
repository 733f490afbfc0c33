//! Which threads may give memory back, as far as one knows.

use crate::base::sync::{ends, retain_living};

/// The threads that took memory and have not ended. A thread that gives back what another took shows that blocks change
/// hands: from then on anybody may have some. Memory that an ended thread took and left live has changed hands too, so
/// whoever has it may give it back; whether there is any, only the accounts know.
#[derive(Debug, Default)]
pub(crate) struct FreeingThreads {
    threads: Vec<u64>,
    anybody: bool,
    /// How many threads of the process had ended at the last look.
    ends: u64,
    /// How many of them had taken memory.
    gone: u64,
    /// How many of these had ended when it was found that they had left no memory.
    without_trace: u64,
}

impl FreeingThreads {
    /// Those who took memory, as of the last look.
    pub(super) fn threads(&self) -> &[u64] {
        &self.threads
    }

    /// Whether memory may come from threads that nobody knows.
    pub(super) const fn is_anybody(&self) -> bool {
        self.anybody
    }

    /// Notes that memory may come from threads that nobody knows.
    pub(super) const fn set_anybody(&mut self) {
        self.anybody = true;
    }

    /// Adds a thread that takes memory.
    pub(super) fn add(&mut self, thread: u64) {
        if !self.threads.contains(&thread) {
            self.threads.push(thread);
        }
    }

    /// Notes that a thread gives memory back.
    pub(super) fn gives_back(&mut self, thread: u64) {
        self.anybody |= !self.threads.contains(&thread);
    }

    /// Lets go of the threads that have ended; whether any has.
    pub(super) fn look(&mut self) -> bool {
        // Asked first: who ends during the look is found by the next one.
        let ends = ends();
        if self.ends == ends {
            return false;
        }
        self.ends = ends;
        let before = self.threads.len();
        retain_living(&mut self.threads);
        let gone = before - self.threads.len();
        self.gone += gone as u64;
        gone > 0
    }

    /// How many threads that took memory had ended at the last look.
    pub(super) const fn gone(&self) -> u64 {
        self.gone
    }

    /// Whether threads that have ended may have left memory that others have.
    pub(super) const fn may_be_left(&self) -> bool {
        self.gone > self.without_trace
    }

    /// Notes that of the first so many threads that ended none has left memory.
    pub(super) fn nothing_left(&mut self, gone: u64) {
        self.without_trace = self.without_trace.max(gone);
    }

    /// Whether another thread than this one may give memory back that it has not left.
    pub(super) fn others_than(&self, thread: u64) -> bool {
        self.anybody || self.threads.iter().any(|&known| known != thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_those_who_took_memory_or_gave_back_what_they_did_not_take() {
        let mut known = FreeingThreads::default();
        assert!(!known.others_than(1));
        known.add(1);
        known.gives_back(1);
        assert!(!known.others_than(1) && known.others_than(2));
        known.gives_back(2);
        assert!(known.is_anybody() && known.others_than(1));
    }

    #[cfg(not(shuttle))]
    #[test]
    fn a_thread_that_has_ended_is_no_other_but_may_have_left_memory() {
        let other = || crate::base::sync::ThreadNumber::current().get();
        let me = other();
        let mut known = FreeingThreads::default();
        known.add(me);
        let ended = std::thread::scope(|scope| scope.spawn(other).join().unwrap());
        known.look();
        assert!(!known.may_be_left(), "one that took nothing leaves nothing");
        known.add(ended);
        // Added after its end, as none is but one that comes while it ends: it counts until the next end.
        assert!(known.others_than(me));
        std::thread::scope(|scope| scope.spawn(other).join().unwrap());
        assert!(known.look());
        assert!(!known.others_than(me) && known.may_be_left());
        assert_eq!(known.threads(), [me]);
        known.nothing_left(known.gone());
        assert!(!known.look() && !known.may_be_left());
        // An answer from before another ended says nothing of that one.
        let before = known.gone();
        known.add(ended);
        std::thread::scope(|scope| scope.spawn(other).join().unwrap());
        assert!(known.look());
        known.nothing_left(before);
        assert!(known.may_be_left());
    }

    #[cfg(not(shuttle))]
    #[test]
    fn however_many_threads_come_and_go_no_more_are_known_than_live() {
        let retry = crate::AllocatorRetry::new();
        let meet = || retry.meet(crate::base::sync::ThreadNumber::current().get());
        for _ in 0..100 {
            std::thread::scope(|scope| scope.spawn(meet).join().unwrap());
        }
        assert!(crate::base::sync::lock(&retry.shared.state).known.threads().len() <= 1);
    }
}
