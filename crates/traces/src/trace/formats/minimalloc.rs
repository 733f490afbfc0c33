//! Problems of MiniMalloc and of other offline packers: one buffer per line with its lifetime and its size.
//!
//! The columns `id`, `lower`, `upper` and `size` may have any order. A buffer lives from `lower` to before `upper`. At
//! one moment, frees come before allocations, in the order of lines. Older files use the names `buffer` or `buffer_id`,
//! `begin` or `start`, and `end`, the last moment of a lifetime.
//!
//! Cells may be quoted. `alignment` is a power of two. `gaps` lists intervals, separated by spaces, in which other buffers may use
//! a buffer's bytes. An interval is `LOWER-UPPER`, or `LOWER-UPPER@FROM:TO` for a buffer that keeps its bytes
//! from FROM up to TO. The reader notes all other columns as [skipped](Trace::skipped), such as the `offset`
//! of another packer.

use std::borrow::Cow;
use std::io::BufRead;
use std::ops::Range;

use highwater_files::lean;

use super::Format;
use crate::trace::builder::Builder;
use crate::trace::lines::{Cells, alignment_of, beginning, each_line, number};
use crate::trace::{Trace, TraceError, TraceLimits, TracePlace, TraceProblem};

/// The names of a column, the current one first.
type Names = &'static [&'static str];

const COLUMNS: [Names; 4] =
    [&["id", "buffer", "buffer_id"], &["lower", "begin", "start"], &["upper", LAST_MOMENT], &["size"]];

/// The name of the third column if it holds the last moment of a lifetime, not the one after it.
const LAST_MOMENT: &str = "end";

const ALIGNMENT: Names = &["alignment"];
const GAPS: Names = &["gaps"];

const EXPECTED: &str = "a line with all columns of the header";

pub(super) const FORMAT: Format = Format::trace(
    "a MiniMalloc problem",
    |start| start.has_line(is_first_line),
    &[b"id,lower,upper,size\n", b"id,lower,upper,size,alignment,gaps\n"],
    |reader, options| parse(reader, &options.limits),
);

/// Returns whether a file's first line is the header of such a problem.
fn is_first_line(line: &str) -> bool {
    Columns::of(line).is_some()
}

fn parse(reader: impl BufRead, limits: &TraceLimits) -> Result<Trace, TraceError> {
    let mut builder = Builder::new(*limits);
    let mut problem = Problem::default();
    let mut header = None;
    each_line(reader, limits, &mut builder, |builder, line_number, line| {
        let Some(columns) = header else {
            let malformed = || TraceProblem::Malformed {
                expected: "columns id, lower, upper, size",
                found: beginning(line),
            };
            let columns = Columns::of(line).ok_or_else(malformed)?;
            for name in columns.unused(line) {
                builder.skip(format!("the column {:?}", beginning(&name)));
            }
            header = Some(columns);
            return Ok(false);
        };
        // Each buffer has two events, and each gap up to two.
        if problem.moments.len() >= limits.events as usize {
            return Err(TraceProblem::TooMany { what: "events", limit: limits.events });
        }
        problem.add(line, line_number, columns, builder)?;
        Ok(true)
    })?;
    problem.play(builder)
}

/// All buffers and their events.
#[derive(Default)]
struct Problem {
    buffers: Vec<Buffer>,
    moments: Vec<Moment>,
    /// The index of the last buffer's begin in `moments`.
    begin: usize,
}

#[derive(Clone, Copy)]
struct Buffer {
    bytes: u64,
    alignment: u32,
    label: u32,
    line: u64,
}

/// An event of a buffer.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Moment {
    time: u64,
    kind: Kind,
    buffer: u32,
    /// The bytes that the buffer occupies from then on.
    low: u64,
    high: u64,
}

/// A kind of event. At one time, releases come before allocations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    End,
    GiveUp,
    Begin,
    TakeBack,
}

