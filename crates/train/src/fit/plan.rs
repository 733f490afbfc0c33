//! A plan: how a program trains.

use std::fmt;

use highwater_distributed::Shard;
use highwater_nn::recompute::{Recomputation, Recompute, RecomputeGuard, Segment};
use highwater_tensor::{DType, Error, MixedGuard, Result, mixed};
use serde::{Serialize, Serializer};

/// The steps and micro-batches of a trial: the second step includes the optimizer's state.
const TRIAL: u64 = 2;

/// How much of the training a run does. Only a whole run writes files and shows output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    /// All steps.
    #[default]
    Whole,
    /// At most this many steps. A [`Trainer`](crate::Trainer) then writes no files, calls no observers and ignores signals.
    Trial {
        /// The most steps.
        steps: u64,
    },
    /// As a trial. A [`Trainer`](crate::Trainer) with epochs runs two of them instead, without equal steps in their middle.
    Rehearsal {
        /// The most steps of a program without epochs.
        steps: u64,
    },
}

/// How a program trains: the size and number of its micro-batches, the blocks that run again in the backward pass, the
/// precision, the ranks, and how much of the training a run does. [`fit`](super::fit()) finds one, and [`Plan::new`] is the
/// plan without any of this.
///
/// ```
/// use highwater::fit::Plan;
/// let plan = Plan::new(64);
/// assert_eq!((plan.micro_batch, plan.accumulate, plan.batch()), (64, 1, 64));
/// assert_eq!(plan.to_string(), "micro-batch 64");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// Examples of one forward pass of a rank.
    pub micro_batch: usize,
    /// Micro-batches of a rank per step, whose gradients are added.
    pub accumulate: u64,
    /// The blocks that are recomputed in the backward pass.
    pub recompute: Recompute,
    /// The 16-bit type of [mixed precision](highwater_tensor::mixed()); `None` for the types of the tensors.
    #[serde(serialize_with = "as_text")]
    pub precision: Option<DType>,
    /// The processes.
    pub ranks: usize,
    /// The memory that the ranks divide among themselves.
    #[serde(serialize_with = "as_name")]
    pub shard: Shard,
    /// How much of the training a run does: all of it, except in a search.
    #[serde(skip)]
    pub extent: Extent,
}

impl Plan {
    /// Returns the plan that trains with the whole batch at once, on one rank, in the precision of the tensors.
    #[must_use]
    pub fn new(batch: usize) -> Self {
        Self {
            micro_batch: batch,
            accumulate: 1,
            recompute: Recompute::default(),
            precision: None,
            ranks: 1,
            shard: Shard::None,
            extent: Extent::Whole,
        }
    }

    /// Returns the examples of a step on all ranks.
    #[must_use]
    pub const fn batch(&self) -> usize {
        self.micro_batch * self.accumulate as usize * self.ranks
    }

    /// Returns the number of steps of an epoch with this number of examples. The last one may have fewer micro-batches.
    #[must_use]
    pub fn steps_of_epoch(&self, examples: usize) -> u64 {
        let batches = examples.div_ceil(self.micro_batch.max(1)) / self.ranks.max(1);
        (batches as u64).div_ceil(self.accumulate.max(1))
    }

    /// Returns the number of steps to run: `steps`, or fewer in a trial of [`fit`](super::fit()).
    #[must_use]
    pub fn steps(&self, steps: u64) -> u64 {
        match self.extent {
            Extent::Whole => steps,
            Extent::Trial { steps: most } | Extent::Rehearsal { steps: most } => most.min(steps),
        }
    }

    /// Whether this is a trial of [`fit`](super::fit()), or a rehearsal: a program need not write files or print then.
    #[must_use]
    pub const fn is_trial(&self) -> bool {
        !matches!(self.extent, Extent::Whole)
    }

    /// Applies the precision and the recomputation to this thread until the result is dropped.
    /// [`Trainer::plan`](crate::Trainer::plan) does this for a training loop.
    ///
    /// # Errors
    /// See [`mixed`](highwater_tensor::mixed()).
    pub fn enter(&self) -> Result<PlanGuard> {
        let mixed = self.precision.map(mixed).transpose()?;
        Ok(PlanGuard { recompute: self.recompute.enter(), _mixed: mixed })
    }

    /// Returns the plan for a trial with few steps.
    pub(super) fn for_trial(&self) -> Self {
        let extent = Extent::Trial { steps: TRIAL };
        Self { extent, accumulate: self.accumulate.min(TRIAL), ..self.clone() }
    }

    /// Returns the plan for a trial with this number of steps.
    pub(super) fn for_measurement(&self, steps: u64) -> Self {
        Self { extent: Extent::Trial { steps }, ..self.clone() }
    }

    /// Returns the plan for a trial with at most this many micro-batches and steps, and with epochs.
    pub(super) fn for_rehearsal(&self, micro_batches: u64, steps: u64) -> Self {
        let accumulate = self.accumulate.min(micro_batches);
        Self { extent: Extent::Rehearsal { steps }, accumulate, ..self.clone() }
    }

