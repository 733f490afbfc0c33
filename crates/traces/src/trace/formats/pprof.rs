//! Profiles in the format of `pprof`: live bytes by call stack at one moment, usually compressed by gzip.
//!
//! A sample becomes as many blocks as it counts, if the profile counts at most [`MOST_BLOCKS`] in all. Otherwise it
//! becomes one block. All blocks are live at the end.
//!
//! Source: the field numbers in `profile.proto` of the project pprof.

use std::collections::HashMap;
use std::io::BufRead;
use std::ops::Range;

use bfc_core::Category;
use highwater_tracking::{NewBlock, OwnerName, Phase, Recording};

use super::Format;
use crate::trace::lines::beginning;
use crate::trace::profile::fields::{COMMENT, MODULE, location, profile, sample};
use crate::trace::profile::protobuf::{Message, Value};
use crate::trace::profile::stacks::{FRAME_BYTES, Frames, MOST_FRAMES, first_letters, text_bytes};
use crate::trace::profile::{ENTRY_BYTES, MOST_BLOCKS, ProfileProblem, Reading, facts};
use crate::trace::{TraceError, TraceLimits, TracePlace, TraceProblem};

/// The most lines of a location: functions that were inlined there.
const MOST_INLINED: usize = 16;

pub(super) const FORMAT: Format = Format::profile(
    "a heap profile of pprof",
    |start| is_start(start.bytes),
    &[b"\x0a\x04\x08"],
    |reader, limits, eighths| read(reader, limits, eighths),
);

/// Returns whether these are the first bytes of a profile. Its fields may have any order.
fn is_start(start: &[u8]) -> bool {
    // Most writers begin with the type of the samples, and Go with that of the period.
    if matches!(start, [0x0a | 0x5a, 2..=24, 0x08 | 0x10, ..]) {
        return true;
    }
    // Text has no such bytes, and a protocol buffer has many.
    start.iter().any(|byte| matches!(byte, 0..=8)) && has_fields_of_profile(start)
}

/// Returns whether bytes consist of fields of a profile. The last one may be incomplete.
fn has_fields_of_profile(start: &[u8]) -> bool {
    let (mut rest, mut complete, mut texts) = (Message::new(start), 0, 0);
    loop {
        let mut fields = rest;
        let Ok(Some((number, value))) = fields.next() else { break };
        let number = u32::try_from(number).unwrap_or(0);
        let is_known = match value {
            // The first text is empty.
            Value::Bytes(text) if number == profile::STRING_TABLE => {
                texts += 1;
                texts > 1 || text.bytes.is_empty()
            }
            Value::Bytes(_) => profile::MESSAGES.contains(&number) || number == profile::COMMENT,
            Value::Number(_) => profile::NUMBERS.contains(&number) || number == profile::COMMENT,
        };
        if !is_known {
            return false;
        }
        (rest, complete) = (fields, complete + 1);
    }
    let next = rest.bytes.first().map(|key| u32::from(key >> 3));
    let is_cut = |number: u32| number == profile::STRING_TABLE || profile::MESSAGES.contains(&number);
    complete > 0 && next.is_none_or(is_cut)
}

/// Reads a profile within so many eighths of the memory limit. Also returns the bytes of the other eighths.
fn read(
    mut reader: impl BufRead,
    limits: &TraceLimits,
    eighths: u64,
) -> Result<(Recording, u64), TraceError> {
    let mut bytes = Vec::new();
    let read = reader.read_to_end(&mut bytes);
    read.map_err(|error| TracePlace::Byte(bytes.len() as u64).of(error))?;
    let mut reading = Reading::new(limits, eighths);
    reading.composer.memory().note_input(bytes.len() as u64);
    let profile = Profile::read(&bytes, &mut reading)?;
    let values = profile.values()?;
    let blocks = profile.blocks(&values)?;
    let one_each = blocks.is_none_or(|blocks| blocks > MOST_BLOCKS);
    let mut stacks = Stacks::new(&profile);
    for &sample in &profile.samples {
        let at = TracePlace::Byte(sample.offset);
        let sample = profile.sample(sample, &values)?;
        stacks.compose(&mut reading, &sample, one_each).map_err(|problem| at.of(problem))?;
    }
    let mut facts = facts(profile.program(), "a pprof profile");
    facts.started_unix_ms = profile.time_ns / 1_000_000;
    reading.finish(facts)
}

