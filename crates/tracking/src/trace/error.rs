//! What can be wrong with a trace, and where.

use std::fmt;
use std::io;

use bfc_core::Bytes;

use super::pickle::PickleProblem;
use super::snapshot::SnapshotProblem;
use crate::files::FileKind;
use crate::files::gzip::RatioExceeded;
use crate::record::HwmProblem;

/// A file that is not a trace.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct TraceError {
    /// Where it goes wrong.
    pub place: TracePlace,
    /// What is wrong there.
    pub problem: TraceProblem,
}

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TracePlace {
    /// A line, from 1 upward.
    Line(u64),
    /// A byte of the file, decompressed, from 0 upward.
    Byte(u64),
    /// An event in a list of events, both counted from 0.
    Event {
        /// The device whose list it is.
        device: u32,
        /// Its index in the list.
        index: u64,
    },
    /// A memory snapshot as a whole.
    Snapshot,
    /// A recording as a whole.
    Recording,
}

impl fmt::Display for TracePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Byte(offset) => write!(f, "byte {offset}"),
            Self::Event { device, index } => write!(f, "event {index} of device {device}"),
            Self::Snapshot => f.write_str("snapshot"),
            Self::Recording => f.write_str("recording"),
        }
    }
}

impl TracePlace {
    /// The error that `problem` is at this place.
    pub(super) fn of(self, problem: impl Into<TraceProblem>) -> TraceError {
        TraceError { place: self, problem: problem.into() }
    }
}

/// What is wrong with an event, a line or a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceProblem {
    /// The file could not be read or decompressed.
    #[error(transparent)]
    Io(io::Error),
    /// What is compressed in the file cannot be had.
    #[error("{0}")]
    Compressed(CompressedProblem),
    /// A device was asked for in a file that knows none.
    #[error("device {device} was asked for, and only PyTorch's snapshots distinguish devices")]
    NoDevices {
        /// The device asked for.
        device: u32,
    },
    /// The file is longer than the limit.
    #[error("the file has more than {}, decompressed", Bytes(*limit))]
    TooMuchInput {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The decompressed file is longer than its compressed bytes allow.
    #[error("the file is more than {ratio} times longer once decompressed")]
    TooCompressed {
        /// The limit on the ratio.
        ratio: u64,
    },
    /// What the file describes takes more memory than the limit.
    #[error("what the file holds takes more than {} of memory", Bytes(*limit))]
    TooMuchHeld {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The file is of another kind.
    #[error("not a trace: {kind}; {}", kind.advice())]
    WrongFile {
        /// Which one.
        kind: FileKind,
    },
    /// The file is not the JSON of a snapshot.
    #[error("not the JSON of a memory snapshot: {message}")]
    Json {
        /// What is wrong with it.
        message: String,
    },
    /// The beginning is not that of any format.
    #[error(
        "not a trace: expected `a ID BYTES LABEL` lines, a recording (.hwm), a PyTorch memory snapshot (pickle or JSON), an RMM \
         log (`Thread,Time,Action,...`) or MiniMalloc's CSV (`id,lower,upper,size`), found {found:?}"
    )]
    UnknownFormat {
        /// The beginning.
        found: String,
    },
    /// The line is longer than the limit.
    #[error("longer than {limit} bytes")]
    LineTooLong {
        /// The limit.
        limit: usize,
    },
    /// The line is not text.
    #[error("not UTF-8")]
    NotUtf8,
    /// The line does not have the form that all lines of this format have.
    #[error("expected {expected}, found {found:?}")]
    Malformed {
        /// The form.
        expected: &'static str,
        /// The line's beginning.
        found: String,
    },
    /// An id, a size or a time is not a whole number of 64 bits.
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
    /// An allocation lies where a live one does.
    #[error("the allocation at {address:#x} is live already")]
    AddressInUse {
        /// The address.
        address: u64,
    },
    /// A free names an address whose allocation was freed before.
    #[error("the allocation at {address:#x} was freed before")]
    FreedBefore {
        /// The address.
        address: u64,
    },
    /// An alignment is not a power of two of 32 bits.
    #[error("the alignment of {bytes} bytes is not a power of two below 2^32")]
    BadAlignment {
        /// The alignment.
        bytes: u64,
    },
    /// A range of bytes is not part of its block.
    #[error("the range from {start} to {end} is not part of a block of {bytes} bytes")]
    BadRange {
        /// The first byte.
        start: u64,
        /// The byte after the last.
        end: u64,
        /// The bytes of the block.
        bytes: u64,
    },
    /// A gap of a lifetime begins before the gap before it ends.
    #[error("the gap from {lower} to {upper} overlaps the gap before it, or is empty")]
    BadGap {
        /// Its first moment.
        lower: u64,
        /// The moment after its last.
        upper: u64,
    },
    /// A lifetime ends where it begins, or earlier.
    #[error("the lifetime from {lower} to {upper} is empty")]
    EmptyLifetime {
        /// Its first moment.
        lower: u64,
        /// The moment after its last.
        upper: u64,
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
    /// More lines without an event than the limit.
    #[error("more than {limit} lines without an event")]
    TooManyIdleLines {
        /// The limit.
        limit: u32,
    },
    /// The pickle cannot be read.
    #[error(transparent)]
    Pickle(#[from] PickleProblem),
    /// The recording cannot be read.
    #[error(transparent)]
    Recording(#[from] HwmProblem),
    /// The snapshot does not have the shape of PyTorch's.
    #[error(transparent)]
    Snapshot(#[from] SnapshotProblem),
}

impl From<io::Error> for TraceProblem {
    fn from(error: io::Error) -> Self {
        if let Some(&TooMuchInput { limit }) = error.get_ref().and_then(|inner| inner.downcast_ref()) {
            return Self::TooMuchInput { limit };
        }
        if let Some(RatioExceeded { ratio }) = RatioExceeded::of(&error) {
            return Self::TooCompressed { ratio };
        }
        match error.get_ref().and_then(|inner| inner.downcast_ref::<CompressedProblem>()) {
            Some(problem) => Self::Compressed(problem.clone()),
            None => Self::Io(error),
        }
    }
}

/// What is wrong with what gzip wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompressedProblem {
    /// It ends too early.
    #[error("the compressed data ends too early: the file is truncated")]
    Truncated,
    /// It contradicts itself, or was never what gzip writes.
    #[error("the compressed data is damaged: {message}")]
    Damaged {
        /// What the decoder said.
        message: String,
    },
}

impl CompressedProblem {
    /// What a failure to decompress means, carried through [`io::Error`]; a failure to read stays what it is.
    pub(super) fn told(error: io::Error) -> io::Error {
        let kind = error.kind();
        match kind {
            io::ErrorKind::UnexpectedEof => io::Error::new(kind, Self::Truncated),
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
                io::Error::new(kind, Self::Damaged { message: error.to_string() })
            }
            _ => error,
        }
    }
}

/// Carries the limit through [`io::Error`], which is all that a reader can return.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("more than {limit} bytes")]
pub(super) struct TooMuchInput {
    pub(super) limit: u64,
}
