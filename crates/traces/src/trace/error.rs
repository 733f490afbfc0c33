//! Errors in traces, with their places.

use std::fmt;
use std::io;

use bfc_core::{Bytes, printable};
use highwater_files::FileKind;
use highwater_files::gzip::RatioExceeded;
use highwater_files::lean::TooMuchHeld;
use highwater_files::lines::LineProblem;
use highwater_files::pickle::{PickleError, PickleProblem};
use highwater_tracking::{BlockProblem, HwmError, HwmProblem};

use super::formats;
use super::profile::ProfileProblem;
use super::snapshot::SnapshotProblem;

/// A file that is not a trace.
#[derive(thiserror::Error)]
#[error("{place}: {problem}")]
pub struct TraceError {
    /// The place of the problem.
    pub place: TracePlace,
    /// The problem.
    pub problem: TraceProblem,
}

bfc_core::debug_as_message!(TraceError);

impl From<PickleError> for TraceError {
    fn from(error: PickleError) -> Self {
        TracePlace::Byte(error.offset).of(error.problem)
    }
}

impl From<HwmError> for TraceError {
    fn from(error: HwmError) -> Self {
        TracePlace::Byte(error.offset).of(error.problem)
    }
}

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TracePlace {
    /// A line, counted from 1.
    Line(u64),
    /// A byte of the decompressed file, counted from 0.
    Byte(u64),
    /// An event in a list of events, both counted from 0.
    Event {
        /// The device of the list.
        device: u32,
        /// Its index in the list.
        index: u64,
    },
    /// The complete memory snapshot.
    Snapshot,
    /// The complete recording.
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
    /// Returns the error of `problem` at this place.
    pub(super) fn of(self, problem: impl Into<TraceProblem>) -> TraceError {
        TraceError { place: self, problem: problem.into() }
    }
}

