//! Whether accumulated micro-batches have the gradients of the whole batch.
//!
//! Dry runs have no values. So the comparison reads the graphs of the losses of two micro-batches of different sizes. Their
//! gradients add up to those of the whole batch under three conditions:
//! - Each term of the loss has an element for each example, or depends on parameters only.
//! - The weights of a term's elements have the same sum in a step of either size. The number of targets that are not ignored
//!   is a value, so such a term must be the only one that reads data, and the program must weigh micro-batches by this number,
//!   as the Trainer does.
//! - No op below the terms reduces the examples.
//!
//! A program may have several backward passes per micro-batch, such as those of a discriminator and a generator. All are compared.

use std::fmt;

use highwater_tensor::{Objective, PassEnd};
use serde::{Serialize, Serializer};

/// Why a search did not divide a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Indivisible {
    /// The model has batch normalization.
    BatchNorm,
    /// An op of the loss combines all examples of a micro-batch.
    Combined {
        /// The op.
        op: &'static str,
    },
    /// The loss is no mean over examples, nor do the gradients become one.
    NoMean {
        /// The op whose elements the loss adds up.
        op: &'static str,
    },
    /// The losses of two micro-batches have different terms or ops.
    Different,
}

impl fmt::Display for Indivisible {
    /// Writes a clause: `the batch stays in one piece, because the model has …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the batch stays in one piece, because ")?;
        match self {
            Self::BatchNorm => {
                write!(
                    f,
                    "the model has batch normalization (BatchNorm), whose statistics depend on the micro-batch"
                )
            }
            Self::Combined { op } => write!(
                f,
                "{op} combines all examples of a micro-batch, for instance by their number of targets or their weights, so \
                 that several micro-batches would train on another loss"
            ),
            Self::NoMean { op } => write!(
                f,
                "the gradients of micro-batches do not add up to those of the batch: the weight of {op} in the loss is not \
                 that of a mean over examples"
            ),
            Self::Different => write!(f, "the loss has other ops in smaller micro-batches"),
        }
    }
}

/// Writes the sentence.
impl Serialize for Indivisible {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The losses of a trial's first step, and how the trial combines its micro-batches.
#[derive(Clone, Debug)]
pub(super) struct TriedLosses {
    /// The ends of the passes of the step.
    passes: Vec<PassEnd>,
    /// The passes per micro-batch.
    per_micro_batch: usize,
    micro_batch: usize,
    /// The micro-batches of a step: those of the trial, and those of the plan.
    accumulate: [u64; 2],
}

/// The order of the passes of a step.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// All passes of a micro-batch follow each other.
    Interleaved,
    /// The first pass of all micro-batches, then the second one of all, and so on.
    Phases,
}

/// One loss of a step.
#[derive(Clone, Copy, Debug)]
struct TriedLoss<'a> {
    objective: &'a Objective,
    micro_batch: usize,
    accumulate: [u64; 2],
    /// The factor of the accumulated gradients.
    scale: f64,
    /// Whether the program weighs micro-batches by their elements.
    is_weighed: bool,
}

impl TriedLosses {
    /// Returns the losses of the first step; `None` without a pass.
    pub(super) fn new(
        passes: &[PassEnd],
        per_micro_batch: usize,
        micro_batch: usize,
        [tried, planned]: [u64; 2],
    ) -> Option<Self> {
        passes.first()?;
        let of_step = per_micro_batch * usize::try_from(tried).ok()?;
        let passes = passes.iter().take(of_step).cloned().collect();
        Some(Self { passes, per_micro_batch, micro_batch, accumulate: [tried, planned] })
    }

    /// Returns why steps with the other micro-batch do not have the gradients of steps with this one, if they do not.
    pub(super) fn difference(&self, other: &Self) -> Option<Indivisible> {
        // A program that runs steps of its own has numbers without a meaning.
        let count = if self.per_micro_batch == other.per_micro_batch { self.per_micro_batch } else { 1 };
        let in_order = |order| {
            let at = |pass| Some((self.loss(order, pass, count)?, other.loss(order, pass, count)?));
            (0..count).find_map(|pass| at(pass).and_then(|(own, other)| own.difference(&other)))
        };
        // The passes of a micro-batch have different losses, so only the order of the program compares the same ones.
        in_order(Order::Interleaved).filter(|_| in_order(Order::Phases).is_some())
    }

