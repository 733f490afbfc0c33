//! Heap profiles as text: those of tcmalloc (gperftools) and jemalloc, which `pprof` and `jeprof` read.
//!
//! ```text
//! heap profile:      1:     4096 [     3:    12288] @ heap/524288
//!      1:     4096 [     3:    12288] @ 0x401136 0x401162
//!
//! MAPPED_LIBRARIES:
//! 00400000-00402000 r-xp 00000000 08:01 1234 /app/prog
//! ```
//!
//! A line has the live blocks and bytes of a stack, then all allocated ones. The innermost frame is first. jemalloc
//! writes the header `heap_v2/524288`, and a stack before its figures: `t*` for all threads, `t0` for thread 0.
//!
//! Bytes are those of the file. A profile that samples contains only some blocks, and the number after the type is the
//! bytes between two of them. `pprof` divides the figures of a stack by the probability that a block is sampled,
//! 1 - e^(-size / rate), with half of the rate for the type `heap`. The reader adds that sum to the facts.
//!
//! Frames have no names, except in the files of `pprof --raw`. They are places in mapped files: `prog+0x1136`.
//!
//! Source: the readers of legacy profiles in the projects pprof and jemalloc (`jeprof`).

use std::collections::HashMap;
use std::io::BufRead;

use bfc_core::{Bytes, Category};

use super::stacks::{FRAME_BYTES, Frames, MOST_FRAMES, text_bytes};
use super::{MOST_BLOCKS, ProfileProblem, Reading, facts};
use crate::files::lean;
use crate::record::{NewBlock, Recording};
use crate::report::Cut;
use crate::trace::lines::{LineReader, beginning, number};
use crate::trace::{TraceError, TraceLimits, TracePlace, TraceProblem};

/// The longest line. Stacks are long.
const LINE_BYTES: usize = 1 << 20;

/// The cost of a map entry besides its texts, including unused capacity.
const ENTRY_BYTES: u64 = 96;

const EXPECTED: &str = "a heap profile of tcmalloc or jemalloc: `BLOCKS: BYTES [BLOCKS: BYTES] @ ADDRESS...`";

/// Returns whether this is the first line of such a file.
pub(in crate::trace) fn is_first_line(line: &str) -> bool {
    line.starts_with("heap profile:") || line == SYMBOLS || threaded_rate(line).is_some()
}

/// The lines before symbols, before the profile, and at the end of symbols, in files of `pprof --raw`.
const SYMBOLS: &str = "--- symbol";
const HEAP: &str = "--- heap";
const END_OF_SYMBOLS: &str = "---";

/// Returns the rate in the header of jemalloc.
fn threaded_rate(line: &str) -> Option<u64> {
    let (version, rate) = line.strip_prefix("heap_v")?.split_once('/')?;
    number(version).ok()?;
    number(rate).ok()
}

/// Reads a profile within so many eighths of the memory limit. Also returns the bytes of the other eighths.
pub(in crate::trace) fn read(
    reader: impl BufRead,
    limits: &TraceLimits,
    eighths: u64,
) -> Result<(Recording, u64), TraceError> {
    let mut lines = LineReader::new(reader, limits.line_bytes.max(LINE_BYTES));
    let mut profile = Profile { reading: Reading::new(limits, eighths), tables: Tables::default() };
    let (mut idle, mut bytes) = (0, 0);
    loop {
        let read = lines.read();
        let place = TracePlace::Line(lines.number);
        if !read.map_err(|problem| place.of(problem))? {
            break;
        }
        bytes += lines.line.len() as u64 + 1;
        profile.reading.composer.memory().note_input(lines.line.len() as u64 + 1);
        // Paths may have any encoding.
        let line = String::from_utf8_lossy(&lines.line);
        let is_sample = profile.line(line.trim(), lines.number).map_err(|problem| place.of(problem))?;
        idle += u32::from(!is_sample);
        if idle > limits.idle_lines {
            let problem = TraceProblem::TooMany { what: "lines without an event", limit: limits.idle_lines };
            return Err(place.of(problem));
        }
    }
    profile.finish(bytes)
}

/// The part of the file that a line belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Section {
    #[default]
    Header,
    Symbols,
    Samples,
    Mappings,
}

