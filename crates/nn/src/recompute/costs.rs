//! The costs of the blocks of chains, from the marks of an observed step.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::observe::{At, Log, Mark};

/// The measurements of a program. See [`observe`](super::observe()).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Observed {
    /// The chains of the observed level with a backward pass, in the order of their forward passes.
    pub chains: Vec<ObservedChain>,
    /// Whether a batch norm used the statistics of its batch. Another batch size then changes the results.
    pub has_batch_norm: bool,
    /// Whether blocks of these chains contain chains themselves: the next level is not empty.
    pub has_deeper_chains: bool,
}

/// The measurements of one chain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ObservedChain {
    /// The path of the chain.
    pub path: String,
    /// The number of chains that contain this chain.
    pub level: usize,
    /// The number of forward passes with a backward pass, such as one for each micro-batch.
    pub passes: usize,
    /// Bytes in use when the chain begins, including its input.
    pub before_bytes: u64,
    /// The costs of each block.
    pub blocks: Vec<BlockCosts>,
    /// The costs of the ops after the chain: up to the next chain, or the head and the loss.
    pub after: AfterCosts,
    /// The largest number of bytes in use before the first chain of the level and after its backward pass.
    pub outside_bytes: u64,
}

/// The costs of one block.
///
/// The costs of the backward pass are relative to the memory that earlier blocks hold. They include all gradients that
/// exist by then, and do not depend on the recomputation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BlockCosts {
    /// Estimated time of a forward pass; 0 if the speed of the device is unknown.
    pub forward_seconds: f64,
    /// Estimated time of the backward pass without a second run.
    pub backward_seconds: f64,
    /// Bytes of the input.
    pub input_bytes: i64,
    /// Bytes of the output, without a buffer that it shares with the input.
    pub output_bytes: i64,
    /// Bytes that a recorded forward pass keeps, including the output.
    pub kept_bytes: i64,
    /// Bytes of the input that the backward pass does not need: 0 if the block saves its input.
    pub unsaved_input_bytes: i64,
    /// Bytes of the output that the backward pass does not need: 0 if the block saves its output.
    pub unsaved_output_bytes: i64,
    /// The most bytes that an unrecorded forward pass adds, including the output.
    pub forward_bytes: i64,
    /// The most bytes that a recorded forward pass adds, including the output.
    pub recorded_bytes: i64,
    /// Bytes of gradients and others when the backward pass reaches the block.
    pub pending_bytes: i64,
    /// The most bytes of the backward pass, including all that the block kept.
    pub backward_bytes: i64,
}

/// The costs of the ops after a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AfterCosts {
    /// Bytes kept for the next chain; 0 after the last one.
    pub kept_bytes: i64,
    /// The most bytes that the forward pass adds; 0 after the last chain.
    pub forward_bytes: i64,
    /// The most bytes of the backward pass beyond the memory that the blocks hold. After the last chain, this includes
    /// the forward pass.
    pub backward_bytes: i64,
}

/// Returns the costs that follow from the marks.
pub(super) fn observed(level: usize, log: &Log) -> Observed {
    let marks = Marks::new(log);
    let chosen = last_passes(log, &marks);
    let mut chains: Vec<ObservedChain> = Vec::new();
    let Some(&first) = chosen.first() else {
        return Observed {
            chains,
            has_batch_norm: log.has_batch_norm,
            has_deeper_chains: log.has_deeper_chains,
        };
    };
    let Some(enter) = marks.find(At::Enter { pass: first }) else { return Observed::default() };
    // The bytes in use at each moment if every earlier block holds only its output.
    let mut held = marks.in_use(enter);
    for (index, &pass) in chosen.iter().enumerate() {
        let (path, count) = log.passes.get(pass).cloned().unwrap_or_default();
        let before = marks.find(At::Enter { pass }).map_or(0, |mark| marks.in_use(mark));
        let mut blocks = Vec::with_capacity(count);
        let mut input_bytes = 0;
        for block in 0..count {
            let costs = block_costs(&marks, pass, block, held, input_bytes);
            held += costs.output_bytes;
            input_bytes = costs.output_bytes;
            blocks.push(costs);
        }
        let after = after_costs(&marks, pass, chosen.get(index + 1).copied(), count, held);
        held += after.kept_bytes;
        chains.push(ObservedChain {
            passes: log
                .passes
                .iter()
                .enumerate()
                .filter(|(pass, (of, _))| *of == path && marks.with_backward.contains(pass))
                .count(),
            path,
            level,
            before_bytes: u64::try_from(before).unwrap_or(0),
            blocks,
            after,
            outside_bytes: 0,
        });
    }
    let end = marks.end_of_backward(first);
    let outside = marks.marks.get(end + 1..).unwrap_or_default().iter().map(|mark| mark.peak).max();
    let before = marks.marks.get(enter).map_or(0, |mark| mark.peak);
    let outside = outside.unwrap_or(0).max(before);
    chains.iter_mut().for_each(|chain| chain.outside_bytes = outside);
    Observed { chains, has_batch_norm: log.has_batch_norm, has_deeper_chains: log.has_deeper_chains }
}

/// Returns the last pass through each chain that has a backward pass, in the order of the forward passes.
fn last_passes(log: &Log, marks: &Marks<'_>) -> Vec<usize> {
    let mut chosen: Vec<usize> = Vec::new();
    for (pass, (path, _)) in log.passes.iter().enumerate() {
        if marks.with_backward.contains(&pass) {
            chosen.retain(|&other| log.passes.get(other).is_none_or(|(other, _)| other != path));
            chosen.push(pass);
        }
    }
    chosen
}

