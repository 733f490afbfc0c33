//! Splits a file into checked blocks, also while it is still written.

use std::io::{self, Read};

use highwater_files::FileKind;
use serde::de::DeserializeOwned;

use super::{HEAD_BYTES, HwmError, HwmProblem, MAGIC, VERSION, checksum, kind, label, most_bytes};
use crate::record::builder::BlockProblem;
use crate::report::Cut;

/// The number of bytes per read.
const CHUNK: usize = 1 << 16;

/// The size of the file's header.
const BEGINNING: usize = MAGIC.len() + 2;

/// The bytes that are read of another kind of file to name its kind.
const SNIFFED: usize = 4096;

/// The contents of a checked block.
#[derive(Debug)]
pub(in crate::record) enum Piece {
    /// JSON: see [`BlockReader::parse`].
    Facts(Vec<u8>),
    Events(Vec<u8>),
    /// JSON: see [`BlockReader::parse`].
    Summary(Vec<u8>),
}

/// Splits a file into blocks.
#[derive(Debug)]
pub(in crate::record) struct BlockReader<R> {
    reader: R,
    /// The most bytes of the file.
    limit: u64,
    /// Bytes of an incomplete block.
    rest: Vec<u8>,
    /// The offset of `rest` in the file.
    offset: u64,
    /// The offset of the last block.
    last: u64,
    state: ExpectedBlock,
}

/// The blocks that may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpectedBlock {
    Beginning,
    Facts,
    Events,
    End,
}

impl<R: Read> BlockReader<R> {
    pub(in crate::record) const fn new(reader: R, limit: u64) -> Self {
        Self { reader, limit, rest: Vec::new(), offset: 0, last: 0, state: ExpectedBlock::Beginning }
    }

    pub(in crate::record) const fn reader(&self) -> &R {
        &self.reader
    }

    /// Returns the offset up to which the file was read.
    pub(in crate::record) const fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns an error in the contents of the last block.
    pub(in crate::record) const fn error_in_last(&self, offset: usize, problem: HwmProblem) -> HwmError {
        HwmError { offset: self.last + (HEAD_BYTES + offset) as u64, problem }
    }

    /// Parses the JSON of the last block, after `charge` accounts for its size.
    pub(in crate::record) fn parse<T: DeserializeOwned>(
        &self,
        json: &[u8],
        charge: impl FnOnce(usize) -> Result<(), BlockProblem>,
    ) -> Result<T, HwmError> {
        let charged = charge(json.len());
        charged.map_err(|problem| HwmError { offset: self.last, problem: problem.into() })?;
        serde_json::from_slice(json).map_err(|error| self.error_in_last(0, HwmProblem::Json(error)))
    }

    /// Where and why the file ends early, once [`next`](Self::next) has returned `None`; `None` after the summary.
    ///
    /// # Errors
    /// If the beginning of a recording is missing.
    pub(in crate::record) fn cut(&self) -> Result<Option<Cut>, HwmError> {
        let reason = match (self.state, self.rest.len()) {
            (ExpectedBlock::End, _) => return Ok(None),
            (ExpectedBlock::Beginning, _) => {
                return Err(self.error(HwmProblem::NotHwm { found: FileKind::of(&self.rest) }));
            }
            (_, 0) => "the file ends without a summary: the run did not end, or was killed",
            (_, 1..HEAD_BYTES) => "the file ends within the head of a block",
            _ => "the file ends within a block",
        };
        Ok(Some(Cut { offset: self.offset, reason: reason.to_owned() }))
    }

