//! Allocation traces as text: what was asked for and given back, in order.
//!
//! One event a line, sizes in bytes as asked for:
//!
//! ```text
//! # a comment, or a header such as
//! # peak_live_bytes: 4096
//! a ID BYTES LABEL
//! f ID
//! ```
//!
//! An id names a live allocation; it may be used again once that is freed. A label says who asked, and goes to the end
//! of the line. The reader takes text from anywhere: it bounds what a file can make it hold, and names the line of
//! everything it refuses.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};

use bfc_core::OwnerId;

use crate::log::{Event, EventLog};

pub(crate) mod lines;
mod parse;

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
    },
    /// The end of allocation number `block`.
    Free {
        /// The allocation's number.
        block: u32,
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

/// How large a trace may be. The defaults take hours of training; a hostile trace within them holds some GiB of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceLimits {
    /// The longest line, in bytes.
    pub line_bytes: usize,
    /// Most events.
    pub events: u32,
    /// Most different labels.
    pub labels: u32,
    /// Most comment lines.
    pub comments: u32,
}

impl Default for TraceLimits {
    fn default() -> Self {
        Self { line_bytes: 4096, events: 20_000_000, labels: 1 << 16, comments: 1 << 16 }
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
}

/// Text that is not a trace.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct TraceError {
    /// The line's number, from 1 upward.
    pub line: u64,
    /// What is wrong with it.
    #[source]
    pub problem: TraceProblem,
}

/// What is wrong with an event or with a line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceProblem {
    /// The text could not be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The line is longer than the limit.
    #[error("longer than {limit} bytes")]
    LineTooLong {
        /// The limit.
        limit: usize,
    },
    /// The line is not text.
    #[error("not UTF-8")]
    NotUtf8,
    /// The line is none of the three forms.
    #[error("expected `a ID BYTES LABEL`, `f ID` or `# comment`, found {found:?}")]
    Malformed {
        /// The line's beginning.
        found: String,
    },
    /// An id or a size is not a whole number of 64 bits.
    #[error("{found:?} is not a whole number below 2^64")]
    BadNumber {
        /// What stands there.
        found: String,
    },
    /// An allocation bears the id of a live one.
    #[error("allocation {id} is live already")]
    IdInUse {
        /// The id.
        id: u64,
    },
    /// A free bears an id that no live allocation has.
    #[error("no allocation {id} is live")]
    UnknownId {
        /// The id.
        id: u64,
    },
    /// Live bytes leave 64 bits.
    #[error("live bytes exceed 2^64")]
    TooManyBytes,
    /// More events than the limit.
    #[error("more than {limit} events")]
    TooManyEvents {
        /// The limit.
        limit: u32,
    },
    /// More labels than the limit.
    #[error("more than {limit} different labels")]
    TooManyLabels {
        /// The limit.
        limit: u32,
    },
    /// More comments than the limit.
    #[error("more than {limit} comments")]
    TooManyComments {
        /// The limit.
        limit: u32,
    },
}

impl Trace {
    /// Reads a trace from text. Allocations are numbered anew, in their order.
    ///
    /// # Errors
    /// A [`TraceError`] for the first line that cannot be read, is malformed, contradicts earlier ones or exceeds a
    /// limit.
    pub fn parse(reader: impl BufRead, limits: &TraceLimits) -> Result<Self, TraceError> {
        parse::parse(reader, limits)
    }

