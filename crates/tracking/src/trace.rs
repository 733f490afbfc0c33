//! Allocation traces: what was asked for and given back, in order.
//!
//! As text, one event a line, sizes in bytes as asked for:
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
//! An allocation may require an alignment, a power of two. After `u`, an allocation occupies only its bytes from START up
//! to END, counted from its first byte, and lends the others; after `u ID 0 BYTES` it occupies all of them again. If a `u`
//! directly follows its `a`, the allocation never occupied the other bytes.
//!
//! An id names a live allocation; it may be used again once that is freed. A label says who asked, and goes to the end
//! of the line. Comments that begin with `mark:` say what the events after them belong to.
//!
//! [`Trace::read`] also takes the logs of others, each in a file of its own below this one, and tells them apart by
//! their beginning. All readers take files from anywhere: they bound what a file can make them hold, and name the place
//! of everything they refuse.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};

use crate::record::{BlockLife, EventKind, Recording};
use crate::report::Cut;

mod builder;
mod error;
mod json;
mod limits;
pub(crate) mod lines;
mod minimalloc;
mod pickle;
mod read;
mod rmm;
mod snapshot;
mod text;

use builder::{Builder, MAX_LABEL};
pub use error::{CompressedProblem, TraceError, TracePlace, TraceProblem};
pub use limits::TraceLimits;
pub use pickle::{Pickle, PickleProblem, Value as PickleValue};
pub use read::ReadOptions;
pub use snapshot::SnapshotProblem;

/// One event of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// Allocation number `block`.
    Alloc {
        /// The allocation's number in the trace, from 0 upward.
        block: u32,
        /// Bytes asked for.
        bytes: u64,
        /// The label's index in [`Trace::labels`].
        label: u32,
        /// What the block's address must be a multiple of, a power of two; 1 if any address will do.
        alignment: u32,
    },
    /// The end of allocation number `block`.
    Free {
        /// The allocation's number.
        block: u32,
    },
    /// From here on, allocation number `block` occupies only some of its bytes. Only offline planners write such traces;
    /// a pool cannot lend the other bytes.
    Occupy {
        /// The allocation's number.
        block: u32,
        /// The first byte that it occupies, counted from the start of the block.
        start: u64,
        /// The byte after the last; `start` if it occupies none.
        end: u64,
    },
}

/// A comment line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceComment {
    /// How many events stand before it.
    pub position: usize,
    /// The text after `#` and one space.
    pub text: String,
}

impl TraceComment {
    /// The text of a mark, which has the form `mark: text`.
    #[must_use]
    pub fn mark(&self) -> Option<&str> {
        self.text.strip_prefix("mark:").map(str::trim)
    }
}

/// A trace that holds together: what is freed was live, and live bytes never leave 64 bits.
///
/// ```
/// use highwater_tracking::{Trace, TraceLimits};
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
    peak_live_bytes: u64,
    granule: Option<u64>,
    skipped: Vec<String>,
    cut: Option<Cut>,
}

impl Trace {
    /// Reads a trace from text. Allocations are numbered anew, in their order.
    ///
    /// # Errors
    /// A [`TraceError`] for the first line that cannot be read, is malformed, contradicts earlier ones or exceeds a
    /// limit.
    pub fn parse(reader: impl BufRead, limits: &TraceLimits) -> Result<Self, TraceError> {
        text::parse(reader, limits)
    }

    /// Reads a trace of any format, plain or compressed by gzip, whatever its file is called: lines and recordings (`.hwm`) of
    /// our own, PyTorch's `snapshot.pickle`, the log of RAPIDS Memory Manager, MiniMalloc's CSV.
    ///
    /// Blocks that such a log frees, or shows as live at its end, without having shown their allocation are allocated
    /// first. Where a log knows addresses alone, labels say what it tells of who asked: the line of Python, the thread and
    /// the stream, the buffer's name.
    ///
    /// ```
    /// use highwater_tracking::{ReadOptions, Trace};
    /// let csv = "id,lower,upper,size\nweights,0,9,400\nhidden,2,5,100\n";
    /// let trace = Trace::read(csv.as_bytes(), &ReadOptions::default())?;
    /// assert_eq!((trace.events().len(), trace.peak_live_bytes()), (4, 500));
    /// # Ok::<(), highwater_tracking::TraceError>(())
    /// ```
    ///
    /// # Errors
    /// A [`TraceError`] for the first place where the file cannot be read, is malformed, contradicts itself or exceeds a
    /// limit.
    pub fn read(reader: impl BufRead, options: &ReadOptions) -> Result<Self, TraceError> {
        read::read(reader, options)
    }

