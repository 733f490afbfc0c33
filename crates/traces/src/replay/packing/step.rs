//! Finds the step that a trace repeats.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use crate::trace::{Trace, TraceEvent};

/// The number of equal events in a row that make their distance a candidate for the step's length.
const SAMPLE: usize = 4;

/// The number of candidates to check.
const GUESSES: usize = 32;

/// Finds the last occurrence of a step that the trace repeats at least twice in a row, such as the body of a training
/// loop. Events are equal if they allocate the same bytes under the same label, or free blocks of the same relative age
/// in allocations.
///
/// The chosen length explains the longest part of the trace; among equals, the shortest length. A loop has no natural
/// first event: the step begins where the fewest live bytes cross its boundary. The search takes time and memory
/// proportional to the number of events.
///
/// ```
/// use highwater_traces::{Trace, TraceLimits, find_step};
/// let text = "a 0 9 weights\n\
///     a 1 10 x\na 2 20 y\nf 1\nf 2\n\
///     a 3 10 x\na 4 20 y\nf 3\nf 4\n\
///     a 5 7 report\nf 5\n";
/// let trace = Trace::parse(text.as_bytes(), &TraceLimits::default())?;
/// assert_eq!(find_step(&trace), Some(5..9));
/// # Ok::<(), highwater_traces::TraceError>(())
/// ```
#[must_use]
pub fn find_step(trace: &Trace) -> Option<Range<usize>> {
    let symbols = symbols(trace);
    let mut best: Option<Repetition> = None;
    for length in candidates(&symbols) {
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
struct Repetition {
    length: usize,
    events: Range<usize>,
}

/// Returns each event as a number that is equal for equal events.
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

/// Returns the most frequent distances between equal samples, each a candidate for the step's length; shortest first.
fn candidates(symbols: &[u64]) -> Vec<usize> {
    let mut last: HashMap<&[u64], usize> = HashMap::new();
    let mut counts: HashMap<usize, usize> = HashMap::new();
    for (position, sample) in symbols.windows(SAMPLE.min(symbols.len().max(1))).enumerate() {
        if let Some(before) = last.insert(sample, position) {
            *counts.entry(position - before).or_default() += 1;
        }
    }
    // A long step with many inner repetitions has few long distances, so distances count by the events that they may
    // explain.
    let mut counts: Vec<(usize, usize)> =
        counts.into_iter().map(|(length, count)| (count.saturating_mul(length), length)).collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let mut lengths: Vec<usize> = counts.into_iter().take(GUESSES).map(|(_, length)| length).collect();
    lengths.sort_unstable();
    lengths
}

/// Returns the longest part that repeats after `length` events; among equals, the last.
fn longest_run(symbols: &[u64], length: usize) -> Repetition {
    let mut best = 0..0;
    let mut start = 0;
    for position in 0..symbols.len().saturating_sub(length) {
        if symbols[position] != symbols[position + length] {
            start = position + 1;
        } else if position + length + 1 - start >= best.len() {
            best = start..position + length + 1;
        }
    }
    Repetition { length, events: best }
}

/// Returns the last step of a run, cut where the fewest bytes of its own blocks are live.
fn cut(trace: &Trace, run: &Repetition) -> Range<usize> {
    // Bytes live before each event, without blocks that are older than the run or never freed in it.
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
    // Among equal cuts, prefers one before an allocation of a size that is rare before the loop. This keeps
    // setup code out of the step. Among those, prefers the last, after the loop has warmed up.
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
