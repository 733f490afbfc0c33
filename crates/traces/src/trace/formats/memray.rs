//! The CSV of `memray transform csv`: the blocks that were live at the peak of a Python program, by call stack.
//!
//! The columns are `allocator,num_allocations,size,tid,thread_name,stack_trace`. A stack has frames
//! `function;file;line`, the innermost first, separated by `|`. The first rows become as many blocks as they count, up
//! to [`MOST_BLOCKS`] in all, and each further row one block. With `--leaks`, the rows are the blocks that were live at the end.

use std::io::BufRead;

use bfc_core::Category;
use highwater_tracking::{NewBlock, Recording};

use super::Format;
use crate::trace::lines::{Cells, beginning, each_raw_line, fields, number, text_of};
use crate::trace::profile::stacks::{Frames, MOST_FRAMES};
use crate::trace::profile::{MOST_BLOCKS, Reading, facts};
use crate::trace::{TraceError, TraceLimits, TraceProblem};

const HEADER: &str = "allocator,num_allocations,size,tid,thread_name,stack_trace";

/// The longest line. Stacks are long.
const LINE_BYTES: usize = 1 << 20;

pub(super) const FORMAT: Format = Format::profile(
    "memray's CSV",
    |start| start.has_line(is_first_line),
    &[b"allocator,num_allocations,size,tid,thread_name,stack_trace\n"],
    |reader, limits, eighths| read(reader, limits, eighths),
);

/// Returns whether this is the header.
fn is_first_line(line: &str) -> bool {
    Cells::of(line).map(|cell| cell.to_ascii_lowercase()).eq(HEADER.split(','))
}

/// Reads the file within so many eighths of the memory limit. Also returns the bytes of the other eighths.
fn read(reader: impl BufRead, limits: &TraceLimits, eighths: u64) -> Result<(Recording, u64), TraceError> {
    let mut reading = Reading::new(limits, eighths);
    let mut divisible = MOST_BLOCKS;
    each_raw_line(reader, limits, limits.line_bytes.max(LINE_BYTES), |_, line| {
        let line = text_of(line)?.trim();
        reading.composer.memory().note_input(line.len() as u64 + 1);
        let is_row = !line.is_empty() && !is_first_line(line);
        if is_row {
            row(&mut reading, line, &mut divisible)?;
        }
        Ok(is_row)
    })?;
    let facts = facts("a Python program", "memray");
    reading.finish(facts)
}

/// Adds the blocks of a row. Up to `divisible` of them are separate.
fn row(reading: &mut Reading, line: &str, divisible: &mut u64) -> Result<(), TraceProblem> {
    let malformed = || TraceProblem::Malformed { expected: HEADER, found: beginning(line) };
    let [_allocator, count, bytes, _thread, _name, stack] = fields::<6>(line).ok_or_else(malformed)?;
    let (count, bytes) = (number(&count)?, number(&bytes)?);
    if bytes == 0 {
        return Ok(());
    }
    let composer = &mut reading.composer;
    let (mut frames, mut stack_frames) = (Frames::default(), Vec::new());
    for (function, file, line) in stack.split('|').take(MOST_FRAMES).filter_map(frame) {
        let (function, file) = (frames.add_text(function), frames.add_text(file));
        stack_frames.push(frames.add(function, file, line));
    }
    let owner = frames.owner_of(composer, &stack_frames)?;
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
fn frame(text: &str) -> Option<(&str, &str, u64)> {
    let (rest, line) = text.rsplit_once(';')?;
    let (function, file) = rest.rsplit_once(';')?;
    Some((function, file, line.parse().unwrap_or(0)))
}
