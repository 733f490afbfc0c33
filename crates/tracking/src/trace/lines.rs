//! Reads lines of bounded length and the numbers in them.

use std::io::{BufRead, Read};

use super::builder::Builder;
use super::{Trace, TraceError, TraceLimits, TracePlace, TraceProblem};

/// Builds a trace from lines that each are complete events. `line` returns whether the line contained an event.
pub(super) fn parse(
    reader: impl BufRead,
    limits: &TraceLimits,
    mut line: impl FnMut(&str, &mut Builder) -> Result<bool, TraceProblem>,
) -> Result<Trace, TraceError> {
    let mut builder = Builder::new(*limits);
    each_line(reader, limits, &mut builder, |builder, _, text| line(text, builder))?;
    Ok(builder.finish())
}

/// Calls `line` with the number and the text of each trimmed line that is not blank, until it fails. `line` returns
/// whether the line contained an event.
///
/// # Errors
/// Errors of `line`, of reading, and of too many lines without an event; each with its line number.
pub(super) fn each_line(
    reader: impl BufRead,
    limits: &TraceLimits,
    builder: &mut Builder,
    mut line: impl FnMut(&mut Builder, u64, &str) -> Result<bool, TraceProblem>,
) -> Result<(), TraceError> {
    let mut lines = LineReader::new(reader, limits.line_bytes);
    let mut idle = 0;
    loop {
        let read = lines.read();
        let (number, place) = (lines.number, TracePlace::Line(lines.number));
        if !read.map_err(|problem| place.of(problem))? {
            return Ok(());
        }
        let text = lines.text().map_err(|problem| place.of(problem))?.trim();
        builder.note_input(text.len() as u64 + 1);
        let is_event =
            !text.is_empty() && line(builder, number, text).map_err(|problem| place.of(problem))?;
        idle += u32::from(!is_event);
        if idle > limits.idle_lines {
            let problem = TraceProblem::TooMany { what: "lines without an event", limit: limits.idle_lines };
            return Err(place.of(problem));
        }
    }
}

/// Reads lines of bounded length and counts them.
pub(crate) struct LineReader<R> {
    reader: R,
    limit: usize,
    pub(crate) line: Vec<u8>,
    /// The number of the last line, counted from 1.
    pub(crate) number: u64,
}

impl<R: BufRead> LineReader<R> {
    /// Creates a reader of lines of at most `limit` bytes.
    pub(crate) const fn new(reader: R, limit: usize) -> Self {
        Self { reader, limit, line: Vec::new(), number: 0 }
    }

    /// Reads one line without its end, and without a byte-order mark at the beginning. Returns `false` after the last
    /// line.
    pub(crate) fn read(&mut self) -> Result<bool, TraceProblem> {
        let line = &mut self.line;
        self.number += 1;
        line.clear();
        // Two bytes beyond the limit allow for a line end, or show that the line is too long.
        let most = u64::try_from(self.limit).unwrap_or(u64::MAX).saturating_add(2);
        if (&mut self.reader).take(most).read_until(b'\n', line)? == 0 {
            return Ok(false);
        }
        let end = line.strip_suffix(b"\n").map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let length = end.map_or(line.len(), <[u8]>::len);
        if length > self.limit {
            return Err(TraceProblem::LineTooLong { limit: self.limit });
        }
        line.truncate(length);
        if self.number == 1 && line.starts_with(MARK) {
            line.drain(..MARK.len());
        }
        Ok(true)
    }

    /// Returns the last line.
    pub(crate) fn text(&self) -> Result<&str, TraceProblem> {
        std::str::from_utf8(&self.line).map_err(|_| TraceProblem::NotUtf8)
    }

    /// Returns the beginning of the last line for an error message.
    pub(crate) fn beginning(&self) -> String {
        beginning(&String::from_utf8_lossy(&self.line))
    }

    /// Returns whether the input has ended.
    pub(crate) fn at_end(&mut self) -> bool {
        self.reader.fill_buf().is_ok_and(<[u8]>::is_empty)
    }
}

/// UTF-8's byte-order mark, which spreadsheets write.
pub(super) const MARK: &[u8] = b"\xef\xbb\xbf";

/// Parses an integer without a sign.
pub(crate) fn number(text: &str) -> Result<u64, TraceProblem> {
    // `parse` accepts a sign, which no trace contains.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { text.parse().ok() } else { None };
    number.ok_or_else(|| bad_number(text))
}

/// Parses an alignment in bytes.
pub(super) fn alignment_of(text: &str) -> Result<u32, TraceProblem> {
    let bytes = number(text)?;
    let alignment = u32::try_from(bytes).ok().filter(|alignment| alignment.is_power_of_two());
    alignment.ok_or(TraceProblem::BadAlignment { bytes })
}

/// Returns the error for a text that is not a number.
pub(super) fn bad_number(text: &str) -> TraceProblem {
    TraceProblem::BadNumber { found: beginning(text) }
}

/// Shortens a text for an error message.
pub(crate) fn beginning(text: &str) -> String {
    const MOST: usize = 60;
    let mut found: String = text.chars().take(MOST).collect();
    if text.chars().nth(MOST).is_some() {
        found.push('…');
    }
    found
}

/// Splits a line at its commas into its first `N` fields, trimmed. Returns `None` if there are fewer.
pub(super) fn fields<const N: usize>(line: &str) -> Option<[&str; N]> {
    let mut found = [""; N];
    let mut parts = line.split(',');
    for field in &mut found {
        *field = parts.next()?.trim();
    }
    Some(found)
}
