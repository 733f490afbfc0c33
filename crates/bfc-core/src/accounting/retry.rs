//! Waiting for frees before an out-of-memory error is returned.

mod freeing_threads;
mod queue;
mod wait;

use std::task::{Wake, Waker};
use std::time::Duration;

use crate::allocator::error::AllocError;
use crate::allocator::request::WaitKey;
use crate::allocator::stats::RetryStats;
use crate::base::memory::Block;
use crate::base::sync::atomic::{AtomicUsize, Ordering};
use crate::base::sync::{Arc, Condvar, Mutex, ThreadEndListener, ThreadEndWatch, ThreadNumber, lock};
use freeing_threads::FreeingThreads;
use queue::Queue;
use wait::{Interest, Wait};

/// A failed attempt to allocate.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The error if this was the last attempt.
    pub error: AllocError,
    /// Whether a free could help. If not, waiting ends immediately.
    pub wait: bool,
}

/// Retries allocations after frees, up to a deadline: upstream's `AllocatorRetry`, with a fair order, size-aware
/// wake-ups and no lost wake-ups.
///
/// - **Wake-ups.** A free makes the waiters due that it may serve. Due waiters try one at a time, the oldest first, and
///   then pass the turn on. A failure also rules out comparable waiters ([`WaitKey::class`]): a thousand waiters of one
///   size cost one failed attempt. No waiter times out while memory that fits stays free. A waiter that fails four
///   times during a series of frees moves behind younger ones.
/// - **Overtaking.** A new request tries before it queues, so it may take a block that a waiter could use. Memory too
///   small for an old waiter serves a younger one. The retry reserves nothing for large requests: only their timeout
///   bounds the wait.
/// - **No lost wake-up.** Each free that a waiter could miss increments an epoch. The waiter reads the epoch *before*
///   its attempt, and is due if a free came later. Attempts and frees must exclude each other, as under a pool's lock.
/// - **Early failure.** Pools report the threads that allocate, and threads that free blocks of other threads. A
///   request fails immediately if no other thread could free. Waiters notice immediately that a thread has ended.
///   Another thread may own the blocks that it left, and may free them.
///
/// ```
/// use std::time::Duration;
/// use bfc_core::{AllocatorRetry, Block};
/// let retry = AllocatorRetry::new();
/// let block = retry.allocate(64, Duration::from_secs(10), |_last| Ok(Block { bytes: 64, ..Block::EMPTY }));
/// assert_eq!(block.unwrap().bytes, 64);
/// assert_eq!(retry.stats().waits, 0);
/// ```
#[derive(Debug, Default)]
pub struct AllocatorRetry {
    /// Requests inside [`allocate`](Self::allocate). Raised before a request's first attempt: a free after that attempt
    /// sees it. A free that sees 0 has no waiter to wake.
    interested: AtomicUsize,
    /// In an `Arc`, because ending threads access it.
    shared: std::sync::Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<RetryQueue>,
}

#[derive(Debug, Default)]
struct RetryQueue {
    queue: Queue<Arc<Condvar>>,
    freeing: FreeingThreads,
    /// The number of live announcements of frees from unknown threads.
    expected: usize,
    /// Present while a request waits.
    watch: Option<ThreadEndWatch>,
    /// All figures except the wake-ups, which the queue counts.
    stats: RetryStats,
}

impl AllocatorRetry {
    /// Creates a retry without waiters.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a thread that is about to allocate. Call it before other threads can wait for the memory.
    #[cold]
    pub(crate) fn note_allocating_thread(&self, thread: u64) {
        self.shared.update(|state| {
            // Removes ended threads, so that the list holds only live ones.
            let turn = state.note_ends();
            state.freeing.add(thread);
            turn
        });
    }

    /// Records that a thread frees memory.
    #[cold]
    pub(crate) fn note_freeing_thread(&self, thread: u64) {
        lock(&self.shared.state).freeing.note_free(thread);
    }

    /// Records that any thread may free memory.
    #[cold]
    pub(crate) fn note_unknown_threads(&self) {
        lock(&self.shared.state).freeing.set_unbounded();
    }

    /// Whether a thread other than the calling one may free memory, as far as is known. Calls `has_orphaned_blocks`
    /// only if needed: whether a block of an ended thread is live.
    #[cold]
    pub(crate) fn others_may_free(&self, has_orphaned_blocks: impl FnOnce() -> bool) -> bool {
        let me = ThreadNumber::current().get();
        let others = |state: &RetryQueue| state.expected > 0 || state.freeing.has_others_than(me);
        let (mut any, mut unsure, mut ended) = (true, false, 0);
        self.shared.update(|state| {
            let turn = state.note_ends();
            any = others(state);
            unsure = !any && state.freeing.may_have_orphans();
            ended = state.freeing.ended();
            turn
        });
        // Called without the lock, because callers of the retry hold the lock of the accounts.
        if !unsure || has_orphaned_blocks() {
            return any || unsure;
        }
        self.shared.update(|state| {
            state.freeing.set_without_orphans(ended);
            // More threads may have ended since.
            let turn = state.note_ends();
            any = others(state) || state.freeing.may_have_orphans();
            turn
        });
        any
    }

