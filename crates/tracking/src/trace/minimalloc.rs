//! The problems of MiniMalloc and of other offline planners: one buffer a line with its lifetime and its size.
//!
//! The columns `id`, `lower`, `upper` and `size` may stand in any order. A buffer lives from `lower` up to and without
//! `upper`; at one moment, what ends is freed before what begins is allocated, in the order of lines. Older files say
//! `buffer` or `buffer_id`, `begin` or `start`, and `end`, which is the last moment at which a buffer lives. Other columns
//! are passed over: of MiniMalloc's own, `alignment`, and `gaps`, in which a buffer would lend its place to others.

use std::io::BufRead;

use super::builder::Builder;
use super::lines::{beginning, each_line, number};
use super::{Trace, TraceError, TraceLimits, TracePlace, TraceProblem};

/// The names of a column, today's first.
type Names = &'static [&'static str];

const COLUMNS: [Names; 4] =
    [&["id", "buffer", "buffer_id"], &["lower", "begin", "start"], &["upper", LAST_MOMENT], &["size"]];

/// The name of the third column where it is the last moment of a lifetime, not the one after it.
const LAST_MOMENT: &str = "end";

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
        columns: Columns,
        builder: &mut Builder,
    ) -> Result<Self, TraceProblem> {
        let malformed = || TraceProblem::Malformed { expected: EXPECTED, found: beginning(line) };
        let field = |column: usize| line.split(',').nth(column).map(str::trim).ok_or_else(malformed);
        let [id, lower, upper, bytes] = columns.places;
        let (lower, upper) = (number(field(lower)?)?, number(field(upper)?)?);
        // At the very last moment there is none after it, and nothing can begin there either.
        let upper = upper.saturating_add(u64::from(columns.last_moment));
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

/// What a header says.
#[derive(Clone, Copy)]
struct Columns {
    /// Where id, lower, upper and size stand.
    places: [usize; 4],
    /// Whether the third column is the last moment of a lifetime.
    last_moment: bool,
}

/// What the line says, if it is a header with all columns.
fn columns(line: &str) -> Option<Columns> {
    let place = |names: Names| {
        line.split(',').position(|field| names.iter().any(|name| field.trim().eq_ignore_ascii_case(name)))
    };
    let mut places = [0; 4];
    for (found, names) in places.iter_mut().zip(COLUMNS) {
        *found = place(names)?;
    }
    let upper = line.split(',').nth(places[2])?;
    Some(Columns { places, last_moment: upper.trim().eq_ignore_ascii_case(LAST_MOMENT) })
}
