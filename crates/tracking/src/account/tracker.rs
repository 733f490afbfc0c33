//! The tracker: gives every op execution its account, and adds the finished ones up.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bfc_core::sync::atomic::{AtomicBool, Ordering};
use bfc_core::sync::{BiasedGuard, BiasedMutex, ThreadNumber};
use bfc_core::{Allocator, Bytes, LastResort, MemoryKind, OwnerId, Span};

use super::allocator::TrackingAllocator;
use super::books::{Books, Seated};
use super::context::{FrameGuard, enter_op, running_op_of};
use super::saved::Saves;
use super::totals::{Figures, OpTotals, ThreadTotals};
use crate::record::{Recording, RunFacts, Written};
use crate::report::Report;
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
    /// Tells the running ops of several trackers apart.
    id: u64,
    books: Arc<Books>,
    /// Whether accounts are kept.
    marks: bool,
}

impl Tracker {
    /// A tracker with nothing counted.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::build(true)
    }

    /// A tracker that keeps no accounts: ops take memory straight from their pools, and are named nowhere. It is there to
    /// measure what accounts cost.
    ///
    /// ```
    /// use highwater_tracking::Tracker;
    /// let tracker = Tracker::without_marks();
    /// drop(tracker.begin("matmul"));
    /// assert!(tracker.op_totals().is_empty());
    /// ```
    #[must_use]
    pub fn without_marks() -> Arc<Self> {
        Self::build(false)
    }

    fn build(marks: bool) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self { id: NEXT.fetch_add(1, Ordering::Relaxed), books: Books::new(), marks })
    }

    /// Begins an execution of `op` in the current place; it lasts until the [`OpRun`] is dropped.
    ///
    /// While this thread works for an op of this tracker already, the new one is a part of that: it shares its account
    /// and is no call of its own.
    pub fn begin(&self, op: &'static str) -> OpRun<'_> {
        let mut run = self.idle_run();
        if self.marks {
            run.begin_marked(op, None);
        }
        run
    }

    /// The same, with the op's tracking allocator over `base`, which [`OpRun::allocator`] gives: in one go.
    #[inline]
    pub fn begin_over(&self, op: &'static str, base: &Arc<dyn Allocator>) -> OpRun<'_> {
        let mut run = self.idle_run();
        run.begin_over(op, base);
        run
    }

    /// A run that keeps no account, unless it [begins](OpRun::begin_over) where it stands.
    #[inline]
    pub const fn idle_run(&self) -> OpRun<'_> {
        OpRun { tracker: self, owner: OwnerId::ROOT, handle: None, part: Part::Idle }
    }

    /// Tells that ops will turn to this allocator all the time, as that of a device's memory: what stands between it and ops is
    /// kept from op to op with handles of it, so the tracker holds it until it is [released](Self::release), or the tracker dropped.
    pub fn adopt(&self, base: &Arc<dyn Allocator>) {
        self.books.adopt(base);
    }

    /// Ends what [`adopt`](Self::adopt) began; of several times, with the last.
    pub fn release(&self, base: &Arc<dyn Allocator>) {
        self.books.release(base);
    }

    /// The owner that executions of `op` in the current place are charged to: for memory that is to be charged to them
    /// afterwards, as when a parameter has found its place in a model. No execution is counted.
    #[must_use]
    pub fn owner_here(&self, op: &'static str) -> OwnerId {
        if !self.marks {
            return OwnerId::ROOT;
        }
        let place = here();
        let (_, owner) = self.books.open().totals.row(place, op);
        self.books.recorder.name_op(owner, place.phase);
        owner
    }

    /// The totals of all ops that were ever begun, in the order of their first beginnings.
    #[must_use]
    pub fn op_totals(&self) -> Vec<OpTotals> {
        self.books.open().totals.rows().to_vec()
    }

    /// The totals of the threads that began ops, in the order of their numbers.
    #[must_use]
    pub fn thread_totals(&self) -> Vec<ThreadTotals> {
        self.books.open().totals.threads()
    }

    /// The totals of ops and of threads, of one moment.
    pub(crate) fn totals(&self) -> (Vec<OpTotals>, Vec<ThreadTotals>) {
        let open = self.books.open();
        (open.totals.rows().to_vec(), open.totals.threads())
    }

    /// What was kept for backward passes.
    pub(crate) fn saves(&self) -> &Saves {
        &self.books.saves
    }

    /// Sets all totals to zero. Ops that run now are counted when they finish.
    pub fn reset(&self) {
        self.books.open().totals.reset();
        self.books.saves.reset();
    }

    /// Records events in at most `capacity` of memory from now on, some seven bytes an event. When it is full, the oldest
    /// events give way to new ones. What an earlier recording held is dropped, and an earlier file ends here, without a summary.
    ///
    /// What passes through this tracker's ops is recorded. Blocks from before are not in the recording, and nor is what
    /// becomes of them.
    pub fn start_log(&self, capacity: Bytes) {
        self.books.recorder.start_in_memory(usize::try_from(capacity.get()).unwrap_or(usize::MAX));
    }

    /// Ends the recording in memory and returns it; empty if none was begun.
    #[must_use]
    pub fn take_log(&self) -> Recording {
        self.books.recorder.take()
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
        self.books.recorder.start_to(file, facts)
    }

    /// Ends the recording into a file, with a summary of the run and of the pools; `None` if none was begun.
    ///
    /// # Errors
    /// The first error of the file since recording began.
    pub fn finish_recording(&self, pools: &[Arc<dyn Allocator>]) -> io::Result<Option<Written>> {
        let report = Report::new(self, pools);
        let outside = crate::record::Outside::now();
        self.books
            .recorder
            .finish(|summary| crate::record::RunSummary { report, outside, ..summary })
            .transpose()
    }

    /// How many events the recording has so far.
    #[must_use]
    pub fn recorded_events(&self) -> u64 {
        self.books.recorder.events()
    }

    /// Records that the pool of this name took a region from its source, or is about to give one back: for a
    /// [visitor](bfc_core::Visitors) of the source.
    pub fn record_region(&self, pool: &str, memory: MemoryKind, region: Span, taken: bool) {
        self.books.recorder.post_region(pool, memory, region, taken);
    }

    /// Records a moment, to be found again by its text, as a step or an epoch. Nothing happens while nothing is recorded.
    pub fn mark(&self, text: &str) {
        self.books.recorder.post_mark(text);
    }

    /// Those to be asked before a request of an op fails for want of memory, and those to be told when one has.
    ///
    /// ```
    /// use highwater_tracking::{OutOfMemory, Tracker};
    /// let tracker = Tracker::new();
    /// tracker.last_resort().before_giving_up(|_report| false /* or free something, and say so */);
    /// tracker.last_resort().on_failure(|report| eprintln!("{}", OutOfMemory::from(report)));
    /// ```
    #[must_use]
    pub fn last_resort(&self) -> &Arc<LastResort> {
        &self.books.last_resort
    }

    /// Ends an execution. The handle is that of its first allocator, if the run had one.
    fn finish(&self, execution: Arc<Execution>, handle: Option<Arc<dyn Allocator>>) {
        let (row, Joined { first, others }) = execution.finish();
        let mut figures = Figures::default();
        let mut seated = None;
        match first {
            Some(first) if first.has_seat() => seated = Some((first, handle)),
            Some(first) => {
                // Only the last handle recycles.
                drop(handle);
                self.end_alone(first, &mut figures);
            }
            None => {}
        }
        if !others.is_empty() {
            others.into_iter().for_each(|other| self.end_alone(other, &mut figures));
        }
        // Dropped without the lock: it may be the last to hold the books.
        let _lost = {
            let mut open = self.books.open();
            let lost = seated.and_then(|(account, handle)| open.end_op(account, handle, &mut figures));
            open.totals.fold(row, ThreadNumber::current().get(), &figures);
            open.put_execution(execution);
            lost
        };
        self.books.recorder.post_leave(figures.high_water, figures.outliving);
    }

    /// Ends what an op has to do with an allocator that is not the only one, or has no seat.
    #[inline(never)]
    fn end_alone(&self, allocator: Arc<TrackingAllocator>, figures: &mut Figures) {
        if allocator.has_seat() {
            let lost = self.books.open().end_op(allocator, None, figures);
            drop(lost);
        } else if allocator.end_op(figures) {
            allocator.retire();
        }
    }

    #[cfg(test)]
    pub(crate) fn idle_allocators(&self) -> usize {
        self.books.idle_allocators()
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        self.books.release_all();
    }
}

