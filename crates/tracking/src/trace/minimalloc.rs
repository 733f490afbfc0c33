//! The problems of MiniMalloc and of other offline planners: one buffer a line with its lifetime and its size.
//!
//! The columns `id`, `lower`, `upper` and `size` may stand in any order, among others. A buffer lives from `lower` up to
//! and without `upper`; at one moment, what ends is freed before what begins is allocated, in the order of lines.

use std::io::BufRead;

use super::builder::Builder;
use super::lines::{beginning, each_line, number};
use super::{Trace, TraceError, TraceLimits, TracePlace, TraceProblem};

const COLUMNS: [&str; 4] = ["id", "lower", "upper", "size"];
const EXPECTED: &str = "a line with all columns of the header";

/// Whether a file's first line is the header of such a problem.
pub(super) fn is_first_line(line: &str) -> bool {
    columns(line).is_some()
}

pub(super) fn parse(reader: impl BufRead, limits: &TraceLimits) -> Result<Trace, TraceError> {
    let mut builder = Builder::new(*limits);
    let mut buffers = Vec::new();
    let mut header = None;
    each_line(reader, limits, |line_number, line| {
        let Some(columns) = header else {
            let malformed = || TraceProblem::Malformed {
                expected: "columns id, lower, upper, size",
                found: beginning(line),
            };
            header = Some(columns(line).ok_or_else(malformed)?);
            return Ok(false);
        };
        // Each buffer makes two events.
        if buffers.len() >= limits.events as usize / 2 {
            return Err(TraceProblem::TooManyEvents { limit: limits.events });
        }
        buffers.push(Buffer::parse(line, line_number, columns, &mut builder)?);
        Ok(true)
    })?;
    for (moment, index) in moments(&buffers) {
        let (buffer, id) = (&buffers[index], index as u64);
        let played = match moment {
            Moment::End => builder.free(id),
            Moment::Begin => builder.alloc_labelled(id, buffer.bytes, buffer.label),
        };
        played.map_err(|problem| TracePlace::Line(buffer.line).of(problem))?;
    }
    Ok(builder.finish())
}

struct Buffer {
    lower: u64,
    upper: u64,
    bytes: u64,
    label: u32,
    line: u64,
}

impl Buffer {
    fn parse(
        line: &str,
        line_number: u64,
        columns: [usize; 4],
        builder: &mut Builder,
    ) -> Result<Self, TraceProblem> {
        let malformed = || TraceProblem::Malformed { expected: EXPECTED, found: beginning(line) };
        let field = |column: usize| line.split(',').nth(column).map(str::trim).ok_or_else(malformed);
        let [id, lower, upper, bytes] = columns;
        let (lower, upper) = (number(field(lower)?)?, number(field(upper)?)?);
        if lower >= upper {
            return Err(TraceProblem::EmptyLifetime { lower, upper });
        }
        let bytes = number(field(bytes)?)?;
        let label = builder.made_label(field(id)?)?;
        Ok(Self { lower, upper, bytes, label, line: line_number })
    }
}

/// What happens to a buffer; ends come first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    End,
    Begin,
}

/// Both moments of all buffers, in order.
fn moments(buffers: &[Buffer]) -> impl Iterator<Item = (Moment, usize)> {
    let both = |(index, buffer): (usize, &Buffer)| {
        [(buffer.lower, Moment::Begin, index), (buffer.upper, Moment::End, index)]
    };
    let mut moments: Vec<_> = buffers.iter().enumerate().flat_map(both).collect();
    moments.sort_unstable();
    moments.into_iter().map(|(_, moment, index)| (moment, index))
}

/// Where the columns stand, if the line is a header with all of them.
fn columns(line: &str) -> Option<[usize; 4]> {
    let mut found = [0; 4];
    for (place, name) in found.iter_mut().zip(COLUMNS) {
        *place = line.split(',').position(|field| field.trim().eq_ignore_ascii_case(name))?;
    }
    Some(found)
}
