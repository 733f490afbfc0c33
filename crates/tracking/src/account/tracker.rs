//! The tracker: opens an account for each op execution, and adds up the finished executions.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bfc_core::sync::{ThreadNumber, lock};
use bfc_core::{Allocator, Bytes, LastResort, MemoryKind, OwnerId, Span};

use super::accounted_pool::AccountedPool;
use super::allocator::TrackingAllocator;
use super::context::{FrameGuard, running_op_of};
use super::execution::Execution;
use super::saved::SavedAccounts;
use super::state::TrackerState;
use super::steps::StepLog;
use super::totals::{OpTotals, ThreadTotals};
use crate::record::{Recording, RunSummary, Written};
use crate::report::{OutsideRow, ProcessMemory, Report, RunFacts, set_outside};
use crate::scope::here;
use crate::tally::Figures;

/// Accounts for the memory of one device's ops.
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
/// assert_eq!((totals[0].op, totals[0].totals.calls), ("matmul", 1));
/// assert_eq!((totals[0].totals.high_water_bytes, totals[0].totals.outliving_bytes), (5120, 1024));
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
    /// Creates a tracker.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::build(true)
    }

    /// Creates a tracker without accounts: ops allocate directly from their pools. Comparisons with it show the cost of
    /// accounts.
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

    /// Begins an execution of `op` in the current scope. It ends when the [`OpRun`] is dropped.
    ///
    /// If this thread already runs an op of this tracker, the new run is a part of that op. It shares the account and
    /// does not count as a call.
    pub fn begin(&self, op: &'static str) -> OpRun<'_> {
        self.begin_over(op, None, None)
    }

    /// Like [`begin`](Self::begin), and opens the op's tracking allocator over `base`. [`OpRun::allocator`] returns it.
    /// Reuses an account of `finished`, if that is the free list of `base`.
    pub fn begin_over<'t, 'b>(
        &'t self,
        op: &'static str,
        base: impl Into<Option<&'b Arc<dyn Allocator>>>,
        finished: Option<&'t AccountedPool>,
    ) -> OpRun<'t> {
        let mut run = OpRun {
            tracker: self,
            finished: None,
            owner: OwnerId::ROOT,
            frame: None,
            execution: None,
            allocator: None,
            started: 0,
            timed_calls: 0,
            is_nested: true,
        };
        if !self.is_enabled {
            return run;
        }
        let base = base.into();
        if let Some(execution) = running_op_of(self.id) {
            run.owner = execution.owner;
            run.execution = Some(execution);
            run.allocator = base.map(|base| run.track(base));
            return run;
        }
        let (place, thread) = (here(), ThreadNumber::current().get());
        let ((row, owner), timed_calls) = {
            let totals = &mut *self.state.totals.lock();
            if let Some(step) = totals.steps.begin_op(place.phase, thread) {
                self.state.steps.begin(step);
            }
            let (row, owner) = totals.row(place, op);
            ((row, owner), totals.begin_call(row))
        };
        run.finished =
            finished.filter(|finished| base.is_some_and(|base| Arc::ptr_eq(base, finished.pool())));
        let mut next = run.finished.and_then(AccountedPool::next);
        let reopened = next.as_mut().and_then(|execution| execution.reopen(self.id, row, owner, thread));
        let (execution, account) = match (next, reopened) {
            (Some(execution), Some(account)) => (execution, Some(account)),
            (in_use, _) => {
                if let (Some(finished), Some(execution)) = (run.finished, in_use) {
                    finished.add(execution);
                }
                let account = base.map(|base| TrackingAllocator::for_op(base, owner, thread, &self.state));
                (Arc::new(Execution::new(self.id, row, owner, thread, account.clone())), account)
            }
        };
        self.state.recorder.post_enter(owner, place.phase, base.map(|base| &**base));
        run.frame = FrameGuard::enter(Arc::clone(&execution));
        run.allocator = account.map(|account| account as Arc<dyn Allocator>);
        (run.execution, run.owner, run.is_nested) = (Some(execution), owner, false);
        if timed_calls > 0 && finished.is_none_or(AccountedPool::is_timed) {
            (run.started, run.timed_calls) = (self.state.clock.raw(), timed_calls);
        }
        run
    }

    /// Returns the owner of `op` in the current scope, to charge existing memory to it, for example a parameter that
    /// moves into a model. Counts no execution.
    #[must_use]
    pub fn owner_here(&self, op: &'static str) -> OwnerId {
        if !self.is_enabled {
            return OwnerId::ROOT;
        }
        let place = here();
        let (_, owner) = self.state.totals.lock().row(place, op);
        self.state.recorder.name_op(owner, place.phase);
        owner
    }

    /// Notes that a layer with this weight runs in `module` without a path: no walk through the model found the layer.
    /// [`Report`](crate::Report) warns about it. Does nothing until a walk has [listed](Self::layer_listed) any layer.
    pub fn note_unlisted(&self, weight: usize, module: OwnerId, describe: impl FnOnce() -> String) {
        if self.is_enabled {
            self.state.unlisted.note(weight, module, describe);
        }
    }

    /// Notes that a walk through a model found the layer with this weight.
    pub fn layer_listed(&self, weight: usize) {
        self.state.unlisted.listed(weight);
    }

    /// Returns descriptions of the layers that run but that no walk found.
    #[must_use]
    pub fn unlisted_layers(&self) -> Vec<String> {
        self.state.unlisted.all()
    }

    /// Sets the bytes that a library holds outside the pools and reports itself, such as NCCL. Replaces earlier bytes of
    /// this library. Reports and the end of a recording list them.
    ///
    /// ```
    /// use bfc_core::Bytes;
    /// use highwater_tracking::{Report, Tracker};
    /// let tracker = Tracker::new();
    /// tracker.set_outside("NCCL", Bytes::mib(12));
    /// assert_eq!(Report::new(&tracker, &[]).outside[0].bytes, 12 << 20);
    /// ```
    pub fn set_outside(&self, name: &str, bytes: Bytes) {
        set_outside(&mut lock(&self.state.outside), name, bytes);
    }

    /// Returns the memory outside the pools.
    pub(crate) fn outside(&self) -> Vec<OutsideRow> {
        lock(&self.state.outside).clone()
    }

    /// Returns the totals of all ops, in the order of their first begin.
    #[must_use]
    pub fn op_totals(&self) -> Vec<OpTotals> {
        self.state.totals.lock().rows().to_vec()
    }

    /// Returns the totals of the threads that began ops, in the order of their numbers.
    #[must_use]
    pub fn thread_totals(&self) -> Vec<ThreadTotals> {
        self.state.totals.lock().threads()
    }

    /// Returns the totals of ops and of threads from one moment.
    pub(crate) fn totals(&self) -> (Vec<OpTotals>, Vec<ThreadTotals>) {
        let totals = self.state.totals.lock();
        (totals.rows().to_vec(), totals.threads())
    }

    /// Returns the number of completed steps: runs of optimizer ops after a backward op, on the first thread that runs them.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.state.totals.lock().steps.completed()
    }

    /// Returns the first allocations of the last steps.
    pub(crate) fn step_log(&self) -> &StepLog {
        &self.state.steps
    }

    /// Returns the memory saved for backward passes.
    pub(crate) fn saves(&self) -> &SavedAccounts {
        &self.state.saves
    }

    /// Sets all totals to zero. Running ops count when they finish.
    pub fn reset(&self) {
        self.state.totals.lock().reset();
        self.state.saves.reset();
    }

    /// Starts a recording in at most `capacity` of memory; an event takes about seven bytes. When the memory is full,
    /// new events replace the oldest ones. Drops an earlier recording in memory. Ends an earlier file without a
    /// summary.
    ///
    /// The recording contains the events of this tracker's ops. It does not contain blocks that were allocated before.
    pub fn start_log(&self, capacity: Bytes) {
        self.state.recorder.start_in_memory(usize::try_from(capacity.get()).unwrap_or(usize::MAX));
    }

    /// Ends the recording in memory and returns it; empty without a recording.
    #[must_use]
    pub fn take_log(&self) -> Recording {
        self.state.recorder.take()
    }

    /// Starts a recording into `file` in the format of `.hwm` files. The events are those of
    /// [`start_log`](Self::start_log).
    ///
    /// This call writes the beginning, and a separate thread writes the rest. If that thread falls far behind, ops wait
    /// for it, so that no event is lost. Other programs can read the file while it grows. A tracker makes one recording
    /// at a time: this call drops one in memory, and ends an earlier file without a summary.
    ///
    /// # Errors
    /// Errors of the file. A later error ends the recording, and [`finish_recording`](Self::finish_recording) returns
    /// it.
    pub fn start_recording(&self, file: impl Write + Send + 'static, facts: &RunFacts) -> io::Result<()> {
        self.state.recorder.start_to(file, facts)
    }

    /// Ends the recording into a file, with a summary of the run and of the pools; `None` without a recording.
    ///
    /// # Errors
    /// The first error of the file since recording began.
    pub fn finish_recording(&self, pools: &[Arc<dyn Allocator>]) -> io::Result<Option<Written>> {
        let report = Report::new(self, pools);
        let outside = ProcessMemory::now();
        self.state.recorder.finish(|summary| RunSummary { report, outside, ..summary }).transpose()
    }

    /// Returns the number of events in the recording so far.
    #[must_use]
    pub fn recorded_events(&self) -> u64 {
        self.state.recorder.events()
    }

    /// Records that the pool of this name took a region from its source, or is about to return one. A
    /// [visitor](bfc_core::Visitors) of the source calls it.
    pub fn record_region(&self, pool: &str, memory: MemoryKind, region: Span, taken: bool) {
        self.state.recorder.post_region(pool, memory, region, taken);
    }

    /// Marks a moment in the recording with a text, such as a step or an epoch. Does nothing without a recording.
    ///
    /// Reports of the recording and its page list the marks with their live bytes.
    ///
    /// ```
    /// use bfc_core::Bytes;
    /// use highwater_tracking::{Report, Tracker};
    /// let tracker = Tracker::new();
    /// tracker.start_log(Bytes::mib(1));
    /// tracker.mark("data loaded");
    /// let report = Report::from_recording(&tracker.take_log());
    /// assert_eq!((report.marks[0].text.as_str(), report.marks[0].live_bytes), ("data loaded", 0));
    /// ```
    pub fn mark(&self, text: &str) {
        self.state.recorder.post_mark(text);
    }

    /// Returns the callbacks that run before an op's request runs out of memory, and after it has failed.
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

    /// Ends an execution, adds its figures to the totals, and its account to the free list.
    fn finish(&self, mut execution: Arc<Execution>, finished: Option<&AccountedPool>, time_ns: u64) {
        let figures = Figures { time_ns, ..execution.close() };
        self.state.totals.lock().fold(execution.row, execution.thread, &figures);
        self.state.recorder.post_leave(figures.high_water, figures.outliving);
        if let Some(finished) = finished {
            finished.add(execution);
        }
    }
}