impl Problem {
    fn add(
        &mut self,
        line: &str,
        line_number: u64,
        columns: Columns,
        builder: &mut Builder,
    ) -> Result<(), TraceProblem> {
        let malformed = || TraceProblem::Malformed { expected: EXPECTED, found: beginning(line) };
        let field = |column: usize| Cells::of(line).nth(column).ok_or_else(malformed);
        let [id, lower, upper, bytes] = columns.places;
        let lifetime = columns.lifetime(number(&field(lower)?)?, number(&field(upper)?)?);
        if lifetime.is_empty() {
            return Err(TraceProblem::EmptyLifetime { lower: lifetime.start, upper: lifetime.end });
        }
        let bytes = number(&field(bytes)?)?;
        let alignment = columns.alignment.map(field).transpose()?.filter(|text| !text.is_empty());
        let alignment = alignment.map_or(Ok(1), |text| alignment_of(&text))?;
        let label = builder.made_label(&field(id)?)?;
        builder.charge(lean::cost::<Buffer>())?;
        let buffer = self.buffers.len() as u32;
        lean::push(&mut self.buffers, Buffer { bytes, alignment, label, line: line_number });
        self.begin = self.moments.len();
        self.moment(lifetime.start, Kind::Begin, buffer, 0..bytes, builder)?;
        self.moment(lifetime.end, Kind::End, buffer, 0..0, builder)?;
        match columns.gaps {
            Some(column) => self.gaps(&field(column)?, &lifetime, columns, builder),
            None => Ok(()),
        }
    }

    /// Adds the gaps of the last buffer.
    fn gaps(
        &mut self,
        text: &str,
        lifetime: &Range<u64>,
        columns: Columns,
        builder: &mut Builder,
    ) -> Result<(), TraceProblem> {
        let mut gaps = Vec::new();
        for text in text.split(' ').filter(|text| !text.is_empty()) {
            let malformed = || TraceProblem::Malformed {
                expected: "gaps as LOWER-UPPER or LOWER-UPPER@FROM:TO",
                found: beginning(text),
            };
            let (time, kept) = text.split_once('@').map_or((text, None), |(time, kept)| (time, Some(kept)));
            let (lower, upper) = time.split_once('-').ok_or_else(malformed)?;
            let time = columns.lifetime(number(lower)?, number(upper)?);
            if time.is_empty() {
                return Err(TraceProblem::BadGap { lower: time.start, upper: time.end });
            }
            let kept = match kept {
                Some(kept) => {
                    let (from, to) = kept.split_once(':').ok_or_else(malformed)?;
                    number(from)?..number(to)?
                }
                None => 0..0,
            };
            gaps.push((time, kept));
        }
        gaps.sort_by_key(|(time, _)| time.start);
        let Some(buffer) = self.buffers.len().checked_sub(1) else { return Ok(()) };
        let bytes = self.buffers[buffer].bytes;
        let all = 0..bytes;
        let mut occupied = all.clone();
        let mut ended = 0;
        for (time, kept) in gaps {
            if time.start < ended {
                return Err(TraceProblem::BadGap { lower: time.start, upper: time.end });
            }
            if kept.start > kept.end || kept.end > bytes {
                return Err(TraceProblem::BadRange { start: kept.start, end: kept.end, bytes });
            }
            if time.start > ended && occupied != all {
                self.change(ended, buffer as u32, &mut occupied, all.clone(), lifetime, builder)?;
            }
            self.change(time.start, buffer as u32, &mut occupied, kept, lifetime, builder)?;
            ended = time.end;
        }
        if occupied == all {
            Ok(())
        } else {
            self.change(ended, buffer as u32, &mut occupied, all, lifetime, builder)
        }
    }

