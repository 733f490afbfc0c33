//! Allocation traces: requests and frees in order.
//!
//! The text format has one event per line. Sizes are requested bytes.
//!
//! ```text
//! # a comment, or a header such as
//! # peak_live_bytes: 4096
//! a ID BYTES LABEL
//! a ID BYTES@ALIGNMENT LABEL
//! u ID START END
//! f ID
//! ```
//!
//! An allocation may require an alignment, a power of two. After `u`, an allocation occupies only its bytes from START
//! up to END, counted from its first byte, and lends the others. After `u ID 0 BYTES` it occupies all of them again. If
//! a `u` directly follows its `a`, the allocation never occupied the other bytes.
//!
//! An id names a live allocation. It may be used again after the free. A label names the origin of the request and
//! extends to the end of the line. Comments that begin with `mark:` name the part of the run that follows.
//!
//! [`Trace::read`] also reads the logs of other programs and detects their format from the first bytes. Each format has
//! a file in `formats/`. All readers accept untrusted files: they limit the memory that a file can use, and every
//! error names its place in the file.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};

mod builder;
mod error;
pub(crate) mod formats;
mod json;
mod limits;
pub(crate) mod lines;
pub(crate) mod profile;
mod read;
mod run;
pub(crate) mod snapshot;

use builder::Builder;
pub use error::{CompressedProblem, TraceError, TracePlace, TraceProblem};
use highwater_tracking::{BlockLife, Cut, EventKind, Recording};
pub use limits::TraceLimits;
pub use profile::ProfileProblem;
pub use read::ReadOptions;
pub use run::read_recording;
pub use snapshot::{
    Annotation, BlockState, PendingFree, RunFile, SegmentBlock, Snapshot, SnapshotProblem, SnapshotSegment,
    StreamName, read_run,
};

/// One event of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceEvent {
    /// Allocates block number `block`.
    Alloc {
        /// The block's number in the trace, counted from 0.
        block: u32,
        /// Requested bytes.
        bytes: u64,
        /// The label's index in [`Trace::labels`].
        label: u32,
        /// The alignment of the block's address, a power of two; 1 without a requirement.
        alignment: u32,
    },
    /// Frees block number `block`.
    Free {
        /// The block's number.
        block: u32,
    },
    /// Changes the occupied bytes of block number `block`. Only offline packers write such traces; a pool cannot lend
    /// the other bytes.
    Occupy {
        /// The block's number.
        block: u32,
        /// The first occupied byte, counted from the start of the block.
        start: u64,
        /// The byte after the last occupied one; `start` if there is none.
        end: u64,
    },
}

/// A comment line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceComment {
    /// The number of events before it.
    pub position: usize,
    /// The text after `#` and one space.
    pub text: String,
}

impl TraceComment {
    /// Returns the text of a mark, which has the form `mark: text`.
    #[must_use]
    pub fn mark(&self) -> Option<&str> {
        self.text.strip_prefix("mark:").map(str::trim)
    }
}

/// A consistent trace: every free has a live block, and live bytes fit into 64 bits.
///
/// ```
/// use highwater_traces::{Trace, TraceLimits};
/// let text = "# a small one\na 0 100 matmul\na 1 50 relu\nf 0\nf 1\n";
/// let trace = Trace::parse(text.as_bytes(), &TraceLimits::default())?;
/// assert_eq!(trace.peak_live_bytes(), 150);
/// let mut copy = Vec::new();
/// trace.write(&mut copy)?;
/// assert_eq!(copy, text.as_bytes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    events: Vec<TraceEvent>,
    labels: Vec<String>,
    comments: Vec<TraceComment>,
    /// The time of each event, if the format has times.
    times_ns: Vec<u64>,
    /// The stream of each event up to the last one with a stream other than 0.
    streams: Vec<u32>,
    peak_live_bytes: u64,
    granule: Option<u64>,
    skipped: Vec<String>,
    cut: Option<Cut>,
    /// Whether the labels are names of ops with their phases: those of a snapshot that Highwater exported.
    has_phases: bool,
}

impl Trace {
    /// Reads a trace from text. Renumbers the allocations in their order.
    ///
    /// # Errors
    /// A [`TraceError`] for the first line that is unreadable, malformed, inconsistent with earlier ones or beyond a
    /// limit.
    pub fn parse(reader: impl BufRead, limits: &TraceLimits) -> Result<Self, TraceError> {
        lines::parse(reader, limits, formats::text::parse_line)
    }

