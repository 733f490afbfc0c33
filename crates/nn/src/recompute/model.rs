//! The memory and the extra time of a schedule, as a model.
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
    fn block(block: &BlockCosts, chain: usize, seconds: f64) -> Self {
        Self {
            output: block.output_bytes,
            kept: block.kept_bytes,
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

/// Returns the most bytes that stages run by these parts add, and the extra time. `pending` has the bytes of gradients
/// while the forward pass of the stages runs.
#[cfg(test)]
pub(super) fn evaluate(stages: &[Stage], parts: &[super::schedule::Part], pending: i64) -> (i64, f64) {
    use super::schedule::Part;
    let [part, rest @ ..] = parts else { return (i64::MIN, 0.0) };
    let (now, later) = stages.split_at(part.blocks());
    let (rest, extra) = evaluate(later, rest, pending);
    match part {
        Part::Keep => {
            let stage = &now[0];
            let rest = if later.is_empty() { i64::MIN } else { stage.kept + rest };
            ((pending + stage.recorded).max(rest).max(stage.backward), extra)
        }
        Part::Again(parts) => {
            let output = now.last().map_or(0, |stage| stage.output);
            let again = now.last().map_or(0, |stage| stage.pending);
            let (inside, more) = evaluate(now, parts, again);
            let rest = if later.is_empty() { i64::MIN } else { output + rest };
            let peak = (pending + forward_peak(now)).max(rest).max(inside);
            (peak, extra + more + now.iter().map(|stage| stage.seconds).sum::<f64>())
        }
    }
}
