//! The data of heaptrack: every allocation and free of a process, in order, with call stacks.
//!
//! Each line has a letter and hexadecimal numbers. Entries of a table are numbered from 1 in their order.
//!
//! | line | meaning |
//! |---|---|
//! | `v` version, format | the first line |
//! | `X` command | the program |
//! | `s` [length] text | a text |
//! | `i` address, module, [function, file, line]… | a place in the code; the innermost inlined function first |
//! | `t` place, parent | a stack: a place and the stack that called it |
//! | `a` bytes, stack | a kind of block, numbered from 0 |
//! | `+` kind, `-` kind | an allocation and a free; blocks of one kind cannot be distinguished |
//! | `c` milliseconds, `R` pages | the time, and the memory of the process |
//!
//! A free without an allocation is omitted, as in heaptrack. Texts have a length since format 3.
//!
//! Source: the data that heaptrack 1.4 writes, and its printed figures.

use std::collections::HashMap;
use std::io::BufRead;

use bfc_core::Category;

use super::stacks::{Frame, MOST_FRAMES, owner_of};
use super::{ProfileProblem, Reading, facts};
use crate::record::{NewBlock, Recording};
use crate::trace::lines::{LineReader, bad_number, beginning};
use crate::trace::{TraceError, TraceLimits, TracePlace, TraceProblem};

/// The longest line. Names of C++ functions are long.
const LINE_BYTES: usize = 1 << 20;

/// The cost of an entry of a table, and that of a live block.
const ENTRY_BYTES: u64 = 64;
const LIVE_BYTES: u64 = 16;

/// Returns whether this is the first line of such a file: `v`, a version and a format.
pub(in crate::trace) fn is_first_line(line: &str) -> bool {
    let mut words = line.split(' ');
    let is_number = |word: Option<&str>| word.is_some_and(|word| u64::from_str_radix(word, 16).is_ok());
    words.next() == Some("v")
        && is_number(words.next())
        && words.next().is_none_or(|word| is_number(Some(word)))
}

/// Reads the data within so many eighths of the memory limit. Also returns the bytes of the other eighths.
pub(in crate::trace) fn read(
    reader: impl BufRead,
    limits: &TraceLimits,
    eighths: u64,
) -> Result<(Recording, u64), TraceError> {
    let mut lines = LineReader::new(reader, limits.line_bytes.max(LINE_BYTES));
    let mut data = Data { reading: Reading::new(limits, eighths), tables: Tables::default(), format: 0 };
    let mut idle = 0;
    loop {
        let read = lines.read();
        let place = TracePlace::Line(lines.number);
        if !read.map_err(|problem| place.of(problem))? {
            break;
        }
        data.reading.composer.memory().note_input(lines.line.len() as u64 + 1);
        // Paths may have any encoding.
        let line = String::from_utf8_lossy(&lines.line);
        let is_event = data.line(line.trim_end_matches('\r')).map_err(|problem| place.of(problem))?;
        idle += u32::from(!is_event);
        if idle > limits.idle_lines {
            let problem = TraceProblem::TooMany { what: "lines without an event", limit: limits.idle_lines };
            return Err(place.of(problem));
        }
    }
    let program = if data.tables.program.is_empty() { "a program" } else { &data.tables.program };
    let facts = facts(program, "heaptrack");
    data.reading.finish(facts)
}

/// A place in the code: its frames in [`Tables::lines`], and the module.
#[derive(Clone, Copy, Debug)]
struct Place {
    module: u32,
    first_line: u32,
    lines: u32,
}

/// A function, a file and a line.
#[derive(Clone, Copy, Debug)]
struct Line {
    function: u32,
    file: u32,
    line: u64,
}

/// A kind of block.
#[derive(Clone, Debug)]
struct Kind {
    bytes: u64,
    stack: u32,
    /// The ids of the live blocks.
    live: Vec<u64>,
}

