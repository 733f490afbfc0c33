//! Waiting for frees before an out-of-memory error is returned.

mod freeing_threads;
mod queue;

use std::sync::Weak;
use std::time::{Duration, Instant};

use crate::allocator::error::AllocError;
use crate::allocator::request::WaitKey;
use crate::allocator::stats::RetryStats;
use crate::base::memory::Block;
use crate::base::sync::atomic::{AtomicUsize, Ordering};
use crate::base::sync::{Arc, Condvar, EndWatch, Mutex, ThreadNumber, WatchesEnds, lock, wait};
use freeing_threads::FreeingThreads;
use queue::Queue;

/// An attempt that gave no memory.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// What to tell the caller if this was the last attempt.
    pub error: AllocError,
    /// Whether a free could help. If not, waiting ends at once.
    pub wait: bool,
}

/// Tries for memory again after frees, up to a deadline: upstream's `AllocatorRetry`, but fair, aware of sizes and
/// without its lost wake-up.
///
/// **Who is woken.** A free makes those waiters due that it may serve. They try one at a time, the oldest first; who
/// succeeds or fails hands the turn to the next. A failure also rules out the like of it ([`WaitKey::class`]), so that a
/// thousand waiters for the same size cost one attempt that fails, not a thousand. Hence nobody runs out of time beside
/// memory that fits and that nobody took: after each free that can serve a request it tries, or another's failure
/// shows that it would have failed. Only a waiter that fails four times while frees keep coming steps back behind
/// younger ones, so that it cannot keep the turn from them.
///
/// **Who may overtake.** A new request tries before it queues, so it may take a fitting block at once, also one that a
/// waiter could have used; and memory too small for an old waiter goes to a younger one that it serves. Nothing is held
/// back for large requests. A large one is thus the first *waiter* to try whenever a free may serve it, but can be
/// passed any number of times within its timeout, which is the bound on its waiting.
///
/// **No free is missed.** Every free that a waiter could have missed raises an epoch; the waiter reads the epoch
/// *before* its attempt and is due if a free came later. Attempts and frees must exclude each other, as under the lock
/// of a pool; then a free either comes before the attempt, which sees its memory, or raises the epoch after it was read.
///
/// **Who gives up early.** Pools tell of the threads that took memory and of those that give back what others took. A pool
/// can thus tell that nobody but the thread that asks could free, and refuses at once; and, where that was
/// [chosen](crate::PoolConfig::with_stalemate_after), that all who could free wait themselves: then the oldest waiter
/// makes its last attempt, and no other. A thread that has ended frees no more, which those who wait learn at once; but
/// what it took and left live somebody else has, and may free.
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
    /// Apart, as threads that end look it up.
    shared: std::sync::Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// How long all who could free must have waited before the oldest gives up; `None` is for ever.
    stalemate: Option<Duration>,
}

