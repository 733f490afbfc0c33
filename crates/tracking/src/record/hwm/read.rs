//! Reads complete recordings. The reader checks every figure, because a file may contain anything.

use std::io::{self, Read};

use highwater_files::FileKind;
use highwater_files::lean::HeldMemory;

use super::{BlockReader, Piece};
use crate::record::builder::{BlockProblem, Builder, RecordingLimits};
use crate::record::recording::Recording;
use crate::report::RunFacts;

/// A file that is not a recording.
#[derive(thiserror::Error)]
#[error("byte {offset}: {problem}")]
pub struct HwmError {
    /// The offset of the problem in bytes.
    pub offset: u64,
    /// The problem.
    pub problem: HwmProblem,
}

bfc_core::debug_as_message!(HwmError);

/// A problem in a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HwmProblem {
    /// The file could not be read.
    #[error(transparent)]
    Io(io::Error),
    /// The magic is wrong.
    #[error("not a recording: {}", found.map_or_else(|| "expected the first bytes of an .hwm file; `highwater replay` reads other traces".to_owned(), |kind| format!("{kind}; {}", kind.advice())))]
    NotHwm {
        /// The detected kind of file.
        found: Option<FileKind>,
    },
    /// This version of the format is not supported.
    #[error("version {found} of the format; this program reads version {known}")]
    UnknownVersion {
        /// The version of the file.
        found: u16,
        /// The supported version.
        known: u16,
    },
    /// The file is longer than the limit.
    #[error("more than {} of file", bfc_core::Bytes(*limit))]
    TooMuchInput {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The length of a block exceeds the limit.
    #[error("a block of {length} bytes exceeds the limit of {limit}")]
    BlockTooLong {
        /// The stated length.
        length: u32,
        /// The limit.
        limit: u32,
    },
    /// The checksum of a block is wrong.
    #[error("the block is damaged: its checksum is wrong")]
    Damaged,
    /// A block of an unknown kind must not be skipped.
    #[error("a block of the unknown kind {kind:#04x}")]
    UnknownBlock {
        /// The kind.
        kind: u8,
    },
    /// Facts are not at the beginning, or a block follows the summary.
    #[error("a block of this kind is not allowed here")]
    OutOfOrder,
    /// The JSON of the facts or of the summary is invalid.
    #[error(transparent)]
    Json(serde_json::Error),
    /// An event is invalid.
    #[error(transparent)]
    Events(#[from] BlockProblem),
}

impl Recording {
    /// Reads an `.hwm` file. If the file ends early, for example because its program was killed, reads up to the end.
    /// [`cut`](Self::cut) then names the place.
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
    /// An [`HwmError`] for a file that is not a recording, is damaged, contradicts itself or exceeds a limit.
    pub fn read(reader: impl Read, limits: &RecordingLimits) -> Result<Self, HwmError> {
        Self::read_within(reader, limits, 8).map(|(recording, _)| recording)
    }

    /// Reads an `.hwm` file with so many eighths of the memory limit. Also returns the bytes of the other eighths.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_within(
        mut reader: impl Read,
        limits: &RecordingLimits,
        eighths: u64,
    ) -> Result<(Self, u64), HwmError> {
        Self::read_from(&mut reader, limits, eighths)
    }

    /// As [`read_within`](Self::read_within). Not generic, so that it is compiled once and not in each crate that reads.
    fn read_from(
        reader: &mut dyn Read,
        limits: &RecordingLimits,
        eighths: u64,
    ) -> Result<(Self, u64), HwmError> {
        let mut blocks = BlockReader::new(reader, limits.input_bytes);
        let memory = HeldMemory::new(limits.held_bytes).with_eighths(eighths);
        let mut builder = Builder::new(*limits, memory);
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
        let reserved = builder.memory().reserved();
        let mut recording = builder.finish();
        (recording.facts, recording.summary, recording.cut) = (facts, summary, cut);
        Ok((recording, reserved))
    }
}
