//! The backward pass: from the loss to the leaves, freeing what was saved on the way.

use std::collections::BTreeMap;
use std::sync::Arc;

use bfc_core::Category;
use highwater_tracking::{Phase, phase};

use super::gradients::Gradients;
use super::node::{Node, Taken};
use super::version;
use crate::backend::{Binary, Kernel};
use crate::device::{Device, PlacementReason};
use crate::error::{Error, Result};
use crate::op::mode::no_grad;
use crate::op::{HeldOp, OpContext, Saved};
use crate::tensor::Tensor;
use crate::tensor::edge::GradEdge;

/// # Compute gradients
impl Tensor {
    /// The gradients of this one number with respect to every leaf it was computed from.
    ///
    /// Saved tensors are freed as the pass goes by, so a graph can be passed once.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[3.0f32], [1])?.requiring_grad()?;
    /// let gradients = x.mul(&x)?.sum_all()?.backward()?;
    /// assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>()?, [6.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotScalar`], [`Error::NoGraph`] and [`Error::StaleBackward`] before anything is done: the last where a parameter
    /// whose gradient is asked for has changed since this was computed, and its former values would be read. An error on the way,
    /// as lack of memory or [`Error::GraphSpent`] for a part of the graph that another loss was passed through, leaves all tensors
    /// as they were, but the graph is used up to that point. A gradient that is not like its input, from an op that is not of
    /// this crate, is such an error too: [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DeviceMismatch`].
    pub fn backward(&self) -> Result<Gradients> {
        self.backward_if(version::check)
    }

    /// The same, whatever has become of parameters since: the gradients are those at the values that forward saw, which stayed in
    /// memory for it. For those who mean it, as where several passes are on their way at a time (Narayanan et al. 2019).
    ///
    /// ```
    /// use highwater::tensor::{Device, Error, Parameter, Tensor};
    /// let device = Device::cpu()?;
    /// let weight = Parameter::new(Tensor::full(&device, [1], 3.0)?)?;
    /// let loss = weight.tensor().square()?.sum_all()?;
    /// weight.set(&Tensor::zeros(&device, [1])?)?;
    /// assert!(matches!(loss.backward(), Err(Error::StaleBackward { op: "square", .. })));
    /// let gradients = loss.backward_stale()?;
    /// assert_eq!(gradients.get(&weight.tensor()).unwrap().to_vec::<f32>()?, [6.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`backward`](Self::backward), but for [`Error::StaleBackward`].
    pub fn backward_stale(&self) -> Result<Gradients> {
        self.backward_if(|_| Ok(()))
    }

    /// The gradients, if `check` finds nothing wrong with where they begin, and where what runs again does.
    fn backward_if(&self, check: Check) -> Result<Gradients> {
        if self.elements() != 1 {
            return Err(Error::NotScalar { shape: *self.shape() });
        }
        let Some(edge) = self.grad_edge() else { return Err(Error::NoGraph) };
        check(edge)?;
        no_grad(|| {
            let _phase = phase(Phase::Backward);
            let (mut pending, mut gradients) = (Pending::default(), Gradients::default());
            let (one, dtype) = (*self.shape(), self.dtype());
            let seed = Self::full_for(self.device(), one, 1.0, dtype, Category::Gradient)?;
            deliver(edge.clone(), seed, &mut pending, &mut gradients)?;
            while let Some((node, grad)) = pending.pop_last() {
                step(&node, grad, self.device(), check, (&mut pending, &mut gradients))?;
            }
            Ok(gradients)
        })
    }
}

/// Refuses graphs.
type Check = fn(&GradEdge) -> Result<()>;

/// The nodes that the pass still has to visit, by number, each with the sum of the gradients that reached it so far.
#[derive(Default)]
struct Pending {
    /// The node with the largest number, if any: in a chain it is the only one.
    last: Option<(Arc<Node>, Tensor)>,
    others: BTreeMap<u64, (Arc<Node>, Tensor)>,
}

impl Pending {
    /// Takes the node with the largest number.
    fn pop_last(&mut self) -> Option<(Arc<Node>, Tensor)> {
        let last = self.last.take();
        self.last = self.others.pop_last().map(|(_, next)| next);
        last
    }