#[derive(Debug, Default)]
struct Tables {
    program: String,
    texts: Vec<String>,
    places: Vec<Place>,
    lines: Vec<Line>,
    /// Pairs of a place and the calling stack.
    stacks: Vec<(u32, u32)>,
    kinds: Vec<Kind>,
    /// The owners of the stacks that allocated.
    owners: HashMap<u32, u32>,
}

struct Data {
    reading: Reading,
    tables: Tables,
    format: u64,
}

impl Data {
    /// Reads one line. Returns whether it is an event.
    fn line(&mut self, line: &str) -> Result<bool, TraceProblem> {
        let malformed = || TraceProblem::Malformed {
            expected: "a letter and hexadecimal numbers, as heaptrack writes them",
            found: beginning(line),
        };
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut numbers = Numbers { rest };
        match kind {
            "v" => {
                numbers.next()?.ok_or_else(malformed)?;
                self.format = numbers.next()?.unwrap_or(0);
                if !(1..=3).contains(&self.format) {
                    return Err(ProfileProblem::HeaptrackVersion { found: self.format }.into());
                }
            }
            "X" => self.tables.program = rest.chars().take(200).collect(),
            "s" => self.add_text(rest, malformed)?,
            "i" => self.add_place(numbers, malformed)?,
            "t" => {
                let (place, parent) = numbers.pair().ok_or_else(malformed)?;
                // A stack is called by an earlier one, so that stacks end.
                let place = index(place, self.tables.places.len(), "place")?;
                let parent = index(parent, self.tables.stacks.len(), "stack")?;
                self.reading.charge(ENTRY_BYTES)?;
                self.tables.stacks.push((place, parent));
            }
            "a" => {
                let (bytes, stack) = numbers.pair().ok_or_else(malformed)?;
                let stack = index(stack, self.tables.stacks.len(), "stack")?;
                self.reading.charge(ENTRY_BYTES)?;
                self.tables.kinds.push(Kind { bytes, stack, live: Vec::new() });
            }
            "+" => return self.allocate(numbers.next()?.ok_or_else(malformed)?).map(|()| true),
            "-" => return self.free(numbers.next()?.ok_or_else(malformed)?).map(|()| true),
            "c" => {
                let milliseconds = numbers.next()?.ok_or_else(malformed)?;
                self.reading.composer.at(milliseconds.saturating_mul(1_000_000));
            }
            "x" | "m" => return Err(ProfileProblem::RawHeaptrack.into()),
            // The memory of the process, comments and others.
            _ if kind.len() <= 1 || kind.starts_with('#') => {}
            _ => return Err(malformed()),
        }
        Ok(false)
    }

    fn add_text(&mut self, rest: &str, malformed: impl Fn() -> TraceProblem) -> Result<(), TraceProblem> {
        let text = if self.format >= 3 { rest.split_once(' ').ok_or_else(malformed)?.1 } else { rest };
        self.reading.charge(ENTRY_BYTES + text.len() as u64)?;
        self.tables.texts.push(text.to_owned());
        Ok(())
    }

    fn add_place(
        &mut self,
        mut numbers: Numbers<'_>,
        malformed: impl Fn() -> TraceProblem,
    ) -> Result<(), TraceProblem> {
        let (_, module) = numbers.pair().ok_or_else(malformed)?;
        let texts = self.tables.texts.len();
        let module = index(module, texts, "text")?;
        let first_line = self.tables.lines.len() as u32;
        while let Some(function) = numbers.next()? {
            // Functions without debug information have neither.
            let (file, line) = (numbers.next()?.unwrap_or(0), numbers.next()?.unwrap_or(0));
            let (function, file) = (index(function, texts, "text")?, index(file, texts, "text")?);
            self.reading.charge(ENTRY_BYTES)?;
            self.tables.lines.push(Line { function, file, line });
        }
        let lines = self.tables.lines.len() as u32 - first_line;
        self.reading.charge(ENTRY_BYTES)?;
        self.tables.places.push(Place { module, first_line, lines });
        Ok(())
    }

