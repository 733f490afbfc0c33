//! Nodes of the graph: which op made a tensor, from which inputs, and what its backward will read.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use highwater_tracking::{ScopePath, here};

use super::checkpoint::{self, Replay};
use crate::error::{Error, Result};
use crate::op::HeldOp;
use crate::op::saved::{Input, Saved};
use crate::storage::leaf::LeafId;
use crate::tensor::Tensor;
use crate::tensor::edge::{GradEdge, GradNode};

/// Numbers nodes and [changes of leaves](super::version) in their order, from 1 on.
pub(super) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// One recorded execution of an op.
pub(crate) struct Node {
    pub(super) number: u64,
    /// The least number of this node and all that it leads to.
    pub(super) since: u64,
    work: Work,
    /// Where the forward ran: its backward is charged to the same module.
    pub(crate) place: ScopePath,
}

/// The work of a backward pass at a node. The first pass takes what it reads, so that memory is freed as the pass goes on.
enum Work {
    /// Runs an op's backward.
    Op { op: HeldOp, saved: Mutex<Option<Saved>> },
    /// Runs a part of the program again, and goes on through the new nodes to where its input came from.
    Replay(Mutex<Option<(Box<Replay>, Option<GradEdge>)>>),
}

/// Work that a backward pass has taken.
pub(super) enum Taken<'a> {
    Op(&'a HeldOp, Saved),
    Replay(Box<Replay>, Option<GradEdge>),
}

impl GradNode for Node {
    fn number(&self) -> u64 {
        self.number
    }

    fn since(&self) -> u64 {
        self.since
    }
}

impl Node {
    /// The node that an edge leads to.
    pub(super) fn of(node: Arc<dyn GradNode>) -> Arc<Self> {
        let node: Arc<dyn Any + Send + Sync> = node;
        node.downcast().unwrap_or_else(|_| unreachable!("only this module makes nodes"))
    }

    /// Takes the node's work.
    ///
    /// # Errors
    /// [`Error::GraphSpent`] the second time.
    pub(super) fn take(&self) -> Result<Taken<'_>> {
        let taken = match &self.work {
            Work::Op { op, saved } => lock(saved).take().map(|saved| Taken::Op(op, saved)),
            Work::Replay(replay) => lock(replay).take().map(|(replay, edge)| Taken::Replay(replay, edge)),
        };
        taken.ok_or_else(|| Error::GraphSpent { op: self.name() })
    }

    /// Visits the edges of the inputs and the tensors that backward will read; none of a node that a pass has taken.
    pub(super) fn look(&self, mut edge: impl FnMut(&GradEdge), read: impl FnMut(&Tensor)) {
        match &self.work {
            Work::Op { saved, .. } => {
                let saved = lock(saved);
                let Some(Saved { tensors, inputs, .. }) = &*saved else { return };
                inputs.iter().filter_map(|input| input.edge.as_ref()).for_each(edge);
                tensors.iter().for_each(read);
            }
            Work::Replay(replay) => {
                let replay = lock(replay);
                let Some((replay, input)) = &*replay else { return };
                let drawn = || replay.reads();
                drawn().filter_map(Tensor::grad_edge).chain(input).for_each(&mut edge);
                drawn().for_each(read);
            }
        }
    }

    /// The error that this node's backward reads a tensor as it was before a change.
    pub(super) fn stale(&self, read: &Tensor) -> Error {
        let module = self.place.module.path().to_owned();
        Error::StaleBackward { op: self.name(), module, shape: *read.shape() }
    }

    /// Moves the edges of a node that is dropped to a list.
    fn take_edges(&mut self, edges: &mut Vec<GradEdge>) {
        match &mut self.work {
            Work::Op { saved, .. } => {
                let Some(saved) = own_mut(saved) else { return };
                edges.extend(saved.inputs.iter_mut().filter_map(|input| input.edge.take()));
            }
            Work::Replay(replay) => {
                if let Some((replay, edge)) = own_mut(replay).take() {
                    replay.drop_later();
                    edges.extend(edge);
                }
            }
        }
    }

    fn name(&self) -> &'static str {
        match &self.work {
            Work::Op { op, .. } => op.name(),
            Work::Replay(_) => checkpoint::OP,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn own_mut<T>(mutex: &mut Mutex<T>) -> &mut T {
    mutex.get_mut().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Node {
    /// Unlinks chains of nodes one by one: the default, recursive drop would overflow the stack on long ones.
    fn drop(&mut self) {
        let mut edges = Vec::new();
        self.take_edges(&mut edges);
        while let Some(edge) = edges.pop() {
            if let GradEdge::Node(node) = edge
                && let Some(mut last) = Arc::into_inner(Self::of(node))
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
pub(crate) fn record(op: HeldOp, inputs: &[&Tensor], tensors: Vec<Tensor>, output: Tensor) -> Tensor {
    let device = inputs.first().map(|input| input.device()).filter(|device| *device != output.device());
    let (number, place) = (next_number(), here());
    let mut since = number;
    let facts = inputs.iter().map(|input| {
        let edge = input.grad_edge().cloned();
        since = edge.as_ref().map_or(since, |edge| edge.since().min(since));
        Input { shape: *input.shape(), dtype: input.dtype(), edge }
    });
    let saved = Saved { inputs: facts.collect(), tensors, device: device.cloned(), total: None };
    let work = Work::Op { op, saved: Mutex::new(Some(saved)) };
    output.with_grad_edge(Some(GradEdge::Node(Arc::new(Node { number, since, work, place }))))
}

/// Adds a node for the output of a checkpointed part to the graph.
pub(super) fn record_replay(replay: Replay, input: &Tensor, output: Tensor) -> Tensor {
    let edge = input.grad_edge().cloned();
    let number = next_number();
    let since = edge.as_ref().map_or(number, |edge| edge.since().min(number));
    let work = Work::Replay(Mutex::new(Some((Box::new(replay), edge))));
    let node = Arc::new(Node { number, since, work, place: here() });
    output.with_grad_edge(Some(GradEdge::Node(node)))
}

/// # Require gradients
impl Tensor {
    /// The same values as a leaf of the graph: gradients of what is computed from it are kept for it.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for integers and truth values.
    #[doc(alias("requires_grad_"))]
    pub fn requiring_grad(self) -> Result<Self> {
        self.with_leaf(LeafId::next)
    }

    /// The same values as the leaf of a new parameter.
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

    /// The same as the leaf that `former`, which is one, becomes when it is converted to these values.
    ///
    /// # Errors
    /// As [`requiring_grad`](Self::requiring_grad).
    pub(crate) fn requiring_grad_after(self, former: &Self) -> Result<Self> {
        match former.leaf() {
            Some(leaf) => Ok(self.with_grad_edge(Some(GradEdge::Leaf(leaf.converted())))),
            None => self.requiring_grad(),
        }
    }
}
