//! How a loss combines the elements of a batch, read from its gradient graph.
//!
//! ```text
//! loss ── add ─┬─ mean ── square ── …     a term of 32 elements, each with weight 1/32
//!              └─ mul_scalar ── sum ── w  a term of the parameter's elements
//! ```
//!
//! From the loss, the search follows ops that only add elements ([`Summation`]) down to those that compute other functions.
//! These are the terms.
//!
//! Micro-batches have the gradients of the batch only if each term has all elements of its micro-batch. The weight of an element
//! must be inversely proportional to the size of the micro-batch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::checkpoint;
use super::node::Node;
use crate::error::{Error, Result};
use crate::op::Summation;
use crate::shape::Shape;
use crate::tensor::Tensor;
use crate::tensor::edge::GradEdge;

/// A term of a loss: the sum of elements, each with the same weight.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LossTerm {
    /// The op that computes the elements, or adds them up.
    pub op: &'static str,
    /// The number of elements. Rows with an ignored target do not count, except on a dry device, which has no values.
    pub elements: usize,
    /// The factor of each element in the loss.
    pub weight: f64,
    /// Whether the number of elements is a value: the term is a mean over the rows that are not ignored.
    pub is_counted: bool,
    /// Whether the elements depend on tensors other than parameters, such as a batch.
    pub reads_data: bool,
}

/// The sizes of an op of a loss.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LossOp {
    /// The op.
    pub op: &'static str,
    /// The elements of each input.
    pub inputs: Vec<usize>,
    /// The elements of the output.
    pub output: usize,
    /// Whether each element of the output depends on all elements of an input, as the statistics of a batch do.
    pub is_of_all: bool,
}

/// How a loss combines the elements of a batch.
///
/// ```
/// use highwater::tensor::{Objective, Parameter, Tensor};
/// # let device = highwater::Device::cpu()?;
/// let weight = Parameter::new(Tensor::ones(&device, [3])?)?;
/// let loss = Tensor::ones(&device, [4, 3])?.mul(&weight.tensor())?.square()?.mean_all()?;
/// let objective = Objective::of(&loss)?;
/// let term = &objective.terms[0];
/// assert_eq!((term.op, term.elements, term.weight, term.reads_data), ("square", 12, 1.0 / 12.0, true));
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Objective {
    /// The terms of the loss.
    pub terms: Vec<LossTerm>,
    /// The ops below the terms, each once. Ops that only rearrange or repeat elements are not among them, nor are the ops of a
    /// checkpointed part.
    pub ops: Vec<LossOp>,
}

impl Objective {
    /// Reads the graph of a loss before its backward pass. A tensor without a graph has no terms.
    ///
    /// # Errors
    /// [`Error::Device`] if the device fails while ignored targets are counted.
    pub fn of(loss: &Tensor) -> Result<Self> {
        let (mut terms, mut below) = (Vec::new(), Below::default());
        for (term, edge) in terms_of(loss)? {
            let reads_data = reads_data(&edge, &mut below, term.elements);
            terms.push(LossTerm { reads_data, ..term });
        }
        Ok(Self { terms, ops: below.ops.into_values().flatten().collect() })
    }

    /// Reads only the terms of a loss, in less time. Assumes that they depend on data.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn of_terms(loss: &Tensor) -> Result<Self> {
        Ok(Self { terms: terms_of(loss)?.into_iter().map(|(term, _)| term).collect(), ops: Vec::new() })
    }

    /// Returns the number of examples of this loss for each one of `other`, if both are means over examples. It is the ratio of
    /// the elements of their terms. `None` if it is unknown, because a term is not a mean, or terms disagree.
    ///
    /// [Scale](Tensor::backward_scaled) the gradients of unequal parts of a batch by their ratios, add them, and divide by the sum
    /// of the ratios. The result is the gradient of the mean over the whole batch. A part whose targets are all ignored has the
    /// ratio 0. If `other` has no targets, its number counts as 1.
    ///
    /// ```
    /// use highwater::tensor::{Objective, Parameter, Tensor};
    /// # let device = highwater::Device::cpu()?;
    /// let weight = Parameter::new(Tensor::ones(&device, [1])?)?;
    /// let of = |examples: usize| {
    ///     let loss = Tensor::ones(&device, [examples])?.mul(&weight.tensor())?.square()?.mean_all()?;
    ///     Objective::of_terms(&loss)
    /// };
    /// assert_eq!(of(3)?.examples_per(&of(4)?), Some(0.75));
    /// # Ok::<(), highwater::Error>(())
    /// ```
    #[must_use]
    pub fn examples_per(&self, other: &Self) -> Option<f64> {
        if self.terms.len() != other.terms.len() {
            return None;
        }
        let mut found = None;
        for (own, others) in self.terms.iter().zip(&other.terms) {
            if own.op != others.op {
                return None;
            }
            if own.elements == others.elements && own.elements > 0 {
                continue;
            }
            let [count, of_other] = [own.elements.max(1) as f64, others.elements.max(1) as f64];
            let ratio = own.elements as f64 / of_other;
            let is_mean = is_close(own.weight * count, others.weight * of_other);
            let is_known = ratio.is_normal() || own.is_counted && own.elements == 0;
            if !is_mean || !is_known || found.is_some_and(|found| !is_close(found, ratio)) {
                return None;
            }
            found = Some(ratio);
        }
        Some(found.unwrap_or(1.0))
    }
}

fn is_close(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * one.abs().max(other.abs())
}

/// Nodes by number, each with the elements of its output and their weight in the loss.
type Pending = BTreeMap<u64, (Arc<Node>, usize, f64)>;