/// One execution of an op: what its own thread, its nested ops and its workers share.
#[derive(Debug)]
pub(crate) struct Execution {
    tracker: u64,
    /// Set once, under the lock of `running`.
    finished: AtomicBool,
    running: BiasedMutex<Running>,
}

/// What changes from op to op.
#[derive(Debug)]
pub(crate) struct Running {
    row: usize,
    owner: OwnerId,
    allocators: Joined,
}

/// The tracking allocators of an op, one for each allocator that it uses: in practice one.
#[derive(Debug, Default)]
struct Joined {
    first: Option<Arc<TrackingAllocator>>,
    others: Vec<Arc<TrackingAllocator>>,
}

impl Execution {
    /// One that has not begun.
    fn new(tracker: u64) -> Self {
        let running =
            BiasedMutex::new(Running { row: 0, owner: OwnerId::ROOT, allocators: Joined::default() });
        Self { tracker, finished: AtomicBool::new(true), running }
    }

    /// Begins, or begins anew as another op: nobody else has a handle.
    #[inline]
    fn start(&self, row: usize, owner: OwnerId, first: Option<Arc<TrackingAllocator>>) {
        let mut running = self.running();
        (running.row, running.owner, running.allocators.first) = (row, owner, first);
        self.finished.store(false, Ordering::Release);
    }

