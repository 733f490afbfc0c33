//! PyTorch's memory snapshots as data: the output of `torch.cuda.memory._dump_snapshot` as a pickle or as JSON, and the
//! list of segments that `torch.cuda.memory_snapshot` returns.
//!
//! ```text
//! pickle or JSON ── objects ──┬─ collect: blocks, stacks, steps in order
//!                             ├─ segments, annotations, settings
//!                             └─ compose: regions, granted bytes, streams, categories ── Recording
//! ```
//!
//! The list `device_traces` has a list of events for each device. It is a ring buffer, so its beginning may be missing:
//! blocks that are freed without an allocation, and blocks in `segments` that are live at the end without an event,
//! were live before. A block with only a requested free is in use on another stream, and stays live.

use std::io::BufRead;

use highwater_files::lean::HeldMemory;
use highwater_files::pickle::{self, Heap, PickleProblem, Value};
use highwater_tracking::Recording;

use super::formats::Reader;
use super::read::{self, Opened};
use super::{ReadOptions, Trace, TraceError, TraceLimits, TracePlace, TraceProblem, json};

mod annotations;
mod categories;
mod collect;
mod compose;
mod fields;
mod file;
mod frame;
mod labels;
mod place;
mod regions;
mod rounding;
mod segments;
mod settings;
mod stacks;
mod to_trace;

pub use annotations::Annotation;
pub(crate) use rounding::Rounding;
pub use segments::{BlockState, SegmentBlock, SnapshotSegment};

use collect::Collected;
use file::SnapshotFile;

/// The name of both forms in reports and errors.
pub(super) const NAME: &str = "a PyTorch snapshot";

/// The share of the memory limit for the objects of a snapshot, in eighths. The rest holds the data that is made of
/// them.
const OF_OBJECTS: u64 = 5;

/// A PyTorch memory snapshot of one device, read once.
///
/// Its [recording](Self::recording) holds what PyTorch's allocator did: addresses, granted bytes, segments, streams,
/// categories and times. Reports, comparisons, exports and replays of it work as on Highwater's own recordings.
///
/// ```
/// use highwater_traces::{BlockState, ReadOptions, Snapshot};
/// let json = br#"{"device_traces": [[
///     {"action": "segment_alloc", "addr": 4096, "size": 2097152, "stream": 0},
///     {"action": "alloc", "addr": 4096, "size": 1000, "stream": 0, "frames": []}]],
///   "segments": [{"address": 4096, "total_size": 2097152, "stream": 0, "segment_type": "small",
///     "blocks": [{"size": 1024, "requested_size": 1000, "state": "active_allocated"},
///                {"size": 2096128, "state": "inactive"}]}]}"#;
/// let snapshot = Snapshot::read(&json[..], &ReadOptions::default())?;
/// let block = snapshot.recording().block(0);
/// assert_eq!((block.requested, block.granted, block.address), (1000, 1024, 4096));
/// assert_eq!(snapshot.segments()[0].blocks[0].state, BlockState::Live);
/// assert!(snapshot.has_events() && !snapshot.lost_beginning());
/// # Ok::<(), highwater_traces::TraceError>(())
/// ```
#[derive(Debug)]
pub struct Snapshot {
    recording: Recording,
    device: u32,
    segments: Vec<SnapshotSegment>,
    annotations: Vec<Annotation>,
    settings: Vec<(String, String)>,
    streams: Vec<StreamName>,
    pending: Vec<PendingFree>,
    /// Descriptions of the parts that the recording lacks.
    skipped: Vec<String>,
    has_events: bool,
    lost_beginning: bool,
    /// The bytes of the memory limit that results may use besides the recording.
    left_bytes: u64,
    /// Whether Highwater wrote the file, so that labels are names of ops with their phases.
    is_exported: bool,
}

/// A stream of a recording: a CUDA stream, and the private pool that serves its requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StreamName {
    /// The CUDA stream, as PyTorch numbers it; 0 for the default stream.
    pub cuda_stream: u64,
    /// The id of a private pool, such as that of a CUDA graph; `(0, 0)` for the ordinary pools.
    pub pool: (u64, u64),
}

/// A block that the program freed while other streams used it (`record_stream`). It stays live until they are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PendingFree {
    /// The block, as an index into [`Recording::blocks`].
    pub block: u32,
    /// The event of the recording before which the program freed it; the number of events at the end.
    pub event: u32,
}

/// A file with the memory of a run.
#[derive(Debug)]
#[non_exhaustive]
#[expect(clippy::large_enum_variant, reason = "a command has one of them")]
pub enum RunFile {
    /// A PyTorch snapshot.
    Snapshot(Box<Snapshot>),
    /// A file of any other format.
    Recording(Recording),
}

