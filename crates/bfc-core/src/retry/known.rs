//! Which threads may give memory back, as far as one knows.

/// So many threads are told apart. Where there are more, nobody is taken to be the only one.
const TOLD_APART: usize = 16;

/// The threads that ever took memory. A thread that gives back what another took shows that blocks change hands: from
/// then on anybody may have some.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    threads: [u64; TOLD_APART],
    count: usize,
    anybody: bool,
}

impl Known {
    /// Those told apart.
    pub(super) fn threads(&self) -> &[u64] {
        &self.threads[..self.count]
    }

    /// Whether memory may come from threads that nobody knows.
    pub(super) const fn is_anybody(&self) -> bool {
        self.anybody
    }

    /// Notes that memory may come from threads that nobody knows.
    pub(super) const fn set_anybody(&mut self) {
        self.anybody = true;
    }

    /// Whether the thread is known, or need not be.
    pub(crate) fn knows(&self, thread: u64) -> bool {
        self.anybody || self.threads().contains(&thread)
    }

    /// Adds a thread that takes memory.
    pub(crate) fn add(&mut self, thread: u64) {
        if self.knows(thread) {
            return;
        }
        match self.threads.get_mut(self.count) {
            Some(free) => {
                *free = thread;
                self.count += 1;
            }
            None => self.anybody = true,
        }
    }

    /// Notes that a thread gives memory back.
    pub(super) fn gives_back(&mut self, thread: u64) {
        self.anybody |= !self.knows(thread);
    }

    /// Whether another thread than this one may give memory back.
    pub(super) fn others_than(&self, thread: u64) -> bool {
        self.anybody || self.threads().iter().any(|&known| known != thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_those_who_took_memory_or_gave_back_what_they_did_not_take() {
        let mut known = Known::default();
        assert!(!known.others_than(1));
        known.add(1);
        known.gives_back(1);
        assert!(!known.others_than(1) && known.others_than(2));
        known.gives_back(2);
        assert!(known.is_anybody() && known.others_than(1));
    }

    #[test]
    fn of_more_threads_than_are_told_apart_anybody_may_have_memory() {
        let mut known = Known::default();
        (1..=TOLD_APART as u64).for_each(|thread| known.add(thread));
        known.add(1);
        assert!(!known.is_anybody());
        known.add(100);
        assert!(known.is_anybody());
    }
}