    pub(crate) const fn is_rehearsal(&self) -> bool {
        matches!(self.extent, Extent::Rehearsal { .. })
    }
}

/// Ends a plan on this thread when it is dropped. See [`Plan::enter`].
#[must_use = "dropping the guard ends the plan"]
#[derive(Debug)]
pub struct PlanGuard {
    recompute: RecomputeGuard,
    _mixed: Option<MixedGuard>,
}

impl PlanGuard {
    /// Fails if a recomputation names a chain that has not run. Call it after the first step: the memory of the step is not the predicted
    /// one then.
    ///
    /// # Errors
    /// [`Error::BadArgument`] names the missing chains.
    pub fn check(&self) -> Result<()> {
        let unused = self.recompute.unused();
        if unused.is_empty() {
            return Ok(());
        }
        let (argument, expected) = ("recompute", "paths of chains of the model");
        Err(Error::BadArgument {
            op: "plan",
            argument,
            expected,
            got: format!("{unused:?}, where no chain has run"),
        })
    }
}

fn as_text<S: Serializer>(dtype: &Option<DType>, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    dtype.as_ref().map(ToString::to_string).serialize(serializer)
}

fn as_name<S: Serializer>(shard: &Shard, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    shard.name().serialize(serializer)
}

impl fmt::Display for Plan {
    /// Writes what differs from the plan with the whole batch:
    /// `micro-batch 8 × 4, 3 of 12 blocks recomputed [blocks: 9 3×(1)], bf16`. The brackets contain the
    /// [recomputation](Recomputation) of each chain with its [path](Recompute), so that different plans have different texts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "micro-batch {}", self.micro_batch)?;
        if self.accumulate > 1 {
            write!(f, " × {}", self.accumulate)?;
        }
        if self.ranks > 1 {
            write!(f, " on {} ranks", self.ranks)?;
        }
        if self.shard != Shard::None {
            write!(f, ", {} sharded", self.shard.name())?;
        }
        let recomputations = || self.recompute.recomputations().map(|(_, recomputation)| recomputation);
        let again: usize = recomputations()
            .flat_map(Recomputation::segments)
            .filter(|segment| **segment != Segment::Keep)
            .map(Segment::blocks)
            .sum();
        if again > 0 {
            let blocks: usize = recomputations().map(Recomputation::blocks).sum();
            write!(f, ", {again} of {blocks} blocks recomputed [{}]", self.recompute)?;
        }
        self.precision.map_or(Ok(()), |dtype| write!(f, ", {dtype}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_with_other_recomputations_have_other_texts() {
        let text = |chains: &[(&str, &str)]| {
            let mut plan = Plan::new(8);
            for (path, recomputation) in chains {
                plan.recompute = plan.recompute.with(*path, recomputation.parse().unwrap());
            }
            plan.to_string()
        };
        assert_eq!(text(&[("blocks", "6")]), "micro-batch 8");
        assert_eq!(text(&[("blocks", "1 (5)")]), "micro-batch 8, 5 of 6 blocks recomputed [blocks: 1 (5)]");
        assert_eq!(text(&[("", "1 5×(1)")]), "micro-batch 8, 5 of 6 blocks recomputed [(model): 1 5×(1)]");
        let chains = [("block0", "(2)"), ("block1", "(2)"), ("block2", "2")];
        assert_eq!(text(&chains), "micro-batch 8, 4 of 6 blocks recomputed [block0–1: (2)]");
        let chains = [("encoder", "1 (5)"), ("decoder", "6")];
        assert_eq!(text(&chains), "micro-batch 8, 5 of 12 blocks recomputed [encoder: 1 (5)]");
    }

    #[test]
    fn the_recomputations_of_a_text_are_those_of_the_plan() {
        for path in ["encoder", "decoder", "blocks", ""] {
            for recomputation in ["1 (5)", "(1) (1) 4", "3×(2)", "2 ((1) 1) (2)"] {
                let mut plan = Plan::new(8);
                plan.recompute = plan.recompute.with(path, recomputation.parse().unwrap());
                let text = plan.to_string();
                let found = text.split_once('[').and_then(|(_, rest)| rest.strip_suffix(']')).unwrap();
                let (found_path, found) = found.split_once(": ").unwrap();
                assert_eq!(found_path, if path.is_empty() { "(model)" } else { path });
                assert_eq!(
                    Some(&found.parse().unwrap()),
                    plan.recompute.recomputations().next().map(|(_, own)| own)
                );
            }
        }
    }

    #[test]
    fn a_plan_of_nothing_has_no_steps() {
        let mut plan = Plan::new(0);
        (plan.accumulate, plan.ranks) = (0, 0);
        assert_eq!((plan.batch(), plan.steps_of_epoch(0)), (0, 0));
    }
}
