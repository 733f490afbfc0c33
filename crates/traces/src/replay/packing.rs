//! Computes a packing from a recorded trace for the steps that follow. Reads and writes packing files.
//!
//! ```
//! use bfc_core::PackingOptions;
//! use highwater_files::{PackingLimits, parse_packing, write_packing};
//! use highwater_traces::{Step, Trace, TraceLimits, packing_of};
//!
//! // Weights, then the same step twice: an activation, its gradient, and the frees of both.
//! let text = "a 0 4096 weights\n\
//!     a 1 1000 relu\na 2 1000 relu:backward\nf 1\nf 2\n\
//!     a 3 1000 relu\na 4 1000 relu:backward\nf 3\nf 4\n";
//! let trace = Trace::parse(text.as_bytes(), &TraceLimits::default())?;
//! let packing = packing_of(&trace, &Step::Repeating, &PackingOptions::default(), &mut |_| true)?;
//! assert_eq!((packing.blocks().len(), packing.capacity()), (2, 2048));
//!
//! let mut file = Vec::new();
//! write_packing(&packing, &mut file)?;
//! assert_eq!(parse_packing(file.as_slice(), &PackingLimits::default())?, packing);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::HashMap;
use std::ops::Range;

use bfc_core::{
    BlockConstraint, Gap, Lifetime, Packing, PackingError, PackingOptions, PackingProgress, printable,
};

use crate::trace::{Trace, TraceComment, TraceEvent};

mod step;

pub use step::find_step;

/// The part of a trace to pack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// The complete trace. Blocks that are never freed are packed up to the end.
    #[default]
    Whole,
    /// The events of this range, counted from 0. Blocks that outlive the part are requested in it but not packed,
    /// because they would be in the way of the next step.
    Events(Range<usize>),
    /// From the first comment `mark: FROM` to the next comment `mark: TO`, or to the end. Both may have the same name
    /// if each step begins with the same mark.
    Marks {
        /// The mark at which the step begins.
        from: String,
        /// The mark before which it ends.
        to: String,
    },
    /// The repeated part; see [`find_step`].
    Repeating,
}

/// The reason why a trace has no packing.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoPacking {
    /// The range goes beyond the trace's events.
    #[error("events {}..{} are not in a trace of {events} events", range.start, range.end)]
    NoSuchEvents {
        /// The requested range.
        range: Range<usize>,
        /// The number of events.
        events: usize,
    },
    /// There is no such mark.
    #[error("the trace has no comment `mark: {mark}`", mark = printable(mark))]
    NoSuchMark {
        /// The requested mark.
        mark: String,
    },
    /// No part of the trace is repeated.
    #[error("no part of the trace is repeated")]
    NothingRepeats,
    /// The lifetimes are too many or too large, or the options are wrong.
    #[error(transparent)]
    Packing(#[from] PackingError),
}

bfc_core::debug_as_message!(NoPacking);

/// Packs the blocks of a trace, or of one step of it. Skips allocations of 0 bytes, which need no memory.
///
/// `progress` receives the progress of the search. If it returns `false`, the search returns the best packing so far.
///
/// # Errors
/// A [`NoPacking`] if the trace has no such step, or if its lifetimes cannot be packed.
pub fn packing_of(
    trace: &Trace,
    step: &Step,
    options: &PackingOptions,
    progress: &mut dyn FnMut(PackingProgress) -> bool,
) -> Result<Packing, NoPacking> {
    let range = range_of(trace, step)?;
    let blocks = Blocks::of(trace, range);
    let whole = *step == Step::Whole;
    let packed = |index: usize| whole || blocks.freed[index];
    Ok(Packing::solve_constrained(&blocks.lifetimes, blocks.constraints, packed, options, progress)?)
}

/// The events of a step.
fn range_of(trace: &Trace, step: &Step) -> Result<Range<usize>, NoPacking> {
    let events = trace.events().len();
    match step {
        Step::Whole => Ok(0..events),
        Step::Events(range) if range.start <= range.end && range.end <= events => Ok(range.clone()),
        Step::Events(range) => Err(NoPacking::NoSuchEvents { range: range.clone(), events }),
        Step::Marks { from, to } => {
            let no_mark = || NoPacking::NoSuchMark { mark: from.clone() };
            let (start, after) = mark(trace.comments(), from).ok_or_else(no_mark)?;
            Ok(start..mark(after, to).map_or(events, |(end, _)| end))
        }
        Step::Repeating => find_step(trace).ok_or(NoPacking::NothingRepeats),
    }
}

