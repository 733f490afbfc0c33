//! Nodes of the graph: who made a tensor, from what, and what its backward will read.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::LocalKey;

use highwater_tracking::{ScopePath, here};

use super::checkpoint::{self, Replay};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::op::HeldOp;
use crate::shape::{DType, Shape};
use crate::storage::leaf::LeafId;
use crate::storage::shared::{Piece, Room, Shareable, Shared};
use crate::storage::spare::{self, Spare};
use crate::tensor::Tensor;
use crate::tensor::edge::{GradEdge, Target};

/// Numbers nodes and [changes of leaves](super::version) in their order, from 1 on.
pub(super) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// One recorded execution of an op.
pub(crate) struct Node {
    pub(crate) number: u64,
    /// The least number of this node and all that it leads to.
    pub(crate) since: u64,
    work: Work,
    /// Where the forward ran: its backward is charged to the same module.
    pub(crate) place: ScopePath,
}

/// What a backward does at a node. What it reads is taken by the first one, so that memory is freed as it passes.
enum Work {
    /// Runs an op's backward.
    Op { op: HeldOp, saved: Mutex<Option<Saved>> },
    /// Runs a part of the program again, and goes on through the nodes that it makes, to where its input came from.
    Replay(Mutex<Option<(Box<Replay>, Option<GradEdge>)>>),
}

/// The same, taken. What an op saved is read where it stands.
pub(super) enum Taken<'a> {
    Op(&'a HeldOp, &'a mut Saved),
    Replay(Box<Replay>, Option<GradEdge>),
}

thread_local! {
    static PIECES: Spare<Piece<Node>> = const { Spare::new() };
    static INPUTS: Spare<Vec<Input>> = const { Spare::new() };
    /// Lists for what backward reads.
    pub(crate) static TENSORS: Spare<Vec<Tensor>> = const { Spare::new() };
    /// And for what comes of it.
    static GRADIENTS: Spare<Vec<Option<Tensor>>> = const { Spare::new() };
}

/// An empty list for what the backward of an op returns, whose memory is used again.
#[inline]
pub(crate) fn list_of_gradients() -> Vec<Option<Tensor>> {
    spare::list(&GRADIENTS)
}

impl Shareable for Node {
    fn pieces() -> &'static LocalKey<Spare<Piece<Self>>> {
        &PIECES
    }
}

impl Node {
    /// Takes what backward does and reads, and where it goes on: for a handle that goes with it. What was saved by a node that
    /// others hold too is taken to `apart`.
    ///
    /// # Errors
    /// [`Error::GraphSpent`] the second time.
    pub(super) fn take<'a>(this: &'a mut Shared<Self>, apart: &'a mut Option<Saved>) -> Result<Taken<'a>> {
        // As a rule nobody else holds a node any more, and its lock need not be taken.
        if Shared::is_unique(this) {
            let own = Shared::get_mut(this).expect("nobody else holds it");
            return match &mut own.work {
                Work::Op { op, saved } => match own_mut(saved) {
                    Some(saved) => Ok(Taken::Op(op, saved)),
                    None => Err(Error::GraphSpent { op: op.name() }),
                },
                Work::Replay(replay) => match own_mut(replay).take() {
                    Some((replay, edge)) => Ok(Taken::Replay(replay, edge)),
                    None => Err(Error::GraphSpent { op: checkpoint::OP }),
                },
            };
        }
        let taken = match &this.work {
            Work::Op { op, saved } => {
                *apart = take(saved);
                apart.as_mut().map(|saved| Taken::Op(op, saved))
            }
            Work::Replay(replay) => take(replay).map(|(replay, edge)| Taken::Replay(replay, edge)),
        };
        taken.ok_or_else(|| Error::GraphSpent { op: this.name() })
    }

    /// Shows where the inputs came from, and what backward will read: nothing of a node that was passed.
    pub(super) fn look(&self, mut edge: impl FnMut(&GradEdge), read: impl FnMut(&Tensor)) {
        match &self.work {
            Work::Op { saved, .. } => {
                let saved = saved.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(Saved { tensors, inputs, .. }) = &*saved else { return };
                inputs.iter().filter_map(|input| input.edge.as_ref()).for_each(edge);
                tensors.iter().for_each(read);
            }
            Work::Replay(replay) => {
                let replay = replay.lock().unwrap_or_else(PoisonError::into_inner);
                let Some((replay, input)) = &*replay else { return };
                let drawn = || replay.reads();
                drawn().filter_map(Tensor::grad_edge).chain(input).for_each(&mut edge);
                drawn().for_each(read);
            }
        }
    }