/// A problem with an event, a line or a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceProblem {
    /// The file could not be read or decompressed.
    #[error(transparent)]
    Io(io::Error),
    /// The compressed data is damaged or cut off.
    #[error("{0}")]
    Compressed(CompressedProblem),
    /// The file does not distinguish devices.
    #[error("device {device} was requested, but only {} distinguishes devices", formats::list(&formats::names_with_devices()))]
    NoDevices {
        /// The requested device.
        device: u32,
    },
    /// The file is longer than the limit.
    #[error("the file has more than {}, decompressed", Bytes(*limit))]
    TooMuchInput {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The compression ratio exceeds the limit.
    #[error("the decompressed file is more than {ratio} times larger")]
    TooCompressed {
        /// The limit on the ratio.
        ratio: u64,
    },
    /// The contents of the file need more memory than the limit.
    #[error("the contents of the file need more than {} of memory", Bytes(*limit))]
    TooMuchHeld {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The file has no bytes.
    #[error("the file is empty: write it again, and check that its disk has space")]
    Empty,
    /// The file is of another kind.
    #[error("not a trace: {kind}; {}", kind.advice())]
    WrongFile {
        /// The detected kind of file.
        kind: FileKind,
    },
    /// The file is not the JSON of a snapshot.
    #[error("not the JSON of a memory snapshot: {message}", message = printable(message))]
    Json {
        /// The problem.
        message: String,
    },
    /// The format is unknown.
    #[error(
        "not a trace: expected {}, found {found:?}; the lines of an allocation trace are `a ID BYTES LABEL` and `f ID`",
        formats::list(&formats::names())
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
    /// The line has another form than expected.
    #[error("expected {expected}, found {found:?}")]
    Malformed {
        /// The expected form.
        expected: &'static str,
        /// The line's beginning.
        found: String,
    },
    /// An id, a size or a time is not an integer of 64 bits.
    #[error("{found:?} is not an integer below 2^64")]
    BadNumber {
        /// The value.
        found: String,
    },
    /// The id of an allocation is already live.
    #[error("allocation {id} is already live")]
    IdInUse {
        /// The id.
        id: u64,
    },
    /// No allocation with the id of a free is live.
    #[error("no allocation {id} is live")]
    UnknownId {
        /// The id.
        id: u64,
    },
    /// A live allocation has the same address.
    #[error("the allocation at {address:#x} is already live")]
    AddressInUse {
        /// The address.
        address: u64,
    },
    /// The allocation at the address of a free was freed before.
    #[error("the allocation at {address:#x} was already freed")]
    FreedBefore {
        /// The address.
        address: u64,
    },
    /// An alignment is not a power of two below 2^32.
    #[error("the alignment of {bytes} bytes is not a power of two below 2^32")]
    BadAlignment {
        /// The alignment.
        bytes: u64,
    },
    /// A range of bytes exceeds its block.
    #[error("the range from {start} to {end} is not part of a block of {bytes} bytes")]
    BadRange {
        /// The first byte.
        start: u64,
        /// The byte after the last.
        end: u64,
        /// The bytes of the block.
        bytes: u64,
    },
    /// A gap of a lifetime overlaps the previous gap.
    #[error("the gap from {lower} to {upper} overlaps the gap before it, or is empty")]
    BadGap {
        /// Its first moment.
        lower: u64,
        /// The moment after its last.
        upper: u64,
    },
    /// A lifetime is empty.
    #[error("the lifetime from {lower} to {upper} is empty")]
    EmptyLifetime {
        /// Its first moment.
        lower: u64,
        /// The moment after its last.
        upper: u64,
    },
    /// Live bytes exceed 64 bits.
    #[error("live bytes exceed 2^64")]
    TooManyBytes,
    /// More events, labels, comments or idle lines than the limit.
    #[error("more than {limit} {what}")]
    TooMany {
        /// The limited quantity.
        what: &'static str,
        /// The limit.
        limit: u32,
    },
    /// The pickle cannot be read.
    #[error(transparent)]
    Pickle(PickleProblem),
    /// The recording cannot be read.
    #[error(transparent)]
    Recording(#[from] HwmProblem),
    /// The file is not a valid PyTorch snapshot.
    #[error(transparent)]
    Snapshot(#[from] SnapshotProblem),
    /// The file is not a valid heap profile.
    #[error(transparent)]
    Profile(#[from] ProfileProblem),
}

impl From<BlockProblem> for TraceProblem {
    fn from(problem: BlockProblem) -> Self {
        Self::Recording(problem.into())
    }
}

impl From<LineProblem> for TraceProblem {
    fn from(problem: LineProblem) -> Self {
        match problem {
            LineProblem::Io(error) => error.into(),
            LineProblem::TooLong { limit } => Self::LineTooLong { limit },
            LineProblem::BadNumber { found } => Self::BadNumber { found },
            _ => Self::NotUtf8,
        }
    }
}

impl From<PickleProblem> for TraceProblem {
    fn from(problem: PickleProblem) -> Self {
        match problem {
            PickleProblem::Io(error) => error.into(),
            PickleProblem::TooMuchHeld(problem) => problem.into(),
            problem => Self::Pickle(problem),
        }
    }
}

impl From<TooMuchHeld> for TraceProblem {
    fn from(TooMuchHeld { limit }: TooMuchHeld) -> Self {
        Self::TooMuchHeld { limit }
    }
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

/// A problem with compressed data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompressedProblem {
    /// The data ends too early.
    #[error("the compressed data ends too early: the file is truncated")]
    Truncated,
    /// The data contradicts itself or has another format.
    #[error("the compressed data is damaged: {message}", message = printable(message))]
    Damaged {
        /// The message of the decoder.
        message: String,
    },
}

impl CompressedProblem {
    /// Extracts the problem from an [`io::Error`] of the decompressor. Other read errors stay.
    pub(super) fn extract_from(error: io::Error) -> io::Error {
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

/// Passes the limit through [`io::Error`], the only error that a reader can return.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("more than {limit} bytes")]
pub(super) struct TooMuchInput {
    pub(super) limit: u64,
}