#[derive(Debug, Default)]
struct State {
    queue: Queue<Arc<Condvar>>,
    freeing: FreeingThreads,
    /// How many say that frees come from threads that are not known yet.
    expected: usize,
    /// Since when all who could free wait, so far as that matters.
    stuck_since: Option<Instant>,
    /// While somebody waits.
    watch: Option<EndWatch>,
    /// All figures but the wake-ups, which the queue counts.
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
        Self::with_stalemate(None)
    }

    /// One that nobody waits in, and in which the oldest waiter will give up once all who could free have waited for so
    /// long.
    pub(crate) fn with_stalemate(after: Option<Duration>) -> Self {
        let shared = Shared { state: Mutex::default(), stalemate: after };
        Self { interested: AtomicUsize::new(0), shared: std::sync::Arc::new(shared) }
    }

    /// Notes a thread that is about to have memory. To be told before others can wait for what it then holds.
    #[cold]
    pub(crate) fn meet(&self, thread: u64) {
        self.shared.update(|state| {
            // Those who are known are no more than live, however many come and go.
            let turn = state.note_ends();
            state.freeing.add(thread);
            state.stuck_since = None;
            turn
        });
    }

    /// Notes a thread that gives memory back.
    #[cold]
    pub(crate) fn meet_freeing(&self, thread: u64) {
        let state = &mut *lock(&self.shared.state);
        state.freeing.note_free(thread);
        state.stuck_since = None;
    }

    /// Notes that memory may come from anybody.
    #[cold]
    pub(crate) fn meet_anybody(&self) {
        lock(&self.shared.state).freeing.set_unbounded();
    }

    /// Whether another thread than the calling one may give memory back, as far as one knows. `has_orphaned_blocks` is to say
    /// whether memory is live that a thread took which has ended; it is asked only where that matters.
    #[cold]
    pub(crate) fn others_may_free(&self, has_orphaned_blocks: impl FnOnce() -> bool) -> bool {
        let me = ThreadNumber::current().get();
        let others = |state: &State| state.expected > 0 || state.freeing.has_others_than(me);
        let (mut any, mut unsure, mut gone) = (true, false, 0);
        self.shared.update(|state| {
            let turn = state.note_ends();
            any = others(state);
            let settled = any && (self.shared.stalemate.is_none() || state.freeing.is_unbounded());
            unsure = !settled && state.freeing.may_have_orphans();
            gone = state.freeing.ended();
            turn
        });
        // Not under the lock of waiting, which those who keep the accounts take under theirs.
        if !unsure || has_orphaned_blocks() {
            return any || unsure;
        }
        self.shared.update(|state| {
            state.freeing.set_without_orphans(gone);
            // Others may have ended since.
            let turn = state.note_ends();
            any = others(state) || state.freeing.may_have_orphans();
            turn
        });
        any
    }

    /// Begins or ends to expect frees from threads that are not known yet.
    pub(crate) fn expect_frees(&self, begin: bool) {
        self.shared.update(|state| {
            state.expected = if begin { state.expected + 1 } else { state.expected.saturating_sub(1) };
            None
        });
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
        attempt: impl FnMut(bool) -> Result<Block, Refusal>,
    ) -> Result<Block, AllocError> {
        self.allocate_as(WaitKey { bytes, class: None }, timeout, attempt)
    }

    /// The same for a request that can be compared with others, which spares it attempts that cannot succeed.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn allocate_as(
        &self,
        want: WaitKey,
        timeout: Duration,
        mut attempt: impl FnMut(bool) -> Result<Block, Refusal>,
    ) -> Result<Block, AllocError> {
        if want.bytes == 0 {
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
                    wait.failed(want, tried);
                    wait.sleep()
                }
                None if timeout.is_zero() => true,
                None => wait.insert(Wait::start(self, want, tried, timeout)).sleep(),
            };
        }
    }

    /// Whether a free must be told to [`notify`](Self::notify) or [`notify_up_to`](Self::notify_up_to). A pool may ask
    /// under its lock, after the free, and work out the bytes for the latter only if so. One load.
    #[inline]
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.interested.load(Ordering::SeqCst) > 0
    }

    /// Says that memory may have become available, without knowing how much: all who wait try in turn, save those ruled
    /// out by a failure. Costs one load when nobody waits.
    #[inline]
    pub fn notify(&self) {
        self.notify_up_to(u64::MAX);
    }

    /// Says that memory became available, but not for requests of more than `bytes` bytes. That is the largest free piece
    /// or, if more, what the pool may now take from its source, in place of idle regions too. Costs one load when
    /// nobody waits.
    #[inline]
    pub fn notify_up_to(&self, bytes: u64) {
        if self.is_awaited() {
            self.shared.update(|state| {
                state.stuck_since = None;
                state.queue.freed(bytes)
            });
        }
    }

    /// What waiting has cost so far.
    #[must_use]
    pub fn stats(&self) -> RetryStats {
        let state = lock(&self.shared.state);
        RetryStats { wakeups: state.queue.turns(), ..state.stats }
    }

    /// Starts the figures over; requests that wait now still count as waiting.
    pub fn clear_stats(&self) {
        let state = &mut *lock(&self.shared.state);
        state.stats = RetryStats { waiting: state.stats.waiting, ..RetryStats::default() };
        state.queue.clear_turns();
    }
}

impl Shared {
    /// Changes the state, and wakes whom that gave the turn once the lock is open again.
    #[cold]
    fn update(&self, change: impl FnOnce(&mut State) -> Option<Arc<Condvar>>) {
        let bell = {
            let state = &mut *lock(&self.state);
            let turn = change(state);
            let stuck = if self.stalemate.is_some() { state.find_stalemate() } else { None };
            turn.or(stuck)
        };
        if let Some(bell) = bell {
            bell.notify_one();
        }
    }
}

impl WatchesEnds for Shared {
    fn a_thread_ended(&self) {
        self.update(State::note_ends);
    }
}

