//! Which op took which bytes: tracking allocators, scopes, high-water marks, reports, traces.
//!
//! Memory has two accounts, and each fact stands in exactly one of them:
//!
//! - **Who holds which bytes now** stands in the pool's [`Ledger`](bfc_core::Ledger), by owner and category, under the
//!   pool's own lock. An owner is a module path with an op and a phase below it, such as `net.fc1.matmul:backward`.
//! - **What an op did while it ran** (calls, bytes in total, the most it held at a time, what outlived it) stands in
//!   the [`TrackingAllocator`] of that one execution, and is added up by the [`Tracker`] when the op returns.
//!
//! A thread's place in the model is kept by guards ([`module`], [`phase`]), its running op by an [`OpRun`]. Both reach
//! worker threads only when handed over ([`capture`]). Tracking is always on, so it is cheap: opening an op's account takes
//! two small heap allocations, and counting an event takes one uncontended lock.
//!
//! ```
//! use std::sync::Arc;
//! use bfc_core::{Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Category, HostMemory, Request};
//! use highwater_tracking::{Phase, Report, Tracker, module, phase};
//!
//! let config = BfcConfig::new(Bytes::mib(1));
//! let pool: Arc<dyn Allocator> = Arc::new(BfcAllocator::new("cpu", Arc::new(HostMemory::new()), config));
//! let tracker = Tracker::new();
//!
//! // An op takes 4 KiB of scratch and returns a result of 1 KiB.
//! let run_op = |op| {
//!     let run = tracker.begin(op);
//!     let allocator = run.track(&pool);
//!     let _scratch = Allocation::new(&allocator, &Request::new(4096))?;
//!     Allocation::new(&allocator, &Request::new(1024).with_category(Category::Output))
//! };
//! let _net = module("net");
//! let result = {
//!     let _layer = module("fc1");
//!     run_op("matmul")?
//! };
//! let gradient = {
//!     let _backward = phase(Phase::Backward);
//!     run_op("matmul")?
//! };
//!
//! let report = Report::new(&tracker, std::slice::from_ref(&pool));
//! assert_eq!(report.ops.len(), 2);
//! assert_eq!((report.ops[0].high_water_bytes, report.ops[0].live_bytes), (5120, 1024));
//! assert_eq!(report.live_bytes(), pool.stats().bytes_in_use);
//! assert_eq!(report.peak.as_ref().unwrap().op.as_deref(), Some("matmul"));
//! println!("{report}");
//! # drop((result, gradient));
//! # Ok::<(), bfc_core::AllocError>(())
//! ```
//!
//! A request that runs out of memory fails with an [`OomReport`](bfc_core::OomReport), also as JSON and HTML
//! ([`oom_page`]). Callbacks may free memory before it fails ([`Tracker::last_resort`]), and a module may have a
//! [`Budget`].
//!
//! What passes through a tracker's ops can be recorded, in memory ([`Tracker::start_log`]) or into a file
//! ([`Tracker::start_recording`]). A [`Recording`] tells every live byte at every event. It can be written as a [`Trace`], and
//! [`replay`]ed through another allocator.

mod account;
mod export;
mod files;
#[doc(hidden)]
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod page;
mod record;
mod replay;
mod report;
mod scope;
#[cfg(test)]
mod test_pool;
mod trace;
mod training_log;

pub use account::{
    Budget, Context, ContextGuard, LimitedGuard, OpRun, OpTotals, Record, Sizes, ThreadTotals, Tracker,
    TrackingAllocator, capture,
};
pub use export::{ExportError, ExportFormat, UnknownExportFormat, export};
pub use files::{AtomicFile, FileKind, MemoryBound, UsableMemory, gzip};
pub use page::{oom_page, write_page, write_page_with_log};
pub use record::{
    BlockLife, BlockProblem, Event, EventKind, EventProblem, Execution, Failure, Follower, HwmError,
    HwmProblem, LiveBlock, Moment, Owner, Peak, PoolName, Recording, RecordingLimits, Region, Retag,
    RunSummary, Timeline, Written,
};
pub use replay::{
    NoPlan, PlanLimits, PlanTextError, PlanTextProblem, ReplayError, ReplaySummary, Replayer, Step,
    find_step, parse_plan, plan_of, replay, write_plan,
};
pub use report::{
    CategoryRow, Change, Cut, FailureRow, OpRow, PeakPart, PeakParts, PeakRow, PhaseRow, PoolRow,
    ProcessMemory, RecordedRun, Report, ReportDiff, ReportText, RunFacts, SavedRow, ScopeRow, StreamRow,
    TextOptions, ThreadRow, table,
};
pub use scope::{ModuleGuard, ModuleName, Phase, PhaseGuard, ScopeGuard, ScopePath, here, module, phase};
/// Python's pickles, read without calling anything.
pub mod pickle {
    pub use crate::trace::{Pickle, PickleProblem, PickleValue as Value};
}

pub use trace::{
    CompressedProblem, PickleProblem, ReadOptions, SnapshotProblem, Trace, TraceComment, TraceError,
    TraceEvent, TraceLimits, TracePlace, TraceProblem,
};
pub use training_log::{
    Curve, CurvePoint, NonFinite, TrainingLog, TrainingLogError, TrainingLogLimits, TrainingLogProblem,
};