    fn allocate(&mut self, kind: u64) -> Result<(), TraceProblem> {
        let found = usize::try_from(kind).ok().filter(|&kind| kind < self.tables.kinds.len());
        let number = found.ok_or(ProfileProblem::Missing { what: "kind of block", number: kind })?;
        let (bytes, stack) = (self.tables.kinds[number].bytes, self.tables.kinds[number].stack);
        let owner = self.owner(stack)?;
        if self.reading.composer.is_without_pool() {
            self.reading.composer.select_pool("heap", "host")?;
        }
        let id = self.reading.composer.alloc(NewBlock { bytes, owner, category: Category::default() })?;
        self.reading.charge(LIVE_BYTES)?;
        self.tables.kinds[number].live.push(id);
        Ok(())
    }

    fn free(&mut self, kind: u64) -> Result<(), TraceProblem> {
        let found = usize::try_from(kind).ok().and_then(|kind| self.tables.kinds.get_mut(kind));
        let found = found.ok_or(ProfileProblem::Missing { what: "kind of block", number: kind })?;
        if let Some(id) = found.live.pop() {
            self.reading.composer.free(id)?;
        }
        Ok(())
    }

    /// Returns the owner of a stack, and stores it.
    fn owner(&mut self, stack: u32) -> Result<u32, TraceProblem> {
        if let Some(&owner) = self.tables.owners.get(&stack) {
            return Ok(owner);
        }
        let frames = self.tables.frames(stack);
        let owner = owner_of(&mut self.reading.composer, &frames)?;
        self.reading.charge(ENTRY_BYTES)?;
        self.tables.owners.insert(stack, owner);
        Ok(owner)
    }
}

impl Tables {
    /// Returns the frames of a stack, the innermost first.
    fn frames(&self, mut stack: u32) -> Vec<Frame<'_>> {
        let mut frames = Vec::new();
        while let Some(&(place, parent)) = before(&self.stacks, stack) {
            if let Some(place) = before(&self.places, place) {
                let start = place.first_line as usize;
                let module = self.text(place.module);
                let lines = &self.lines[start..start + place.lines as usize];
                if lines.is_empty() {
                    frames.push(Frame { file: module, ..Frame::default() });
                }
                frames.extend(lines.iter().take(MOST_FRAMES).map(|line| Frame {
                    function: self.text(line.function),
                    file: self.text(line.file),
                    line: line.line,
                }));
            }
            if frames.len() >= MOST_FRAMES {
                break;
            }
            stack = parent;
        }
        frames
    }

    fn text(&self, number: u32) -> &str {
        before(&self.texts, number).map_or("", String::as_str)
    }
}

/// Returns entry `number` of a table that counts from 1; `None` for 0.
fn before<T>(table: &[T], number: u32) -> Option<&T> {
    table.get((number as usize).checked_sub(1)?)
}

/// Checks that a table has an entry of this number. 0 stands for none.
fn index(number: u64, entries: usize, what: &'static str) -> Result<u32, ProfileProblem> {
    let found = u32::try_from(number).ok().filter(|&number| number as usize <= entries);
    found.ok_or(ProfileProblem::Missing { what, number })
}

/// The hexadecimal numbers of a line.
struct Numbers<'a> {
    rest: &'a str,
}

impl Numbers<'_> {
    fn next(&mut self) -> Result<Option<u64>, TraceProblem> {
        let (word, rest) = self.rest.split_once(' ').unwrap_or((self.rest, ""));
        self.rest = rest;
        if word.is_empty() {
            return Ok(None);
        }
        let digits = word.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = if digits { u64::from_str_radix(word, 16).ok() } else { None };
        number.map(Some).ok_or_else(|| bad_number(word))
    }

    fn pair(&mut self) -> Option<(u64, u64)> {
        Some((self.next().ok()??, self.next().ok()??))
    }
}
