//! The text format of Highwater.

use super::Format;
use crate::trace::TraceProblem;
use crate::trace::builder::Builder;
use crate::trace::lines::{alignment_of, beginning, number, parse};

pub(super) const FORMAT: Format = Format {
    has_paths: true,
    ..Format::trace(
        "an allocation trace",
        // A file without lines is text without events.
        |start| start.line().is_none_or(|line| ["#", "a ", "f "].iter().any(|begin| line.starts_with(begin))),
        &[b"a 0 ", b"#"],
        |reader, options| parse(reader, &options.limits, parse_line),
    )
};

/// Returns whether the line is an event.
pub(in crate::trace) fn parse_line(line: &str, builder: &mut Builder) -> Result<bool, TraceProblem> {
    if let Some(comment) = line.strip_prefix('#') {
        builder.comment(comment.strip_prefix(' ').unwrap_or(comment))?;
        return Ok(false);
    }
    let malformed = || TraceProblem::Malformed {
        expected: "`a ID BYTES LABEL`, `f ID`, `u ID START END` or `# comment`",
        found: beginning(line),
    };
    let (kind, rest) = line.split_once(' ').ok_or_else(malformed)?;
    let rest = rest.trim_start();
    match kind {
        "a" => {
            let (id, rest) = rest.split_once(' ').ok_or_else(malformed)?;
            let (bytes, label) = rest.trim_start().split_once(' ').ok_or_else(malformed)?;
            let (bytes, alignment) = match bytes.split_once('@') {
                Some((bytes, alignment)) => (bytes, alignment_of(alignment)?),
                None => (bytes, 1),
            };
            builder.alloc(number(id)?, number(bytes)?, alignment, label.trim_start())?;
        }
        "u" => {
            let mut fields = rest.split(' ').filter(|field| !field.is_empty());
            let (Some(id), Some(start), Some(end), None) =
                (fields.next(), fields.next(), fields.next(), fields.next())
            else {
                return Err(malformed());
            };
            builder.occupy(number(id)?, number(start)?..number(end)?)?;
        }
        "f" if !rest.contains(' ') => builder.free(number(rest)?)?,
        _ => return Err(malformed()),
    }
    Ok(true)
}
