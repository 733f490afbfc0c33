//! Finding the step that a trace repeats.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use crate::trace::{Trace, TraceEvent};

/// How many events in a row must be equal for the distance between them to be a guess at the step's length.
const SAMPLE: usize = 4;

/// How many guesses are followed up.
const GUESSES: usize = 32;

/// The last occurrence of a step that the trace repeats at least twice in a row: a training loop's body. Events count as equal if
/// they allocate the same bytes under the same label, or free the block allocated the same number of allocations ago.
///
/// Of all lengths the one is taken that explains the longest part of the trace; of those that explain the same part,
/// the shortest. A loop may be cut anywhere; it is cut where the fewest bytes are live that cross the cut. Takes time and
/// memory proportional to the number of events.
///
/// ```
/// use highwater_tracking::{Trace, TraceLimits, find_step};
/// let text = "a 0 9 weights\n\
///     a 1 10 x\na 2 20 y\nf 1\nf 2\n\
///     a 3 10 x\na 4 20 y\nf 3\nf 4\n\
///     a 5 7 report\nf 5\n";
/// let trace = Trace::parse(text.as_bytes(), &TraceLimits::default())?;
/// assert_eq!(find_step(&trace), Some(5..9));
/// # Ok::<(), highwater_tracking::TraceError>(())
/// ```
#[must_use]
pub fn find_step(trace: &Trace) -> Option<Range<usize>> {
    let symbols = symbols(trace);
    let mut best: Option<Run> = None;
    for length in guesses(&symbols) {
        let run = longest_run(&symbols, length);
        let better = match &best {
            _ if run.events.len() < 2 * length => false,
            Some(best) => (run.events.len(), best.length) > (best.events.len(), length),
            None => true,
        };
        if better {
            best = Some(run);
        }
    }
    best.map(|run| cut(trace, &run))
}

/// A part of a trace that repeats itself after `length` events.
#[derive(Debug)]
struct Run {
    length: usize,
    events: Range<usize>,
}

/// Each event as a number that is the same for equal events, wherever they stand.
fn symbols(trace: &Trace) -> Vec<u64> {
    let mut allocated: u32 = 0;
    let symbol = |event: &TraceEvent| {
        let mut hasher = DefaultHasher::new();
        match *event {
            TraceEvent::Alloc { bytes, label, alignment, .. } => {
                allocated += 1;
                (0_u8, bytes, label, alignment).hash(&mut hasher);
            }
            TraceEvent::Occupy { block, start, end } => {
                (2_u8, allocated - block, start, end).hash(&mut hasher);
            }
            TraceEvent::Free { block } => (1_u8, allocated - block).hash(&mut hasher),
        }
        hasher.finish()
    };
    trace.events().iter().map(symbol).collect()
}

/// The most frequent distances between equal samples, each a possible length of the step; shortest first.
fn guesses(symbols: &[u64]) -> Vec<usize> {
    let mut last: HashMap<&[u64], usize> = HashMap::new();
    let mut counts: HashMap<usize, usize> = HashMap::new();
    for (position, sample) in symbols.windows(SAMPLE.min(symbols.len().max(1))).enumerate() {
        if let Some(before) = last.insert(sample, position) {
            *counts.entry(position - before).or_default() += 1;
        }
    }
    // A long step with many repetitions inside shows few times: distances count by the events they may explain.
    let mut counts: Vec<(usize, usize)> =
        counts.into_iter().map(|(length, count)| (count.saturating_mul(length), length)).collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let mut lengths: Vec<usize> = counts.into_iter().take(GUESSES).map(|(_, length)| length).collect();
    lengths.sort_unstable();
    lengths
}

/// The longest part that repeats after `length` events; of equally long ones the last.
fn longest_run(symbols: &[u64], length: usize) -> Run {
    let mut best = 0..0;
    let mut start = 0;
    for position in 0..symbols.len().saturating_sub(length) {
        if symbols[position] != symbols[position + length] {
            start = position + 1;
        } else if position + length + 1 - start >= best.len() {
            best = start..position + length + 1;
        }
    }
    Run { length, events: best }
}

/// The last step of a run, cut where the fewest bytes of its own blocks are live.
fn cut(trace: &Trace, run: &Run) -> Range<usize> {
    // Bytes live before each event, without the blocks that are older than the run or never freed in it.
    let first = run.events.start;
    let mut bytes: HashMap<u32, u64> = HashMap::new();
    let mut change = vec![0_i128; run.events.len() + 1];
    let mut born: HashMap<u32, usize> = HashMap::new();
    for (index, event) in trace.events()[run.events.clone()].iter().enumerate() {
        match *event {
            TraceEvent::Alloc { block, bytes: size, .. } => {
                bytes.insert(block, size);
                born.insert(block, index);
            }
            TraceEvent::Free { block } => {
                if let (Some(&start), Some(&size)) = (born.get(&block), bytes.get(&block)) {
                    change[start + 1] += i128::from(size);
                    change[index + 1] -= i128::from(size);
                }
            }
            TraceEvent::Occupy { .. } => {}
        }
    }
    let mut live = 0;
    let before: Vec<i128> = change
        .iter()
        .map(|change| {
            live += change;
            live
        })
        .collect();
    // Of equal cuts one before an allocation of a size that is rare before the loop, so that its setup is not taken for
    // a step; of those the last, when the loop has warmed up.
    let mut setup: HashMap<u64, usize> = HashMap::new();
    for event in &trace.events()[..first] {
        if let TraceEvent::Alloc { bytes, .. } = *event {
            *setup.entry(bytes).or_default() += 1;
        }
    }
    let in_setup = |at: usize| match trace.events().get(first + at) {
        Some(TraceEvent::Alloc { bytes, .. }) => setup.get(bytes).copied().unwrap_or(0),
        _ => usize::MAX,
    };
    let last = run.events.len() - run.length;
    let earliest = last.saturating_sub(run.length);
    let key = |&at: &usize| (before[at], in_setup(at), std::cmp::Reverse(at));
    let at = (earliest..=last).min_by_key(key).unwrap_or(last);
    first + at..first + at + run.length
}