/// The live blocks of a stack. Its addresses are in [`Tables::addresses`], the innermost first.
#[derive(Clone, Copy, Debug)]
struct Sample {
    first: u32,
    count: u32,
    line: u64,
    figures: Figures,
}

/// Live blocks and their bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    blocks: u64,
    bytes: u64,
}

/// A mapped file.
#[derive(Debug)]
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    path: String,
}

#[derive(Debug, Default)]
struct Tables {
    section: Section,
    /// The bytes between two samples, as the type of the profile defines them; 0 or 1 if all blocks are in the file.
    rate: u64,
    /// The figures of the header, if it has some.
    total: Option<Figures>,
    /// Whether the figures of a stack stand behind it, by thread.
    is_threaded: bool,
    /// Whether the last stack has the figures of all threads.
    has_sum: bool,
    addresses: Vec<u64>,
    samples: Vec<Sample>,
    mappings: Vec<Mapping>,
    symbols: HashMap<u64, String>,
    program: String,
}

struct Profile {
    reading: Reading,
    tables: Tables,
}

impl Profile {
    /// Reads one line. Returns whether it belongs to a stack.
    fn line(&mut self, line: &str, line_number: u64) -> Result<bool, TraceProblem> {
        let malformed = || TraceProblem::Malformed { expected: EXPECTED, found: beginning(line) };
        let tables = &mut self.tables;
        match tables.section {
            _ if line.is_empty() || line.starts_with('#') => {}
            Section::Header if line == SYMBOLS => tables.section = Section::Symbols,
            Section::Header if line == HEAP => {}
            Section::Header => self.header(line).ok_or_else(malformed)?,
            Section::Symbols if line == END_OF_SYMBOLS => tables.section = Section::Header,
            Section::Symbols => self.symbol(line)?,
            Section::Samples if line == "MAPPED_LIBRARIES:" || line.starts_with("--- Memory map:") => {
                tables.section = Section::Mappings;
            }
            Section::Samples if tables.is_threaded => return self.threaded(line, line_number, malformed),
            Section::Samples => {
                let (figures, rest) = figures(line)?.ok_or_else(malformed)?;
                let addresses = rest.trim_start().strip_prefix('@').ok_or_else(malformed)?;
                self.add_sample(addresses, line_number, figures, malformed)?;
                return Ok(true);
            }
            Section::Mappings => self.mapping(line)?,
        }
        Ok(false)
    }

    /// Reads the header; `None` for another kind of profile.
    fn header(&mut self, line: &str) -> Option<()> {
        let tables = &mut self.tables;
        tables.section = Section::Samples;
        if let Some(rate) = threaded_rate(line) {
            (tables.rate, tables.is_threaded) = (rate, true);
            return Some(());
        }
        let (total, rest) = figures(line.strip_prefix("heap profile:")?).ok()??;
        tables.total = Some(total);
        let kind = rest.trim_start().strip_prefix('@').map_or("", str::trim);
        let (kind, rate) = kind.split_once('/').unwrap_or((kind, "0"));
        let rate = if rate.is_empty() { 0 } else { number(rate).ok()? };
        tables.rate = match kind {
            "heap_v2" | "heapz_v2" => rate,
            // All blocks, or bytes that the heap grew by.
            "" | "heapprofile" | "growth" | "growthz" => 0,
            _ if kind.starts_with("heap") => rate / 2,
            _ => return None,
        };
        Some(())
    }

    /// Reads a stack of jemalloc, or figures of the last stack.
    fn threaded(
        &mut self,
        line: &str,
        line_number: u64,
        malformed: impl Fn() -> TraceProblem,
    ) -> Result<bool, TraceProblem> {
        if let Some(addresses) = line.strip_prefix('@') {
            self.add_sample(addresses, line_number, Figures::default(), malformed)?;
            self.tables.has_sum = false;
            return Ok(true);
        }
        let (thread, rest) =
            line.strip_prefix('t').and_then(|line| line.split_once(':')).ok_or_else(&malformed)?;
        let (figures, _name) = figures(rest)?.ok_or_else(&malformed)?;
        let is_sum = thread == "*";
        if !is_sum {
            number(thread)?;
        }
        let tables = &mut self.tables;
        match tables.samples.last_mut() {
            // Before the first stack.
            None if is_sum => tables.total = Some(figures),
            None => {}
            Some(last) if is_sum => (last.figures, tables.has_sum) = (figures, true),
            Some(last) if !tables.has_sum => {
                last.figures.blocks = last.figures.blocks.saturating_add(figures.blocks);
                last.figures.bytes = last.figures.bytes.saturating_add(figures.bytes);
            }
            Some(_) => {}
        }
        Ok(true)
    }

