//! The input bytes of a pickle and their offsets.

use std::io::{self, BufRead, ErrorKind, Read};

use super::PickleProblem;

/// The most bytes of the copy that is read from.
const MOST: usize = 1 << 16;

/// The source of the opcodes. Not generic, so that the machine is compiled once and not in each crate that reads pickles.
///
/// Small items are read from a copy of the reader's buffer, without a virtual call for each. The reader itself is
/// advanced only past the bytes that were used, so that a caller may read on after the pickle.
pub(super) struct Input<'r> {
    reader: &'r mut dyn BufRead,
    /// Bytes that the reader still has.
    copy: Vec<u8>,
    /// The number of used bytes of the copy.
    used: usize,
    /// The offset of the copy in the file.
    start: u64,
}

impl<'r> Input<'r> {
    pub(super) const fn new(reader: &'r mut dyn BufRead) -> Self {
        Self { reader, copy: Vec::new(), used: 0, start: 0 }
    }

    /// Returns the number of bytes that were used so far.
    #[inline]
    pub(super) const fn offset(&self) -> u64 {
        self.start + self.used as u64
    }

    #[inline]
    pub(super) fn exact<const N: usize>(&mut self) -> Result<[u8; N], PickleProblem> {
        match self.copy.get(self.used..).and_then(<[u8]>::first_chunk) {
            Some(&bytes) => {
                self.used += N;
                Ok(bytes)
            }
            None => self.exact_slowly(),
        }
    }

    /// Reads an item at the end of the copy.
    #[cold]
    fn exact_slowly<const N: usize>(&mut self) -> Result<[u8; N], PickleProblem> {
        let mut bytes = [0; N];
        self.release();
        self.reader.read_exact(&mut bytes).map_err(truncated)?;
        self.start += N as u64;
        // Errors of the reader come up again when their bytes are read.
        let ahead = self.reader.fill_buf().unwrap_or_default();
        self.copy.extend_from_slice(&ahead[..ahead.len().min(MOST)]);
        Ok(bytes)
    }

    /// Advances the reader past the used bytes, and empties the copy.
    pub(super) fn release(&mut self) {
        self.reader.consume(self.used);
        self.start += self.used as u64;
        self.copy.clear();
        self.used = 0;
    }

    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, PickleProblem> {
        self.exact::<1>().map(|[byte]| byte)
    }

    /// Returns the next bytes if the copy has all of them. They are used once [`skip_copied`](Self::skip_copied) is
    /// called.
    #[inline]
    pub(super) fn peek(&self, length: u64) -> Option<&[u8]> {
        self.copy.get(self.used..)?.get(..usize::try_from(length).ok()?)
    }

    /// Uses bytes that [`peek`](Self::peek) returned.
    #[inline]
    pub(super) const fn skip_copied(&mut self, length: usize) {
        self.used += length;
    }

    /// Reads bytes whose memory was charged before.
    pub(super) fn bytes(&mut self, length: u64) -> Result<Vec<u8>, PickleProblem> {
        if let Some(bytes) = self.peek(length).map(<[u8]>::to_vec) {
            self.used += bytes.len();
            return Ok(bytes);
        }
        self.release();
        let mut bytes = Vec::new();
        let capacity = usize::try_from(length).unwrap_or(usize::MAX);
        bytes.try_reserve_exact(capacity).map_err(|_| io::Error::from(ErrorKind::OutOfMemory))?;
        let read = (&mut self.reader).take(length).read_to_end(&mut bytes)?;
        self.start += read as u64;
        if (read as u64) < length { Err(PickleProblem::Truncated) } else { Ok(bytes) }
    }

    /// Reads exactly these bytes.
    #[inline]
    pub(super) fn fill(&mut self, bytes: &mut [u8]) -> Result<(), PickleProblem> {
        if let Some(copied) = self.peek(bytes.len() as u64) {
            bytes.copy_from_slice(copied);
            self.used += bytes.len();
            return Ok(());
        }
        self.release();
        self.reader.read_exact(bytes).map_err(truncated)?;
        self.start += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn skip(&mut self, length: u64) -> Result<(), PickleProblem> {
        self.release();
        let skipped = io::copy(&mut (&mut self.reader).take(length), &mut io::sink())?;
        self.start += skipped;
        if skipped < length { Err(PickleProblem::Truncated) } else { Ok(()) }
    }
}

fn truncated(error: io::Error) -> PickleProblem {
    match error.kind() {
        ErrorKind::UnexpectedEof if error.get_ref().is_none() => PickleProblem::Truncated,
        _ => error.into(),
    }
}
