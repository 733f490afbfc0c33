//! The tracker: opens an account for each op execution, and adds the finished executions up.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bfc_core::sync::{Mutex, ThreadNumber, lock};
use bfc_core::{Allocator, Bytes, LastResort, MemoryKind, OwnerId, Span};

use super::allocator::TrackingAllocator;
use super::context::{FrameGuard, running_op_of};
use super::saved::Saves;
use super::state::TrackerState;
use super::totals::{Figures, OpTotals, ThreadTotals};
use crate::record::{Recording, RunSummary, Written};
use crate::report::{ProcessMemory, Report, RunFacts};
use crate::scope::here;

/// Keeps account of the ops of one device.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::{Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Category, HostMemory, Request};
/// use highwater_tracking::{Tracker, module};
///
/// let config = BfcConfig::new(Bytes::mib(1));
/// let pool: Arc<dyn Allocator> = Arc::new(BfcAllocator::new("cpu", Arc::new(HostMemory::new()), config));
/// let tracker = Tracker::new();
///
/// let _scope = module("net.fc1");
/// let result = {
///     let run = tracker.begin("matmul");
///     let allocator = run.track(&pool);
///     let _scratch = Allocation::new(&allocator, &Request::new(4096))?;
///     Allocation::new(&allocator, &Request::new(1024).with_category(Category::Output))?
/// };
///
/// let totals = tracker.op_totals();
/// assert_eq!((totals[0].op, totals[0].calls), ("matmul", 1));
/// assert_eq!((totals[0].high_water_bytes, totals[0].outliving_bytes), (5120, 1024));
/// assert_eq!(pool.ledger().owner(totals[0].owner).own, 1024);
/// # drop(result);
/// # Ok::<(), bfc_core::AllocError>(())
/// ```
#[derive(Debug)]
pub struct Tracker {
    /// Distinguishes the running ops of several trackers.
    id: u64,
    state: Arc<TrackerState>,
    is_enabled: bool,
}

