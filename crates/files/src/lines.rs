//! Reads lines of bounded length, and the numbers in them.

use std::io::{self, BufRead, Read};

/// A problem with a line of text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LineProblem {
    /// The file could not be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The line is longer than the limit.
    #[error("longer than {limit} bytes")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// The line is not text.
    #[error("not UTF-8")]
    NotUtf8,
    /// A value is not an integer of 64 bits.
    #[error("{found:?} is not an integer below 2^64")]
    BadNumber {
        /// The value.
        found: String,
    },
}

/// Reads lines of bounded length and counts them.
#[derive(Debug)]
pub struct LineReader<R> {
    reader: R,
    limit: usize,
    /// The last line.
    pub line: Vec<u8>,
    /// The number of the last line, counted from 1.
    pub number: u64,
    /// The offset of the last line in the input, in bytes.
    pub start: u64,
    /// The bytes read so far, with line ends.
    pub end: u64,
}

impl<R: BufRead> LineReader<R> {
    /// Creates a reader of lines of at most `limit` bytes.
    pub const fn new(reader: R, limit: usize) -> Self {
        Self { reader, limit, line: Vec::new(), number: 0, start: 0, end: 0 }
    }

    /// Reads one line without its end, and without a byte-order mark at the beginning. Returns `false` after the last
    /// line.
    ///
    /// # Errors
    /// [`LineProblem`] if the line cannot be read or is too long.
    pub fn read(&mut self) -> Result<bool, LineProblem> {
        let line = &mut self.line;
        self.number += 1;
        line.clear();
        // Two bytes beyond the limit allow for a line end, or show that the line is too long.
        let most = u64::try_from(self.limit).unwrap_or(u64::MAX).saturating_add(2);
        let read = (&mut self.reader).take(most).read_until(b'\n', line)?;
        (self.start, self.end) = (self.end, self.end + read as u64);
        if read == 0 {
            return Ok(false);
        }
        let end = line.strip_suffix(b"\n").map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let length = end.map_or(line.len(), <[u8]>::len);
        if length > self.limit {
            return Err(LineProblem::TooLong { limit: self.limit });
        }
        line.truncate(length);
        if self.number == 1 && line.starts_with(MARK) {
            line.drain(..MARK.len());
            self.start += MARK.len() as u64;
        }
        Ok(true)
    }

    /// Returns the last line.
    ///
    /// # Errors
    /// [`LineProblem::NotUtf8`].
    pub fn text(&self) -> Result<&str, LineProblem> {
        text_of(&self.line)
    }

    /// Returns the beginning of the last line for an error message.
    pub fn beginning(&self) -> String {
        beginning(&String::from_utf8_lossy(&self.line))
    }

    /// Returns whether the input has ended.
    pub fn at_end(&mut self) -> bool {
        self.reader.fill_buf().is_ok_and(<[u8]>::is_empty)
    }
}

/// Returns the text of a line.
///
/// # Errors
/// [`LineProblem::NotUtf8`].
pub fn text_of(line: &[u8]) -> Result<&str, LineProblem> {
    std::str::from_utf8(line).map_err(|_| LineProblem::NotUtf8)
}

/// UTF-8's byte-order mark, which spreadsheets write.
pub const MARK: &[u8] = b"\xef\xbb\xbf";

/// Parses an integer without a sign.
///
/// # Errors
/// [`LineProblem::BadNumber`].
pub fn number(text: &str) -> Result<u64, LineProblem> {
    // `parse` accepts a sign, which no trace contains.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { text.parse().ok() } else { None };
    number.ok_or_else(|| LineProblem::BadNumber { found: beginning(text) })
}

/// Shortens a text for an error message.
pub fn beginning(text: &str) -> String {
    const MOST: usize = 60;
    let mut found: String = text.chars().take(MOST).collect();
    if text.chars().nth(MOST).is_some() {
        found.push('…');
    }
    found
}
