//! Tools for allocation traces: readers of other tools' files, exporters, replays and packings.
//!
//! A [`Recording`](highwater_tracking::Recording) or the file of another tool becomes a [`Trace`]: requests and frees in
//! order. A trace can be [replayed](replay) through any allocator, and [packed](packing_of) for the steps that follow.
//! [`read_recording`] reads the same files as recordings, with the owners of all blocks, for reports and comparisons.
//! [`export`] writes recordings in the formats of other tools.
//!
//! ```
//! use std::sync::Arc;
//! use bfc_core::{AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, PackingOptions, Request};
//! use highwater_traces::{ExportFormat, Step, Trace, export, packing_of, replay};
//! use highwater_tracking::Tracker;
//!
//! let pool = |name: &str| -> Arc<dyn Allocator> {
//!     Arc::new(BfcAllocator::new(name, Arc::new(AddressOnlyMemory::new()), BfcConfig::new(Bytes::mib(1))))
//! };
//! let (tracker, cpu) = (Tracker::new(), pool("cpu"));
//! tracker.start_log(Bytes::mib(1));
//! for _ in 0..2 {
//!     let run = tracker.begin("matmul");
//!     let _scratch = Allocation::new(&run.track(&cpu), &Request::new(3000))?;
//!     let _result = Allocation::new(&run.track(&cpu), &Request::new(1000))?;
//! }
//! let recording = tracker.take_log();
//!
//! // What would another pool need, and what a packing of one step?
//! let trace = Trace::from_recording(&recording)?;
//! assert_eq!(trace.peak_live_bytes(), 4000);
//! assert_eq!(replay(&trace, &*pool("what-if"))?.peak_in_use, 3072 + 1024);
//! let packing = packing_of(&trace, &Step::Repeating, &PackingOptions::default(), &mut |_| true)?;
//! assert_eq!((packing.blocks().len(), packing.capacity()), (2, 4096));
//!
//! let mut chrome = Vec::new();
//! export(&recording, ExportFormat::Chrome, &mut chrome)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! All readers accept untrusted files: they limit their memory, and every error names its place in the file.

mod export;
#[doc(hidden)]
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod replay;
mod snapshot;
mod trace;

pub use export::{ExportError, ExportFormat, export};
pub use replay::{NoPacking, ReplayError, ReplaySummary, Replayer, Step, find_step, packing_of, replay};
pub use snapshot::{
    AllocatorReport, AnnotationRow, FreeBytes, GapCauses, GapMoment, MemoryLevel, SegmentKeeper,
    SettingsAdvice, SettingsRow, SingleBlockSegments, SnapshotReport, StreamMemory, setting_variations,
};
pub use trace::{
    Annotation, BlockState, CompressedProblem, PendingFree, ProfileProblem, ReadOptions, RunFile,
    SegmentBlock, Snapshot, SnapshotProblem, SnapshotSegment, StreamName, Trace, TraceComment, TraceError,
    TraceEvent, TraceLimits, TracePlace, TraceProblem, read_recording, read_run,
};

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
