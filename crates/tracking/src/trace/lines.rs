//! Reading lines from files that may be anything: with limits, without a panic.

use std::io::{self, BufRead, Read};

use super::TraceProblem;

/// Reads one line without its end; `false` after the last one.
pub(crate) fn read_line(
    reader: &mut impl BufRead,
    line: &mut Vec<u8>,
    limit: usize,
) -> Result<bool, TraceProblem> {
    line.clear();
    // Two bytes more than the limit leave room for a line end, and show that there is none.
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(2);
    if read_until_newline(reader, line, most)? == 0 {
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

fn read_until_newline(reader: &mut impl BufRead, line: &mut Vec<u8>, most: u64) -> io::Result<usize> {
    reader.take(most).read_until(b'\n', line)
}

/// A whole number without a sign.
pub(crate) fn number(text: &str) -> Result<u64, TraceProblem> {
    // `parse` takes a sign as well, which no writer of traces puts there.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { text.parse().ok() } else { None };
    number.ok_or_else(|| TraceProblem::BadNumber { found: beginning(text) })
}

/// Enough of a text to recognise it by in an error message.
pub(crate) fn beginning(text: &str) -> String {
    const MOST: usize = 60;
    let mut found: String = text.chars().take(MOST).collect();
    if text.chars().nth(MOST).is_some() {
        found.push('…');
    }
    found
}

/// Whether nothing is left to read.
pub(crate) fn at_end(reader: &mut impl BufRead) -> bool {
    reader.fill_buf().is_ok_and(<[u8]>::is_empty)
}