/// Returns the first mark with this text, and the comments after it.
fn mark<'a>(comments: &'a [TraceComment], text: &str) -> Option<(usize, &'a [TraceComment])> {
    let index = comments.iter().position(|comment| comment.mark() == Some(text))?;
    Some((comments[index].position, &comments[index + 1..]))
}

/// The blocks that are allocated in a range of events, in that order. Times are event numbers from the start of the
/// range.
#[derive(Debug, Default)]
struct Blocks {
    lifetimes: Vec<Lifetime>,
    /// Whether each is freed in the range.
    freed: Vec<bool>,
    constraints: Vec<BlockConstraint>,
    /// By block: its constraint.
    constraint_of: HashMap<usize, usize>,
    /// By block: the time since which it occupies only some of its bytes, and these bytes.
    lends: HashMap<usize, (u32, Range<u64>)>,
}

impl Blocks {
    fn of(trace: &Trace, range: Range<usize>) -> Self {
        // An event's index fits, because the limits of a trace allow at most 2^32 events.
        let time = |index: usize| u32::try_from(index).unwrap_or(u32::MAX - 1);
        let never = time(range.len());
        let mut blocks = Self::default();
        // Blocks have the order of their allocation, so those of the range are consecutive.
        let mut first_block = None;
        let mut packed: Vec<Option<usize>> = Vec::new();
        for (index, event) in trace.events()[range].iter().enumerate() {
            let index_of = |block: u32| {
                let number = first_block.and_then(|first| block.checked_sub(first))?;
                *packed.get(number as usize)?
            };
            match *event {
                TraceEvent::Alloc { block, bytes, alignment, .. } => {
                    first_block.get_or_insert(block);
                    packed.push((bytes > 0).then_some(blocks.lifetimes.len()));
                    if bytes > 0 {
                        blocks.allocate(bytes, alignment.into(), time(index), never);
                    }
                }
                TraceEvent::Free { block } => {
                    if let Some(block) = index_of(block) {
                        blocks.end_gap(block, time(index));
                        blocks.lifetimes[block].end = time(index);
                        blocks.freed[block] = true;
                    }
                }
                TraceEvent::Occupy { block, start, end } => {
                    if let Some(block) = index_of(block) {
                        blocks.occupy(block, start..end, time(index));
                    }
                }
            }
        }
        let open: Vec<usize> = blocks.lends.keys().copied().collect();
        open.into_iter().for_each(|block| blocks.end_gap(block, never));
        blocks
    }

    fn allocate(&mut self, bytes: u64, alignment: u64, start: u32, end: u32) {
        if alignment > 1 {
            self.constraint(self.lifetimes.len()).alignment = alignment;
        }
        self.lifetimes.push(Lifetime { bytes, start, end });
        self.freed.push(false);
    }

    /// Records that the block occupies only the bytes of `range` from `time` on.
    fn occupy(&mut self, block: usize, range: Range<u64>, time: u32) {
        self.end_gap(block, time);
        let Lifetime { bytes, start, .. } = self.lifetimes[block];
        if range != (0..bytes) {
            // Directly after the allocation, it never occupied the others.
            let since = if time == start + 1 { start } else { time };
            self.lends.insert(block, (since, range));
        }
    }

    /// Ends the open gap.
    fn end_gap(&mut self, block: usize, time: u32) {
        if let Some((start, kept)) = self.lends.remove(&block).filter(|&(start, _)| start < time) {
            let kept = if kept.is_empty() { 0..0 } else { kept };
            self.constraint(block).gaps.push(Gap { start, end: time, kept });
        }
    }

    fn constraint(&mut self, block: usize) -> &mut BlockConstraint {
        let constraints = &mut self.constraints;
        let place = *self.constraint_of.entry(block).or_insert_with(|| {
            constraints.push(BlockConstraint { block, alignment: 1, gaps: Vec::new() });
            constraints.len() - 1
        });
        &mut constraints[place]
    }
}

#[cfg(test)]
mod tests;
