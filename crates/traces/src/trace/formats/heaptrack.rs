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

use std::io::BufRead;
use std::ops::Range;

use bfc_core::Category;
use highwater_files::lean;
use highwater_tracking::{BlockProblem, Composer, NewBlock, Recording};

use super::Format;
use crate::trace::lines::{bad_number, beginning, each_raw_line};
use crate::trace::profile::stacks::{FRAME_BYTES, Frames, MOST_FRAMES, text_bytes};
use crate::trace::profile::{ProfileProblem, Reading, facts};
use crate::trace::{TraceError, TraceLimits, TraceProblem};

/// The longest line. Names of C++ functions are long.
const LINE_BYTES: usize = 1 << 20;

/// The cost of a live block.
const LIVE_BYTES: u64 = 16;

/// An owner that is not known yet.
const UNKNOWN: u32 = u32::MAX;

pub(super) const FORMAT: Format = Format::profile(
    "data of heaptrack",
    |start| start.has_line(is_first_line),
    &[b"v 10400 3\n"],
    |reader, limits, eighths| read(reader, limits, eighths),
);

/// Returns whether this is the first line of such a file: `v`, a version and a format.
fn is_first_line(line: &str) -> bool {
    let mut words = line.split(' ');
    let is_number = |word: Option<&str>| word.is_some_and(|word| u64::from_str_radix(word, 16).is_ok());
    words.next() == Some("v")
        && is_number(words.next())
        && words.next().is_none_or(|word| is_number(Some(word)))
}

/// Reads the data within so many eighths of the memory limit. Also returns the bytes of the other eighths.
fn read(reader: impl BufRead, limits: &TraceLimits, eighths: u64) -> Result<(Recording, u64), TraceError> {
    let mut data = Data { reading: Reading::new(limits, eighths), tables: Tables::default(), format: 0 };
    each_raw_line(reader, limits, limits.line_bytes.max(LINE_BYTES), |_, line| {
        data.reading.composer.memory().note_input(line.len() as u64 + 1);
        // Paths may have any encoding.
        data.line(String::from_utf8_lossy(line).trim_end_matches('\r'))
    })?;
    let program = if data.tables.program.is_empty() { "a program" } else { &data.tables.program };
    let facts = facts(program, "heaptrack");
    data.reading.finish(facts)
}

/// A place in the code: its frames in [`Tables::frames`], the innermost first.
#[derive(Clone, Copy, Debug)]
struct Place {
    first: u32,
    count: u32,
    /// The number of frames outside of libraries.
    users: u32,
}

impl Place {
    /// The frames in [`Tables::frames`], up to the most of a stack.
    fn frames(self) -> Range<u32> {
        self.first..self.first + self.count.min(MOST_FRAMES as u32)
    }
}

/// A place and the stack that called it.
#[derive(Clone, Copy, Debug)]
struct Stack {
    place: u32,
    parent: u32,
    /// The innermost stack of this one and its callers whose place is outside of libraries; 0 if there is none.
    user: u32,
    /// The frames of this stack and its callers: those outside of libraries if there are some.
    depth: u32,
    /// The owner of the frames as modules, or [`UNKNOWN`].
    modules: u32,
}

/// A kind of block.
#[derive(Clone, Debug)]
struct Kind {
    bytes: u64,
    stack: u32,
    /// The owner, or [`UNKNOWN`].
    owner: u32,
    /// The ids of the live blocks.
    live: Vec<u64>,
}

#[derive(Debug, Default)]
struct Tables {
    program: String,
    frames: Frames,
    places: Vec<Place>,
    stacks: Vec<Stack>,
    kinds: Vec<Kind>,
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
                self.reading.charge(lean::cost::<Stack>())?;
                self.tables.add_stack(place, parent);
            }
            "a" => {
                let (bytes, stack) = numbers.pair().ok_or_else(malformed)?;
                let stack = index(stack, self.tables.stacks.len(), "stack")?;
                self.reading.charge(lean::cost::<Kind>())?;
                lean::push(&mut self.tables.kinds, Kind { bytes, stack, owner: UNKNOWN, live: Vec::new() });
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
        self.reading.charge(text_bytes(text))?;
        self.tables.frames.add_text(text);
        Ok(())
    }

    fn add_place(
        &mut self,
        mut numbers: Numbers<'_>,
        malformed: impl Fn() -> TraceProblem,
    ) -> Result<(), TraceProblem> {
        let frames = &mut self.tables.frames;
        let (_, module) = numbers.pair().ok_or_else(malformed)?;
        // Text 0 stands for none.
        let texts = frames.texts() - 1;
        let module = index(module, texts, "text")?;
        let mut added: Option<Place> = None;
        while let Some(function) = numbers.next()? {
            // Functions without debug information have neither.
            let (file, line) = (numbers.next()?.unwrap_or(0), numbers.next()?.unwrap_or(0));
            let (function, file) = (index(function, texts, "text")?, index(file, texts, "text")?);
            self.reading.charge(FRAME_BYTES)?;
            let frame = frames.add(function, file, line);
            let place = added.get_or_insert(Place { first: frame, count: 0, users: 0 });
            place.count += 1;
            let is_user = place.count as usize <= MOST_FRAMES && !frames.is_library(frame);
            place.users += u32::from(is_user);
        }
        let place = match added {
            Some(place) => place,
            None => {
                self.reading.charge(FRAME_BYTES)?;
                let frame = frames.add(Frames::NO_TEXT, module, 0);
                Place { first: frame, count: 1, users: u32::from(!frames.is_library(frame)) }
            }
        };
        self.reading.charge(lean::cost::<Place>())?;
        lean::push(&mut self.tables.places, place);
        Ok(())
    }

    fn allocate(&mut self, kind: u64) -> Result<(), TraceProblem> {
        let found = usize::try_from(kind).ok().filter(|&kind| kind < self.tables.kinds.len());
        let number = found.ok_or(ProfileProblem::Missing { what: "kind of block", number: kind })?;
        let Kind { bytes, stack, owner, .. } = self.tables.kinds[number];
        let owner =
            if owner == UNKNOWN { self.tables.owner(&mut self.reading.composer, stack)? } else { owner };
        self.tables.kinds[number].owner = owner;
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
}