/// A function in the file: indices of texts.
#[derive(Clone, Copy, Debug, Default)]
struct Function {
    name: u64,
    system_name: u64,
    file: u64,
}

/// A place in the code.
#[derive(Debug, Default)]
struct Location {
    /// Functions and lines, the innermost inlined function first.
    lines: Vec<(u64, u64)>,
    mapping: u64,
}

/// The tables of a profile.
#[derive(Debug, Default)]
struct Profile<'a> {
    /// Texts that are not UTF-8 are empty.
    texts: Vec<&'a str>,
    /// The name and unit of each value of a sample.
    types: Vec<(u64, u64)>,
    samples: Vec<Message<'a>>,
    functions: HashMap<u64, Function>,
    locations: HashMap<u64, Location>,
    /// The file of each mapping.
    mappings: HashMap<u64, u64>,
    time_ns: u64,
    comments: Vec<u64>,
}

/// The indices of the values of a sample that count bytes and blocks.
struct Values {
    bytes: usize,
    blocks: Option<usize>,
}

/// One sample.
#[derive(Debug, Default)]
struct Sample {
    locations: Vec<u64>,
    bytes: u64,
    blocks: u64,
    /// Pairs of key and text.
    labels: Vec<(u64, u64)>,
    offset: u64,
}

impl<'a> Profile<'a> {
    /// Reads the tables, and the places of the samples.
    fn read(bytes: &'a [u8], reading: &mut Reading) -> Result<Self, TraceError> {
        let mut found = Self::default();
        let mut fields = Message::new(bytes);
        while let Some((number, value)) = fields.next()? {
            let at = TracePlace::Byte(fields.offset);
            reading.charge(ENTRY_BYTES).map_err(|problem| at.of(problem))?;
            let number = u32::try_from(number).unwrap_or(0);
            match (number, value) {
                (profile::SAMPLE_TYPE, Value::Bytes(message)) => {
                    let [_, name, unit] = numbers(message)?;
                    found.types.push((name, unit));
                }
                (profile::SAMPLE, Value::Bytes(message)) => found.samples.push(message),
                (profile::MAPPING, Value::Bytes(message)) => {
                    let [_, id, _, _, _, file] = numbers(message)?;
                    found.mappings.insert(id, file);
                }
                (profile::LOCATION, Value::Bytes(message)) => found.add_location(message, reading)?,
                (profile::FUNCTION, Value::Bytes(message)) => {
                    let [_, id, name, system_name, file] = numbers(message)?;
                    found.functions.insert(id, Function { name, system_name, file });
                }
                (profile::STRING_TABLE, Value::Bytes(text)) => {
                    found.texts.push(std::str::from_utf8(text.bytes).unwrap_or_default());
                }
                (profile::TIME_NANOS, Value::Number(time)) => found.time_ns = time,
                (profile::COMMENT, Value::Number(comment)) => found.comments.push(comment),
                (profile::COMMENT, Value::Bytes(mut packed)) if !packed.bytes.is_empty() => {
                    found.comments.push(packed.number()?);
                }
                _ => {}
            }
        }
        Ok(found)
    }

    fn add_location(&mut self, mut message: Message<'a>, reading: &mut Reading) -> Result<(), TraceError> {
        let (mut id, mut mapping, mut lines) = (0, 0, Vec::new());
        while let Some((number, value)) = message.next()? {
            match (u32::try_from(number).unwrap_or(0), value) {
                (location::ID, Value::Number(number)) => id = number,
                (location::MAPPING_ID, Value::Number(number)) => mapping = number,
                (location::LINE, Value::Bytes(line)) => {
                    let at = TracePlace::Byte(line.offset);
                    reading.charge(ENTRY_BYTES).map_err(|problem| at.of(problem))?;
                    let [_, function, number] = numbers(line)?;
                    lines.push((function, number));
                }
                _ => {}
            }
        }
        self.locations.insert(id, Location { lines, mapping });
        Ok(())
    }

