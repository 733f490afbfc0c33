//! Reading: everything is checked, and nothing is believed.

use std::io::{self, Read};

use serde::de::DeserializeOwned;

use super::{HEAD_BYTES, MAGIC, VERSION, checksum, kind, label, most_bytes};
use crate::files::FileKind;
use crate::record::builder::{BlockProblem, Builder, RecordingLimits};
use crate::record::recording::{Cut, Recording};

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
        let mut source = Source { reader, offset: 0, limit: limits.input_bytes };
        source.beginning()?;
        let mut builder = Builder::new(*limits).with_eighths(eighths);
        let (mut facts, mut summary) = (None, None);
        let cut = loop {
            let block = match source.block()? {
                Found::Block(block) => block,
                Found::End(_) if summary.is_some() => break None,
                Found::End(cut) => break Some(cut),
            };
            let at = |problem| HwmError { offset: block.offset, problem };
            match block.kind {
                kind::FACTS if facts.is_none() => {
                    builder.charge_json(block.contents.len()).map_err(|problem| at(problem.into()))?;
                    facts = Some(parse(&block)?);
                }
                kind::EVENTS if facts.is_some() && summary.is_none() => {
                    builder.add(&block.contents).map_err(|(offset, problem)| HwmError {
                        offset: block.offset + (HEAD_BYTES + offset) as u64,
                        problem: problem.into(),
                    })?;
                }
                kind::SUMMARY if facts.is_some() && summary.is_none() => {
                    builder.charge_json(block.contents.len()).map_err(|problem| at(problem.into()))?;
                    summary = Some(parse(&block)?);
                }
                kind::FACTS | kind::EVENTS | kind::SUMMARY => return Err(at(HwmProblem::OutOfOrder)),
                kind if kind.is_ascii_lowercase() => {}
                kind => return Err(at(HwmProblem::UnknownBlock { kind })),
            }
        };
        builder
            .check_rows()
            .map_err(|problem| HwmError { offset: source.offset, problem: problem.into() })?;
        let mut recording = builder.finish();
        (recording.facts, recording.summary, recording.cut) = (facts.unwrap_or_default(), summary, cut);
        Ok((recording, source.offset))
    }
}

/// A block, checked.
struct Block {
    kind: u8,
    offset: u64,
    contents: Vec<u8>,
}

enum Found {
    Block(Block),
    /// The file ends, here or within a block.
    End(Cut),
}

fn parse<T: DeserializeOwned>(block: &Block) -> Result<T, HwmError> {
    let at = |error| HwmError { offset: block.offset + HEAD_BYTES as u64, problem: HwmProblem::Json(error) };
    serde_json::from_slice(&block.contents).map_err(at)
}

/// The bytes of a file, counted.
struct Source<R> {
    reader: R,
    offset: u64,
    limit: u64,
}

impl<R: Read> Source<R> {
    fn beginning(&mut self) -> Result<(), HwmError> {
        let error = |offset, problem| HwmError { offset, problem };
        let magic = self.read(MAGIC.len())?;
        if magic != MAGIC {
            // Enough of the file to tell what it is.
            let mut start = magic;
            start.extend(self.read(4096)?);
            return Err(error(0, HwmProblem::NotHwm { found: FileKind::of(&start) }));
        }
        let offset = self.offset;
        let found =
            self.read(2)?.try_into().map_err(|_| error(offset, HwmProblem::NotHwm { found: None }))?;
        let found = u16::from_le_bytes(found);
        if found != VERSION {
            return Err(error(offset, HwmProblem::UnknownVersion { found, known: VERSION }));
        }
        Ok(())
    }

    fn block(&mut self) -> Result<Found, HwmError> {
        let offset = self.offset;
        let end = |reason: &str| Found::End(Cut { offset, reason: reason.to_owned() });
        let head = self.read(HEAD_BYTES)?;
        if head.is_empty() {
            return Ok(end("the file ends without a summary: the run did not end, or was killed"));
        }
        let Ok([kind, a, b, c, d, sum @ ..]) = <[u8; HEAD_BYTES]>::try_from(head) else {
            return Ok(end("the file ends within the head of a block"));
        };
        let (length, sum) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes(sum));
        let limit = most_bytes(kind);
        if length > limit {
            return Err(HwmError { offset, problem: HwmProblem::BlockTooLong { length, limit } });
        }
        let contents = self.read(length as usize)?;
        if contents.len() < length as usize {
            return Ok(end("the file ends within a block"));
        }
        if checksum(label(kind, length), &contents) != sum {
            return Err(HwmError { offset, problem: HwmProblem::Damaged });
        }
        Ok(Found::Block(Block { kind, offset, contents }))
    }

    /// Up to `most` bytes; fewer only at the end of the file. Memory is taken for what is there, not for what is said.
    fn read(&mut self, most: usize) -> Result<Vec<u8>, HwmError> {
        let (offset, limit) = (self.offset, self.limit);
        let mut bytes = Vec::new();
        let read = (&mut self.reader).take(most as u64).read_to_end(&mut bytes);
        read.map_err(|error| HwmError { offset, problem: HwmProblem::Io(error) })?;
        self.offset += bytes.len() as u64;
        if self.offset > limit {
            return Err(HwmError { offset: limit, problem: HwmProblem::TooMuchInput { limit } });
        }
        Ok(bytes)
    }
}
