//! Heap profiles as text: those of tcmalloc (gperftools), jemalloc and Go, which `pprof` and `jeprof` read.
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
//! Bytes are those of the file. A profile that samples contains only some blocks. The number after the type is the bytes
//! between two of them. `pprof` divides the figures of a stack by the probability that a block is sampled,
//! 1 - e^(-size / rate). For the type `heap` it uses half of the rate. The reader adds that sum to the facts.
//!
//! Most files have no names of functions. Their frames are places in mapped files: `prog+0x1136`. Two kinds have names:
//!
//! - Files of `pprof --raw` and `jeprof --raw` have a table of symbols: `0x401135 outer--inlined`.
//! - Go's `/debug/pprof/heap?debug=1` has a comment for each frame behind its stack:
//!   `#<tab>0x401135<tab>main.alloc+0x15<tab>/app/main.go:12`. Frames of one address are inlined, the innermost first.
//!
//! Stacks have return addresses, which are behind the call. Symbols are those of the byte before, except that of the
//! innermost frame in a table.
//!
//! Source: the readers of legacy profiles in the projects pprof and jemalloc (`jeprof`), and `runtime/pprof` of Go.

use std::collections::HashMap;
use std::io::BufRead;
use std::ops::Range;

use bfc_core::{Bytes, Category};
use highwater_files::lean;
use highwater_tracking::{Cut, NewBlock, Recording};

use super::Format;
use crate::trace::lines::{beginning, each_raw_line, number};
use crate::trace::profile::stacks::{FRAME_BYTES, Frames, MOST_FRAMES, first_letters, text_bytes};
use crate::trace::profile::{ENTRY_BYTES, MOST_BLOCKS, ProfileProblem, Reading, facts};
use crate::trace::{TraceError, TraceLimits, TracePlace, TraceProblem};

/// The longest line. Stacks are long.
const LINE_BYTES: usize = 1 << 20;

const EXPECTED: &str = "a heap profile of tcmalloc or jemalloc: `BLOCKS: BYTES [BLOCKS: BYTES] @ ADDRESS...`";

pub(super) const FORMAT: Format = Format::profile(
    "a heap profile of tcmalloc, jemalloc or Go",
    |start| start.has_line(is_first_line),
    &[b"heap profile: 1: 4096 [3: 12288] @ heap/524288\n", b"heap_v2/524288\n"],
    |reader, limits, eighths| read(reader, limits, eighths),
);

/// Returns whether this is the first line of such a file.
fn is_first_line(line: &str) -> bool {
    line.starts_with("heap profile:") || line == SYMBOLS || threaded_rate(line).is_some()
}

/// The lines before symbols, before the profile, and at the end of symbols, in files of `pprof --raw`.
const SYMBOLS: &str = "--- symbol";
const PROFILES: [&str; 2] = ["--- heap", "--- growth"];
const END_OF_SYMBOLS: &str = "---";

/// The most functions of one address: those that were inlined there.
const MOST_INLINED: usize = 16;

/// Returns the rate in the header of jemalloc.
fn threaded_rate(line: &str) -> Option<u64> {
    let (version, rate) = line.strip_prefix("heap_v")?.split_once('/')?;
    number(version).ok()?;
    number(rate).ok()
}

/// Reads a profile within so many eighths of the memory limit. Also returns the bytes of the other eighths.
fn read(reader: impl BufRead, limits: &TraceLimits, eighths: u64) -> Result<(Recording, u64), TraceError> {
    let mut profile = Profile {
        reading: Reading::new(limits, eighths),
        tables: Tables::default(),
        frames: Frames::default(),
    };
    let mut bytes = 0;
    each_raw_line(reader, limits, limits.line_bytes.max(LINE_BYTES), |number, line| {
        let length = line.len() as u64 + 1;
        bytes += length;
        profile.reading.composer.memory().note_input(length);
        // Paths may have any encoding.
        profile.line(String::from_utf8_lossy(line).trim(), number)
    })?;
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
    /// The number of its path among the texts of the frames.
    path: u32,
}