    /// The trace of a recorded log; labels are the owners' paths. The blocks still live at the end stay so.
    ///
    /// # Errors
    /// A [`TraceProblem`] for a log that was not made by a tracker and contradicts itself, or is beyond
    /// [`TraceLimits::default`].
    pub fn from_log(log: &EventLog) -> Result<Self, TraceProblem> {
        let mut builder = Builder::new(TraceLimits::default());
        let mut labels: HashMap<OwnerId, String> = HashMap::new();
        for event in &log.events {
            match *event {
                Event::Alloc { id, requested, owner, .. } => {
                    let label = labels.entry(owner).or_insert_with(|| label_of(owner));
                    builder.alloc(id, requested, label)?;
                }
                Event::Free { id } => builder.free(id)?,
            }
        }
        Ok(builder.trace)
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
                TraceEvent::Alloc { block, bytes, label } => {
                    writeln!(writer, "a {block} {bytes} {}", self.label(label))?;
                }
                TraceEvent::Free { block } => writeln!(writer, "f {block}")?,
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

    /// The most bytes, as asked for, that are live at a time: no pool can do with less.
    #[must_use]
    pub const fn peak_live_bytes(&self) -> u64 {
        self.peak_live_bytes
    }
}

/// The longest label made from a path, in letters of up to 4 bytes: a line with it is within the default limit.
const MAX_LABEL: usize = 1000;

/// An owner as a label: one word of the trace's text, never empty.
fn label_of(owner: OwnerId) -> String {
    let path = owner.path();
    if path.is_empty() {
        return "unowned".to_owned();
    }
    let word = |letter: char| if letter.is_control() || letter.is_whitespace() { '_' } else { letter };
    path.chars().take(MAX_LABEL).map(word).collect()
}

/// Puts a trace together event by event, and checks each.
#[derive(Debug)]
struct Builder {
    limits: TraceLimits,
    trace: Trace,
    /// The number and size of each live allocation by its id.
    live: HashMap<u64, (u32, u64)>,
    live_bytes: u64,
    blocks: u32,
    labels: HashMap<String, u32>,
}

impl Builder {
    fn new(limits: TraceLimits) -> Self {
        Self {
            limits,
            trace: Trace::default(),
            live: HashMap::new(),
            live_bytes: 0,
            blocks: 0,
            labels: HashMap::new(),
        }
    }

    fn alloc(&mut self, id: u64, bytes: u64, label: &str) -> Result<(), TraceProblem> {
        if self.live.contains_key(&id) {
            return Err(TraceProblem::IdInUse { id });
        }
        let live_bytes = self.live_bytes.checked_add(bytes).ok_or(TraceProblem::TooManyBytes)?;
        let label = self.label(label)?;
        let block = self.blocks;
        self.push(TraceEvent::Alloc { block, bytes, label })?;
        // Events are at least as many as blocks, and their limit has 32 bits.
        self.blocks += 1;
        self.live.insert(id, (block, bytes));
        self.live_bytes = live_bytes;
        self.trace.peak_live_bytes = self.trace.peak_live_bytes.max(live_bytes);
        Ok(())
    }

    fn free(&mut self, id: u64) -> Result<(), TraceProblem> {
        let (block, bytes) = *self.live.get(&id).ok_or(TraceProblem::UnknownId { id })?;
        self.push(TraceEvent::Free { block })?;
        self.live.remove(&id);
        self.live_bytes -= bytes;
        Ok(())
    }

    fn comment(&mut self, text: &str) -> Result<(), TraceProblem> {
        let limit = self.limits.comments;
        if self.trace.comments.len() >= limit as usize {
            return Err(TraceProblem::TooManyComments { limit });
        }
        let position = self.trace.events.len();
        self.trace.comments.push(TraceComment { position, text: text.to_owned() });
        Ok(())
    }

    fn push(&mut self, event: TraceEvent) -> Result<(), TraceProblem> {
        let limit = self.limits.events;
        if self.trace.events.len() >= limit as usize {
            return Err(TraceProblem::TooManyEvents { limit });
        }
        self.trace.events.push(event);
        Ok(())
    }

    fn label(&mut self, text: &str) -> Result<u32, TraceProblem> {
        if let Some(&label) = self.labels.get(text) {
            return Ok(label);
        }
        let limit = self.limits.labels;
        match u32::try_from(self.trace.labels.len()) {
            Ok(label) if label < limit => {
                self.trace.labels.push(text.to_owned());
                self.labels.insert(text.to_owned(), label);
                Ok(label)
            }
            _ => Err(TraceProblem::TooManyLabels { limit }),
        }
    }
}

#[cfg(test)]
mod tests;