    /// Returns the loss of a pass of each micro-batch, which has this number of passes.
    fn loss(&self, order: Order, pass: usize, count: usize) -> Option<TriedLoss<'_>> {
        let micro_batches = usize::try_from(self.accumulate[0]).ok()?;
        let (first, step) = match order {
            Order::Interleaved => (pass, count),
            Order::Phases => (pass * micro_batches, 1),
        };
        let objective = self.passes.get(first)?.objective.as_deref()?;
        let last = first + micro_batches.saturating_sub(1) * step;
        let scale = self.passes.get(last).map_or(1.0, |pass| pass.scale);
        let (micro_batch, accumulate) = (self.micro_batch, self.accumulate);
        let is_weighed = self.passes.get(first)?.is_weighed;
        Some(TriedLoss { objective, micro_batch, accumulate, scale, is_weighed })
    }
}

impl TriedLoss<'_> {
    /// Returns the op of a term that divides by a number of targets, unless one weight of the micro-batch is right for the loss.
    fn unweighed(&self) -> Option<&'static str> {
        let mut terms = self.objective.terms.iter().filter(|term| term.reads_data);
        let counted = terms.clone().find(|term| term.is_counted)?;
        let is_alone = terms.nth(1).is_none();
        (!is_alone || !self.is_weighed).then_some(counted.op)
    }

    /// Returns why steps with the other micro-batch do not have the gradients of steps with this one, if they do not.
    fn difference(&self, other: &Self) -> Option<Indivisible> {
        if self.micro_batch == other.micro_batch {
            return None;
        }
        let (terms, others) = (&self.objective.terms, &other.objective.terms);
        if terms.len() != others.len() || terms.iter().zip(others).any(|(own, other)| own.op != other.op) {
            return Some(Indivisible::Different);
        }
        let of_examples = |own: usize, of_other: usize| {
            own as u128 * other.micro_batch as u128 == of_other as u128 * self.micro_batch as u128
        };
        let pairs = || terms.iter().zip(others);
        let combined = pairs().find(|(own, other)| {
            if own.reads_data {
                !of_examples(own.elements, other.elements)
            } else {
                own.elements != other.elements
            }
        });
        if let Some((term, _)) = combined {
            return Some(Indivisible::Combined { op: term.op });
        }
        if let Some(op) = self.unweighed().or_else(|| other.unweighed()) {
            return Some(Indivisible::Combined { op });
        }
        let (ops, others) = (&self.objective.ops, &other.objective.ops);
        if ops.len() != others.len() || ops.iter().zip(others).any(|(own, other)| own.op != other.op) {
            return Some(Indivisible::Different);
        }
        let reduced = ops.iter().zip(others).find(|(own, other)| {
            let mut inputs = own.inputs.iter().zip(&other.inputs);
            let reads_examples = inputs.any(|(own, other)| own != other);
            reads_examples && (own.is_of_all || !of_examples(own.output, other.output))
        });
        if let Some((op, _)) = reduced {
            return Some(Indivisible::Combined { op: op.op });
        }
        // A program may divide by the micro-batches of the trial, or by a number that it knows.
        let weigh = |loss: &Self, weight: f64, elements: usize, by: usize| {
            weight * elements as f64 * loss.scale * loss.accumulate[by] as f64
        };
        let unequal = |by: usize| {
            pairs().find(|(one, two)| {
                let (one, two) =
                    (weigh(self, one.weight, one.elements, by), weigh(other, two.weight, two.elements, by));
                (one - two).abs() > 1e-6 * one.abs().max(two.abs())
            })
        };
        let (term, _) = unequal(0).filter(|_| unequal(1).is_some())?;
        Some(Indivisible::NoMean { op: term.op })
    }
}
