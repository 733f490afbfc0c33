//! Nodes of the graph: who made a tensor, from what, and what its backward will read.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use highwater_tracking::{Place, here};

use super::checkpoint::{self, Replay};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::Op;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Numbers nodes and leaves in the order of their creation.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Where the gradient of a tensor goes: to a leaf, which keeps it, or through the op that made the tensor.
#[derive(Clone)]
pub(crate) enum GradEdge {
    Leaf(LeafId),
    Node(Arc<Node>),
}

/// Names a tensor that gradients are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LeafId(u64);

/// One recorded execution of an op.
pub(crate) struct Node {
    pub(crate) number: u64,
    work: Work,
    /// Where the forward ran: its backward is charged to the same module.
    pub(crate) place: Place,
    /// One edge per input; `None` for inputs that no gradient flows to.
    pub(crate) inputs: Vec<Option<GradEdge>>,
}

/// What a backward does at a node. What it reads is taken by the first one, so that memory is freed as it passes.
enum Work {
    /// Runs an op's backward.
    Op { op: Box<dyn Op>, saved: Mutex<Option<Saved>> },
    /// Runs a part of the program again, and goes on through the nodes that it makes.
    Replay(Mutex<Option<Box<Replay>>>),
}

/// The same, taken.
pub(super) enum Taken<'a> {
    Op(&'a dyn Op, Saved),
    Replay(Box<Replay>),
}

impl Node {
    /// Takes what backward does and reads.
    ///
    /// # Errors
    /// [`Error::GraphSpent`] the second time.
    pub(super) fn take(&self) -> Result<Taken<'_>> {
        let taken = match &self.work {
            Work::Op { op, saved } => take(saved).map(|saved| Taken::Op(op.as_ref(), saved)),
            Work::Replay(replay) => take(replay).map(Taken::Replay),
        };
        taken.ok_or_else(|| Error::GraphSpent { op: self.name() })
    }

    fn name(&self) -> &'static str {
        match &self.work {
            Work::Op { op, .. } => op.name(),
            Work::Replay(_) => checkpoint::OP,
        }
    }
}

