//! The input bytes of a pickle and their offsets.

use std::io::{self, BufRead, ErrorKind, Read};

use super::PickleProblem;

/// The source of the opcodes. Not generic, so that the machine is compiled once and not in each crate that reads pickles.
pub(super) struct Input<'r> {
    pub(super) reader: &'r mut dyn BufRead,
    pub(super) offset: u64,
}

impl Input<'_> {
    pub(super) fn exact<const N: usize>(&mut self) -> Result<[u8; N], PickleProblem> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes).map_err(truncated)?;
        self.offset += N as u64;
        Ok(bytes)
    }

    pub(super) fn byte(&mut self) -> Result<u8, PickleProblem> {
        self.exact::<1>().map(|[byte]| byte)
    }

    /// Reads bytes whose memory was charged before.
    pub(super) fn bytes(&mut self, length: u64) -> Result<Vec<u8>, PickleProblem> {
        let mut bytes = Vec::new();
        let capacity = usize::try_from(length).unwrap_or(usize::MAX);
        bytes.try_reserve_exact(capacity).map_err(|_| io::Error::from(ErrorKind::OutOfMemory))?;
        let read = (&mut self.reader).take(length).read_to_end(&mut bytes)?;
        self.offset += read as u64;
        if (read as u64) < length { Err(PickleProblem::Truncated) } else { Ok(bytes) }
    }

    pub(super) fn skip(&mut self, length: u64) -> Result<(), PickleProblem> {
        let skipped = io::copy(&mut (&mut self.reader).take(length), &mut io::sink())?;
        self.offset += skipped;
        if skipped < length { Err(PickleProblem::Truncated) } else { Ok(()) }
    }
}

fn truncated(error: io::Error) -> PickleProblem {
    match error.kind() {
        ErrorKind::UnexpectedEof if error.get_ref().is_none() => PickleProblem::Truncated,
        _ => error.into(),
    }
}