    /// Returns the next block; `None` while it is incomplete.
    pub(in crate::record) fn next(&mut self) -> Result<Option<Piece>, HwmError> {
        if self.state == ExpectedBlock::Beginning {
            if !self.has(BEGINNING)? {
                return Ok(None);
            }
            self.check_beginning()?;
            self.take(BEGINNING);
            self.state = ExpectedBlock::Facts;
        }
        loop {
            if !self.has(HEAD_BYTES)? {
                return Ok(None);
            }
            let mut head = [0; HEAD_BYTES];
            head.copy_from_slice(&self.rest[..HEAD_BYTES]);
            let [kind, a, b, c, d, sum @ ..] = head;
            let (length, sum) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes(sum));
            let limit = most_bytes(kind);
            if length > limit {
                return Err(self.error(HwmProblem::BlockTooLong { length, limit }));
            }
            let whole = HEAD_BYTES + length as usize;
            if !self.has(whole)? {
                return Ok(None);
            }
            let contents = &self.rest[HEAD_BYTES..whole];
            if checksum(label(kind, length), contents) != sum {
                return Err(self.error(HwmProblem::Damaged));
            }
            let piece = self.piece(kind, contents.to_vec())?;
            self.last = self.offset;
            self.take(whole);
            match &piece {
                Some(Piece::Facts(_)) => self.state = ExpectedBlock::Events,
                Some(Piece::Summary(_)) => self.state = ExpectedBlock::End,
                Some(Piece::Events(_)) => {}
                None => continue,
            }
            return Ok(piece);
        }
    }

    fn check_beginning(&mut self) -> Result<(), HwmError> {
        if self.rest[..MAGIC.len()] != MAGIC {
            self.has(SNIFFED)?;
            return Err(self.error(HwmProblem::NotHwm { found: FileKind::of(&self.rest) }));
        }
        let found = u16::from_le_bytes([self.rest[MAGIC.len()], self.rest[MAGIC.len() + 1]]);
        if found == VERSION {
            return Ok(());
        }
        let problem = HwmProblem::UnknownVersion { found, known: VERSION };
        Err(HwmError { offset: MAGIC.len() as u64, problem })
    }

    /// Returns the contents of a block; `None` for a block to skip.
    fn piece(&self, kind: u8, contents: Vec<u8>) -> Result<Option<Piece>, HwmError> {
        match (kind, self.state) {
            (kind::FACTS, ExpectedBlock::Facts) => Ok(Some(Piece::Facts(contents))),
            (kind::EVENTS, ExpectedBlock::Events) => Ok(Some(Piece::Events(contents))),
            (kind::SUMMARY, ExpectedBlock::Events) => Ok(Some(Piece::Summary(contents))),
            (kind::FACTS | kind::EVENTS | kind::SUMMARY, _) => Err(self.error(HwmProblem::OutOfOrder)),
            (kind, _) if kind.is_ascii_lowercase() => Ok(None),
            (kind, _) => Err(self.error(HwmProblem::UnknownBlock { kind })),
        }
    }

    const fn error(&self, problem: HwmProblem) -> HwmError {
        HwmError { offset: self.offset, problem }
    }

    /// Reads until so many bytes are available, if possible. Returns whether they are. Allocates memory for bytes read,
    /// not for the stated length.
    fn has(&mut self, bytes: usize) -> Result<bool, HwmError> {
        while self.rest.len() < bytes {
            let before = self.rest.len();
            self.rest.resize(before + CHUNK, 0);
            let read = loop {
                match self.reader.read(&mut self.rest[before..]) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    read => break read,
                }
            };
            self.rest.truncate(before + read.as_ref().map_or(0, |&read| read.min(CHUNK)));
            match read {
                Ok(0) => return Ok(false),
                Ok(_) if self.offset + self.rest.len() as u64 > self.limit => {
                    let limit = self.limit;
                    return Err(HwmError { offset: limit, problem: HwmProblem::TooMuchInput { limit } });
                }
                Ok(_) => {}
                Err(error) => {
                    let offset = self.offset + before as u64;
                    return Err(HwmError { offset, problem: HwmProblem::Io(error) });
                }
            }
        }
        Ok(true)
    }

    fn take(&mut self, bytes: usize) {
        self.rest.drain(..bytes);
        self.offset += bytes as u64;
    }
}