    /// Returns a text.
    fn text(&self, index: u64) -> Result<&'a str, TraceProblem> {
        let text = usize::try_from(index).ok().and_then(|index| self.texts.get(index).copied());
        Ok(text.ok_or(ProfileProblem::Missing { what: "text", number: index })?)
    }

    /// Chooses the values: live bytes if there are several kinds, and the number of their blocks.
    fn values(&self) -> Result<Values, TraceError> {
        let at = |problem: TraceProblem| TracePlace::Byte(0).of(problem);
        let mut names = Vec::new();
        for &(name, unit) in self.types.iter().take(MOST_TYPES) {
            names.push((self.text(name).map_err(at)?, self.text(unit).map_err(at)?));
        }
        let of_unit = |wanted: &str| {
            let found = |&index: &usize| names[index].1 == wanted;
            let mut indices = (0..names.len()).filter(found);
            let is_allocated = |&index: &usize| names[index].0.starts_with("alloc_");
            let live = indices.clone().find(|index| !is_allocated(index));
            live.or_else(|| indices.next())
        };
        let bytes = of_unit("bytes").ok_or_else(|| {
            // Many types may share a long text.
            let shown = names.iter().take(MOST_SHOWN);
            let mut found: Vec<_> =
                shown.map(|(name, unit)| format!("{} ({})", beginning(name), beginning(unit))).collect();
            if self.types.len() > MOST_SHOWN {
                found.push("…".to_owned());
            }
            at(ProfileProblem::NoBytes { found: found.join(", ") }.into())
        })?;
        Ok(Values { bytes, blocks: of_unit("count") })
    }

    /// Returns the number of blocks of all samples; `None` if the profile does not count them.
    fn blocks(&self, values: &Values) -> Result<Option<u64>, TraceError> {
        let mut blocks = 0_u64;
        for &sample in &self.samples {
            blocks = blocks.saturating_add(self.sample(sample, values)?.blocks);
        }
        Ok(values.blocks.map(|_| blocks))
    }

    fn sample(&self, mut message: Message<'a>, values: &Values) -> Result<Sample, TraceError> {
        let (mut found, mut index) = (Sample { offset: message.offset, ..Sample::default() }, 0);
        let mut value = |found: &mut Sample, number: u64| {
            if i64::try_from(number).is_err() {
                return Err(TracePlace::Byte(found.offset).of(ProfileProblem::Negative));
            }
            if index == values.bytes {
                found.bytes = number;
            }
            if Some(index) == values.blocks {
                found.blocks = number;
            }
            index += 1;
            Ok(())
        };
        while let Some((number, content)) = message.next()? {
            match (u32::try_from(number).unwrap_or(0), content) {
                (sample::LOCATION_ID, Value::Number(location)) => found.add_location(location),
                (sample::LOCATION_ID, Value::Bytes(mut packed)) => {
                    while !packed.bytes.is_empty() {
                        found.add_location(packed.number()?);
                    }
                }
                (sample::VALUE, Value::Number(number)) => value(&mut found, number)?,
                (sample::VALUE, Value::Bytes(mut packed)) => {
                    while !packed.bytes.is_empty() {
                        value(&mut found, packed.number()?)?;
                    }
                }
                (sample::LABEL, Value::Bytes(pair)) if found.labels.len() < MOST_TYPES => {
                    let [_, key, text] = numbers(pair)?;
                    found.labels.push((key, text));
                }
                _ => {}
            }
        }
        Ok(found)
    }

    fn location(&self, id: u64) -> Result<&Location, ProfileProblem> {
        self.locations.get(&id).ok_or(ProfileProblem::Missing { what: "location", number: id })
    }

    fn function(&self, id: u64) -> Result<Function, ProfileProblem> {
        let known = self.functions.get(&id).copied();
        known.ok_or(ProfileProblem::Missing { what: "function", number: id })
    }

    /// Whether [`export`](crate::export) wrote the profile.
    fn is_exported(&self) -> bool {
        self.comments.iter().take(MOST_TYPES).any(|&text| self.text(text).is_ok_and(|text| text == COMMENT))
    }

    /// The program of an exported profile: its outermost frame.
    fn program(&self) -> &'a str {
        let root = self.locations.get(&1).and_then(|location| location.lines.first());
        let function = root.and_then(|(function, _)| self.functions.get(function));
        let name = function.filter(|_| self.is_exported()).map(|function| function.name);
        name.and_then(|name| self.text(name).ok()).map_or("a profiled program", first_letters)
    }
}

