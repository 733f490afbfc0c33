//! The CSV of `memray transform csv`: the blocks that were live at the peak of a Python program, by call stack.
//!
//! The columns are `allocator,num_allocations,size,tid,thread_name,stack_trace`. A stack has frames
//! `function;file;line`, the innermost first, separated by `|`. The first rows become as many blocks as they count, up
//! to [`MOST_BLOCKS`] in all, and each further row one block. With `--leaks`, the rows are the blocks that were live at the end.

use std::io::BufRead;

use bfc_core::Category;

use super::stacks::{Frame, MOST_FRAMES, owner_of};
use super::{Reading, facts};
use crate::record::{NewBlock, Recording};
use crate::trace::lines::{LineReader, beginning, number};
use crate::trace::{TraceError, TraceLimits, TracePlace, TraceProblem};

const HEADER: &str = "allocator,num_allocations,size,tid,thread_name,stack_trace";

/// The longest line. Stacks are long.
const LINE_BYTES: usize = 1 << 20;

/// The most blocks of the rows that are divided into their blocks.
const MOST_BLOCKS: u64 = 1 << 16;

/// Returns whether this is the header.
pub(in crate::trace) fn is_first_line(line: &str) -> bool {
    line.eq_ignore_ascii_case(HEADER)
}

/// Reads the file within so many eighths of the memory limit. Also returns the bytes of the other eighths.
pub(in crate::trace) fn read(
    reader: impl BufRead,
    limits: &TraceLimits,
    eighths: u64,
) -> Result<(Recording, u64), TraceError> {
    let mut lines = LineReader::new(reader, limits.line_bytes.max(LINE_BYTES));
    let mut reading = Reading::new(limits, eighths);
    let (mut idle, mut divisible) = (0, MOST_BLOCKS);
    loop {
        let read = lines.read();
        let place = TracePlace::Line(lines.number);
        if !read.map_err(|problem| place.of(problem))? {
            break;
        }
        let line = lines.text().map_err(|problem| place.of(problem))?.trim();
        reading.composer.memory().note_input(line.len() as u64 + 1);
        if line.is_empty() || is_first_line(line) {
            idle += 1;
            if idle > limits.idle_lines {
                let problem =
                    TraceProblem::TooMany { what: "lines without an event", limit: limits.idle_lines };
                return Err(place.of(problem));
            }
            continue;
        }
        row(&mut reading, line, &mut divisible).map_err(|problem| place.of(problem))?;
    }
    let facts = facts("a Python program", "memray");
    reading.finish(facts)
}

/// Adds the blocks of a row. Up to `divisible` of them are separate.
fn row(reading: &mut Reading, line: &str, divisible: &mut u64) -> Result<(), TraceProblem> {
    let malformed = || TraceProblem::Malformed { expected: HEADER, found: beginning(line) };
    let mut fields = Fields { rest: Some(line) };
    let mut field = || fields.next().ok_or_else(malformed);
    let [_allocator, count, bytes, _thread, _name, stack] =
        [field()?, field()?, field()?, field()?, field()?, field()?];
    let (count, bytes) = (number(&count)?, number(&bytes)?);
    if bytes == 0 {
        return Ok(());
    }
    let frames: Vec<Frame<'_>> = stack.split('|').take(MOST_FRAMES).filter_map(frame).collect();
    let composer = &mut reading.composer;
    let owner = owner_of(composer, &frames)?;
    composer.select_pool("heap", "host")?;
    let blocks = if count <= *divisible { count.max(1) } else { 1 };
    *divisible = divisible.saturating_sub(blocks);
    for index in 0..blocks {
        let rest = if index == 0 { bytes % blocks } else { 0 };
        let block = NewBlock { bytes: bytes / blocks + rest, owner, category: Category::default() };
        composer.alloc(block)?;
    }
    Ok(())
}

/// Parses `function;file;line`. Functions of C++ may contain semicolons.
fn frame(text: &str) -> Option<Frame<'_>> {
    let (rest, line) = text.rsplit_once(';')?;
    let (function, file) = rest.rsplit_once(';')?;
    Some(Frame { function, file, line: line.parse().unwrap_or(0) })
}

/// The fields of a line of CSV. A quoted field may contain commas and doubled quotes.
struct Fields<'a> {
    rest: Option<&'a str>,
}

impl Iterator for Fields<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let rest = self.rest.take()?;
        let Some(quoted) = rest.strip_prefix('"') else {
            let (field, rest) =
                rest.split_once(',').map_or((rest, None), |(field, rest)| (field, Some(rest)));
            self.rest = rest;
            return Some(field.to_owned());
        };
        let (mut field, mut rest) = (String::new(), quoted);
        loop {
            let (part, after) = rest.split_once('"')?;
            field.push_str(part);
            match after.strip_prefix('"') {
                Some(after) => {
                    field.push('"');
                    rest = after;
                }
                None => {
                    self.rest = after.strip_prefix(',');
                    return Some(field);
                }
            }
        }
    }
}