impl RunFile {
    /// Returns the recording of the file.
    #[must_use]
    pub const fn recording(&self) -> &Recording {
        match self {
            Self::Snapshot(snapshot) => snapshot.recording(),
            Self::Recording(recording) => recording,
        }
    }
}

/// Reads a file of any format, as [`read_recording`](super::read_recording), and keeps PyTorch snapshots as snapshots.
///
/// # Errors
/// As [`read_recording`](super::read_recording).
pub fn read_run(reader: impl BufRead, options: &ReadOptions) -> Result<RunFile, TraceError> {
    read::open(reader, options, |opened| match opened.format.reader {
        Reader::Snapshot(read) => Ok(RunFile::Snapshot(Box::new(read(opened.reader, options, 8)?))),
        _ => super::run::recording_of(opened, options).map(RunFile::Recording),
    })
}

/// The reason why a snapshot cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotProblem {
    /// A value has another type than in snapshots.
    #[error("{what} is missing, or not {expected}")]
    Shape {
        /// The value.
        what: &'static str,
        /// The expected type.
        expected: &'static str,
    },
    /// No events were recorded.
    #[error("no allocations were recorded{}: was recording switched on (_record_memory_history)?", of_device(*.device))]
    NoEvents {
        /// The requested device, if any.
        device: Option<u32>,
    },
    /// Several devices have events, and none was requested.
    #[error("events of {count} devices ({first}, {second}{}): choose one with --device", if *.count > 2 { ", ..." } else { "" })]
    SeveralDevices {
        /// The number of devices with events.
        count: usize,
        /// The first one.
        first: u32,
        /// The second one.
        second: u32,
    },
    /// The file ends within the snapshot.
    #[error(
        "the file ends too early: copy it again, or write it again with torch.cuda.memory._dump_snapshot() and enough \
         space on the disk"
    )]
    Truncated,
    /// The file has another format.
    #[error("{format}, where a PyTorch snapshot is expected")]
    OtherFormat {
        /// The detected format, with its article.
        format: &'static str,
    },
}

fn of_device(device: Option<u32>) -> String {
    device.map_or_else(String::new, |device| format!(" for device {device}"))
}

impl Snapshot {
    /// Reads a snapshot, plain or compressed by gzip.
    ///
    /// # Errors
    /// A [`TraceError`] for the first place where the file is unreadable, malformed, inconsistent or beyond a limit. A
    /// file of another format is a [`SnapshotProblem::OtherFormat`].
    pub fn read(reader: impl BufRead, options: &ReadOptions) -> Result<Self, TraceError> {
        read::open(reader, options, |Opened { format, reader, .. }| match format.reader {
            Reader::Snapshot(read) => read(reader, options, 8),
            _ => Err(TracePlace::Byte(0).of(SnapshotProblem::OtherFormat { format: format.name })),
        })
    }

    /// Reads a snapshot in a pickle.
    /// The recording may use `eighths` of the memory limit.
    pub(super) fn read_pickle(
        reader: &mut dyn BufRead,
        options: &ReadOptions,
        eighths: u64,
    ) -> Result<Self, TraceError> {
        let memory = HeldMemory::new(options.limits.held_bytes).with_eighths(OF_OBJECTS);
        let (heap, root) = pickle::read_counted(reader, memory).map_err(|error| match error.problem {
            PickleProblem::Truncated => TracePlace::Byte(error.offset).of(SnapshotProblem::Truncated),
            _ => error.into(),
        })?;
        Self::of(heap, root, options, eighths)
    }

    /// Reads a snapshot in JSON, as Highwater exports it.
    pub(super) fn read_json(
        reader: &mut dyn BufRead,
        options: &ReadOptions,
        eighths: u64,
    ) -> Result<Self, TraceError> {
        let memory = HeldMemory::new(options.limits.held_bytes).with_eighths(OF_OBJECTS);
        let (heap, root) = json::read(reader, memory)?;
        Self::of(heap, root, options, eighths)
    }

