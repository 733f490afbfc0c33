//! Nodes of the gradient graph: the op that computed a tensor, its inputs, and its saved tensors.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use highwater_tracking::{ScopePath, here};

use super::checkpoint::{self, Replay};
use crate::error::{Error, Result};
use crate::op::Op;
use crate::op::mixed::mixed_dtype;
use crate::op::saved::{Input, Saved};
use crate::shape::DType;
use crate::storage::leaf::LeafId;
use crate::tensor::Tensor;
use crate::tensor::edge::GradEdge;

/// Returns the next number, from 1 on. Nodes and [updates of leaves](super::version) share the numbers.
pub(super) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// One recorded execution of an op.
pub(crate) struct Node {
    /// Nodes are numbered in the order of their creation.
    pub(super) number: u64,
    /// The smallest number of this node and all reachable nodes.
    pub(crate) since: u64,
    kind: NodeKind,
    /// The scope of the forward pass. The backward pass counts toward the same module.
    pub(crate) scope: ScopePath,
    /// The type of mixed precision in the forward pass, for a part that runs again.
    pub(super) mixed: Option<DType>,
    /// Whether the gradient of the output may be in f32 although the output is 16-bit.
    takes_f32: bool,
}

/// The kind of a node. The first backward pass takes the contents, so that it frees memory as it proceeds.
enum NodeKind {
    /// Runs an op's backward pass.
    Op { op: Box<dyn Op>, saved: Mutex<Option<Saved>> },
    /// Runs a checkpointed part again, then continues through the new nodes to the part's input.
    Replay(Mutex<Option<(Box<Replay>, Option<GradEdge>)>>),
}

/// The contents of a node, taken by a backward pass.
pub(super) enum BackwardStep<'a> {
    Op(&'a dyn Op, Saved),
    Replay(Box<Replay>, Option<GradEdge>),
}

impl Node {
    /// Returns whether the gradient of the output may be in f32, although the output is 16-bit: the op passes it on to an f32
    /// parameter.
    pub(crate) const fn takes_f32(&self) -> bool {
        self.takes_f32
    }

