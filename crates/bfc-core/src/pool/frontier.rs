//! Frees that become reusable later.
//!
//! Memory freed while a device still works on it may be handed at once to work that comes after on the same stream, but
//! not to anyone else. So with a timing counter every freed chunk bears the count of its free, and stays apart from its
//! neighbours until the safe frontier, the count up to which all work has ended, has passed it.
//! Source: TensorFlow's timestamped allocator (`SharedCounter`, `SetSafeFrontier`, `MergeTimestampedChunks`).

use crate::base::sync::atomic::{AtomicU64, Ordering};

/// Counts the frees of one or several pools, from 1 upward: upstream's `SharedCounter`.
///
/// ```
/// use bfc_core::TimingCounter;
/// let counter = TimingCounter::default();
/// assert_eq!((counter.next(), counter.next(), counter.current()), (1, 2, 2));
/// ```
#[derive(Debug, Default)]
pub struct TimingCounter(AtomicU64);

impl TimingCounter {
    /// Counts one further and returns the new count, which no other call returns.
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The count returned last; 0 before the first.
    #[must_use]
    pub fn current(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The count below which every free is reusable by anyone. Only ever rises.
///
/// It is raised outside the pool's lock, so it takes part in the order by which a waiter and a free see each other (see
/// [`AllocatorRetry`](crate::AllocatorRetry)): hence sequential consistency.
#[derive(Debug, Default)]
pub(crate) struct SafeFrontier(AtomicU64);

impl SafeFrontier {
    /// Raises the frontier to `count`; whether it was below before.
    pub(crate) fn advance(&self, count: u64) -> bool {
        self.0.fetch_max(count, Ordering::SeqCst) < count
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frontier_only_rises() {
        let frontier = SafeFrontier::default();
        assert!(frontier.advance(5));
        assert!(!frontier.advance(5) && !frontier.advance(3));
        assert_eq!(frontier.get(), 5);
    }
}
