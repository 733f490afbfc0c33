//! The timing counter and the safe frontier, which delay the reuse of freed memory.
//!
//! Later work on the same stream may reuse memory that a device still works on; other work may not. With a timing
//! counter, each freed chunk carries the count of its free. It is merged only after the safe frontier has passed that
//! count: the count up to which all work has ended. Source: TensorFlow's timestamped allocator (`SharedCounter`,
//! `SetSafeFrontier`, `MergeTimestampedChunks`).

use crate::base::sync::atomic::{AtomicU64, Ordering};

/// A counter of frees for one or several pools, from 1 on: upstream's `SharedCounter`.
///
/// ```
/// use bfc_core::TimingCounter;
/// let counter = TimingCounter::default();
/// assert_eq!((counter.next(), counter.next(), counter.current()), (1, 2, 2));
/// ```
#[derive(Debug, Default)]
pub struct TimingCounter(AtomicU64);

impl TimingCounter {
    /// Increments the counter and returns the new count, which is unique.
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the last count; 0 before the first.
    #[must_use]
    pub fn current(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The count up to which all frees are reusable. It only rises.
///
/// It is raised outside the pool's lock, but takes part in the order of waiters and frees (see
/// [`AllocatorRetry`](crate::AllocatorRetry)). It is therefore sequentially consistent.
#[derive(Debug, Default)]
pub(crate) struct SafeFrontier(AtomicU64);

impl SafeFrontier {
    /// Raises the frontier to `count`. Returns whether it rose.
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