    /// Changes the occupied bytes of a buffer at `time`. Outside of its lifetime it occupies none.
    fn change(
        &mut self,
        time: u64,
        buffer: u32,
        occupied: &mut Range<u64>,
        next: Range<u64>,
        lifetime: &Range<u64>,
        builder: &mut Builder,
    ) -> Result<(), TraceProblem> {
        let before = std::mem::replace(occupied, next.clone());
        if time >= lifetime.end {
            return Ok(());
        }
        if time <= lifetime.start {
            // The buffer begins with only these bytes.
            if let Some(begin) = self.moments.get_mut(self.begin) {
                (begin.low, begin.high) = (next.start, next.end);
            }
            return Ok(());
        }
        let shared = before.start.max(next.start)..before.end.min(next.end);
        let shared = if shared.is_empty() { 0..0 } else { shared };
        if shared != before {
            self.moment(time, Kind::GiveUp, buffer, shared.clone(), builder)?;
        }
        if shared == next { Ok(()) } else { self.moment(time, Kind::TakeBack, buffer, next, builder) }
    }

    fn moment(
        &mut self,
        time: u64,
        kind: Kind,
        buffer: u32,
        occupied: Range<u64>,
        builder: &mut Builder,
    ) -> Result<(), TraceProblem> {
        builder.charge(lean::cost::<Moment>())?;
        lean::push(&mut self.moments, Moment { time, kind, buffer, low: occupied.start, high: occupied.end });
        Ok(())
    }

    /// Returns all events in order.
    fn play(mut self, mut builder: Builder) -> Result<Trace, TraceError> {
        self.moments.sort_unstable();
        // The buffer that began with all of its bytes directly before.
        let mut begun = None;
        for moment in &self.moments {
            let Buffer { bytes, alignment, label, line } = self.buffers[moment.buffer as usize];
            let (id, occupied, all) = (u64::from(moment.buffer), moment.low..moment.high, 0..bytes);
            let begins_whole = moment.kind == Kind::Begin && occupied == all;
            let played = match moment.kind {
                Kind::End => builder.free(id),
                Kind::Begin if begins_whole => builder.alloc_labelled(id, bytes, alignment, label),
                Kind::Begin => builder
                    .alloc_labelled(id, bytes, alignment, label)
                    .and_then(|()| builder.occupy(id, occupied)),
                // Directly after the allocation, a part alone would mean that the block never occupied the rest.
                Kind::GiveUp | Kind::TakeBack if begun == Some(moment.buffer) => {
                    builder.occupy(id, all).and_then(|()| builder.occupy(id, occupied))
                }
                Kind::GiveUp | Kind::TakeBack => builder.occupy(id, occupied),
            };
            begun = begins_whole.then_some(moment.buffer);
            played.map_err(|problem| TracePlace::Line(line).of(problem))?;
        }
        builder.set_granule(1);
        Ok(builder.finish())
    }
}

/// The columns of a header.
#[derive(Clone, Copy)]
struct Columns {
    /// The positions of id, lower, upper and size.
    places: [usize; 4],
    alignment: Option<usize>,
    gaps: Option<usize>,
    /// Whether the third column holds the last moment of a lifetime.
    last_moment: bool,
}

impl Columns {
    /// Parses a header; `None` if a column is missing.
    fn of(line: &str) -> Option<Self> {
        let place = |names: Names| {
            Cells::of(line).position(|cell| names.iter().any(|name| cell.eq_ignore_ascii_case(name)))
        };
        let mut places = [0; 4];
        for (found, names) in places.iter_mut().zip(COLUMNS) {
            *found = place(names)?;
        }
        let last_moment = Cells::of(line).nth(places[2])?.eq_ignore_ascii_case(LAST_MOMENT);
        Some(Self { places, alignment: place(ALIGNMENT), gaps: place(GAPS), last_moment })
    }

    /// Returns the names of the ignored columns.
    fn unused<'a>(&self, line: &'a str) -> impl Iterator<Item = Cow<'a, str>> {
        let used = self.places.map(Some).into_iter().chain([self.alignment, self.gaps]);
        let used: Vec<usize> = used.flatten().collect();
        Cells::of(line).enumerate().filter(move |(place, _)| !used.contains(place)).map(|(_, name)| name)
    }

    /// Returns the lifetime as `lower` and the moment after its last.
    fn lifetime(&self, lower: u64, upper: u64) -> Range<u64> {
        // There is no moment after the very last one, and nothing can begin there.
        lower..upper.saturating_add(u64::from(self.last_moment))
    }
}