/// Returns the terms of a loss and where they are in its graph, later nodes first.
///
/// # Errors
/// If the device fails while ignored targets are counted.
fn terms_of(loss: &Tensor) -> Result<Vec<(LossTerm, GradEdge)>> {
    let (mut pending, mut terms) = (Pending::new(), Vec::new());
    let mut reach = |edge: &GradEdge, elements: usize, weight: f64, pending: &mut Pending| match edge {
        // Only parameters and other leaves that the loss adds up directly.
        GradEdge::Leaf(_) => terms.push((term("leaf", elements, weight), edge.clone())),
        GradEdge::Node(node) => {
            let node = Arc::clone(node);
            pending.entry(node.number).or_insert_with(|| (node, elements, 0.0)).2 += weight;
        }
    };
    let mut others = Vec::new();
    if let Some(edge) = loss.grad_edge() {
        reach(edge, loss.elements(), 1.0, &mut pending);
    }
    while let Some((_, (node, elements, weight))) = pending.pop_last() {
        let followed = node.with_op(|op, saved| {
            let inputs = &saved.inputs;
            let shapes: Vec<_> = inputs.iter().map(|input| input.shape).collect();
            let edges =
                || inputs.iter().filter_map(|input| Some((input.edge.as_ref()?, input.shape.elements())));
            Ok::<_, Error>(match op.summation(&shapes) {
                Summation::Elements { factor } => {
                    edges().for_each(|(edge, elements)| reach(edge, elements, weight * factor, &mut pending));
                    None
                }
                Summation::Elementwise { factor } => {
                    edges().for_each(|(edge, own)| {
                        let repeats = elements as f64 / own.max(1) as f64;
                        reach(edge, own, weight * factor * repeats, &mut pending);
                    });
                    None
                }
                Summation::Product if elements == 1 && edges().count() == 2 => {
                    // A factor that depends on parameters only is the same for all parts of a batch.
                    let mut data =
                        edges().filter(|(edge, elements)| reads_data(edge, &mut Below::default(), *elements));
                    match (data.next(), data.next()) {
                        (Some((edge, elements)), None) => {
                            reach(edge, elements, weight, &mut pending);
                            None
                        }
                        _ => Some(term(op.name(), elements, weight)),
                    }
                }
                Summation::Functions { terms, factor } => Some(term(op.name(), terms, weight * factor)),
                Summation::MeanOfKept { rows } => {
                    let kept = if loss.device().is_dry() { rows } else { op.kept_rows(saved)? };
                    let term = term(op.name(), kept, weight / kept.max(1) as f64);
                    Some(LossTerm { is_counted: true, ..term })
                }
                _ => Some(term(op.name(), elements, weight)),
            })
        });
        let found = followed.unwrap_or_else(|| Ok(Some(term(checkpoint::OP, elements, weight))))?;
        others.extend(found.map(|term| (term, GradEdge::Node(node))));
    }
    terms.extend(others);
    Ok(terms)
}

const fn term(op: &'static str, elements: usize, weight: f64) -> LossTerm {
    LossTerm { op, elements, weight, is_counted: false, reads_data: true }
}

/// Properties of the nodes below the terms.
#[derive(Default)]
struct Below {
    /// The ops by the numbers of their nodes; `None` for one that only rearranges or repeats elements.
    ops: BTreeMap<u64, Option<LossOp>>,
    /// The nodes that depend on parameters only.
    of_parameters: BTreeSet<u64>,
}

/// Whether a value depends on tensors other than parameters. Adds the ops that compute it.
fn reads_data(edge: &GradEdge, below: &mut Below, elements: usize) -> bool {
    let node = match edge {
        GradEdge::Leaf(leaf) => return !leaf.is_parameter(),
        GradEdge::Node(node) => Arc::clone(node),
    };
    let number = node.number;
    let mut open = vec![(node, elements)];
    let mut found: BTreeMap<u64, Vec<Option<GradEdge>>> = BTreeMap::new();
    while let Some((node, output)) = open.pop() {
        if below.ops.contains_key(&node.number) {
            continue;
        }
        let op = node.with_op(|op, saved| {
            let inputs = &saved.inputs;
            let shapes: Vec<_> = inputs.iter().map(|input| input.shape).collect();
            let sizes: Vec<_> = shapes.iter().map(Shape::elements).collect();
            for (input, elements) in inputs.iter().zip(&sizes) {
                if let Some(GradEdge::Node(node)) = &input.edge {
                    open.push((Arc::clone(node), *elements));
                }
            }
            found.insert(node.number, inputs.iter().map(|input| input.edge.clone()).collect());
            let summation = op.summation(&shapes);
            // Such ops do not run on inputs that are contiguous already, or have the shape or the type already.
            let rearranges = matches!(summation, Summation::Elementwise { .. }) && sizes.len() == 1;
            let is_of_all = summation == Summation::OfAll;
            (!rearranges).then(|| LossOp { op: op.name(), inputs: sizes, output, is_of_all })
        });
        // A checkpointed part reads data.
        below.ops.insert(node.number, op.unwrap_or(None));
    }
    // Inputs have lower numbers than outputs.
    for (number, edges) in found {
        let is_of_parameters = edges.iter().all(|edge| match edge {
            None => false,
            Some(GradEdge::Leaf(leaf)) => leaf.is_parameter(),
            Some(GradEdge::Node(node)) => below.of_parameters.contains(&node.number),
        });
        if is_of_parameters {
            below.of_parameters.insert(number);
        }
    }
    !below.of_parameters.contains(&number)
}
