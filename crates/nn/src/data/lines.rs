//! A reader that returns its bytes line by line. The caller always knows the line number, and a line without an end
//! cannot fill the memory.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};

use highwater_files::FileKind;

/// Never returns bytes of two lines in one read.
#[derive(Debug)]
pub(super) struct Lines<R> {
    source: BufReader<R>,
    /// The number of the line of the last returned byte, from 1; 0 before the first.
    line: u64,
    is_at_start: bool,
    /// The number of bytes that may be read before the next call of [`renew`](Self::renew).
    budget: usize,
    /// The first bytes of the source.
    start: Vec<u8>,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(source: R) -> Self {
        let source = BufReader::new(source);
        Self { source, line: 0, is_at_start: true, budget: 0, start: Vec::new() }
    }

    /// Returns the number of the last line read, from 1.
    pub(super) const fn line(&self) -> u64 {
        self.line
    }

    /// Allows `bytes` more bytes.
    pub(super) const fn renew(&mut self, bytes: usize) {
        self.budget = bytes;
    }

    /// Returns the first bytes of the source, for errors. Ends reading.
    pub(super) fn start(&mut self) -> &[u8] {
        let missing = FileKind::START_BYTES - self.start.len();
        // If the source fails here, the error shows fewer bytes.
        let _ = self.source.by_ref().take(missing as u64).read_to_end(&mut self.start);
        &self.start
    }
}

impl<R: Read> Read for Lines<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let available = self.source.fill_buf()?;
        let line =
            available.iter().position(|&byte| byte == b'\n').map_or(available, |end| &available[..=end]);
        let count = line.len().min(buffer.len());
        let Some(&last) = line[..count].last() else { return Ok(0) };
        buffer[..count].copy_from_slice(&line[..count]);
        let missing = FileKind::START_BYTES - self.start.len();
        self.start.extend_from_slice(&line[..count.min(missing)]);
        self.source.consume(count);
        self.line += u64::from(self.is_at_start);
        self.is_at_start = last == b'\n';
        self.budget = self.budget.checked_sub(count).ok_or_else(|| io::Error::other(LineTooLong))?;
        Ok(count)
    }
}

/// The error of a [`Lines`] source whose budget is used up.
#[derive(Debug)]
pub(super) struct LineTooLong;

impl fmt::Display for LineTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a line is too long")
    }
}

impl std::error::Error for LineTooLong {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_ends_with_its_line() {
        let mut lines = Lines::new(&b"ab\n\nc"[..]);
        lines.renew(100);
        let mut buffer = [0; 8];
        for (line, text) in [(1, "ab\n"), (2, "\n"), (3, "c"), (3, "")] {
            let count = lines.read(&mut buffer).unwrap();
            assert_eq!((lines.line(), &buffer[..count]), (line, text.as_bytes()));
        }
    }

    #[test]
    fn no_more_is_read_than_was_allowed_for() {
        let mut lines = Lines::new(io::repeat(b'1'));
        lines.renew(10);
        assert!(lines.read(&mut [0; 10]).is_ok());
        let error = lines.read(&mut [0; 1]).unwrap_err();
        assert!(error.get_ref().unwrap().is::<LineTooLong>());
        lines.renew(1);
        assert!(lines.read(&mut [0; 1]).is_ok());
    }
}