    /// Takes the contents of the node.
    ///
    /// # Errors
    /// [`Error::GraphSpent`] if a pass has already taken them.
    pub(super) fn take_step(&self) -> Result<BackwardStep<'_>> {
        let step = match &self.kind {
            NodeKind::Op { op, saved } => lock(saved).take().map(|saved| BackwardStep::Op(&**op, saved)),
            NodeKind::Replay(replay) => {
                lock(replay).take().map(|(replay, edge)| BackwardStep::Replay(replay, edge))
            }
        };
        step.ok_or_else(|| Error::GraphSpent { op: self.name() })
    }

    /// Visits the edges of the inputs and the tensors that the backward pass will read. Skips a node that a
    /// pass has taken.
    pub(super) fn visit(&self, mut edge: impl FnMut(&GradEdge), read: impl FnMut(&Tensor)) {
        match &self.kind {
            NodeKind::Op { saved, .. } => {
                let saved = lock(saved);
                let Some(Saved { tensors, inputs, .. }) = &*saved else { return };
                inputs.iter().filter_map(|input| input.edge.as_ref()).for_each(edge);
                tensors.iter().for_each(read);
            }
            NodeKind::Replay(replay) => {
                let replay = lock(replay);
                let Some((replay, input)) = &*replay else { return };
                let drawn = || replay.reads();
                drawn().filter_map(Tensor::grad_edge).chain(input).for_each(&mut edge);
                drawn().for_each(read);
            }
        }
    }

    /// Calls a function with the op and its saved data. `None` for a checkpointed part, and for a node that a pass
    /// has taken.
    pub(super) fn with_op<R>(&self, f: impl FnOnce(&dyn Op, &Saved) -> R) -> Option<R> {
        let NodeKind::Op { op, saved } = &self.kind else { return None };
        lock(saved).as_ref().map(|saved| f(&**op, saved))
    }

    /// Returns the error that this node's backward pass would read stale values.
    pub(super) fn stale(&self, read: &Tensor) -> Error {
        let module = self.scope.module.path().to_owned();
        Error::StaleBackward { op: self.name(), module, shape: *read.shape() }
    }

    /// Moves the edges of a dropped node to a list.
    fn take_edges(&mut self, edges: &mut Vec<GradEdge>) {
        match &mut self.kind {
            NodeKind::Op { saved, .. } => {
                let Some(saved) = get_mut(saved) else { return };
                edges.extend(saved.inputs.iter_mut().filter_map(|input| input.edge.take()));
            }
            NodeKind::Replay(replay) => {
                if let Some((replay, edge)) = get_mut(replay).take() {
                    replay.drop_later();
                    edges.extend(edge);
                }
            }
        }
    }

    fn name(&self) -> &'static str {
        match &self.kind {
            NodeKind::Op { op, .. } => op.name(),
            NodeKind::Replay(_) => checkpoint::OP,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn get_mut<T>(mutex: &mut Mutex<T>) -> &mut T {
    mutex.get_mut().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Node {
    /// Unlinks chains of nodes iteratively. The default, recursive drop would overflow the stack on long
    /// chains.
    fn drop(&mut self) {
        let mut edges = Vec::new();
        self.take_edges(&mut edges);
        while let Some(edge) = edges.pop() {
            if let GradEdge::Node(node) = edge
                && let Some(mut last) = Arc::into_inner(node)
            {
                last.take_edges(&mut edges);
            }
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("number", &self.number).field("op", &self.name()).finish_non_exhaustive()
    }
}

/// Adds a node for an op's output to the graph.
pub(crate) fn record(op: Box<dyn Op>, inputs: &[&Tensor], tensors: Vec<Tensor>, output: Tensor) -> Tensor {
    let device = inputs.first().map(|input| input.device()).filter(|device| *device != output.device());
    let (number, scope) = (next_number(), here());
    let mut since = number;
    let facts = inputs.iter().map(|input| {
        let edge = input.grad_edge().cloned();
        since = edge.as_ref().map_or(since, |edge| edge.since().min(since));
        Input { shape: *input.shape(), dtype: input.dtype(), edge }
    });
    let saved =
        Saved { inputs: facts.collect(), tensors, device: device.cloned(), total: None, took_total: false };
    let takes_f32 = op.passes_gradient() && saved.takes_f32(0);
    let kind = NodeKind::Op { op, saved: Mutex::new(Some(saved)) };
    let node = Node { number, since, kind, scope, mixed: mixed_dtype(), takes_f32 };
    output.with_grad_edge(Some(GradEdge::Node(Arc::new(node))))
}

/// Adds a node for the output of a checkpointed part to the graph.
pub(super) fn record_replay(replay: Replay, input: &Tensor, output: Tensor) -> Tensor {
    let edge = input.grad_edge().cloned();
    let number = next_number();
    let since = edge.as_ref().map_or(number, |edge| edge.since().min(number));
    let kind = NodeKind::Replay(Mutex::new(Some((Box::new(replay), edge))));
    let node = Arc::new(Node { number, since, kind, scope: here(), mixed: mixed_dtype(), takes_f32: false });
    output.with_grad_edge(Some(GradEdge::Node(node)))
}

/// # Require gradients
impl Tensor {
    /// Returns the same values as a leaf of the graph, for which backward passes compute gradients.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for integers and booleans.
    #[doc(alias("requires_grad_"))]
    pub fn requiring_grad(self) -> Result<Self> {
        self.with_leaf(LeafId::next)
    }

    /// Returns the same values as the leaf of a new parameter.
    ///
    /// # Errors
    /// As [`requiring_grad`](Self::requiring_grad).
    pub(crate) fn requiring_grad_as_parameter(self) -> Result<Self> {
        self.with_leaf(LeafId::next_parameter)
    }

    fn with_leaf(self, leaf: fn() -> LeafId) -> Result<Self> {
        if !self.dtype().is_float() {
            return Err(Error::UnsupportedDType { op: "requiring_grad", dtype: self.dtype() });
        }
        Ok(self.with_grad_edge(Some(GradEdge::Leaf(leaf()))))
    }

    /// Returns these values as the leaf of the parameter `converted`, after its conversion.
    ///
    /// # Errors
    /// As [`requiring_grad`](Self::requiring_grad).
    pub(crate) fn requiring_grad_as_conversion_of(self, converted: &Self) -> Result<Self> {
        match converted.leaf() {
            Some(leaf) => Ok(self.with_grad_edge(Some(GradEdge::Leaf(leaf.converted())))),
            None => self.requiring_grad(),
        }
    }
}