/// The most kinds of values, labels and comments that are looked at.
const MOST_TYPES: usize = 64;

/// The most kinds of values in an error message.
const MOST_SHOWN: usize = 8;

impl Sample {
    /// Adds a location. Outer ones beyond the limit are omitted.
    fn add_location(&mut self, location: u64) {
        if self.locations.len() < MOST_FRAMES {
            self.locations.push(location);
        }
    }
}

/// The stacks of a profile as owners. Each location is looked at once, because many samples share it.
struct Stacks<'a> {
    profile: &'a Profile<'a>,
    /// Whether Highwater wrote the profile.
    is_exported: bool,
    frames: Frames,
    /// The frames of a location.
    locations: HashMap<u64, Range<u32>>,
    /// The texts of [`Self::frames`].
    texts: HashMap<u64, u32>,
    /// The owners of an exported profile by location and parent.
    exported: HashMap<(u32, u64), u32>,
    /// The names of the exported owners, and the phases of ops, by their text.
    exported_names: HashMap<u64, (OwnerName, Option<Phase>)>,
}

impl<'a> Stacks<'a> {
    fn new(profile: &'a Profile<'a>) -> Self {
        Self {
            profile,
            is_exported: profile.is_exported(),
            frames: Frames::default(),
            locations: HashMap::new(),
            texts: HashMap::new(),
            exported: HashMap::new(),
            exported_names: HashMap::new(),
        }
    }

    /// Adds the blocks of a sample. A sample without bytes, such as a program of JAX, has none.
    fn compose(
        &mut self,
        reading: &mut Reading,
        sample: &Sample,
        one_each: bool,
    ) -> Result<(), TraceProblem> {
        if sample.bytes == 0 {
            return Ok(());
        }
        let (mut pool, mut category) = ("heap", Category::default());
        for &(key, text) in &sample.labels {
            let (key, text) = (self.profile.text(key)?, self.profile.text(text)?);
            match key {
                // Programs may choose any labels. JAX has the device.
                "pool" if self.is_exported => pool = text,
                "device" if !text.is_empty() => pool = text,
                "category" if self.is_exported => {
                    category =
                        Category::ALL.into_iter().find(|known| known.name() == text).unwrap_or_default();
                }
                _ => {}
            }
        }
        reading.composer.select_pool(pool, "unknown")?;
        let owner = if self.is_exported {
            self.exported_owner(reading, sample)?
        } else {
            self.owner(reading, sample)?
        };
        let blocks = if one_each { 1 } else { sample.blocks.max(1) };
        for number in 0..blocks {
            // The first block has the bytes that cannot be divided.
            let rest = if number == 0 { sample.bytes % blocks } else { 0 };
            let block = NewBlock { bytes: sample.bytes / blocks + rest, owner, category };
            reading.composer.alloc(block)?;
        }
        Ok(())
    }

    /// Returns the owner of a sample's stack.
    fn owner(&mut self, reading: &mut Reading, sample: &Sample) -> Result<u32, TraceProblem> {
        let mut stack = Vec::new();
        for &location in &sample.locations {
            stack.extend(self.location(reading, location)?);
            if stack.len() >= MOST_FRAMES {
                break;
            }
        }
        Ok(self.frames.owner_of(&mut reading.composer, &stack)?)
    }