impl Tracker {
    /// A tracker with nothing counted.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::build(true)
    }

    /// A tracker that keeps no accounts: ops allocate directly from their pools. It serves to measure what accounts cost.
    ///
    /// ```
    /// use highwater_tracking::Tracker;
    /// let tracker = Tracker::disabled();
    /// drop(tracker.begin("matmul"));
    /// assert!(tracker.op_totals().is_empty());
    /// ```
    #[must_use]
    pub fn disabled() -> Arc<Self> {
        Self::build(false)
    }

    fn build(is_enabled: bool) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (id, state) = (NEXT.fetch_add(1, Ordering::Relaxed), Arc::default());
        Arc::new(Self { id, state, is_enabled })
    }

    /// Begins an execution of `op` in the current place. It ends when the [`OpRun`] is dropped.
    ///
    /// If this thread already runs an op of this tracker, the new run is a part of that op: it shares the account and does
    /// not count as a call.
    pub fn begin(&self, op: &'static str) -> OpRun<'_> {
        self.begin_over(op, None)
    }

    /// Like [`begin`](Self::begin), and opens the op's tracking allocator over `base`, which [`OpRun::allocator`] returns.
    pub fn begin_over<'b>(
        &self,
        op: &'static str,
        base: impl Into<Option<&'b Arc<dyn Allocator>>>,
    ) -> OpRun<'_> {
        let mut run = OpRun { tracker: self, frame: None, execution: None, allocator: None, is_nested: true };
        if !self.is_enabled {
            return run;
        }
        let base = base.into();
        if let Some(execution) = running_op_of(self.id) {
            run.execution = Some(execution);
            run.allocator = base.map(|base| run.track(base));
            return run;
        }
        let place = here();
        let (row, owner) = lock(&self.state.totals).row(place, op);
        let account = base.map(|base| TrackingAllocator::for_op(base, owner, &self.state));
        run.allocator = account.clone().map(|account| account as Arc<dyn Allocator>);
        let execution = Arc::new(Execution::new(self.id, row, owner, account));
        self.state.recorder.post_enter(owner, place.phase);
        run.frame = FrameGuard::enter(Arc::clone(&execution));
        run.execution = Some(execution);
        run.is_nested = false;
        run
    }

    /// The owner that executions of `op` in the current place are charged to. It serves to charge memory to them
    /// afterwards, as when a parameter moves into a model. No execution is counted.
    #[must_use]
    pub fn owner_here(&self, op: &'static str) -> OwnerId {
        if !self.is_enabled {
            return OwnerId::ROOT;
        }
        let place = here();
        let (_, owner) = lock(&self.state.totals).row(place, op);
        self.state.recorder.name_op(owner, place.phase);
        owner
    }

    /// The totals of all ops that ever began, in the order in which they first began.
    #[must_use]
    pub fn op_totals(&self) -> Vec<OpTotals> {
        lock(&self.state.totals).rows().to_vec()
    }

    /// The totals of the threads that began ops, in the order of their numbers.
    #[must_use]
    pub fn thread_totals(&self) -> Vec<ThreadTotals> {
        lock(&self.state.totals).threads()
    }

    /// The totals of ops and of threads, of one moment.
    pub(crate) fn totals(&self) -> (Vec<OpTotals>, Vec<ThreadTotals>) {
        let totals = lock(&self.state.totals);
        (totals.rows().to_vec(), totals.threads())
    }

    /// What was kept for backward passes.
    pub(crate) fn saves(&self) -> &Saves {
        &self.state.saves
    }

    /// Sets all totals to zero. Ops that run now are counted when they finish.
    pub fn reset(&self) {
        lock(&self.state.totals).reset();
        self.state.saves.reset();
    }

    /// Records events in at most `capacity` of memory from now on, some seven bytes an event. When it is full, the oldest
    /// events give way to new ones. What an earlier recording held is dropped, and an earlier file ends here, without a summary.
    ///
    /// What passes through this tracker's ops is recorded. Blocks from before are not in the recording, and nor is what
    /// becomes of them.
    pub fn start_log(&self, capacity: Bytes) {
        self.state.recorder.start_in_memory(usize::try_from(capacity.get()).unwrap_or(usize::MAX));
    }

    /// Ends the recording in memory and returns it; empty if none was begun.
    #[must_use]
    pub fn take_log(&self) -> Recording {
        self.state.recorder.take()
    }

    /// Records events from now on into `file`, in the format of `.hwm` files, as [`start_log`](Self::start_log) does in
    /// memory. The beginning is written before this returns, the rest by a thread of its own; when that falls far behind,
    /// ops wait for it, and no event is lost. The file can be read while it grows. A tracker makes one recording at a time: one
    /// in memory is dropped, and the file of another ends here, without a summary.
    ///
    /// # Errors
    /// Those of the file. A later one ends the recording, and is returned by
    /// [`finish_recording`](Self::finish_recording).
    pub fn start_recording(&self, file: impl Write + Send + 'static, facts: &RunFacts) -> io::Result<()> {
        self.state.recorder.start_to(file, facts)
    }

    /// Ends the recording into a file, with a summary of the run and of the pools; `None` if none was begun.
    ///
    /// # Errors
    /// The first error of the file since recording began.
    pub fn finish_recording(&self, pools: &[Arc<dyn Allocator>]) -> io::Result<Option<Written>> {
        let report = Report::new(self, pools);
        let outside = ProcessMemory::now();
        self.state.recorder.finish(|summary| RunSummary { report, outside, ..summary }).transpose()
    }

    /// How many events the recording has so far.
    #[must_use]
    pub fn recorded_events(&self) -> u64 {
        self.state.recorder.events()
    }

    /// Records that the pool of this name took a region from its source, or is about to give one back: for a
    /// [visitor](bfc_core::Visitors) of the source.
    pub fn record_region(&self, pool: &str, memory: MemoryKind, region: Span, taken: bool) {
        self.state.recorder.post_region(pool, memory, region, taken);
    }

    /// Records a moment, to be found again by its text, as a step or an epoch. Nothing happens while nothing is recorded.
    pub fn mark(&self, text: &str) {
        self.state.recorder.post_mark(text);
    }

    /// Those to be asked before a request of an op fails for want of memory, and those to be told when one has.
    ///
    /// ```
    /// use highwater_tracking::Tracker;
    /// let tracker = Tracker::new();
    /// tracker.last_resort().before_giving_up(|_report| false /* or free something, and say so */);
    /// tracker.last_resort().on_failure(|report| eprintln!("{}", report.details()));
    /// ```
    #[must_use]
    pub fn last_resort(&self) -> &Arc<LastResort> {
        &self.state.last_resort
    }

    /// Ends an execution and adds what it came to.
    fn finish(&self, execution: &Execution) {
        let accounts = execution.close();
        let mut figures = Figures::default();
        accounts.iter().for_each(|account| account.add_to(&mut figures));
        lock(&self.state.totals).fold(execution.row, ThreadNumber::current().get(), &figures);
        self.state.recorder.post_leave(figures.high_water, figures.outliving);
    }
}