/// A function at an address: texts of the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Symbol {
    function: u32,
    /// The file and the line, if they are known.
    place: Option<(u32, u64)>,
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
    /// The functions of all addresses in [`Self::symbols`], the innermost first.
    functions: Vec<Symbol>,
    /// The functions of an address.
    symbols: HashMap<u64, Range<u32>>,
    /// The address of the last symbol of Go behind the current stack, if it is new.
    last_of_go: Option<u64>,
    is_go: bool,
    program: String,
}

struct Profile {
    reading: Reading,
    tables: Tables,
    frames: Frames,
}

impl Profile {
    /// Reads one line. Returns whether it belongs to a stack.
    fn line(&mut self, line: &str, line_number: u64) -> Result<bool, TraceProblem> {
        let malformed = || TraceProblem::Malformed { expected: EXPECTED, found: beginning(line) };
        let tables = &mut self.tables;
        match tables.section {
            Section::Samples if line.starts_with("#\t0x") => self.symbol_of_go(line)?,
            _ if line.is_empty() || line.starts_with('#') => {}
            Section::Header if line == SYMBOLS => tables.section = Section::Symbols,
            Section::Header if PROFILES.contains(&line) => {}
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
        self.tables.last_of_go = None;
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
        self.reading.charge(ENTRY_BYTES)?;
        let first = self.tables.functions.len() as u32;
        // Callers are in front of the functions that were inlined into them.
        for name in name.trim().rsplit("--").filter(|name| !name.is_empty()).take(MOST_INLINED) {
            self.add_function(name, None)?;
        }
        self.tables.symbols.insert(address, first..self.tables.functions.len() as u32);
        Ok(())
    }

    /// Reads `#`, an address, `NAME+OFFSET` and `FILE:LINE`, separated by tabs. Skips other comments.
    fn symbol_of_go(&mut self, line: &str) -> Result<(), TraceProblem> {
        let mut words = line.split('\t').skip(1);
        let address = words.next().and_then(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
        let (Some(address), Some(name)) = (address, words.next()) else { return Ok(()) };
        self.tables.is_go = true;
        let name = name.rsplit_once('+').map_or(name, |(name, _)| name);
        let place = words.next().and_then(|place| place.rsplit_once(':'));
        let place = place.and_then(|(file, line)| Some((file, number(line).ok()?)));
        let tables = &mut self.tables;
        let is_inlined = tables.last_of_go == Some(address);
        if !is_inlined {
            tables.last_of_go = None;
            if tables.symbols.contains_key(&address) {
                return Ok(());
            }
            self.reading.charge(ENTRY_BYTES)?;
            let next = tables.functions.len() as u32;
            tables.symbols.insert(address, next..next);
            tables.last_of_go = Some(address);
        }
        // A recursive function may have an address twice in a stack.
        let Some(known) = self.tables.symbols.get(&address).cloned() else { return Ok(()) };
        let is_known = |symbol: &Symbol| {
            let line = symbol.place.map(|(_, line)| line);
            self.frames.function(symbol.function) == first_letters(name)
                && line == place.map(|(_, line)| line)
        };
        let functions = &self.tables.functions[known.start as usize..known.end as usize];
        if functions.len() < MOST_INLINED && !functions.iter().any(is_known) {
            self.add_function(name, place)?;
            let end = self.tables.functions.len() as u32;
            self.tables.symbols.insert(address, known.start..end);
        }
        Ok(())
    }

    /// Adds a function of the last address, with its file and line if they are known.
    fn add_function(&mut self, name: &str, place: Option<(&str, u64)>) -> Result<(), TraceProblem> {
        let file = place.map_or("", |(file, _)| file);
        self.reading.charge(lean::cost::<Symbol>() + text_bytes(name) + text_bytes(file))?;
        let function = self.frames.add_text(name);
        let place = place.map(|(file, line)| (self.frames.add_text(file), line));
        lean::push(&mut self.tables.functions, Symbol { function, place });
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
        if path.is_empty() {
            return Ok(());
        }
        self.reading.charge(lean::cost::<Mapping>() + text_bytes(path))?;
        // Many addresses share a path, which may be long.
        let path = self.frames.add_text(path);
        lean::push(&mut self.tables.mappings, Mapping { start, end, offset: offset.unwrap_or(0), path });
        Ok(())
    }

    /// Composes the recording of a file of so many bytes.
    fn finish(mut self, file_bytes: u64) -> Result<(Recording, u64), TraceError> {
        let Self { reading, tables, frames } = &mut self;
        tables.mappings.sort_by_key(|mapping| mapping.start);
        let sum = |figure: fn(&Figures) -> u64| {
            tables.samples.iter().fold(0_u64, |sum, sample| sum.saturating_add(figure(&sample.figures)))
        };
        let (all_blocks, all_bytes) = (sum(|figures| figures.blocks), sum(|figures| figures.bytes));
        let (mut known, mut stack) = (HashMap::new(), Vec::new());
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
            let addresses = &tables.addresses[first..first + sample.count as usize];
            for (index, &address) in addresses.iter().enumerate() {
                let is_call = index > 0 || tables.is_go;
                let found = match known.get(&(address, is_call)) {
                    Some(found) => Range::clone(found),
                    None => {
                        let found = tables.frames_of(address, is_call, frames, reading).map_err(at)?;
                        known.insert((address, is_call), found.clone());
                        found
                    }
                };
                stack.extend(found);
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
        let writer = if tables.is_go { "Go" } else { "tcmalloc or jemalloc" };
        let mut facts = facts(program, &format!("a heap profile of {writer}"));
        if tables.rate > 1 {
            facts = facts
                .with("sampled every", Bytes(tables.rate))
                .with("live bytes estimated from the samples", Bytes(estimate as u64));
        }
        let missing = tables.total.is_some_and(|total| total.bytes > all_bytes);
        let cut = tables.total.filter(|_| missing).map(|total| {
            Cut::new(
                file_bytes,
                format!("the stacks have {all_bytes} of the {} bytes in the header", total.bytes),
            )
        });
        let (recording, rest) = self.reading.finish(facts)?;
        Ok((recording.with_cut(cut), rest))
    }
}

impl Tables {
    /// Adds the frames of an address, the innermost first: its symbols, or its place in a mapped file. `is_call` is
    /// whether it is the address to which a call returns.
    fn frames_of(
        &self,
        address: u64,
        is_call: bool,
        frames: &mut Frames,
        reading: &mut Reading,
    ) -> Result<Range<u32>, TraceProblem> {
        reading.charge(ENTRY_BYTES)?;
        let index = self.mappings.partition_point(|mapping| mapping.start <= address);
        let mapping = index.checked_sub(1).and_then(|index| self.mappings.get(index));
        let mapping = mapping.filter(|mapping| address < mapping.end);
        let path = mapping.map_or(Frames::NO_TEXT, |mapping| mapping.path);
        let call = address.checked_sub(1).filter(|_| is_call);
        let symbols = call.and_then(|call| self.symbols.get(&call)).or_else(|| self.symbols.get(&address));
        let symbols =
            symbols.map_or(&[][..], |symbols| &self.functions[symbols.start as usize..symbols.end as usize]);
        let first = frames.len();
        for symbol in symbols {
            reading.charge(FRAME_BYTES)?;
            let (file, line) = symbol.place.unwrap_or((path, 0));
            frames.add(symbol.function, file, line);
        }
        // Go leaves out only frames of its runtime.
        if symbols.is_empty() && !self.is_go {
            let function = match mapping {
                Some(Mapping { start, offset, path, .. }) => {
                    let place = (address - start).wrapping_add(*offset);
                    format!("{}+{place:#x}", frames.file(*path))
                }
                None => format!("{address:#x}"),
            };
            reading.charge(FRAME_BYTES + text_bytes(&function))?;
            let function = frames.add_text(&function);
            frames.add(function, path, 0);
        }
        Ok(first..frames.len())
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
