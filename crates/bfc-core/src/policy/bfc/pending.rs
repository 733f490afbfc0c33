//! The frees that wait for the frontier.

use std::collections::VecDeque;

use super::chunk::ChunkId;

/// A free that was not yet safe. Its count is unique, so an entry is stale if the chunk in its slot has another count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingFree {
    pub(crate) chunk: ChunkId,
    pub(crate) freed_at: u64,
}

/// The frees that wait for the frontier, first-in first-out.
#[derive(Clone, Debug)]
pub(crate) struct PendingFrees {
    queue: VecDeque<PendingFree>,
    /// The lower bound of all counts, so that most queries end here.
    oldest: u64,
}

impl PendingFrees {
    pub(crate) const fn new() -> Self {
        Self { queue: VecDeque::new(), oldest: u64::MAX }
    }

    pub(crate) fn push(&mut self, free: PendingFree) {
        self.oldest = self.oldest.min(free.freed_at);
        self.queue.push_back(free);
    }

    /// Pops the oldest entry.
    pub(crate) fn pop(&mut self) -> Option<PendingFree> {
        let free = self.queue.pop_front();
        if self.queue.is_empty() {
            self.oldest = u64::MAX;
        }
        free
    }

    /// Starts a pass over the whole queue, which pops each entry and may push it again. Returns the number of entries.
    pub(crate) fn begin_pass(&mut self) -> usize {
        self.oldest = u64::MAX;
        self.queue.len()
    }

    /// Whether an entry may lie below the frontier.
    pub(crate) const fn may_have_ripe(&self, frontier: u64) -> bool {
        self.oldest < frontier
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &PendingFree> {
        self.queue.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_over_the_queue_finds_its_lowest_count_again() {
        let mut pending = PendingFrees::new();
        assert!(!pending.may_have_ripe(u64::MAX));
        for freed_at in [4, 7, 9] {
            pending.push(PendingFree { chunk: ChunkId(0), freed_at });
        }
        assert!(!pending.may_have_ripe(4) && pending.may_have_ripe(5));
        for _ in 0..pending.begin_pass() {
            if let Some(free) = pending.pop().filter(|free| free.freed_at > 4) {
                pending.push(free);
            }
        }
        assert!(!pending.may_have_ripe(7) && pending.may_have_ripe(8));
    }
}
