//! Reading a file that is still being written: whole blocks as they come, and the rest later.

use std::io::{self, Read};

use serde::de::DeserializeOwned;

use super::{HEAD_BYTES, HwmError, HwmProblem, MAGIC, VERSION, checksum, kind, label, most_bytes};
use crate::files::FileKind;
use crate::record::builder::BlockProblem;
use crate::record::summary::{RunFacts, RunSummary};

/// How many bytes are asked for at a time.
const CHUNK: usize = 1 << 16;

/// The bytes before the first block.
const BEGINNING: usize = MAGIC.len() + 2;

/// A block, checked.
#[derive(Debug)]
pub(in crate::record) enum Piece {
    Facts(RunFacts),
    Events(Vec<u8>),
    Summary(Box<RunSummary>),
}

/// Takes a file apart into blocks, as far as it goes.
#[derive(Debug)]
pub(in crate::record) struct BlockReader<R> {
    reader: R,
    /// What was read and is no whole block yet.
    rest: Vec<u8>,
    /// Where `rest` begins in the file.
    offset: u64,
    /// Where the last block began.
    last: u64,
    place: Place,
}

/// What may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Beginning,
    Facts,
    Events,
    End,
}

impl<R: Read> BlockReader<R> {
    pub(in crate::record) const fn new(reader: R) -> Self {
        Self { reader, rest: Vec::new(), offset: 0, last: 0, place: Place::Beginning }
    }

    pub(in crate::record) const fn reader(&self) -> &R {
        &self.reader
    }

    /// How far the file was taken in.
    pub(in crate::record) const fn offset(&self) -> u64 {
        self.offset
    }

    /// An error in the contents of the last block.
    pub(in crate::record) const fn error_in_last(&self, offset: usize, problem: BlockProblem) -> HwmError {
        HwmError { offset: self.last + (HEAD_BYTES + offset) as u64, problem: HwmProblem::Events(problem) }
    }

    /// The next block; `None` as long as it is not whole.
    pub(in crate::record) fn next(&mut self) -> Result<Option<Piece>, HwmError> {
        if self.place == Place::Beginning {
            if !self.has(BEGINNING)? {
                return Ok(None);
            }
            self.check_beginning()?;
            self.take(BEGINNING);
            self.place = Place::Facts;
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
            let piece = self.piece(kind, contents)?;
            self.last = self.offset;
            self.take(whole);
            match &piece {
                Some(Piece::Facts(_)) => self.place = Place::Events,
                Some(Piece::Summary(_)) => self.place = Place::End,
                Some(Piece::Events(_)) => {}
                None => continue,
            }
            return Ok(piece);
        }
    }

    fn check_beginning(&self) -> Result<(), HwmError> {
        if self.rest[..MAGIC.len()] != MAGIC {
            return Err(self.error(HwmProblem::NotHwm { found: FileKind::of(&self.rest) }));
        }
        let found = u16::from_le_bytes([self.rest[MAGIC.len()], self.rest[MAGIC.len() + 1]]);
        if found == VERSION {
            return Ok(());
        }
        let problem = HwmProblem::UnknownVersion { found, known: VERSION };
        Err(HwmError { offset: MAGIC.len() as u64, problem })
    }

    /// What a block is; `None` for one that may be skipped.
    fn piece(&self, kind: u8, contents: &[u8]) -> Result<Option<Piece>, HwmError> {
        match (kind, self.place) {
            (kind::FACTS, Place::Facts) => Ok(Some(Piece::Facts(self.parse(contents)?))),
            (kind::EVENTS, Place::Events) => Ok(Some(Piece::Events(contents.to_vec()))),
            (kind::SUMMARY, Place::Events) => Ok(Some(Piece::Summary(Box::new(self.parse(contents)?)))),
            (kind::FACTS | kind::EVENTS | kind::SUMMARY, _) => Err(self.error(HwmProblem::OutOfOrder)),
            (kind, _) if kind.is_ascii_lowercase() => Ok(None),
            (kind, _) => Err(self.error(HwmProblem::UnknownBlock { kind })),
        }
    }

    fn parse<T: DeserializeOwned>(&self, contents: &[u8]) -> Result<T, HwmError> {
        let offset = self.offset + HEAD_BYTES as u64;
        serde_json::from_slice(contents)
            .map_err(|error| HwmError { offset, problem: HwmProblem::Json(error) })
    }

    const fn error(&self, problem: HwmProblem) -> HwmError {
        HwmError { offset: self.offset, problem }
    }

    /// Whether so many bytes are there, reading as much as is needed and can be had. Memory is taken for what is there,
    /// not for what is said.
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