/// One execution of an op, shared by its own thread, its nested ops and its workers.
#[derive(Debug)]
pub(crate) struct Execution {
    /// The tracker's number.
    tracker: u64,
    /// The op's row in the totals.
    row: usize,
    owner: OwnerId,
    accounts: Mutex<Accounts>,
}

/// The tracking allocators of an op, one for each allocator that it uses. Most ops use one.
#[derive(Debug, Default)]
struct Accounts {
    /// Whether the op has finished, so that no further allocator joins it.
    is_closed: bool,
    first: Option<Arc<TrackingAllocator>>,
    others: Vec<Arc<TrackingAllocator>>,
}

impl Accounts {
    fn iter(&self) -> impl Iterator<Item = &Arc<TrackingAllocator>> {
        self.first.iter().chain(&self.others)
    }
}

impl Execution {
    fn new(tracker: u64, row: usize, owner: OwnerId, first: Option<Arc<TrackingAllocator>>) -> Self {
        Self { tracker, row, owner, accounts: Mutex::new(Accounts { first, ..Accounts::default() }) }
    }

    /// Whether this is an op of `tracker` that has not finished.
    pub(crate) fn is_running_for(&self, tracker: u64) -> bool {
        self.tracker == tracker && !lock(&self.accounts).is_closed
    }

    /// Takes the accounts out of an op that has finished.
    fn close(&self) -> Accounts {
        let closed = Accounts { is_closed: true, ..Accounts::default() };
        std::mem::replace(&mut *lock(&self.accounts), closed)
    }

    /// See [`OpRun::track`].
    fn track(&self, base: &Arc<dyn Allocator>, tracker: &Arc<TrackerState>) -> Arc<dyn Allocator> {
        let mut accounts = lock(&self.accounts);
        if accounts.is_closed {
            return Arc::clone(base);
        }
        if let Some(account) = accounts.iter().find(|account| account.stands_for(base)) {
            return Arc::clone(account) as Arc<dyn Allocator>;
        }
        let account = TrackingAllocator::for_op(base, self.owner, tracker);
        match accounts.first {
            None => accounts.first = Some(Arc::clone(&account)),
            Some(_) => accounts.others.push(Arc::clone(&account)),
        }
        account
    }
}

/// An op that runs on this thread, until dropped. Bound to its thread.
#[derive(Debug)]
#[must_use = "the op ends when this is dropped"]
pub struct OpRun<'t> {
    tracker: &'t Tracker,
    /// The place of the op on the thread's stack; `None` for a nested run, and on a thread that ends and has no stack.
    frame: Option<FrameGuard>,
    /// The op that this run is, or is a part of; `None` without accounts.
    execution: Option<Arc<Execution>>,
    /// The op's tracking allocator over the allocator that the run began with.
    allocator: Option<Arc<dyn Allocator>>,
    is_nested: bool,
}

impl OpRun<'_> {
    /// Whether this is a part of an op that already ran. Always true of a [disabled](Tracker::disabled) tracker.
    #[must_use]
    pub const fn is_nested(&self) -> bool {
        self.is_nested
    }

    /// The owner that the op's allocations are charged to.
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        self.execution.as_ref().map_or(OwnerId::ROOT, |execution| execution.owner)
    }

    /// The op's tracking allocator over the allocator that it [began over](Tracker::begin_over); `None` for a run that
    /// [began](Tracker::begin) without one, and of a [disabled](Tracker::disabled) tracker.
    #[must_use]
    pub const fn allocator(&self) -> Option<&Arc<dyn Allocator>> {
        self.allocator.as_ref()
    }

    /// The op's tracking allocator over `base`. Every call with the same `base` returns the same allocator, and a tracking
    /// allocator of this op stands for itself.
    ///
    /// Pass the allocator of a device, not that of a tensor. A tensor's may be the tracking allocator of another op, which
    /// would count the allocation too.
    ///
    /// Returns `base` itself if the op has finished, which a nested run may outlive.
    #[must_use]
    pub fn track(&self, base: &Arc<dyn Allocator>) -> Arc<dyn Allocator> {
        match &self.execution {
            Some(execution) => execution.track(base, &self.tracker.state),
            None => Arc::clone(base),
        }
    }
}

impl Drop for OpRun<'_> {
    fn drop(&mut self) {
        // From here on a new op of this thread is no part of this one.
        drop(self.frame.take());
        if let Some(execution) = self.execution.take().filter(|_| !self.is_nested) {
            self.tracker.finish(&execution);
        }
    }
}

#[cfg(test)]
mod tests;