    /// Takes the gradient that has reached a node so far.
    fn take(&mut self, number: u64) -> Option<Tensor> {
        match &self.last {
            Some((last, _)) if last.number == number => self.pop_last().map(|(_, grad)| grad),
            _ if self.others.is_empty() => None,
            _ => self.others.remove(&number).map(|(_, grad)| grad),
        }
    }

    /// Inserts a node that is not there yet.
    fn insert(&mut self, node: Arc<Node>, grad: Tensor) {
        let lower = match &self.last {
            Some((last, _)) if last.number > node.number => Some((node, grad)),
            _ => self.last.replace((node, grad)),
        };
        if let Some((node, grad)) = lower {
            self.others.insert(node.number, (node, grad));
        }
    }
}

/// Runs the backward of one node, and passes its gradients on.
fn step(
    node: &Node,
    grad: Tensor,
    home: &Device,
    check: Check,
    (pending, gradients): (&mut Pending, &mut Gradients),
) -> Result<()> {
    // Everything that the node allocates, sums of gradients included, is charged to the module where its forward ran.
    let place = node.place;
    let _place = place.with_phase(Phase::Backward).enter();
    match node.take()? {
        Taken::Op(op, mut saved) => {
            if let Some(input) = saved.only_edge()
                && op.adds_to_gradient()
            {
                let total = take_gradient(input, pending, gradients);
                saved.set_total(total);
            }
            let away = (grad.device() != home).then(|| grad.device().clone());
            let found = pass(op, away.as_ref().unwrap_or(home), &mut saved, grad)?;
            saved.deliver(found, |edge, grad| deliver(edge, grad, pending, gradients))
        }
        Taken::Replay(replay, edge) => {
            if let Some(edge) = replay.run(place, edge, &grad)? {
                // It may lead to other graphs, which the replayed part had captured.
                check(&edge)?;
                deliver(edge, grad, pending, gradients)?;
            }
            Ok(())
        }
    }
}

/// Runs one op's backward.
fn pass(op: &HeldOp, device: &Device, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
    let name = op.name();
    device.placement().tell(name, device, PlacementReason::Backward);
    let ctx = OpContext::backward(name, device, device.default_allocator()?);
    let gradients = op.backward(&ctx, saved, grad)?;
    if op.is_custom() || cfg!(debug_assertions) {
        saved.check(name, &gradients, device)?;
    }
    Ok(gradients)
}

/// Passes a gradient to where it belongs. A second gradient for the same place is added to the first.
fn deliver(edge: GradEdge, grad: Tensor, pending: &mut Pending, gradients: &mut Gradients) -> Result<()> {
    // The earlier gradient is taken out while the sum is made, so that its buffer has a single owner.
    match edge {
        GradEdge::Leaf(leaf) => gradients.by_leaf_mut().add(leaf, grad, sum)?,
        GradEdge::Node(node) => {
            let total = match pending.take(node.number()) {
                None => grad,
                Some(first) => sum(first, grad)?,
            };
            pending.insert(Node::of(node), total);
        }
    }
    Ok(())
}

/// The sum of two gradients, in the buffer of the first if no other tensor shares it.
fn sum(mut first: Tensor, second: Tensor) -> Result<Tensor> {
    let device = second.device();
    let ctx = OpContext::backward("sum_gradients", device, device.default_allocator()?);
    if let Some(acc) = first.view_mut() {
        ctx.compute(Kernel::Accumulate { f: Binary::Add, input: second.view(), acc })?;
        return Ok(first);
    }
    let mut out = ctx.output(first.shape(), first.dtype())?;
    ctx.compute(Kernel::Binary {
        f: Binary::Add,
        lhs: first.view(),
        rhs: second.view(),
        out: out.view_mut(),
    })?;
    Ok(out.finish())
}

/// Takes the gradient that has reached a place so far, for an op that adds to it.
fn take_gradient(edge: &GradEdge, pending: &mut Pending, gradients: &mut Gradients) -> Option<Tensor> {
    match edge {
        GradEdge::Leaf(leaf) => gradients.by_leaf_mut().remove(*leaf),
        GradEdge::Node(node) => pending.take(node.number()),
    }
}
