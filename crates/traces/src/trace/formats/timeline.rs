//! PyTorch's memory timeline: the `.raw.json.gz` of `torch.profiler.profile.export_memory_timeline`.
//!
//! It is a JSON list of events `[nanoseconds, action, bytes, category]`. Memory that was live before the profile has the
//! time -1. Negative bytes are a free. There are no addresses: a free ends the last block of its category and size.
//!
//! Source: `torch/profiler/_memory_profiler.py` of PyTorch 2.15.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::io::{BufRead, BufReader};

use serde::de::{DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};

use super::Format;
use crate::trace::builder::Builder;
use crate::trace::profile::ProfileProblem;
use crate::trace::read::Counted;
use crate::trace::{Trace, TraceError, TraceLimits, TracePlace, TraceProblem};

pub(super) const FORMAT: Format = Format::trace(
    "a PyTorch memory timeline",
    |start| start.has_line(|line| line.starts_with("[[")),
    &[b"[["],
    |reader, options| parse(reader, &options.limits),
);

/// The categories by their number in the file.
const CATEGORIES: [&str; 8] = [
    "parameter",
    "optimizer state",
    "input",
    "temporary",
    "activation",
    "gradient",
    "autograd detail",
    "unknown",
];

/// The cost of a live block.
const LIVE_BYTES: u64 = 64;

fn parse(reader: impl BufRead, limits: &TraceLimits) -> Result<Trace, TraceError> {
    let bytes = Cell::new(0);
    let reader = BufReader::new(Counted { reader, bytes: &bytes });
    let (builder, live) = (Builder::new(*limits), HashMap::new());
    let mut timeline = Timeline { builder, live, next: 0, bytes: &bytes, problem: None };
    let mut parser = serde_json::Deserializer::from_reader(reader);
    let read = Events { timeline: &mut timeline }.deserialize(&mut parser).and_then(|()| parser.end());
    match (read, timeline.problem.take()) {
        (_, Some(error)) => Err(error),
        (Err(error), None) if error.is_io() => Err(TracePlace::Byte(0).of(std::io::Error::from(error))),
        (Err(error), None) => {
            let place = TracePlace::Line(error.line() as u64);
            Err(place.of(ProfileProblem::Json { message: error.to_string() }))
        }
        (Ok(()), None) => Ok(timeline.builder.finish()),
    }
}

struct Timeline<'a> {
    builder: Builder,
    /// The live blocks by category and size.
    live: HashMap<(u8, u64), Vec<u64>>,
    /// The number of blocks so far.
    next: u64,
    /// The bytes that were read since the last event.
    bytes: &'a Cell<u64>,
    /// The first error, which the parser cannot return.
    problem: Option<TraceError>,
}

impl Timeline<'_> {
    fn event(&mut self, [time, _action, bytes, category]: [i64; 4]) -> Result<(), TraceProblem> {
        let number = u8::try_from(category).ok().filter(|&number| usize::from(number) < CATEGORIES.len());
        let number = number.ok_or(TraceProblem::BadNumber { found: category.to_string() })?;
        self.builder.note_input(self.bytes.take());
        if let Ok(time) = u64::try_from(time) {
            self.builder.at(time);
        }
        let size = bytes.unsigned_abs();
        if bytes >= 0 {
            let label = self.builder.made_label(CATEGORIES[usize::from(number)])?;
            self.builder.charge(LIVE_BYTES)?;
            self.builder.alloc_labelled(self.next, size, 1, label)?;
            self.live.entry((number, size)).or_default().push(self.next);
            self.next += 1;
            return Ok(());
        }
        let live = self.live.get_mut(&(number, size)).and_then(Vec::pop);
        let id = live.ok_or(ProfileProblem::Missing { what: "a live block with the bytes", number: size })?;
        self.builder.free(id)
    }
}

/// The list of events.
struct Events<'a, 'b> {
    timeline: &'a mut Timeline<'b>,
}

impl<'de> DeserializeSeed<'de> for Events<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of `[nanoseconds, action, bytes, category]`")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> Result<(), A::Error> {
        for index in 0_u64.. {
            let event = match events.next_element::<[i64; 4]>() {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) if index == 0 => {
                    // The other form has a list of times and one of sums.
                    let place = TracePlace::Event { device: 0, index };
                    self.timeline.problem = Some(place.of(ProfileProblem::TimelineOfSums));
                    return Err(error);
                }
                Err(error) => return Err(error),
            };
            if let Err(problem) = self.timeline.event(event) {
                self.timeline.problem = Some(TracePlace::Event { device: 0, index }.of(problem));
                return Err(A::Error::custom("a wrong event"));
            }
        }
        Ok(())
    }
}