    /// Whether this is an op of `tracker` that has not finished.
    pub(crate) fn is_running_for(&self, tracker: u64) -> bool {
        self.tracker == tracker && !self.finished.load(Ordering::Acquire)
    }

    fn running(&self) -> BiasedGuard<'_, Running> {
        self.running.lock(ThreadNumber::current())
    }

    /// Ends the execution: from here on no allocator joins it. Its row, and those that did.
    #[inline]
    fn finish(&self) -> (usize, Joined) {
        let mut running = self.running();
        self.finished.store(true, Ordering::Release);
        (running.row, std::mem::take(&mut running.allocators))
    }
}

/// An op that runs on this thread, until dropped. Bound to its thread.
#[derive(Debug)]
#[must_use = "the op ends when this is dropped"]
pub struct OpRun<'t> {
    tracker: &'t Tracker,
    owner: OwnerId,
    /// Of the allocator that the run began with.
    handle: Option<Arc<dyn Allocator>>,
    part: Part,
}

/// What a run is to an execution.
// Few enough that to drop one, at the end of every op, takes comparisons and no table of jumps.
#[derive(Debug)]
enum Part {
    /// All of it. The thread's stack of running ops holds the execution, so that there is no second handle to count.
    Whole(FrameGuard),
    /// If `nested`, a part of this execution of an op that ran already; else all of it, on a thread that ends and has no stack any more.
    Held { execution: Arc<Execution>, nested: bool },
    /// There is none: it has not begun, or has ended, or no accounts are kept.
    Idle,
}