/// A running op of this thread; it ends when dropped. Bound to its thread.
#[derive(Debug)]
#[must_use = "the op ends when this is dropped"]
pub struct OpRun<'t> {
    tracker: &'t Tracker,
    /// The free list that the account goes to, if any.
    finished: Option<&'t AccountedPool>,
    owner: OwnerId,
    /// The op's frame on the thread's stack; `None` for a nested run, and on a thread that is ending.
    frame: Option<FrameGuard>,
    /// The execution that this run belongs to; `None` without accounts.
    execution: Option<Arc<Execution>>,
    /// The op's tracking allocator over the allocator that the run began with.
    allocator: Option<Arc<dyn Allocator>>,
    /// The reading of the tracker's clock when the op's code began, if it is timed.
    started: u64,
    /// The number of calls that this call's time stands for; 0 if it is not timed.
    timed_calls: u64,
    is_nested: bool,
}

impl OpRun<'_> {
    /// Returns whether this run is a part of an outer op. Always true for a [disabled](Tracker::disabled) tracker.
    #[must_use]
    pub const fn is_nested(&self) -> bool {
        self.is_nested
    }

    /// Returns the owner of the op's allocations.
    #[must_use]
    pub const fn owner(&self) -> OwnerId {
        self.owner
    }

    /// Returns the op's tracking allocator over the allocator of [`begin_over`](Tracker::begin_over). `None` for a run
    /// that [`begin`](Tracker::begin) started, and for a [disabled](Tracker::disabled) tracker.
    #[must_use]
    pub const fn allocator(&self) -> Option<&Arc<dyn Allocator>> {
        self.allocator.as_ref()
    }

    /// Returns the op's tracking allocator over `base`. Every call with the same `base` returns the same allocator. For
    /// a tracking allocator of this op, returns that allocator.
    ///
    /// Pass the allocator of a device, not that of a tensor. The allocator of a tensor may be the tracking allocator of
    /// another op, which would count the allocation too.
    ///
    /// Returns `base` if the op has finished. A nested run may outlive its op.
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
        let time_ns = match self.timed_calls {
            0 => 0,
            calls => {
                let clock = &self.tracker.state.clock;
                clock.delta_as_nanos(self.started, clock.raw()).saturating_mul(calls)
            }
        };
        // From here on, a new op of this thread is not a part of this one.
        drop(self.frame.take());
        drop(self.allocator.take());
        if let Some(execution) = self.execution.take().filter(|_| !self.is_nested) {
            self.tracker.finish(execution, self.finished, time_ns);
        }
    }
}

#[cfg(test)]
mod tests;