    fn add_sample(
        &mut self,
        addresses: &str,
        line: u64,
        figures: Figures,
        malformed: impl Fn() -> TraceProblem,
    ) -> Result<(), TraceProblem> {
        let first = self.tables.addresses.len() as u32;
        for address in addresses.split_whitespace() {
            let digits = address.strip_prefix("0x").unwrap_or(address);
            let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            let address = u64::from_str_radix(digits, 16).ok().filter(|_| is_hex).ok_or_else(&malformed)?;
            if self.tables.addresses.len() - (first as usize) < MOST_FRAMES {
                self.reading.charge(lean::cost::<u64>())?;
                lean::push(&mut self.tables.addresses, address);
            }
        }
        self.reading.charge(lean::cost::<Sample>())?;
        let count = self.tables.addresses.len() as u32 - first;
        lean::push(&mut self.tables.samples, Sample { first, count, line, figures });
        Ok(())
    }

    /// Reads `ADDRESS NAME` or `binary=PATH`. Skips other lines.
    fn symbol(&mut self, line: &str) -> Result<(), TraceProblem> {
        if let Some(path) = line.strip_prefix("binary=") {
            self.tables.program = path.chars().take(200).collect();
        }
        let Some((address, name)) =
            line.strip_prefix("0x").and_then(|line| line.split_once(char::is_whitespace))
        else {
            return Ok(());
        };
        let Ok(address) = u64::from_str_radix(address, 16) else { return Ok(()) };
        self.reading.charge(ENTRY_BYTES + name.len() as u64)?;
        self.tables.symbols.insert(address, name.trim().to_owned());
        Ok(())
    }

    /// Reads `START-END PERMISSIONS OFFSET DEVICE INODE PATH`. Skips other lines.
    fn mapping(&mut self, line: &str) -> Result<(), TraceProblem> {
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let mut words = line.splitn(5, char::is_whitespace);
        let range = words.next().and_then(|range| range.split_once('-'));
        let Some((Some(start), Some(end))) = range.map(|(start, end)| (hex(start), hex(end))) else {
            return Ok(());
        };
        let (_permissions, offset, _device) = (words.next(), words.next().and_then(hex), words.next());
        let path = words.next().and_then(|rest| rest.split_once(char::is_whitespace));
        let path = path.map_or("", |(_inode, path)| path.trim());
        self.reading.charge(lean::cost::<Mapping>() + path.len() as u64)?;
        let mapping = Mapping { start, end, offset: offset.unwrap_or(0), path: path.to_owned() };
        lean::push(&mut self.tables.mappings, mapping);
        Ok(())
    }