/// Returns the costs of a block. `held` has the bytes in use if every earlier block holds only its output.
fn block_costs(marks: &Marks<'_>, pass: usize, block: usize, held: i64, input_bytes: i64) -> BlockCosts {
    let find = |at| marks.find(at);
    let (Some(start), Some(end)) = (find(At::Start { pass, block }), find(At::End { pass, block })) else {
        return BlockCosts::default();
    };
    let output_bytes = marks.in_use(end) - marks.in_use(start);
    let forward_bytes = marks.peak(start, end) - marks.in_use(start);
    let plain = BlockCosts {
        forward_seconds: marks.seconds(start, end),
        input_bytes,
        output_bytes,
        // Of a block without gradients, which runs once.
        kept_bytes: output_bytes,
        forward_bytes,
        recorded_bytes: forward_bytes,
        ..BlockCosts::default()
    };
    let again = (find(At::AgainStart { pass, block }), find(At::AgainEnd { pass, block }));
    let (Some(start), Some(end)) = again else { return plain };
    let replaced =
        find(At::Replaced { pass, block }).map_or(0, |mark| marks.in_use(mark) - marks.in_use(end));
    let dropped = find(At::Dropped { pass, block }).map_or(0, |mark| marks.in_use(mark) - replaced);
    let backward = find(At::Backward { pass, block }).unwrap_or(end);
    // The next mark ends the backward pass of the block.
    let next = (backward + 1).min(marks.marks.len() - 1);
    // An output in the buffer of the input, as of a reshape, keeps the input if the next block saves it.
    let shares_buffer = output_bytes == 0;
    let unsaved = |bytes: i64, all: i64| if shares_buffer { 0 } else { bytes.clamp(0, all) };
    BlockCosts {
        backward_seconds: marks.seconds(backward, next),
        kept_bytes: marks.in_use(end) - marks.in_use(start),
        unsaved_input_bytes: unsaved(dropped - marks.in_use(backward), input_bytes),
        unsaved_output_bytes: unsaved(marks.in_use(end) - dropped, output_bytes),
        recorded_bytes: marks.peak(start, end) - marks.in_use(start),
        pending_bytes: marks.in_use(start) - held,
        backward_bytes: marks.peak(backward, next) - held,
        ..plain
    }
}

/// Returns the costs of the ops between a chain and the next one, or of the head and the loss.
fn after_costs(marks: &Marks<'_>, pass: usize, next: Option<usize>, count: usize, held: i64) -> AfterCosts {
    let Some(leave) = marks.find(At::Leave { pass }) else { return AfterCosts::default() };
    let backward =
        (0..count).rev().find_map(|block| marks.find(At::AgainStart { pass, block })).unwrap_or(leave);
    let Some(enter) = next.and_then(|pass| marks.find(At::Enter { pass })) else {
        return AfterCosts { backward_bytes: marks.peak(leave, backward) - held, ..AfterCosts::default() };
    };
    let before = next.map_or(leave, |next| marks.end_of_backward(next)).min(backward);
    AfterCosts {
        kept_bytes: marks.in_use(enter) - marks.in_use(leave),
        forward_bytes: marks.peak(leave, enter) - marks.in_use(leave),
        backward_bytes: marks.peak(before, backward) - held,
    }
}

/// The marks of a step, by index.
struct Marks<'a> {
    marks: &'a [Mark],
    /// The passes with a block that ran again.
    with_backward: HashSet<usize>,
}

impl<'a> Marks<'a> {
    fn new(log: &'a Log) -> Self {
        let again = log.marks.iter().filter_map(|mark| match mark.at {
            At::AgainStart { pass, .. } => Some(pass),
            _ => None,
        });
        Self { marks: &log.marks, with_backward: again.collect() }
    }

    fn find(&self, at: At) -> Option<usize> {
        self.marks.iter().position(|mark| mark.at == at)
    }

    fn in_use(&self, mark: usize) -> i64 {
        self.marks.get(mark).map_or(0, |mark| mark.in_use as i64)
    }

    /// The most bytes in use after one mark and up to another.
    fn peak(&self, after: usize, until: usize) -> i64 {
        let between = self.marks.get(after + 1..=until).unwrap_or_default();
        between.iter().map(|mark| mark.peak as i64).max().unwrap_or_else(|| self.in_use(until))
    }

    fn seconds(&self, from: usize, until: usize) -> f64 {
        let at = |mark: usize| self.marks.get(mark).map_or(0.0, |mark| mark.seconds);
        (at(until) - at(from)).max(0.0)
    }

    /// The mark that ends the backward pass through a chain.
    fn end_of_backward(&self, of: usize) -> usize {
        let last = self.marks.iter().rposition(|mark| match mark.at {
            At::Backward { pass, .. } | At::Back { pass } => pass == of,
            _ => false,
        });
        match last {
            // The backward pass of the block follows, up to the next mark.
            Some(last) if matches!(self.marks.get(last).map(|mark| mark.at), Some(At::Backward { .. })) => {
                (last + 1).min(self.marks.len() - 1)
            }
            Some(last) => last,
            None => 0,
        }
    }
}