impl State {
    /// Lets go of the threads that have ended. Those who wait may then have nobody to wait for, which they find by trying
    /// again, as after a free. Whom to wake.
    fn note_ends(&mut self) -> Option<Arc<Condvar>> {
        if !self.freeing.remove_ended() {
            return None;
        }
        self.stuck_since = None;
        self.queue.freed(u64::MAX)
    }

    /// Notes whether all who could free wait. Whom to wake when that has just come to be: the oldest, to give up in time.
    fn find_stalemate(&mut self) -> Option<Arc<Condvar>> {
        let Self { queue, freeing, .. } = self;
        let nobody_else = self.expected == 0 && !freeing.is_unbounded() && !freeing.may_have_orphans();
        let stuck = nobody_else && queue.all_wait(freeing.threads());
        let oldest = queue.oldest().filter(|_| stuck);
        if oldest.is_none() {
            self.stuck_since = None;
        } else if self.stuck_since.is_none() {
            self.stuck_since = Some(Instant::now());
            return oldest.map(|(_, bell)| Arc::clone(bell));
        }
        None
    }

    /// How long this waiter still sleeps before it gives up as nobody could free; `None` if it need not.
    fn gives_up_in(&self, ticket: u64, stalemate: Option<Duration>, now: Instant) -> Option<Duration> {
        let (since, after) = (self.stuck_since?, stalemate?);
        self.queue.oldest().filter(|(oldest, _)| *oldest == ticket)?;
        Some(after.saturating_sub(now.saturating_duration_since(since)))
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

/// A request that had to wait, from its first sleep to its end. Ending it, also by a panic, hands its turn on.
#[derive(Debug)]
struct Wait<'a> {
    retry: &'a AllocatorRetry,
    ticket: u64,
    /// Rung when it is this request's turn.
    bell: Arc<Condvar>,
    started: Instant,
    /// `None` if the deadline is beyond what the clock can tell.
    deadline: Option<Instant>,
    successful: bool,
}

impl<'a> Wait<'a> {
    /// Queues a request whose first attempt began at epoch `tried` and failed.
    fn start(retry: &'a AllocatorRetry, want: WaitKey, tried: u64, timeout: Duration) -> Self {
        let bell = Arc::new(Condvar::new());
        let mut ticket = 0;
        retry.shared.update(|state| {
            state.stats.waits += 1;
            state.stats.waiting += 1;
            state.watch.get_or_insert_with(|| {
                let watcher: Weak<dyn WatchesEnds> = std::sync::Arc::downgrade(&retry.shared) as _;
                EndWatch::new(watcher)
            });
            let turn;
            let thread = ThreadNumber::current().get();
            (ticket, turn) = state.queue.enter(want, tried, thread, Arc::clone(&bell));
            // Who has ended since the attempt, and before the watch began.
            turn.or(state.note_ends())
        });
        let started = Instant::now();
        Self { retry, ticket, bell, started, deadline: started.checked_add(timeout), successful: false }
    }

    /// Notes that another attempt failed, which began at epoch `tried`.
    fn failed(&self, want: WaitKey, tried: u64) {
        self.retry.shared.update(|state| state.queue.failed(self.ticket, want, tried));
    }

    /// Sleeps until it is this request's turn; whether its attempt is the last, as the deadline has passed or nobody is left
    /// who could free.
    fn sleep(&self) -> bool {
        let mut state = lock(&self.retry.shared.state);
        loop {
            let now = Instant::now();
            let time = self.deadline.map(|deadline| deadline.saturating_duration_since(now));
            let hope = state.gives_up_in(self.ticket, self.retry.shared.stalemate, now);
            // `None` is without end here, and not the least.
            let left = [time, hope].into_iter().flatten().min();
            if time != Some(Duration::ZERO) && state.queue.has_turn(self.ticket) {
                return false;
            }
            if left == Some(Duration::ZERO) {
                state.queue.give_up(self.ticket);
                state.stuck_since = None;
                return true;
            }
            state = wait(&self.bell, state, left);
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.retry.shared.update(|state| {
            state.stats.waiting -= 1;
            state.stats.waited += self.started.elapsed();
            if !self.successful {
                state.stats.timeouts += 1;
            }
            if state.stats.waiting == 0 {
                state.watch = None;
            }
            state.queue.leave(self.ticket)
        });
    }
}