    /// Composes the recording of a file of so many bytes.
    fn finish(mut self, file_bytes: u64) -> Result<(Recording, u64), TraceError> {
        let Self { reading, tables } = &mut self;
        tables.mappings.sort_by_key(|mapping| mapping.start);
        let sum = |figure: fn(&Figures) -> u64| {
            tables.samples.iter().fold(0_u64, |sum, sample| sum.saturating_add(figure(&sample.figures)))
        };
        let (all_blocks, all_bytes) = (sum(|figures| figures.blocks), sum(|figures| figures.bytes));
        let (mut frames, mut known, mut stack) = (Frames::default(), HashMap::new(), Vec::new());
        let mut estimate = 0_f64;
        for sample in &tables.samples {
            let at = |problem: TraceProblem| TracePlace::Line(sample.line).of(problem);
            let Figures { blocks, bytes } = sample.figures;
            if bytes == 0 {
                continue;
            }
            estimate += unsampled_bytes(sample.figures, tables.rate);
            stack.clear();
            let first = sample.first as usize;
            for &address in &tables.addresses[first..first + sample.count as usize] {
                let frame = match known.get(&address) {
                    Some(&frame) => frame,
                    None => {
                        let frame = tables.frame(address, &mut frames, reading).map_err(at)?;
                        known.insert(address, frame);
                        frame
                    }
                };
                stack.push(frame);
            }
            let composer = &mut reading.composer;
            composer.select_pool("heap", "host").map_err(|problem| at(problem.into()))?;
            let owner = frames.owner_of(composer, &stack).map_err(|problem| at(problem.into()))?;
            let divided = if all_blocks > MOST_BLOCKS { 1 } else { blocks.max(1) };
            for index in 0..divided {
                let rest = if index == 0 { bytes % divided } else { 0 };
                let block = NewBlock { bytes: bytes / divided + rest, owner, category: Category::default() };
                composer.alloc(block).map_err(|problem| at(problem.into()))?;
            }
        }
        let program = if tables.program.is_empty() { "a profiled program" } else { &tables.program };
        let mut facts = facts(program, "a heap profile of tcmalloc or jemalloc");
        if tables.rate > 1 {
            facts = facts
                .with("sampled every", Bytes(tables.rate))
                .with("live bytes estimated from the samples", Bytes(estimate as u64));
        }
        let missing = tables.total.is_some_and(|total| total.bytes > all_bytes);
        let cut = tables.total.filter(|_| missing).map(|total| Cut {
            offset: file_bytes,
            reason: format!("the stacks have {all_bytes} of the {} bytes in the header", total.bytes),
        });
        let (recording, rest) = self.reading.finish(facts)?;
        Ok((recording.with_cut(cut), rest))
    }
}

impl Tables {
    /// Adds the frame of an address: its symbol, or its place in a mapped file.
    fn frame(&self, address: u64, frames: &mut Frames, reading: &mut Reading) -> Result<u32, TraceProblem> {
        let index = self.mappings.partition_point(|mapping| mapping.start <= address);
        let mapping = index.checked_sub(1).and_then(|index| self.mappings.get(index));
        let mapping = mapping.filter(|mapping| address < mapping.end && !mapping.path.is_empty());
        let function = match (self.symbols.get(&address), mapping) {
            (Some(symbol), _) => symbol.clone(),
            (None, Some(Mapping { start, offset, path, .. })) => {
                let file = path.rsplit('/').next().unwrap_or_default();
                format!("{file}+{:#x}", (address - start).wrapping_add(*offset))
            }
            (None, None) => format!("{address:#x}"),
        };
        let path = mapping.map_or("", |mapping| mapping.path.as_str());
        reading.charge(ENTRY_BYTES + FRAME_BYTES + text_bytes(&function) + text_bytes(path))?;
        let (function, file) = (frames.add_text(&function), frames.add_text(path));
        Ok(frames.add(function, file, 0))
    }
}

/// Parses `BLOCKS: BYTES [BLOCKS: BYTES]`. Returns the first two numbers and the rest of the text.
fn figures(text: &str) -> Result<Option<(Figures, &str)>, TraceProblem> {
    let parts = || {
        let (blocks, rest) = text.split_once(':')?;
        let (bytes, rest) = rest.split_once('[')?;
        let (allocated, rest) = rest.split_once(']')?;
        Some((blocks.trim(), bytes.trim(), allocated.split_once(':')?, rest))
    };
    let Some((blocks, bytes, _allocated, rest)) = parts() else { return Ok(None) };
    if blocks.starts_with('-') || bytes.starts_with('-') {
        return Err(ProfileProblem::Negative.into());
    }
    Ok(Some((Figures { blocks: number(blocks)?, bytes: number(bytes)? }, rest)))
}

/// Estimates the live bytes of a stack from those that were sampled.
fn unsampled_bytes(Figures { blocks, bytes }: Figures, rate: u64) -> f64 {
    if rate <= 1 || blocks == 0 {
        return bytes as f64;
    }
    let mean = bytes as f64 / blocks as f64;
    bytes as f64 / -(-mean / rate as f64).exp_m1()
}