    /// Reads a trace of any format, plain or compressed by gzip, regardless of the file's name. Supports the formats
    /// of [`format_names`](Self::format_names): recordings, traces and heap profiles of PyTorch and many other tools.
    ///
    /// A log may contain a block without its allocation. The trace allocates such a block at the beginning. In logs
    /// without names, labels contain the available information: the line of Python, the thread and the stream, or the
    /// buffer's name.
    ///
    /// ```
    /// use highwater_traces::{ReadOptions, Trace};
    /// let csv = "id,lower,upper,size\nweights,0,9,400\nhidden,2,5,100\n";
    /// let trace = Trace::read(csv.as_bytes(), &ReadOptions::default())?;
    /// assert_eq!((trace.events().len(), trace.peak_live_bytes()), (4, 500));
    /// # Ok::<(), highwater_traces::TraceError>(())
    /// ```
    ///
    /// # Errors
    /// A [`TraceError`] for the first place where the file is unreadable, malformed, inconsistent or beyond a limit.
    pub fn read(reader: impl BufRead, options: &ReadOptions) -> Result<Self, TraceError> {
        read::read(reader, options)
    }

    /// Returns the names of the formats that [`read`](Self::read) supports.
    ///
    /// ```
    /// assert!(highwater_traces::Trace::format_names().contains(&"an RMM log"));
    /// ```
    #[must_use]
    pub fn format_names() -> Vec<&'static str> {
        formats::names()
    }

    /// Converts a recording to a trace. Labels are the owners' paths. Marks become comments `mark: text`, up to the
    /// limit on comments. Blocks that are live at the end stay live.
    ///
    /// # Errors
    /// A [`TraceProblem`] for a recording beyond [`TraceLimits::default`].
    pub fn from_recording(recording: &Recording) -> Result<Self, TraceProblem> {
        // The recording is already in memory and larger than its trace.
        let limits = TraceLimits { held_bytes: u64::MAX, ..TraceLimits::default() };
        Self::from_recording_within(recording, &limits)
    }

    /// Converts groups of a recording's blocks to traces, for example by pool, by stream or by module. `group_of`
    /// returns the group of a block, counted from 0, or `None` to skip it. The largest group determines the number of
    /// traces. Each trace has all marks.
    ///
    /// # Errors
    /// As [`from_recording`](Self::from_recording). The limits apply to each trace.
    pub fn of_groups(
        recording: &Recording,
        limits: &TraceLimits,
        group_of: impl FnMut(&BlockLife) -> Option<u16>,
    ) -> Result<Vec<Self>, TraceProblem> {
        Ok(Self::groups_and_marks(recording, limits, group_of)?.0)
    }

    /// As [`of_groups`](Self::of_groups), with a trace of the marks alone.
    fn groups_and_marks(
        recording: &Recording,
        limits: &TraceLimits,
        mut group_of: impl FnMut(&BlockLife) -> Option<u16>,
    ) -> Result<(Vec<Self>, Self), TraceProblem> {
        let mut builders: Vec<Builder> = Vec::new();
        // The marks so far, for groups whose first block comes later.
        let mut marked = Builder::new(*limits);
        let mut labels: HashMap<u32, String> = HashMap::new();
        let mut groups = vec![None; recording.blocks().len()];
        for event in recording.events() {
            match event.kind {
                EventKind::Alloc(number) => {
                    let block = recording.block(number);
                    let Some(group) = group_of(block).map(usize::from) else { continue };
                    groups[number as usize] = Some(group);
                    if group >= builders.len() {
                        builders.resize_with(group + 1, || marked.clone());
                    }
                    let label = || recording.owner_label(block.owner);
                    let label = labels.entry(block.owner).or_insert_with(label);
                    builders[group].alloc(number.into(), block.requested, 1, label)?;
                    builders[group].set_stream(block.stream)?;
                }
                EventKind::Free(number) => {
                    if let Some(group) = groups[number as usize] {
                        builders[group].free(number.into())?;
                    }
                }
                EventKind::Mark(mark) => {
                    let text = &recording.marks()[mark as usize];
                    builders.iter_mut().chain([&mut marked]).for_each(|builder| builder.mark(text));
                }
                _ => {}
            }
        }
        let finish = |builder: Builder| Self { cut: recording.cut().cloned(), ..builder.finish() };
        Ok((builders.into_iter().map(finish).collect(), finish(marked)))
    }

    /// Returns the bytes of memory that the trace holds.
    fn held_bytes(&self) -> u64 {
        let texts =
            self.labels.iter().chain(self.comments.iter().map(|comment| &comment.text)).chain(&self.skipped);
        let letters: usize = texts.map(String::capacity).sum();
        let rows = self.events.capacity() * size_of::<TraceEvent>()
            + self.times_ns.capacity() * size_of::<u64>()
            + self.streams.capacity() * size_of::<u32>()
            + self.labels.capacity() * size_of::<String>()
            + self.comments.capacity() * size_of::<TraceComment>();
        (letters + rows) as u64
    }

    fn from_recording_within(recording: &Recording, limits: &TraceLimits) -> Result<Self, TraceProblem> {
        let (mut traces, marks) = Self::groups_and_marks(recording, limits, |_| Some(0))?;
        Ok(traces.pop().unwrap_or(marks))
    }

    /// Writes the trace as text.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn write(&self, mut writer: impl Write) -> io::Result<()> {
        let mut comments = self.comments.iter().peekable();
        for (position, event) in self.events.iter().enumerate() {
            while let Some(comment) = comments.next_if(|comment| comment.position <= position) {
                writeln!(writer, "# {}", comment.text)?;
            }
            match *event {
                TraceEvent::Alloc { block, bytes, label, alignment: 1 } => {
                    writeln!(writer, "a {block} {bytes} {}", self.label(label))?;
                }
                TraceEvent::Alloc { block, bytes, label, alignment } => {
                    writeln!(writer, "a {block} {bytes}@{alignment} {}", self.label(label))?;
                }
                TraceEvent::Free { block } => writeln!(writer, "f {block}")?,
                TraceEvent::Occupy { block, start, end } => writeln!(writer, "u {block} {start} {end}")?,
            }
        }
        for comment in comments {
            writeln!(writer, "# {}", comment.text)?;
        }
        Ok(())
    }

    /// Returns the events in order.
    #[must_use]
    pub fn events(&self) -> &[TraceEvent] {
        &self.events
    }

    /// Returns the time of an event in nanoseconds since the first one; `None` if the file has no times. The text format
    /// does not contain them.
    #[must_use]
    pub fn time_ns(&self, event: usize) -> Option<u64> {
        self.times_ns.get(event).copied()
    }

    /// Returns the device stream of an allocation; 0 for the default stream, for other events, and in formats without
    /// streams. The text format does not contain them.
    #[must_use]
    pub fn stream(&self, event: usize) -> u32 {
        self.streams.get(event).copied().unwrap_or(0)
    }

    /// Returns the distinct labels, in the order of their first use.
    #[must_use]
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Returns the text of a label; empty for an unknown index.
    #[must_use]
    pub fn label(&self, index: u32) -> &str {
        self.labels.get(index as usize).map_or("", String::as_str)
    }

    /// Returns the comments in order.
    #[must_use]
    pub fn comments(&self) -> &[TraceComment] {
        &self.comments
    }

    /// Returns the marks: the number of events before each, and its text.
    pub fn marks(&self) -> impl Iterator<Item = (usize, &str)> {
        self.comments.iter().filter_map(|comment| Some((comment.position, comment.mark()?)))
    }

    /// Adds a comment before the first event as a header. Line breaks become spaces.
    pub fn add_header(&mut self, text: &str) {
        let text = text.replace(char::is_control, " ");
        let end = self.comments.iter().take_while(|comment| comment.position == 0).count();
        self.comments.insert(end, TraceComment { position: 0, text });
    }

    /// Returns the value of the first comment of the form `key: value`.
    #[must_use]
    pub fn header(&self, key: &str) -> Option<&str> {
        let values = self.comments.iter().filter_map(|comment| comment.text.split_once(':'));
        values.filter(|(name, _)| name.trim() == key).map(|(_, value)| value.trim()).next()
    }

    /// Returns where and why the source recording ended early; `None` for a complete one and for other formats. The
    /// text format does not contain it.
    #[must_use]
    pub const fn cut(&self) -> Option<&Cut> {
        self.cut.as_ref()
    }

    /// Returns the granularity of offsets in a packing for these blocks, if the file defines it. It is 1 for a
    /// problem of MiniMalloc, whose sizes are exact. The text format does not contain it.
    #[must_use]
    pub const fn granule(&self) -> Option<u64> {
        self.granule
    }

    /// Returns descriptions of the file's parts that the trace omits, such as unknown columns. The text format does not
    /// contain them.
    #[must_use]
    pub fn skipped(&self) -> &[String] {
        &self.skipped
    }

    /// Returns the peak of requested bytes that are occupied. No pool can use less.
    #[must_use]
    pub const fn peak_live_bytes(&self) -> u64 {
        self.peak_live_bytes
    }
}

#[cfg(test)]
mod tests;