impl Tables {
    fn add_stack(&mut self, place: u32, parent: u32) {
        let (frames, users) =
            before(&self.places, place).map_or((0, 0), |place| (place.frames().len() as u32, place.users));
        let (user_above, depth_above) =
            before(&self.stacks, parent).map_or((0, 0), |stack| (stack.user, stack.depth));
        let user = if users > 0 { self.stacks.len() as u32 + 1 } else { user_above };
        let depth = match (user, user_above) {
            (0, _) => depth_above.saturating_add(frames),
            (_, 0) => users,
            _ => depth_above.saturating_add(users),
        };
        lean::push(&mut self.stacks, Stack { place, parent, user, depth, modules: UNKNOWN });
    }

    /// Returns the innermost frames of a stack and its callers, up to the most of a stack.
    fn innermost(&self, stack: u32) -> Vec<u32> {
        let (mut found, mut below) = (Vec::new(), stack);
        while let Some(&Stack { place, parent, user, .. }) = before(&self.stacks, below) {
            let frames = before(&self.places, place).map_or(0..0, |place| place.frames());
            found.extend(frames.filter(|&frame| user == 0 || !self.frames.is_library(frame)));
            if found.len() >= MOST_FRAMES {
                break;
            }
            // Stacks of libraries between those of the user would make the walk long.
            below =
                if user == 0 { parent } else { before(&self.stacks, parent).map_or(0, |stack| stack.user) };
        }
        found
    }

    /// Returns the owner of the blocks that a stack allocates.
    fn owner(&mut self, composer: &mut Composer, stack: u32) -> Result<u32, BlockProblem> {
        let Some(&found) = before(&self.stacks, stack) else { return Ok(0) };
        // Frames of libraries count only if the stack has no others.
        let stack = if found.user == 0 { stack } else { found.user };
        let Some(&Stack { place, depth, .. }) = before(&self.stacks, stack) else { return Ok(0) };
        if depth as usize > MOST_FRAMES {
            // Callees cannot share the owners of a stack whose outer frames are omitted.
            let innermost = self.innermost(stack);
            return self.frames.owner_of(composer, &innermost);
        }
        let mut owner = self.modules_above(composer, stack)?;
        let frames = before(&self.places, place).map_or(0..0, |place| place.frames());
        let counts = |tables: &Self, frame: u32| found.user == 0 || !tables.frames.is_library(frame);
        let Some(holder) = frames.clone().find(|&frame| counts(self, frame)) else { return Ok(owner) };
        for frame in (holder + 1..frames.end).rev() {
            if counts(self, frame) {
                owner = self.frames.module(composer, owner, frame)?;
            }
        }
        self.frames.holder(composer, owner, holder)
    }

    /// Returns the owner of the frames that called a stack. Each stack finds its own once, and its callees share it, so
    /// the time is that of a walk over all stacks.
    fn modules_above(&mut self, composer: &mut Composer, stack: u32) -> Result<u32, BlockProblem> {
        let mut open = Vec::new();
        let mut owner = 0;
        let mut below = stack;
        while let Some(&Stack { parent, user, .. }) = before(&self.stacks, below) {
            let Some(&above) = before(&self.stacks, parent) else { break };
            if user != 0 && above.user == 0 {
                // The frames of libraries that called the user's code.
                break;
            }
            if above.modules != UNKNOWN {
                owner = above.modules;
                break;
            }
            open.push(parent);
            below = parent;
        }
        while let Some(open) = open.pop() {
            let Some(&Stack { place, user, .. }) = before(&self.stacks, open) else { break };
            for frame in before(&self.places, place).map_or(0..0, |place| place.frames()).rev() {
                if user == 0 || !self.frames.is_library(frame) {
                    owner = self.frames.module(composer, owner, frame)?;
                }
            }
            self.stacks[open as usize - 1].modules = owner;
        }
        Ok(owner)
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