    /// The trace of a recording; labels are the owners' paths, and marks are comments `mark: text`, as long as there are not
    /// more of them than the limit on comments. The blocks still live at the end stay so.
    ///
    /// # Errors
    /// A [`TraceProblem`] for a recording that is beyond [`TraceLimits::default`].
    pub fn from_recording(recording: &Recording) -> Result<Self, TraceProblem> {
        // The recording is in memory already, and larger than its trace.
        let limits = TraceLimits { held_bytes: u64::MAX, ..TraceLimits::default() };
        Self::from_recording_within(recording, &limits)
    }

    /// The traces of groups of a recording's blocks: by pool, by stream, by module. `group_of` says of a block to which group it
    /// belongs, from 0 up, or `None` to leave it out; there are as many traces as the largest group says. Each has all marks.
    ///
    /// # Errors
    /// As [`from_recording`](Self::from_recording), with limits of one's own, which count for each trace.
    pub fn of_groups(
        recording: &Recording,
        limits: &TraceLimits,
        mut group_of: impl FnMut(&BlockLife) -> Option<u16>,
    ) -> Result<Vec<Self>, TraceProblem> {
        let mut builders: Vec<Builder> = Vec::new();
        // The marks so far, for groups that are still to come.
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
                    let path = || label_of(&recording.owner_path(block.owner));
                    let label = labels.entry(block.owner).or_insert_with(path);
                    builders[group].alloc(number.into(), block.requested, 1, label)?;
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
        Ok(builders.into_iter().map(finish).collect())
    }

    fn from_recording_within(recording: &Recording, limits: &TraceLimits) -> Result<Self, TraceProblem> {
        let trace = Self::of_groups(recording, limits, |_| Some(0))?.pop();
        Ok(trace.unwrap_or_else(|| Self { cut: recording.cut().cloned(), ..Self::default() }))
    }

    /// Writes the trace as text.
    ///
    /// # Errors
    /// Those of the writer.
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

    /// The events, in order.
    #[must_use]
    pub fn events(&self) -> &[TraceEvent] {
        &self.events
    }

    /// The different labels, in the order of their first use.
    #[must_use]
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// The text of a label; empty for an index that is not one of this trace.
    #[must_use]
    pub fn label(&self, index: u32) -> &str {
        self.labels.get(index as usize).map_or("", String::as_str)
    }

    /// The comments, in order.
    #[must_use]
    pub fn comments(&self) -> &[TraceComment] {
        &self.comments
    }

    /// The marks, as how many events stand before each and its text.
    pub fn marks(&self) -> impl Iterator<Item = (usize, &str)> {
        self.comments.iter().filter_map(|comment| Some((comment.position, comment.mark()?)))
    }

    /// Adds a comment before the first event, as a header; line breaks become spaces.
    pub fn add_header(&mut self, text: &str) {
        let text = text.replace(char::is_control, " ");
        let end = self.comments.iter().take_while(|comment| comment.position == 0).count();
        self.comments.insert(end, TraceComment { position: 0, text });
    }

    /// The value of the first comment of the form `key: value`.
    #[must_use]
    pub fn header(&self, key: &str) -> Option<&str> {
        let values = self.comments.iter().filter_map(|comment| comment.text.split_once(':'));
        values.filter(|(name, _)| name.trim() == key).map(|(_, value)| value.trim()).next()
    }

    /// Where and why the recording that it was made of could not be read further; `None` for a whole one, and for traces
    /// of other formats, which are read whole or not at all. Text does not keep it.
    #[must_use]
    pub const fn cut(&self) -> Option<&Cut> {
        self.cut.as_ref()
    }

    /// What a plan's places for these blocks are multiples of, if the file says so: 1 for a problem of MiniMalloc, whose
    /// sizes are exact. Text does not keep it.
    #[must_use]
    pub const fn granule(&self) -> Option<u64> {
        self.granule
    }

    /// What the file holds and the trace does not, such as a column of an unknown name. Text does not keep it.
    #[must_use]
    pub fn skipped(&self) -> &[String] {
        &self.skipped
    }

    /// The most bytes, as asked for, that are occupied at a time: no pool can do with less.
    #[must_use]
    pub const fn peak_live_bytes(&self) -> u64 {
        self.peak_live_bytes
    }
}

/// An owner's path as a label: one word of the trace's text, never empty.
fn label_of(path: &str) -> String {
    if path.is_empty() {
        return "unowned".to_owned();
    }
    let word = |letter: char| if letter.is_control() || letter.is_whitespace() { '_' } else { letter };
    path.chars().take(MAX_LABEL).map(word).collect()
}

#[cfg(test)]
mod tests;
