//! Parses the events of a trace, and keeps only those of memory and of ops.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::io::{BufRead, BufReader};

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{Device, Events, MemoryEvent, Op};
use crate::trace::builder::{Builder, MAX_LABEL};
use crate::trace::profile::ProfileProblem;
use crate::trace::read::Counted;
use crate::trace::{TraceError, TracePlace, TraceProblem};

/// The cost of a name besides its letters, and that of a kept event, including unused capacity.
const NAME_BYTES: u64 = 128;
const KEPT_BYTES: u64 = 128;

pub(super) fn read(reader: impl BufRead, builder: &mut Builder) -> Result<Events, TraceError> {
    let bytes = Cell::new(0);
    let reader = BufReader::new(Counted { reader, bytes: &bytes });
    let (events, names) = (Events::default(), HashMap::new());
    let mut state = EventCollector { builder, events, names, bytes: &bytes, problem: None };
    let mut parser = serde_json::Deserializer::from_reader(reader);
    let read = File { state: &mut state }.deserialize(&mut parser).and_then(|()| parser.end());
    match (read, state.problem.take()) {
        (_, Some(problem)) => Err(TracePlace::Byte(0).of(problem)),
        (Err(error), None) if error.is_io() => Err(TracePlace::Byte(0).of(std::io::Error::from(error))),
        (Err(error), None) => {
            let place = TracePlace::Line(error.line() as u64);
            Err(place.of(ProfileProblem::Json { message: error.to_string() }))
        }
        (Ok(()), None) => Ok(state.events),
    }
}

struct EventCollector<'a> {
    builder: &'a mut Builder,
    events: Events,
    names: HashMap<String, u32>,
    /// The bytes that were read since the last event.
    bytes: &'a Cell<u64>,
    /// The first error, which the parser cannot return.
    problem: Option<TraceProblem>,
}

impl EventCollector<'_> {
    fn take(&mut self, entry: ProfilerEvent) -> Result<(), TraceProblem> {
        self.builder.note_input(self.bytes.take());
        let nanoseconds = |number: Number| (number.0.max(0.0) * 1000.0).round() as u64;
        let (at_ns, thread) = (nanoseconds(entry.ts), entry.tid.0.to_bits());
        if entry.name == "[memory]" {
            let Arguments { address, bytes, total, kind, index } = entry.args.unwrap_or_default();
            let (Some(address), Some(bytes)) = (address.whole(), bytes.signed()) else { return Ok(()) };
            let device = Device { kind: kind.whole().unwrap_or(0), index: index.signed().unwrap_or(-1) };
            self.builder.charge(KEPT_BYTES)?;
            let event = MemoryEvent { at_ns, thread, address, bytes, total: total.whole(), device };
            self.events.memory.push(event);
        } else if entry.ph == "X" && entry.cat == "cpu_op" {
            let end_ns = at_ns.saturating_add(nanoseconds(entry.dur));
            let name = self.name(entry.name)?;
            self.builder.charge(KEPT_BYTES)?;
            self.events.ops.entry(thread).or_default().push(Op { begin_ns: at_ns, end_ns, name });
        }
        Ok(())
    }

    fn name(&mut self, name: String) -> Result<u32, TraceProblem> {
        let name: String = name.chars().take(MAX_LABEL).collect();
        if let Some(&known) = self.names.get(&name) {
            return Ok(known);
        }
        self.builder.charge(NAME_BYTES + 2 * name.len() as u64)?;
        let number = self.events.names.len() as u32;
        self.events.names.push(name.clone());
        self.names.insert(name, number);
        Ok(number)
    }
}

/// The object of the file.
struct File<'a, 'b> {
    state: &'a mut EventCollector<'b>,
}

impl<'de> DeserializeSeed<'de> for File<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for File<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `traceEvents`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while let Some(key) = entries.next_key::<String>()? {
            if key == "traceEvents" {
                entries.next_value_seed(List { state: self.state })?;
            } else {
                entries.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// The list of events.
struct List<'a, 'b> {
    state: &'a mut EventCollector<'b>,
}

impl<'de> DeserializeSeed<'de> for List<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for List<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> Result<(), A::Error> {
        while let Some(entry) = events.next_element::<ProfilerEvent>()? {
            if let Err(problem) = self.state.take(entry) {
                self.state.problem = Some(problem);
                return Err(A::Error::custom("a wrong event"));
            }
        }
        Ok(())
    }
}

/// The fields of an event that this reader uses.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct ProfilerEvent {
    ph: String,
    cat: String,
    name: String,
    ts: Number,
    dur: Number,
    tid: Number,
    args: Option<Arguments>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Arguments {
    #[serde(rename = "Addr")]
    address: Number,
    #[serde(rename = "Bytes")]
    bytes: Number,
    #[serde(rename = "Total Allocated")]
    total: Number,
    #[serde(rename = "Device Type")]
    kind: Number,
    #[serde(rename = "Device Id")]
    index: Number,
}

/// A number, exact if it is an integer. Values of other types are NaN.
#[derive(Clone, Copy, Debug)]
struct Number(f64, Option<i128>);

impl Default for Number {
    fn default() -> Self {
        Self(f64::NAN, None)
    }
}

impl Number {
    fn whole(self) -> Option<u64> {
        self.1.and_then(|number| number.try_into().ok())
    }

    fn signed(self) -> Option<i64> {
        self.1.and_then(|number| number.try_into().ok())
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyNumber)
    }
}

struct AnyNumber;

impl<'de> Visitor<'de> for AnyNumber {
    type Value = Number;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_i64<E>(self, number: i64) -> Result<Number, E> {
        Ok(Number(number as f64, Some(number.into())))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Number, E> {
        Ok(Number(number as f64, Some(number.into())))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Number, E> {
        Ok(Number(number, None))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Number, E> {
        Ok(Number::default())
    }

    fn visit_str<E>(self, _: &str) -> Result<Number, E> {
        Ok(Number::default())
    }

    fn visit_unit<E>(self) -> Result<Number, E> {
        Ok(Number::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Number, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Number::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Number, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Number::default())
    }
}
