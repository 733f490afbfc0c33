//! The phases of a training run: when its forward passes, backward passes and optimizer steps allocate.

use rustc_hash::FxHashSet;

use super::site::{Part, Sites};
use super::{born, freed};
use crate::trace::snapshot::collect::Life;

/// The end of a block or of a phase that goes on when the file ends.
pub(super) const NEVER: u32 = u32::MAX;

/// Steps of the allocator from `begin` to before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Phase {
    pub(super) begin: u32,
    pub(super) end: u32,
}

/// Disjoint phases in order.
#[derive(Debug, Default)]
pub(super) struct Phases(Vec<Phase>);

impl Phases {
    /// Returns the phase that contains a step.
    pub(super) fn containing(&self, step: u32) -> Option<Phase> {
        let index = self.0.partition_point(|phase| phase.begin <= step).checked_sub(1)?;
        let phase = self.0[index];
        (step < phase.end).then_some(phase)
    }

    /// Returns the begin of the first phase after a step.
    pub(super) fn next_begin(&self, step: u32) -> Option<u32> {
        let index = self.0.partition_point(|phase| phase.begin <= step);
        self.0.get(index).map(|phase| phase.begin)
    }

    /// Returns the begin of the last phase before a step.
    pub(super) fn last_begin(&self, step: u32) -> Option<u32> {
        let index = self.0.partition_point(|phase| phase.begin <= step).checked_sub(1)?;
        Some(self.0[index].begin)
    }

    /// Returns the last step of the last phase that ends before a step.
    pub(super) fn last_end(&self, step: u32) -> Option<u32> {
        let index = self.0.partition_point(|phase| phase.end <= step).checked_sub(1)?;
        Some(self.0[index].end - 1)
    }

    /// Returns whether a phase ends after a step and before the file does.
    pub(super) fn any_ends_after(&self, step: u32) -> bool {
        let index = self.0.partition_point(|phase| phase.end <= step);
        self.0.get(index).is_some_and(|phase| phase.end != NEVER)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Phase> + '_ {
        self.0.iter().copied()
    }

    /// Extends the current phase or ends it.
    fn note(&mut self, open: &mut Option<u32>, step: u32, is_inside: bool) {
        match (*open, is_inside) {
            (None, true) => *open = Some(step),
            (Some(begin), false) => {
                self.0.push(Phase { begin, end: step });
                *open = None;
            }
            _ => {}
        }
    }

    fn finish(&mut self, open: Option<u32>) {
        self.0.extend(open.map(|begin| Phase { begin, end: NEVER }));
    }
}

/// Steps in order.
#[derive(Debug, Default)]
pub(super) struct Moments(Vec<u32>);

impl Moments {
    /// Returns the first moment after a step.
    pub(super) fn next(&self, step: u32) -> Option<u32> {
        self.0.get(self.0.partition_point(|&moment| moment <= step)).copied()
    }

    /// Returns the last moment up to a step.
    pub(super) fn last(&self, step: u32) -> Option<u32> {
        let index = self.0.partition_point(|&moment| moment <= step).checked_sub(1)?;
        Some(self.0[index])
    }

    /// Returns the number of moments after `from` and up to `to`.
    pub(super) fn count_in(&self, from: u32, to: u32) -> usize {
        let up_to = |step| self.0.partition_point(|&moment| moment <= step);
        up_to(to).saturating_sub(up_to(from))
    }

    /// Returns whether there is a moment after `from` and before `to`.
    pub(super) fn any_in(&self, from: u32, to: u32) -> bool {
        self.next(from).is_some_and(|moment| moment < to)
    }
}

/// The phases of a run.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    /// The backward passes. Each ends at the next allocation of the main thread.
    pub(super) passes: Phases,
    /// The optimizer's steps outside of backward passes.
    pub(super) steps: Phases,
    /// Allocations of forward passes on the main thread.
    pub(super) forwards: Moments,
    /// Allocations of backward passes.
    pub(super) backwards: Moments,
    /// Allocations of optimizers that run inside of backward passes.
    pub(super) engine_steps: Moments,
    /// Whether the last forward pass, which no backward pass follows, keeps the results of most of its ops.
    pub(super) ends_in_training: bool,
}

/// The least stacks in a forward pass from which its kind can be told, and the share of stacks with live blocks in one
/// that a backward pass will follow, as a divisor.
const LEAST_STACKS: usize = 4;
const LIVE_SHARE: usize = 3;

impl Timeline {
    /// Finds the phases of blocks in the order of their allocation.
    pub(super) fn of(lives: &[Life], sites: &Sites) -> Self {
        let mut timeline = Self::default();
        let (mut pass, mut step) = (None, None);
        for life in lives {
            let (site, at) = (sites.of_block(life), born(life));
            let in_pass = site.is_engine || site.part == Part::Backward;
            timeline.passes.note(&mut pass, at, in_pass);
            let is_step = site.part == Part::Optimizer;
            if !site.is_engine {
                timeline.steps.note(&mut step, at, is_step);
            } else if is_step {
                timeline.engine_steps.0.push(at);
            }
            match site.part {
                Part::Forward if !in_pass => timeline.forwards.0.push(at),
                Part::Backward => timeline.backwards.0.push(at),
                _ => {}
            }
        }
        timeline.passes.finish(pass);
        timeline.steps.finish(step);
        timeline.ends_in_training = timeline.is_training_at_end(lives, sites);
        timeline
    }

    fn is_training_at_end(&self, lives: &[Life], sites: &Sites) -> bool {
        let last_end = self.passes.0.last().map_or(0, |pass| pass.end);
        let first = lives.partition_point(|life| born(life) < last_end);
        let forward = lives[first..].iter().filter(|life| sites.of_block(life).part == Part::Forward);
        let (mut all, mut live) = (FxHashSet::default(), FxHashSet::default());
        for life in forward {
            all.insert(life.stack);
            if freed(life) == NEVER {
                live.insert(life.stack);
            }
        }
        all.len() >= LEAST_STACKS && live.len() * LIVE_SHARE >= all.len()
    }

    /// Returns the last allocation of a forward pass up to a step.
    pub(super) fn last_forward(&self, step: u32) -> Option<u32> {
        self.forwards.last(step)
    }

    /// Returns the last step of the backward pass, or the begin of the optimizer's step, before a step.
    pub(super) fn last_end(&self, step: u32) -> Option<u32> {
        self.passes.last_end(step).max(self.steps.last_begin(step))
    }

    /// Returns whether no forward pass allocated anything up to a step.
    pub(super) fn before_first_forward(&self, step: u32) -> bool {
        self.forwards.last(step).is_none()
    }
}