    /// Whether its backward can begin without a tensor for the gradient of its output.
    pub(super) fn takes_one(&self) -> bool {
        matches!(&self.work, Work::Op { op, .. } if op.takes_one())
    }

    /// The error that this node's backward reads a tensor as it was before a change.
    pub(super) fn stale(&self, read: &Tensor) -> Error {
        let module = self.place.module.path().to_owned();
        Error::StaleBackward { op: self.name(), module, shape: *read.shape() }
    }

    /// Adds the edges to a list, out of a node that is dropped. One that was passed has none any more.
    fn take_edges(&mut self, edges: &mut Vec<GradEdge>) {
        match &mut self.work {
            Work::Op { saved, .. } => {
                let Some(saved) = own_mut(saved) else { return };
                for input in &mut saved.inputs {
                    if input.edge.is_some() {
                        edges.extend(input.edge.take());
                    }
                }
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

fn take<T>(from: &Mutex<Option<T>>) -> Option<T> {
    from.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn own_mut<T>(of: &mut Mutex<T>) -> &mut T {
    of.get_mut().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Node {
    /// Unlinks chains of nodes one by one: the default, recursive drop would overflow the stack on long ones.
    fn drop(&mut self) {
        let mut edges = Vec::new();
        self.take_edges(&mut edges);
        while let Some(edge) = edges.pop() {
            // Should two threads let the last two handles go at once, one of them begins here anew, one level deeper.
            if let Target::Node(mut node) = edge.into_target()
                && let Some(last) = Shared::get_mut(&mut node)
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

/// What a backward reads: the tensors that forward saved, and facts about its inputs.
#[derive(Debug)]
pub struct Saved {
    tensors: Vec<Tensor>,
    inputs: Vec<Input>,
    /// Where all inputs were, if not where the output is.
    device: Option<Device>,
    /// What others have found for the only input of an op that [is a part](Op::is_part) of it.
    total: Option<Tensor>,
}

#[derive(Debug)]
struct Input {
    shape: Shape,
    dtype: DType,
    /// Where its gradient goes; `None` if nobody asks for one.
    edge: Option<GradEdge>,
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

    /// Lets the tensor that was saved last go, once it was read.
    pub(crate) fn let_last_go(&mut self) {
        drop(self.tensors.pop());
    }

    /// Takes the tensor that was saved last, to write over it.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor), if nothing was saved.
    pub(crate) fn take_last(&mut self) -> Result<Tensor> {
        match self.tensors.pop() {
            Some(tensor) => Ok(tensor),
            None => self.tensor(0).cloned(),
        }
    }

    /// Where the gradient of the only input goes, if there is one alone and its gradient is asked for.
    pub(super) fn only_edge(&self) -> Option<&GradEdge> {
        match &self.inputs[..] {
            [Input { edge, .. }] => edge.as_ref(),
            _ => None,
        }
    }

    /// Takes out what others have found for the only input, to add to it: then backward returns the sum.
    pub(crate) const fn take_total(&mut self) -> Option<Tensor> {
        self.total.take()
    }

    pub(super) fn set_total(&mut self, total: Option<Tensor>) {
        self.total = total;
    }

    /// Whether anybody asks for the gradient of the `index`-th input.
    #[must_use]
    pub fn needs_grad(&self, index: usize) -> bool {
        self.inputs.get(index).is_some_and(|input| input.edge.is_some())
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

    /// Checks what the backward of an output on `device` returned: an entry per input, each gradient that is asked for being
    /// like its input.
    pub(super) fn check(
        &self,
        op: &'static str,
        gradients: &[Option<Tensor>],
        device: &Device,
    ) -> Result<()> {
        let device = self.device.as_ref().unwrap_or(device);
        if gradients.len() != self.inputs.len() {
            return Err(Error::BadArgument {
                op,
                argument: "gradients",
                expected: "one entry per input",
                got: format!("{} for {} inputs", gradients.len(), self.inputs.len()),
            });
        }
        for (gradient, input) in gradients.iter().zip(&self.inputs) {
            let Some(gradient) = gradient.as_ref().filter(|_| input.edge.is_some()) else { continue };
            if gradient.device() != device {
                let (lhs, rhs) = (gradient.device().to_string(), device.to_string());
                return Err(Error::DeviceMismatch { op, lhs, rhs });
            }
            if gradient.dtype() != input.dtype {
                let (lhs, rhs) = (gradient.dtype(), input.dtype);
                let (lhs_shape, rhs_shape) = (*gradient.shape(), input.shape);
                return Err(Error::DTypeMismatch { op, lhs, rhs, lhs_shape, rhs_shape });
            }
            if *gradient.shape() != input.shape {
                return Err(Error::ShapeMismatch { op, lhs: *gradient.shape(), rhs: input.shape });
            }
        }
        Ok(())
    }

    /// Lets all that was saved go, and hands each gradient to where that of its input goes.
    pub(super) fn deliver(
        &mut self,
        mut gradients: Vec<Option<Tensor>>,
        mut to: impl FnMut(GradEdge, Tensor) -> Result<()>,
    ) -> Result<()> {
        self.tensors.clear();
        for (input, gradient) in self.inputs.iter_mut().zip(&mut gradients) {
            let (edge, gradient) = (input.edge.take(), gradient.take());
            let Some(gradient) = gradient else { continue };
            let Some(edge) = edge else { continue };
            to(edge, gradient)?;
        }
        spare::keep_list(&GRADIENTS, gradients);
        Ok(())
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        spare::keep_list(&TENSORS, std::mem::take(&mut self.tensors));
        spare::keep_list(&INPUTS, std::mem::take(&mut self.inputs));
    }
}

/// Hangs an op's output into the graph.
pub(crate) fn record(op: HeldOp, inputs: &[&Tensor], tensors: Vec<Tensor>, output: Tensor) -> Tensor {
    let device = inputs.first().map(|input| input.device()).filter(|device| *device != output.device());
    let (number, place) = (next_number(), here());
    let (mut facts, mut since) = (spare::list(&INPUTS), number);
    for input in inputs {
        let edge = input.grad_edge().cloned();
        since = edge.as_ref().map_or(since, |edge| edge.since().min(since));
        facts.push(Input { shape: *input.shape(), dtype: input.dtype(), edge });
    }
    // Before the work, which would else be built elsewhere, to be dropped should there be no memory, and then moved.
    let room = Room::new();
    let work = Work::Op { op, saved: Mutex::new(None) };
    let mut node = room.fill(Node { number, since, work, place });
    if let Work::Op { saved, .. } = &mut node.work {
        // Where it stays: what is put into a lock is moved with it, in pieces that lie across those it was written in.
        own_mut(saved).get_or_insert_with(|| Saved {
            tensors,
            inputs: facts,
            device: device.cloned(),
            total: None,
        });
    }
    output.with_grad_edge(Some(GradEdge::to_node(node.shareable())))
}

/// Hangs the output of a part that will be run again into the graph.
pub(super) fn record_replay(replay: Replay, input: &Tensor, output: Tensor) -> Tensor {
    let edge = input.grad_edge().cloned();
    let number = next_number();
    let since = edge.as_ref().map_or(number, |edge| edge.since().min(number));
    let work = Work::Replay(Mutex::new(Some((Box::new(replay), edge))));
    let node = Shared::new(Node { number, since, work, place: here() });
    output.with_grad_edge(Some(GradEdge::to_node(node)))
}

impl Tensor {
    /// The same values as a leaf of the graph: gradients of what is computed from it are kept for it.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for integers and truth values.
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
        Ok(self.with_grad_edge(Some(GradEdge::to_leaf(leaf()))))
    }

    /// The same as the leaf that `former`, which is one, becomes when it is converted to these values.
    ///
    /// # Errors
    /// As [`requiring_grad`](Self::requiring_grad).
    pub(crate) fn requiring_grad_after(self, former: &Self) -> Result<Self> {
        match former.leaf() {
            Some(leaf) => Ok(self.with_grad_edge(Some(GradEdge::to_leaf(leaf.converted())))),
            None => self.requiring_grad(),
        }
    }
}
