//! Reads complete recordings. A file may contain anything, so every figure in it is checked.

use std::io::{self, Read};

use super::{BlockReader, Piece};
use crate::files::FileKind;
use crate::record::builder::{BlockProblem, Builder, RecordingLimits};
use crate::record::recording::Recording;
use crate::report::RunFacts;

/// A file that is not a recording.
#[derive(Debug, thiserror::Error)]
#[error("byte {offset}: {problem}")]
pub struct HwmError {
    /// Where it goes wrong, in bytes from the beginning.
    pub offset: u64,
    /// What is wrong there.
    pub problem: HwmProblem,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HwmProblem {
    /// The file could not be read.
    #[error(transparent)]
    Io(io::Error),
    /// The file does not begin as recordings do.
    #[error("not a recording: {}", found.map_or_else(|| "expected the first bytes of an .hwm file; `highwater replay` reads other traces".to_owned(), |kind| format!("{kind}; {}", kind.advice())))]
    NotHwm {
        /// What the file is, if that is known.
        found: Option<FileKind>,
    },
    /// The file was written by a version that this one does not know.
    #[error("version {found} of the format; this program reads version {known}")]
    UnknownVersion {
        /// The file's.
        found: u16,
        /// Ours.
        known: u16,
    },
    /// The file is longer than the limit.
    #[error("more than {} of file", bfc_core::Bytes(*limit))]
    TooMuchInput {
        /// The limit, in bytes.
        limit: u64,
    },
    /// A block says that it is longer than blocks are.
    #[error("a block of {length} bytes; none has more than {limit}")]
    BlockTooLong {
        /// What it says.
        length: u32,
        /// The most.
        limit: u32,
    },
    /// The contents of a block are not what was written.
    #[error("the block is damaged: its checksum does not fit")]
    Damaged,
    /// The kind of a block is unknown, and it says that it must not be skipped.
    #[error("a block of the unknown kind {kind:#04x}")]
    UnknownBlock {
        /// The kind.
        kind: u8,
    },
    /// Facts stand elsewhere than at the beginning, or something stands after the summary.
    #[error("a block stands where none of its kind may stand")]
    OutOfOrder,
    /// Facts or summary are not the JSON that they should be.
    #[error(transparent)]
    Json(serde_json::Error),
    /// An event cannot be what was recorded.
    #[error(transparent)]
    Events(#[from] BlockProblem),
}

impl Recording {
    /// Reads an `.hwm` file. One that was cut off, as when its program was killed, is read up to the cut, and
    /// [`cut`](Self::cut) says where that is.
    ///
    /// ```no_run
    /// use highwater_tracking::{Recording, RecordingLimits};
    /// let file = std::fs::File::open("run.hwm")?;
    /// let recording = Recording::read(std::io::BufReader::new(file), &RecordingLimits::default())?;
    /// println!("{} events", recording.events().len());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// An [`HwmError`] for a file that is no recording, is damaged, contradicts itself or exceeds a limit.
    pub fn read(reader: impl Read, limits: &RecordingLimits) -> Result<Self, HwmError> {
        Self::read_within(reader, limits, 8).map(|(recording, _)| recording)
    }

    /// Reads an `.hwm` file with so many eighths of the memory that may be held. Also returns the bytes of the file.
    pub(crate) fn read_within(
        reader: impl Read,
        limits: &RecordingLimits,
        eighths: u64,
    ) -> Result<(Self, u64), HwmError> {
        let mut blocks = BlockReader::new(reader, limits.input_bytes);
        let mut builder = Builder::new(*limits).with_eighths(eighths);
        let (mut facts, mut summary) = (RunFacts::default(), None);
        while let Some(piece) = blocks.next()? {
            match piece {
                Piece::Events(block) => {
                    let added = builder.add(&block);
                    added.map_err(|(offset, problem)| blocks.error_in_last(offset, problem.into()))?;
                }
                Piece::Facts(json) => facts = blocks.parse(&json, |bytes| builder.charge_json(bytes))?,
                Piece::Summary(json) => {
                    summary = Some(blocks.parse(&json, |bytes| builder.charge_json(bytes))?);
                }
            }
        }
        let cut = blocks.cut()?;
        let offset = blocks.offset();
        builder.check_rows().map_err(|problem| HwmError { offset, problem: problem.into() })?;
        let mut recording = builder.finish();
        (recording.facts, recording.summary, recording.cut) = (facts, summary, cut);
        Ok((recording, offset))
    }
}