    /// Begins or ends to expect frees from unknown threads.
    pub(crate) fn expect_frees(&self, begin: bool) {
        let expected = &mut lock(&self.shared.state).expected;
        *expected = if begin { *expected + 1 } else { expected.saturating_sub(1) };
    }

    /// Calls `attempt` until it returns a block, it fails without a chance to wait, or `timeout` has passed since the
    /// first failure. Passes `true` to the last attempt after a timeout, so that only this one builds a complete
    /// report. A timeout of 0 makes exactly two attempts. A request for 0 bytes returns [`Block::EMPTY`] without an
    /// attempt.
    ///
    /// # Errors
    /// Fails with the error of the last attempt. An out-of-memory report includes the time waited.
    pub fn allocate(
        &self,
        bytes: u64,
        timeout: Duration,
        attempt: impl FnMut(bool) -> Result<Block, Refusal>,
    ) -> Result<Block, AllocError> {
        self.allocate_as(WaitKey { bytes, class: None }, timeout, attempt)
    }

    /// As [`allocate`](Self::allocate), for a comparable request: it skips attempts that cannot succeed.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn allocate_as(
        &self,
        key: WaitKey,
        timeout: Duration,
        mut attempt: impl FnMut(bool) -> Result<Block, Refusal>,
    ) -> Result<Block, AllocError> {
        if key.bytes == 0 {
            return Ok(Block::EMPTY);
        }
        let _interest = Interest::new(&self.interested);
        let mut wait: Option<Wait<'_>> = None;
        let mut last = false;
        loop {
            let tried = lock(&self.shared.state).queue.epoch();
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
                Some(wait) => {
                    wait.failed(key, tried);
                    wait.sleep()
                }
                None if timeout.is_zero() => true,
                None => wait.insert(Wait::start(self, key, tried, timeout)).sleep(),
            };
        }
    }

    /// Whether a free must call [`notify`](Self::notify) or [`notify_up_to`](Self::notify_up_to). A pool may ask under
    /// its lock, after the free, and compute the bytes only then. Costs one load.
    #[inline]
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.interested.load(Ordering::SeqCst) > 0
    }

    /// Announces free memory of unknown size: all waiters retry in turn, except those that a failure rules out. Costs
    /// one load without waiters.
    #[inline]
    pub fn notify(&self) {
        self.notify_up_to(u64::MAX);
    }

    /// Announces free memory for requests of at most `bytes` bytes: the largest free block, or what the pool can now
    /// reserve from its source, if that is more. Costs one load without waiters.
    #[inline]
    pub fn notify_up_to(&self, bytes: u64) {
        if self.is_awaited() {
            self.shared.update(|state| state.queue.freed(bytes));
        }
    }

    /// Returns a handle that [notifies](Self::notify) the waiters, for memory that returns without a free.
    #[must_use]
    pub(crate) fn waker(&self) -> Waker {
        Waker::from(std::sync::Arc::clone(&self.shared))
    }

    /// Returns the figures of waiting requests.
    #[must_use]
    pub fn stats(&self) -> RetryStats {
        let state = lock(&self.shared.state);
        RetryStats { wakeups: state.queue.turns(), ..state.stats }
    }

    /// Resets the figures; waiting requests still count as waiting.
    pub fn clear_stats(&self) {
        let state = &mut *lock(&self.shared.state);
        state.stats = RetryStats { waiting: state.stats.waiting, ..RetryStats::default() };
        state.queue.clear_turns();
    }
}

impl Shared {
    /// Changes the state, and wakes the waiter with the new turn after it releases the lock.
    #[cold]
    fn update(&self, change: impl FnOnce(&mut RetryQueue) -> Option<Arc<Condvar>>) {
        let bell = change(&mut lock(&self.state));
        if let Some(bell) = bell {
            bell.notify_one();
        }
    }
}

impl Wake for Shared {
    fn wake(self: std::sync::Arc<Self>) {
        self.update(|state| state.queue.freed(u64::MAX));
    }
}

impl ThreadEndListener for Shared {
    fn on_thread_end(&self) {
        self.update(RetryQueue::note_ends);
    }
}

impl RetryQueue {
    /// Removes ended threads and lets waiters retry, as after a free: they may have no thread left to wait for. Returns
    /// the waiter to wake.
    fn note_ends(&mut self) -> Option<Arc<Condvar>> {
        if !self.freeing.remove_ended() {
            return None;
        }
        self.queue.freed(u64::MAX)
    }
}

/// Writes the time waited into an out-of-memory report.
fn after_waiting(mut error: AllocError, wait: Option<&Wait<'_>>) -> AllocError {
    if let (AllocError::OutOfMemory(report), Some(wait)) = (&mut error, wait) {
        report.waited = wait.started.elapsed();
    }
    error
}
