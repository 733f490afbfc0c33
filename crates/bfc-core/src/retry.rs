//! Waiting for frees before an out-of-memory error is returned.

use std::time::{Duration, Instant};

use crate::error::AllocError;
use crate::memory::Block;
use crate::stats::RetryStats;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, lock, wait};

/// An attempt that gave no memory.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// What to tell the caller if this was the last attempt.
    pub error: AllocError,
    /// Whether a free could help. If not, waiting ends at once.
    pub wait: bool,
}

/// Tries for memory again after each free, up to a deadline: upstream's `AllocatorRetry`, without its lost wake-up.
///
/// Upstream's waiter may miss a free that comes between its failed attempt and its going to sleep. Here every free
/// that a waiter could have missed raises an epoch; the waiter reads the epoch *before* its attempt and sleeps only
/// while it stays the same. Attempts and frees must exclude each other, as under the lock of a pool; then a free either
/// comes before the attempt, which sees its memory, or raises the epoch after it was read.
///
/// ```
/// use std::time::Duration;
/// use bfc_core::{AllocatorRetry, Block};
/// let retry = AllocatorRetry::new();
/// let block = retry.allocate(64, Duration::from_secs(10), |_last| Ok(Block { bytes: 64, ..Block::EMPTY }));
/// assert_eq!(block.unwrap().bytes, 64);
/// assert_eq!(retry.stats().waits, 0);
/// ```
#[derive(Debug)]
pub struct AllocatorRetry {
    /// Requests inside [`allocate`](Self::allocate). Raised before a request's first attempt: a free that comes after
    /// that attempt therefore sees it, and a free that sees 0 has nobody to wake.
    interested: AtomicUsize,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Frees so far that somebody was interested in.
    epoch: u64,
    stats: RetryStats,
}

impl Default for AllocatorRetry {
    fn default() -> Self {
        Self::new()
    }
}

impl AllocatorRetry {
    /// A retry that nobody waits in.
    #[must_use]
    pub fn new() -> Self {
        let state = State { epoch: 0, stats: RetryStats::default() };
        Self { interested: AtomicUsize::new(0), state: Mutex::new(state), freed: Condvar::new() }
    }

    /// Calls `attempt` until it gives a block, it refuses without hope, or `timeout` has passed since the first
    /// refusal. The last of the attempts that time ended gets `true`, so that only it need work out a full report.
    /// With a timeout of 0 there are exactly two attempts. For 0 bytes the answer is [`Block::EMPTY`], and `attempt`
    /// is not called.
    ///
    /// # Errors
    /// The error of the last attempt; an out-of-memory report says how long the request waited.
    pub fn allocate(
        &self,
        bytes: u64,
        timeout: Duration,
        mut attempt: impl FnMut(bool) -> Result<Block, Refusal>,
    ) -> Result<Block, AllocError> {
        if bytes == 0 {
            return Ok(Block::EMPTY);
        }
        let _interest = Interest::new(&self.interested);
        let mut wait: Option<Wait<'_>> = None;
        let mut last = false;
        loop {
            let epoch = lock(&self.state).epoch;
            let refusal = match attempt(last) {
                Ok(block) => {
                    if let Some(wait) = &mut wait {
                        wait.successful = true;
                    }
                    return Ok(block);
                }
                Err(refusal) => refusal,
            };
            if last || !refusal.wait {
                return Err(after_waiting(refusal.error, wait.as_ref()));
            }
            last = match &wait {
                Some(wait) => wait.sleep(epoch),
                None if timeout.is_zero() => true,
                None => wait.insert(Wait::start(self, timeout)).sleep(epoch),
            };
        }
    }

    /// Says that memory was freed. Costs one load when nobody waits.
    #[inline]
    pub fn notify(&self) {
        if self.interested.load(Ordering::SeqCst) == 0 {
            return;
        }
        lock(&self.state).epoch += 1;
        self.freed.notify_all();
    }

    /// What waiting has cost so far.
    #[must_use]
    pub fn stats(&self) -> RetryStats {
        lock(&self.state).stats
    }

    /// Starts the figures over; requests that wait now still count as waiting.
    pub fn clear_stats(&self) {
        let stats = &mut lock(&self.state).stats;
        *stats = RetryStats { waiting: stats.waiting, ..RetryStats::default() };
    }
}

/// Writes the time waited into an out-of-memory report.
fn after_waiting(mut error: AllocError, wait: Option<&Wait<'_>>) -> AllocError {
    if let (AllocError::OutOfMemory(report), Some(wait)) = (&mut error, wait) {
        report.waited = wait.started.elapsed();
    }
    error
}

/// Counts one interested request for as long as it lives, also if an attempt panics.
#[derive(Debug)]
struct Interest<'a>(&'a AtomicUsize);

impl<'a> Interest<'a> {
    fn new(interested: &'a AtomicUsize) -> Self {
        interested.fetch_add(1, Ordering::SeqCst);
        Self(interested)
    }
}

impl Drop for Interest<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A request that had to wait, from its first sleep to its end.
#[derive(Debug)]
struct Wait<'a> {
    retry: &'a AllocatorRetry,
    started: Instant,
    /// `None` if the deadline is beyond what the clock can tell.
    deadline: Option<Instant>,
    successful: bool,
}

impl<'a> Wait<'a> {
    fn start(retry: &'a AllocatorRetry, timeout: Duration) -> Self {
        let mut state = lock(&retry.state);
        state.stats.waits += 1;
        state.stats.waiting += 1;
        let started = Instant::now();
        Self { retry, started, deadline: started.checked_add(timeout), successful: false }
    }

    /// Sleeps while the epoch stays as given; whether the deadline has passed.
    fn sleep(&self, epoch: u64) -> bool {
        let mut state = lock(&self.retry.state);
        loop {
            let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return true;
            }
            if state.epoch != epoch {
                return false;
            }
            state = wait(&self.retry.freed, state, left);
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let stats = &mut lock(&self.retry.state).stats;
        stats.waiting -= 1;
        stats.waited += self.started.elapsed();
        if !self.successful {
            stats.timeouts += 1;
        }
    }
}
