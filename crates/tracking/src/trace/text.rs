//! Our own lines of text.

use std::io::BufRead;

use super::builder::Builder;
use super::lines::{beginning, each_line, number};
use super::{Trace, TraceError, TraceLimits, TraceProblem};

pub(super) fn parse(reader: impl BufRead, limits: &TraceLimits) -> Result<Trace, TraceError> {
    let mut builder = Builder::new(*limits);
    each_line(reader, limits, |_, line| parse_line(line, &mut builder))?;
    Ok(builder.finish())
}

/// Whether the line is an event.
fn parse_line(line: &str, builder: &mut Builder) -> Result<bool, TraceProblem> {
    if let Some(comment) = line.strip_prefix('#') {
        builder.comment(comment.strip_prefix(' ').unwrap_or(comment))?;
        return Ok(false);
    }
    let malformed = || TraceProblem::Malformed {
        expected: "`a ID BYTES LABEL`, `f ID` or `# comment`",
        found: beginning(line),
    };
    let (kind, rest) = line.split_once(' ').ok_or_else(malformed)?;
    let rest = rest.trim_start();
    match kind {
        "a" => {
            let (id, rest) = rest.split_once(' ').ok_or_else(malformed)?;
            let (bytes, label) = rest.trim_start().split_once(' ').ok_or_else(malformed)?;
            builder.alloc(number(id)?, number(bytes)?, label.trim_start())?;
        }
        "f" if !rest.contains(' ') => builder.free(number(rest)?)?,
        _ => return Err(malformed()),
    }
    Ok(true)
}