fn take<T>(from: &Mutex<Option<T>>) -> Option<T> {
    from.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl Drop for Node {
    /// Unlinks chains of nodes one by one: the default, recursive drop would overflow the stack on long ones.
    fn drop(&mut self) {
        if let Work::Replay(replay) = &self.work
            && let Some(replay) = take(replay)
        {
            replay.drop_later();
        }
        let mut edges: Vec<_> = std::mem::take(&mut self.inputs);
        while let Some(edge) = edges.pop() {
            if let Some(GradEdge::Node(node)) = edge
                && let Some(mut last) = Arc::into_inner(node)
            {
                edges.append(&mut last.inputs);
            }
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("number", &self.number).field("op", &self.name()).finish_non_exhaustive()
    }
}

/// What a backward reads: the tensors that forward saved, and facts about its inputs.
#[derive(Debug)]
pub struct Saved {
    tensors: Vec<Tensor>,
    inputs: Vec<InputFacts>,
    /// Where all inputs were.
    device: Device,
    /// What others have found for the only input of an op that [is a part](Op::is_part) of it.
    total: Mutex<Option<Tensor>>,
}

#[derive(Clone, Debug)]
struct InputFacts {
    shape: Shape,
    dtype: DType,
    needs_grad: bool,
}

impl Saved {
    /// The `index`-th tensor that forward saved.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if forward saved fewer.
    pub fn tensor(&self, index: usize) -> Result<&Tensor> {
        self.tensors.get(index).ok_or_else(|| Error::BadArgument {
            op: "backward",
            argument: "index",
            expected: "that of a saved tensor",
            got: format!("{index} of {}", self.tensors.len()),
        })
    }

    /// Takes out what others have found for the only input, to add to it: then backward returns the sum.
    pub(crate) fn take_total(&self) -> Option<Tensor> {
        take(&self.total)
    }

    pub(super) fn set_total(&mut self, total: Option<Tensor>) {
        *self.total.get_mut().unwrap_or_else(PoisonError::into_inner) = total;
    }

    /// Whether anybody asks for the gradient of the `index`-th input.
    #[must_use]
    pub fn needs_grad(&self, index: usize) -> bool {
        self.inputs.get(index).is_some_and(|input| input.needs_grad)
    }

    /// How many inputs the op had.
    #[must_use]
    pub const fn inputs(&self) -> usize {
        self.inputs.len()
    }

    /// The shape of the `index`-th input; that of a scalar past the last.
    #[must_use]
    pub fn input_shape(&self, index: usize) -> Shape {
        self.inputs.get(index).map_or(Shape::SCALAR, |input| input.shape)
    }

    /// The element type of the `index`-th input; `f32` past the last.
    #[must_use]
    pub fn input_dtype(&self, index: usize) -> DType {
        self.inputs.get(index).map_or(DType::F32, |input| input.dtype)
    }

    /// Checks what a backward returned: an entry per input, each gradient that is asked for being like its input.
    pub(super) fn check(&self, op: &'static str, gradients: &[Option<Tensor>]) -> Result<()> {
        if gradients.len() != self.inputs.len() {
            return Err(Error::BadArgument {
                op,
                argument: "gradients",
                expected: "one entry per input",
                got: format!("{} for {} inputs", gradients.len(), self.inputs.len()),
            });
        }
        for (gradient, input) in gradients.iter().zip(&self.inputs) {
            let Some(gradient) = gradient.as_ref().filter(|_| input.needs_grad) else { continue };
            let (lhs_shape, rhs_shape) = (*gradient.shape(), input.shape);
            if *gradient.device() != self.device {
                let (lhs, rhs) = (gradient.device().to_string(), self.device.to_string());
                return Err(Error::DeviceMismatch { op, lhs, rhs });
            }
            if gradient.dtype() != input.dtype {
                let (lhs, rhs) = (gradient.dtype(), input.dtype);
                return Err(Error::DTypeMismatch { op, lhs, rhs, lhs_shape, rhs_shape });
            }
            if lhs_shape != rhs_shape {
                return Err(Error::ShapeMismatch { op, lhs: lhs_shape, rhs: rhs_shape });
            }
        }
        Ok(())
    }
}

/// Hangs an op's output into the graph.
pub(crate) fn record(op: impl Op, inputs: &[&Tensor], tensors: Vec<Tensor>, output: Tensor) -> Tensor {
    let facts = inputs.iter().map(|input| InputFacts {
        shape: *input.shape(),
        dtype: input.dtype(),
        needs_grad: input.requires_grad(),
    });
    let device = inputs.first().map_or_else(|| output.device(), |input| input.device()).clone();
    let saved = Mutex::new(Some(Saved { tensors, inputs: facts.collect(), device, total: Mutex::default() }));
    let edges = inputs.iter().map(|input| input.grad_edge().cloned()).collect();
    hang(Work::Op { op: Box::new(op), saved }, edges, output)
}

/// Hangs the output of a part that will be run again into the graph.
pub(super) fn record_replay(replay: Replay, input: &Tensor, output: Tensor) -> Tensor {
    hang(Work::Replay(Mutex::new(Some(Box::new(replay)))), vec![input.grad_edge().cloned()], output)
}

fn hang(work: Work, inputs: Vec<Option<GradEdge>>, output: Tensor) -> Tensor {
    let node = Node { number: next_number(), work, place: here(), inputs };
    output.with_grad_edge(Some(GradEdge::Node(Arc::new(node))))
}

impl Tensor {
    /// The same values as a leaf of the graph: gradients of what is computed from it are kept for it.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for integers and truth values.
    pub fn requiring_grad(self) -> Result<Self> {
        if !self.dtype().is_float() {
            return Err(Error::UnsupportedDType { op: "requiring_grad", dtype: self.dtype() });
        }
        Ok(self.with_grad_edge(Some(GradEdge::Leaf(LeafId(next_number())))))
    }
}
