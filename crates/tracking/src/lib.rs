//! Memory accounting by op and module: tracking allocators, scopes, high-water marks, reports and recordings.
//!
//! Each fact about memory is stored exactly once:
//!
//! - **Live bytes by owner and category** are in the pool's [`Ledger`](bfc_core::Ledger), under the pool's own lock. An
//!   owner is an op in a phase, below a module path: `net.fc1.matmul:backward`.
//! - **The figures of one execution of an op** (calls, total bytes, high-water mark, outliving bytes) are in its
//!   [`TrackingAllocator`]. The [`Tracker`] adds them up when the op returns.
//!
//! Guards hold a thread's current scope ([`module`], [`phase`]) and its running op ([`OpRun`]). Worker threads receive
//! both through [`capture`]. Tracking is always on and cheap. An op reuses the account of a finished op if an
//! [`AccountedPool`] has one whose memory is all freed, and then makes no heap allocation. Otherwise it makes two small
//! ones. Counting an event takes an uncontended lock.
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
//! // An op allocates 4 KiB of scratch memory and returns a result of 1 KiB.
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
//! A request that runs out of memory fails with an [`OomReport`](bfc_core::OomReport), also available as JSON and HTML
//! ([`oom_page`]). Callbacks may free memory before it fails ([`Tracker::last_resort`]), and a module may have a
//! [`Budget`].
//!
//! A tracker records the events of its ops in memory ([`Tracker::start_log`]) or in a file
//! ([`Tracker::start_recording`]). A [`Recording`] describes every live byte at every event. It becomes a page
//! ([`write_page`]) and an allocation trace as text ([`write_trace`]). The crate `highwater-traces` exports and replays it.

mod account;
#[doc(hidden)]
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod heap;
mod page;
mod plan_chart;
mod record;
mod report;
mod scope;
mod tally;
#[cfg(test)]
mod test_pool;
mod training_log;

pub use bfc_core::{MemoryBound, UsableMemory};
pub use highwater_files::{
    AtomicFile, FileKind, PackingLimits, PackingTextError, PackingTextProblem, parse_packing, write_packing,
};

pub use account::{
    AccountedPool, Budget, Context, ContextGuard, LimitedGuard, OpRun, OpTotals, Record, ScopedAllocator,
    Sizes, ThreadTotals, Tracker, TrackingAllocator, capture, op_name,
};
pub use heap::{HeapFigures, TrackedSystem};
pub use page::{
    AllocatorFacts, CauseRow, GapRow, KeeperRow, ReplayedSettings, category_colors, oom_page, write_page,
    write_page_with_allocator, write_page_with_plans, write_plans_page,
};
pub use plan_chart::{PlanChart, PlanRow};
pub use record::{
    BlockLife, BlockProblem, Composer, Event, EventKind, EventProblem, Execution, Failure, Follower,
    HwmError, HwmProblem, LiveBlock, Moment, NewBlock, Owner, OwnerName, Peak, PlacedBlock, PoolName,
    Recording, RecordingLimits, Region, Retag, RunSummary, Timeline, Written, write_trace,
};
pub use report::{
    CategoryRow, Change, Cut, FailureRow, GrowthRow, HoldersText, LiveRow, MarkRow, OpRow, OutsideRow,
    PeakPart, PeakParts, PeakRow, PhaseRow, PoolRow, ProcessMemory, RankBytes, RankComparison, RankError,
    RankReport, RankRow, RanksText, RecordedRun, Report, ReportDiff, ReportText, RunFacts, SavedRow,
    ScopeRow, StreamRow, TextOptions, ThreadRow, table,
};
pub use scope::{
    ModuleGuard, ModulePath, Phase, PhaseGuard, Scope, ScopeGuard, ScopePath, enter_path, here, intern_path,
    module, phase,
};
pub use tally::CallTotals;
pub use training_log::{
    Curve, CurvePoint, NonFinite, TrainingLog, TrainingLogError, TrainingLogLimits, TrainingLogProblem,
};

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
