//! The timing counter and the safe frontier, which delay the reuse of freed memory.
//!
//! Later work on the same stream may reuse memory that a device still works on; other work may not. With a timing
//! counter, each freed chunk carries the count of its free. It is merged only after the safe frontier has passed that
//! count: the count up to which all work has ended. Source: TensorFlow's timestamped allocator (`SharedCounter`,
//! `SetSafeFrontier`, `MergeTimestampedChunks`).
//!
//! The counter holds the frontier, and the pools that share a counter share it. A pool without a counter has neither.

use std::task::Waker;

use super::PolicyAllocator;
use crate::allocator::Request;
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::base::sync::{Mutex, lock};
use crate::policy::{ConfiguredPolicy, NotLive, PlacementRequest, Policy};

/// A counter of frees for one or several pools, from 1 on, and the frontier up to which they are safe: upstream's
/// `SharedCounter`.
///
/// ```
/// use bfc_core::TimingCounter;
/// let counter = TimingCounter::default();
/// assert_eq!((counter.next(), counter.next(), counter.current()), (1, 2, 2));
/// ```
#[derive(Debug, Default)]
pub struct TimingCounter {
    count: AtomicU64,
    /// It is raised outside the pools' locks, but takes part in the order of waiters and frees (see
    /// [`AllocatorRetry`](crate::AllocatorRetry)). It is therefore sequentially consistent.
    frontier: AtomicU64,
    /// The waiters of the pools, and of allocators above them.
    waiters: Mutex<Vec<Waker>>,
}

impl TimingCounter {
    /// Increments the counter and returns the new count, which is unique.
    pub fn next(&self) -> u64 {
        self.count.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the last count; 0 before the first.
    #[must_use]
    pub fn current(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Declares that all work up to `count` has ended, so that memory freed before may be merged. Wakes waiting requests.
    /// The frontier only rises: a lower `count` has no effect.
    pub fn set_safe_frontier(&self, count: u64) {
        if self.frontier.fetch_max(count, Ordering::SeqCst) < count {
            lock(&self.waiters).iter().for_each(Waker::wake_by_ref);
        }
    }

    /// Wakes these waiters too when the frontier rises.
    pub(super) fn add_waiters(&self, waiters: Waker) {
        lock(&self.waiters).push(waiters);
    }

    /// Frees a block of the policy at the next count.
    pub(super) fn free(&self, policy: &mut impl Policy, slot: u32) -> Result<(), NotLive> {
        let count = self.next();
        match policy.timed() {
            Some(timed) => timed.free_at(slot, count),
            None => policy.free(slot),
        }
    }

    /// Merges the frees that the frontier has passed.
    pub(super) fn merge_ripe(&self, policy: &mut impl Policy) {
        merge_below(policy, self.frontier.load(Ordering::SeqCst));
    }

    /// Whether a request does not admit all frees.
    pub(super) const fn binds(request: &Request<'_>) -> bool {
        request.attributes.freed_before.is_some()
    }

    /// Binds a request of the policy to the frees that the user's request admits.
    pub(super) fn bind(placement: PlacementRequest, request: &Request<'_>) -> PlacementRequest {
        match request.attributes.freed_before {
            Some(count) => placement.with_freed_before(count()),
            None => placement,
        }
    }
}

/// Merges all pending frees of a policy, as if all work had ended.
pub(super) fn merge_all(policy: &mut dyn Policy) {
    merge_below(policy, u64::MAX);
}

fn merge_below<P: Policy + ?Sized>(policy: &mut P, frontier: u64) {
    if let Some(timed) = policy.timed() {
        timed.merge_ripe(frontier);
    }
}

impl<P: ConfiguredPolicy> PolicyAllocator<P> {
    /// Sets the frontier of the pool's [counter](TimingCounter::set_safe_frontier), if it has one.
    pub fn set_safe_frontier(&self, count: u64) {
        if let Some(counter) = self.timing_counter() {
            counter.set_safe_frontier(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frontier_only_rises() {
        let counter = TimingCounter::default();
        let set = |count| {
            counter.set_safe_frontier(count);
            counter.frontier.load(Ordering::SeqCst)
        };
        assert_eq!([5, 3, 5, 6].map(set), [5, 5, 5, 6]);
    }
}
