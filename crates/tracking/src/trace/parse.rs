//! From lines of text to a trace.

use std::io::BufRead;

use super::lines::{beginning, number, read_line};
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
