//! The holders at the peak as a profile for `pprof`. Each owner, category and pool has a sample with two values: the
//! number of blocks and their bytes.
//!
//! A profile is a protocol buffer, compressed by gzip. This module writes the few required parts of that format itself.
//!
//! Source: the field numbers in `profile.proto` of the project pprof.

use std::collections::HashMap;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use highwater_files::varint;
use highwater_tracking::{Phase, Recording};

use super::{ExportError, Output, at_peak};
use crate::trace::profile::fields::{
    COMMENT, MODULE, function, label, location, profile, sample, value_type,
};

pub(super) fn write<W: Write>(recording: &Recording, out: &mut Output<W>) -> Result<(), ExportError> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&profile(recording))?;
    out.flush(&mut gzip.finish()?)?;
    Ok(())
}

/// The uncompressed profile. Owners are both locations and functions: location 1 is the program, owner n is n + 1.
fn profile(recording: &Recording) -> Vec<u8> {
    let facts = recording.facts();
    let mut texts = Texts::new();
    let mut out = Message::default();

    for (name, unit) in [("blocks", "count"), ("space", "bytes")] {
        let mut message = Message::default();
        message.number(value_type::TYPE, texts.number(name));
        message.number(value_type::UNIT, texts.number(unit));
        out.message(profile::SAMPLE_TYPE, &message);
    }

    let mut named = vec![false; recording.owners().len()];
    for holding in at_peak::holdings(recording) {
        let mut stack: Vec<u64> = recording.lineage(holding.owner).into_iter().map(u64::from).collect();
        stack.insert(0, 0);
        stack.iter().for_each(|&owner| named[owner as usize] = true);
        let mut message = Message::default();
        // Innermost first.
        message.numbers(sample::LOCATION_ID, stack.iter().rev().map(|owner| owner + 1));
        message.numbers(sample::VALUE, [holding.blocks, holding.bytes]);
        let pool = recording.pools()[holding.pool as usize].name.as_str();
        for (key, value) in [("category", holding.category.name()), ("pool", pool)] {
            let mut pair = Message::default();
            pair.number(label::KEY, texts.number(key));
            pair.number(label::TEXT, texts.number(value));
            message.message(sample::LABEL, &pair);
        }
        out.message(profile::SAMPLE, &message);
    }

    for (owner, _) in (0_u32..).zip(&named).filter(|(_, named)| **named) {
        let id = u64::from(owner) + 1;
        let mut line = Message::default();
        line.number(location::LINE_FUNCTION_ID, id);
        let mut place = Message::default();
        place.number(location::ID, id);
        place.message(location::LINE, &line);
        out.message(profile::LOCATION, &place);

        // An op has the same name in all modules, so that its samples add up. A module is named by its path.
        let (path, found) = (recording.owner_path(owner), recording.owner(owner));
        let name = match found.phase {
            _ if owner == 0 && facts.program.is_empty() => "program",
            _ if owner == 0 => &facts.program,
            Some(_) => &found.name,
            None => &path,
        };
        let kind = found.phase.map_or(MODULE, Phase::name);
        let mut message = Message::default();
        message.number(function::ID, id);
        message.number(function::NAME, texts.number(name));
        message.number(function::SYSTEM_NAME, texts.number(&format!("{kind}:{}", found.name)));
        message.number(function::FILENAME, texts.number(&recording.owner_path(recording.module_of(owner))));
        out.message(profile::FUNCTION, &message);
    }

    out.number(profile::TIME_NANOS, facts.started_unix_ms.saturating_mul(1_000_000));
    out.number(profile::DEFAULT_SAMPLE_TYPE, texts.number("space"));
    out.number(profile::COMMENT, texts.number(COMMENT));
    for text in &texts.all {
        out.bytes(profile::STRING_TABLE, text.as_bytes());
    }
    out.0
}

/// The string table of a profile. The first string must be empty.
struct Texts {
    all: Vec<String>,
    numbers: HashMap<String, u64>,
}

impl Texts {
    fn new() -> Self {
        let mut texts = Self { all: Vec::new(), numbers: HashMap::new() };
        texts.number("");
        texts
    }

    fn number(&mut self, text: &str) -> u64 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = self.all.len() as u64;
        self.all.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }
}

/// A protocol buffer message.
#[derive(Clone, Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    const VARINT: u32 = 0;
    const LENGTH_DELIMITED: u32 = 2;

    fn varint(&mut self, number: u64) {
        varint::put(&mut self.0, number);
    }

    fn number(&mut self, field: u32, number: u64) {
        self.varint((field << 3 | Self::VARINT).into());
        self.varint(number);
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.varint((field << 3 | Self::LENGTH_DELIMITED).into());
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u32, message: &Self) {
        self.bytes(field, &message.0);
    }

    fn numbers(&mut self, field: u32, numbers: impl IntoIterator<Item = u64>) {
        let mut packed = Self::default();
        for number in numbers {
            packed.varint(number);
        }
        self.message(field, &packed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_are_written_as_protocol_buffers_have_them() {
        let mut inner = Message::default();
        inner.number(1, 150);
        assert_eq!(inner.0, [0x08, 0x96, 0x01]);
        let mut outer = Message::default();
        outer.message(3, &inner);
        outer.bytes(2, b"testing");
        outer.numbers(6, [3, 270, 86_942]);
        assert_eq!(outer.0, *b"\x1a\x03\x08\x96\x01\x12\x07testing\x32\x06\x03\x8e\x02\x9e\xa7\x05");
    }
}
