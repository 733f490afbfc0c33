//! Reads lines of bounded length and the numbers in them.

use std::io::{BufRead, Read};

use super::{TraceError, TraceLimits, TracePlace, TraceProblem};

/// Calls `line` with each trimmed line that is not blank, until it fails. `line` returns whether the line contained an
/// event.
///
/// # Errors
/// Errors of `line`, of reading, and of too many lines without an event; each with its line number.
pub(super) fn each_line(
    mut reader: impl BufRead,
    limits: &TraceLimits,
    mut line: impl FnMut(u64, &str) -> Result<bool, TraceProblem>,
) -> Result<(), TraceError> {
    let mut bytes = Vec::new();
    let (mut number, mut idle) = (0, 0);
    loop {
        number += 1;
        let place = TracePlace::Line(number);
        if !read_line(&mut reader, &mut bytes, limits.line_bytes).map_err(|problem| place.of(problem))? {
            return Ok(());
        }
        if number == 1 {
            remove_mark(&mut bytes);
        }
        let text = std::str::from_utf8(&bytes).map_err(|_| place.of(TraceProblem::NotUtf8))?.trim();
        let is_event = !text.is_empty() && line(number, text).map_err(|problem| place.of(problem))?;
        idle += u32::from(!is_event);
        if idle > limits.idle_lines {
            return Err(place.of(TraceProblem::TooManyIdleLines { limit: limits.idle_lines }));
        }
    }
}

/// Reads one line without its end. Returns `false` after the last one.
pub(crate) fn read_line(
    reader: &mut impl BufRead,
    line: &mut Vec<u8>,
    limit: usize,
) -> Result<bool, TraceProblem> {
    line.clear();
    // Two bytes beyond the limit allow for a line end, or show that the line is too long.
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(2);
    if reader.take(most).read_until(b'\n', line)? == 0 {
        return Ok(false);
    }
    let end = line.strip_suffix(b"\n").map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let length = end.map_or(line.len(), <[u8]>::len);
    if length > limit {
        return Err(TraceProblem::LineTooLong { limit });
    }
    line.truncate(length);
    Ok(true)
}

/// UTF-8's byte-order mark, which spreadsheets write.
pub(crate) const MARK: &[u8] = b"\xef\xbb\xbf";

/// Removes a byte-order mark from the first line of a text.
pub(crate) fn remove_mark(line: &mut Vec<u8>) {
    if line.starts_with(MARK) {
        line.drain(..MARK.len());
    }
}

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

/// Returns whether the input has ended.
pub(crate) fn at_end(reader: &mut impl BufRead) -> bool {
    reader.fill_buf().is_ok_and(<[u8]>::is_empty)
}