impl OpRun<'_> {
    /// Begins a run that is [idle](Tracker::idle_run), as [`Tracker::begin_over`] does: for whoever keeps it beside other things, which
    /// are then put together where they stay. What was begun is ended before.
    #[inline]
    pub fn begin_over(&mut self, op: &'static str, base: &Arc<dyn Allocator>) {
        // Which is to cost next to nothing where no accounts are kept.
        if self.tracker.marks {
            self.begin_marked(op, Some(base));
        }
    }

    fn begin_marked(&mut self, op: &'static str, base: Option<&Arc<dyn Allocator>>) {
        self.end_if_begun();
        match running_op_of(self.tracker.id) {
            None => self.begin_whole(op, base),
            Some(execution) => self.begin_part(execution, base),
        }
    }

    /// Begins as a part of an execution.
    fn begin_part(&mut self, execution: Arc<Execution>, base: Option<&Arc<dyn Allocator>>) {
        self.owner = execution.running().owner;
        self.part = Part::Held { execution, nested: true };
        self.handle = base.map(|base| self.track(base));
    }

    /// Begins an execution, with its allocator over `base`.
    #[inline(always)]
    fn begin_whole(&mut self, op: &'static str, base: Option<&Arc<dyn Allocator>>) {
        let (place, books) = (here(), &self.tracker.books);
        let (row, owner, idle, seated) = {
            let mut open = books.open();
            let (row, owner) = open.totals.row(place, op);
            let seated = base.and_then(|base| open.take_seated(base));
            (row, owner, open.take_execution(), seated)
        };
        let execution = idle.unwrap_or_else(|| Arc::new(Execution::new(self.tracker.id)));
        let account = match (seated, base) {
            (Some(Seated { account, handle }), _) => {
                account.resume(owner);
                self.handle = Some(handle);
                Some(account)
            }
            (None, Some(base)) => {
                let account = books.take_allocator(base, owner);
                self.handle = Some(Arc::clone(&account) as Arc<dyn Allocator>);
                Some(account)
            }
            (None, None) => None,
        };
        execution.start(row, owner, account);
        books.recorder.post_enter(owner, place.phase);
        let mut entering = Some(execution);
        self.owner = owner;
        self.part = match enter_op(&mut entering) {
            Some(frame) => Part::Whole(frame),
            None => entering.map_or(Part::Idle, |execution| Part::Held { execution, nested: false }),
        };
    }

    /// Whether this is a part of an op that ran already, or no execution at all: where it is idle, and where no accounts are kept.
    #[must_use]
    pub const fn is_nested(&self) -> bool {
        matches!(self.part, Part::Held { nested: true, .. } | Part::Idle)
    }

    /// The owner that the op's allocations are charged to.
    #[must_use]
    pub const fn owner(&self) -> OwnerId {
        self.owner
    }

    /// The op's tracking allocator over what it [began over](Tracker::begin_over); `None` where no accounts are kept, and for a run
    /// that began [without](Tracker::begin).
    #[must_use]
    pub const fn allocator(&self) -> Option<&Arc<dyn Allocator>> {
        self.handle.as_ref()
    }

    /// The op's tracking allocator over `base`: the same one each time it is asked for. A tracking allocator of this op
    /// stands for itself.
    ///
    /// Pass a device's allocator here, not that of some tensor: the latter may be the tracking allocator of another
    /// op, which would count the allocation too.
    ///
    /// Where the op has finished, which takes a nested run that outlives it, `base` itself is returned.
    #[must_use]
    pub fn track(&self, base: &Arc<dyn Allocator>) -> Arc<dyn Allocator> {
        let execution = match &self.part {
            Part::Whole(frame) => frame.execution(),
            Part::Held { execution, .. } => Some(Arc::clone(execution)),
            Part::Idle => None,
        };
        let Some(execution) = execution else { return Arc::clone(base) };
        let mut running = execution.running();
        if execution.finished.load(Ordering::Relaxed) {
            return Arc::clone(base);
        }
        let Running { owner, allocators: Joined { first, others }, .. } = &mut *running;
        if let Some(allocator) = first.iter().chain(&*others).find(|allocator| allocator.stands_for(base)) {
            return Arc::clone(allocator) as Arc<dyn Allocator>;
        }
        let allocator = self.tracker.books.take_allocator(base, *owner);
        match first {
            None => *first = Some(Arc::clone(&allocator)),
            Some(_) => others.push(Arc::clone(&allocator)),
        }
        allocator
    }
}

impl Drop for OpRun<'_> {
    #[inline]
    fn drop(&mut self) {
        self.end_if_begun();
    }
}

impl OpRun<'_> {
    #[inline(always)]
    fn end_if_begun(&mut self) {
        if !matches!(self.part, Part::Idle) {
            self.end();
        }
    }

    fn end(&mut self) {
        let handle = self.handle.take();
        let execution = match std::mem::replace(&mut self.part, Part::Idle) {
            Part::Whole(frame) => frame.leave(),
            Part::Held { execution, nested: false } => Some(execution),
            Part::Held { nested: true, .. } | Part::Idle => None,
        };
        if let Some(execution) = execution {
            self.tracker.finish(execution, handle);
        }
    }
}

#[cfg(test)]
mod tests;