    /// Returns the frames of a location, the innermost first.
    fn location(&mut self, reading: &mut Reading, id: u64) -> Result<Range<u32>, TraceProblem> {
        if let Some(known) = self.locations.get(&id) {
            return Ok(known.clone());
        }
        let Location { lines, mapping } = self.profile.location(id)?;
        let mut added: Option<Range<u32>> = None;
        let mut add = |frame: u32| added = Some(added.take().map_or(frame, |added| added.start)..frame + 1);
        if lines.is_empty() {
            let file = match self.profile.mappings.get(mapping) {
                Some(&file) => self.text(reading, file)?,
                None => Frames::NO_TEXT,
            };
            reading.charge(FRAME_BYTES)?;
            add(self.frames.add(Frames::NO_TEXT, file, 0));
        }
        for &(function, line) in lines.iter().take(MOST_INLINED) {
            let Function { name, file, .. } = self.profile.function(function)?;
            let (name, file) = (self.text(reading, name)?, self.text(reading, file)?);
            reading.charge(FRAME_BYTES)?;
            add(self.frames.add(name, file, line));
        }
        let added = added.unwrap_or(0..0);
        reading.charge(ENTRY_BYTES)?;
        self.locations.insert(id, added.clone());
        Ok(added)
    }

    /// Returns the number of a text among those of the frames.
    fn text(&mut self, reading: &mut Reading, index: u64) -> Result<u32, TraceProblem> {
        if let Some(&known) = self.texts.get(&index) {
            return Ok(known);
        }
        let text = self.profile.text(index)?;
        reading.charge(ENTRY_BYTES + text_bytes(text))?;
        let added = self.frames.add_text(text);
        self.texts.insert(index, added);
        Ok(added)
    }

    /// Restores the owner of an exported sample. The outermost location is the program.
    fn exported_owner(&mut self, reading: &mut Reading, sample: &Sample) -> Result<u32, TraceProblem> {
        let mut owner = 0;
        for &id in sample.locations.iter().rev().skip(1) {
            owner = match self.exported.get(&(owner, id)) {
                Some(&known) => known,
                None => {
                    let Some(&(function, _)) = self.profile.location(id)?.lines.first() else { continue };
                    let text = self.profile.function(function)?.system_name;
                    let (name, phase) = self.exported_name(reading, text)?;
                    reading.charge(ENTRY_BYTES)?;
                    let added = reading.composer.owner(owner, name, phase)?;
                    self.exported.insert((owner, id), added);
                    added
                }
            };
        }
        Ok(owner)
    }

    /// Parses `KIND:NAME`, as the exporter writes it into the system name of a function. The kind is `module` or the
    /// phase of an op.
    fn exported_name(
        &mut self,
        reading: &mut Reading,
        index: u64,
    ) -> Result<(OwnerName, Option<Phase>), TraceProblem> {
        if let Some(&known) = self.exported_names.get(&index) {
            return Ok(known);
        }
        let text = self.profile.text(index)?;
        let (kind, name) = text.split_once(':').unwrap_or_default();
        let (name, phase) = match Phase::named(kind) {
            _ if kind == MODULE => (name, None),
            Some(phase) => (name, Some(phase)),
            None => (text, Some(Phase::Unknown)),
        };
        reading.charge(ENTRY_BYTES)?;
        let found = (reading.composer.name(name)?, phase);
        self.exported_names.insert(index, found);
        Ok(found)
    }
}

/// Reads the numbers of a message by field; absent ones are 0.
fn numbers<const N: usize>(mut message: Message<'_>) -> Result<[u64; N], TraceError> {
    let mut found = [0; N];
    while let Some((number, value)) = message.next()? {
        let field = usize::try_from(number).ok().and_then(|number| found.get_mut(number));
        if let (Some(field), Value::Number(value)) = (field, value) {
            *field = value;
        }
    }
    Ok(found)
}
