//! The memory and the extra time of a recomputation, as a model.
//!
//! The chains of one level are one sequence of stages: the blocks of the first chain, the ops after it, the blocks of the
//! second chain, and so on. The last stage is the head and the loss. All bytes are relative to those in use before the
//! sequence, or before the interval of stages that a function is about, whose input is in use.

use super::costs::{BlockCosts, ObservedChain};

/// A stage of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stage {
    /// Bytes of the output, which later stages read.
    pub(super) output: i64,
    /// Bytes that a recorded forward pass keeps, including the output.
    pub(super) kept: i64,
    /// Bytes of the input that the recorded forward pass does not save.
    pub(super) unsaved_input: i64,
    /// Whether the recorded forward pass saves the output.
    pub(super) saves_output: bool,
    /// The most bytes that an unrecorded forward pass adds.
    pub(super) forward: i64,
    /// The most bytes that a recorded forward pass adds.
    pub(super) recorded: i64,
    /// Bytes of gradients when the backward pass reaches the stage.
    pub(super) pending: i64,
    /// The most bytes of the backward pass.
    pub(super) backward: i64,
    /// The time of a forward pass.
    pub(super) seconds: f64,
    /// The chain whose block this is; `None` for ops between chains, which run once.
    pub(super) chain: Option<usize>,
}

/// The stages of a step and its other figures.
#[derive(Clone, Debug, Default)]
pub(super) struct Step {
    pub(super) stages: Vec<Stage>,
    /// Bytes in use before the first stage.
    pub(super) before: u64,
    /// The largest number of bytes in use before and after the stages.
    pub(super) outside: u64,
}

impl Step {
    /// The step of these chains, in the order of their forward passes.
    pub(super) fn new(chains: &[ObservedChain]) -> Self {
        let is_timed = chains.iter().flat_map(|chain| &chain.blocks).any(|block| block.forward_seconds > 0.0);
        let mut stages = Vec::new();
        for (index, chain) in chains.iter().enumerate() {
            let passes = chain.passes.max(1) as f64;
            stages.extend(chain.blocks.iter().map(|block| {
                let seconds = if is_timed { block.forward_seconds } else { 1.0 };
                Stage::block(block, index, seconds * passes)
            }));
            stages.push(Stage {
                output: chain.after.kept_bytes,
                kept: chain.after.kept_bytes,
                forward: chain.after.forward_bytes,
                recorded: chain.after.forward_bytes,
                backward: chain.after.backward_bytes,
                ..Stage::default()
            });
        }
        let before = chains.first().map_or(0, |chain| chain.before_bytes);
        Self { stages, before, outside: chains.iter().map(|chain| chain.outside_bytes).max().unwrap_or(0) }
    }

    /// Returns the peak of the step from the most bytes that the stages add.
    pub(super) fn peak(&self, added: i64) -> u64 {
        self.before.saturating_add_signed(added).max(self.outside)
    }
}

impl Stage {
    /// Bytes that a kept stage adds for the stages after it. `is_held` says whether something else keeps the input.
    pub(super) fn added(&self, is_held: bool) -> i64 {
        self.kept - if is_held { 0 } else { self.unsaved_input }
    }

    /// The most bytes of a kept stage in its own forward and backward pass. `pending` has the bytes of gradients in the
    /// forward pass. The observer measures the backward pass of a stage whose input nothing else keeps.
    pub(super) fn peak(&self, pending: i64, is_held: bool) -> i64 {
        (pending + self.recorded).max(self.backward + if is_held { self.unsaved_input } else { 0 })
    }

    fn block(block: &BlockCosts, chain: usize, seconds: f64) -> Self {
        Self {
            output: block.output_bytes,
            kept: block.kept_bytes,
            unsaved_input: block.unsaved_input_bytes,
            saves_output: block.unsaved_output_bytes == 0,
            forward: block.forward_bytes,
            recorded: block.recorded_bytes,
            pending: block.pending_bytes,
            backward: block.backward_bytes,
            seconds,
            chain: Some(chain),
        }
    }
}

/// Returns the most bytes that an unrecorded run of these stages adds. Each output is dropped once the next one exists.
#[cfg(test)]
pub(super) fn forward_peak(stages: &[Stage]) -> i64 {
    let mut input = 0;
    let mut peak = 0;
    for stage in stages {
        peak = peak.max(input + stage.forward);
        input = stage.output;
    }
    peak
}

/// Returns the most bytes that stages run by these segments add, and the extra time. `pending` has the bytes of gradients
/// while the forward pass of the stages runs; `is_held` says whether something else keeps the input.
#[cfg(test)]
pub(super) fn evaluate(
    stages: &[Stage],
    segments: &[super::recomputation::Segment],
    pending: i64,
    is_held: bool,
) -> (i64, f64) {
    use super::recomputation::Segment;
    let [segment, rest @ ..] = segments else { return (i64::MIN, 0.0) };
    let (now, later) = stages.split_at(segment.blocks());
    let last = now[now.len() - 1];
    let keeps_output = *segment == Segment::Keep && last.saves_output;
    let (rest, extra) = evaluate(later, rest, pending, keeps_output);
    let after = |added: i64| if later.is_empty() { i64::MIN } else { added + rest };
    match segment {
        Segment::Keep => (last.peak(pending, is_held).max(after(last.added(is_held))), extra),
        Segment::Again(segments) => {
            let (inside, more) = evaluate(now, segments, last.pending, is_held);
            let peak = (pending + forward_peak(now)).max(after(last.output)).max(inside);
            (peak, extra + more + now.iter().map(|stage| stage.seconds).sum::<f64>())
        }
    }
}
