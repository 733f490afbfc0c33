//! From lines of text to a trace.

use std::io::{self, BufRead, Read};

use super::{Builder, Trace, TraceError, TraceLimits, TraceProblem};

pub(super) fn parse(mut reader: impl BufRead, limits: &TraceLimits) -> Result<Trace, TraceError> {
    let mut builder = Builder::new(*limits);
    let mut line = Vec::new();
    let mut number = 0;
    loop {
        number += 1;
        let at_line = |problem| TraceError { line: number, problem };
        if !read_line(&mut reader, &mut line, limits.line_bytes).map_err(at_line)? {
            return Ok(builder.trace);
        }
        parse_line(&line, &mut builder).map_err(at_line)?;
    }
}

/// Reads one line without its end; `false` after the last one.
fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>, limit: usize) -> Result<bool, TraceProblem> {
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

fn parse_line(line: &[u8], builder: &mut Builder) -> Result<(), TraceProblem> {
    let line = std::str::from_utf8(line).map_err(|_| TraceProblem::NotUtf8)?.trim();
    if line.is_empty() {
        return Ok(());
    }
    if let Some(comment) = line.strip_prefix('#') {
        return builder.comment(comment.strip_prefix(' ').unwrap_or(comment));
    }
    let malformed = || TraceProblem::Malformed { found: beginning(line) };
    let (kind, rest) = line.split_once(' ').ok_or_else(malformed)?;
    let rest = rest.trim_start();
    match kind {
        "a" => {
            let (id, rest) = rest.split_once(' ').ok_or_else(malformed)?;
            let (bytes, label) = rest.trim_start().split_once(' ').ok_or_else(malformed)?;
            builder.alloc(number(id)?, number(bytes)?, label.trim_start())
        }
        "f" if !rest.contains(' ') => builder.free(number(rest)?),
        _ => Err(malformed()),
    }
}

fn number(text: &str) -> Result<u64, TraceProblem> {
    // `parse` takes a sign as well, which no writer of traces puts there.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { text.parse().ok() } else { None };
    number.ok_or_else(|| TraceProblem::BadNumber { found: beginning(text) })
}

/// Enough of a text to recognise it by in an error message.
fn beginning(text: &str) -> String {
    const MOST: usize = 60;
    let mut found: String = text.chars().take(MOST).collect();
    if text.chars().nth(MOST).is_some() {
        found.push('…');
    }
    found
}