    /// Converts the objects of a file.
    fn of(heap: Heap, root: Value, options: &ReadOptions, eighths: u64) -> Result<Self, TraceError> {
        let of_snapshot = |problem: TraceProblem| TracePlace::Snapshot.of(problem);
        let file = SnapshotFile { heap: &heap, root };
        let device = file.device(options.device).map_err(|problem| TracePlace::Snapshot.of(problem))?;
        let limits = &options.limits;
        let mut memory = HeldMemory::new(heap.reserved());
        let mut segments = segments::read(&file, device.number, limits, &mut memory).map_err(of_snapshot)?;
        let marks = annotations::read(&file, device.number, limits, &mut memory).map_err(of_snapshot)?;
        let collected = Collected::read(&heap, &device, &segments, limits, memory)?;
        if collected.is_empty() && segments.list.is_empty() && !file.is_list() {
            return Err(TracePlace::Snapshot.of(SnapshotProblem::NoEvents { device: options.device }));
        }
        let has_events = !device.events.is_empty();
        let mut snapshot = Self {
            recording: Recording::default(),
            device: device.number,
            segments: Vec::new(),
            annotations: Vec::new(),
            settings: settings::read(&file),
            streams: Vec::new(),
            pending: Vec::new(),
            skipped: if has_events { Vec::new() } else { vec![NO_EVENTS.to_owned()] },
            has_events,
            lost_beginning: false,
            left_bytes: 0,
            is_exported: file.is_exported(),
        };
        // The objects are gone before the recording needs their memory.
        let memory = heap.into_memory().with_eighths(eighths);
        let first_us = collected.first_us();
        snapshot
            .compose(collected, &mut segments, limits, memory)
            .map_err(|problem| TracePlace::Recording.of(problem))?;
        snapshot.segments = segments.list;
        snapshot.annotations = annotations::matched(marks, &snapshot.recording, first_us);
        Ok(snapshot)
    }

    /// Returns what PyTorch's allocator did: addresses, granted bytes, regions, streams, categories and times.
    ///
    /// Regions and blocks that are older than the first event come first, at time 0. A block is granted the bytes of
    /// PyTorch's block: the rounded request, and the rest of the free block that was too small to split off.
    #[must_use]
    pub const fn recording(&self) -> &Recording {
        &self.recording
    }

    /// Returns the recording alone.
    #[must_use]
    pub fn into_recording(self) -> Recording {
        self.recording
    }

    /// Returns the trace of requested bytes, with the streams of requests.
    ///
    /// # Errors
    /// A [`TraceProblem`] for a snapshot beyond a limit.
    pub fn to_trace(&self, options: &ReadOptions) -> Result<Trace, TraceProblem> {
        to_trace::trace_of(self, TraceLimits { held_bytes: self.left_bytes, ..options.limits })
    }

    /// Returns the device of the events.
    #[must_use]
    pub const fn device(&self) -> u32 {
        self.device
    }

    /// Returns the segments at the end, in the order of the file, which is that of their addresses.
    #[must_use]
    pub fn segments(&self) -> &[SnapshotSegment] {
        &self.segments
    }

    /// Returns the calls of `record_function`, in the order of their begin.
    #[must_use]
    pub fn annotations(&self) -> &[Annotation] {
        &self.annotations
    }

    /// Returns the settings of the allocator by PyTorch's names in `allocator_settings`.
    #[must_use]
    pub fn settings(&self) -> &[(String, String)] {
        &self.settings
    }

    /// Returns the settings in the syntax of `PYTORCH_CUDA_ALLOC_CONF`; `None` for a file without settings. Empty for
    /// the defaults.
    #[must_use]
    pub fn alloc_conf(&self) -> Option<String> {
        settings::alloc_conf(&self.settings)
    }

    /// Returns the streams by their numbers in the recording. The first is the default stream.
    #[must_use]
    pub fn streams(&self) -> &[StreamName] {
        &self.streams
    }

    /// Returns the blocks that waited for other streams after their free, in the order of their frees.
    #[must_use]
    pub fn pending(&self) -> &[PendingFree] {
        &self.pending
    }

    /// Returns how the allocator rounds requests.
    pub(crate) fn rounding(&self) -> Rounding {
        settings::rounding(&self.settings)
    }

    /// Returns whether the file has events. Otherwise the recording consists of the blocks that are live at the end.
    #[must_use]
    pub const fn has_events(&self) -> bool {
        self.has_events
    }

    /// Returns whether blocks or segments are older than the first event: recording began late, or the buffer of events
    /// was too small.
    #[must_use]
    pub const fn lost_beginning(&self) -> bool {
        self.lost_beginning
    }

    /// Returns descriptions of the parts that the recording lacks, and how to record them.
    #[must_use]
    pub fn skipped(&self) -> &[String] {
        &self.skipped
    }
}

/// The missing part of a snapshot without events, such as a list of segments.
const NO_EVENTS: &str = "all events: the file contains only the blocks live at that moment; call \
    torch.cuda.memory._record_memory_history() first, and write the file with torch.cuda.memory._dump_snapshot()";
