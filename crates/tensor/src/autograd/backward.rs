//! The backward pass: from the loss to the leaves. It frees saved tensors as it proceeds.

use std::collections::BTreeMap;
use std::sync::Arc;

use bfc_core::Category;
use highwater_tracking::{Phase, phase};

use super::gradients::Gradients;
use super::hooks::HookedPass;
use super::node::{BackwardStep, Node};
use super::passes;
use super::version;
use crate::backend::{Binary, kernels};
use crate::device::{Device, PlacementReason};
use crate::error::{Error, Result};
use crate::op::mixed::within;
use crate::op::mode::{is_recording, no_grad};
use crate::op::{Destination, Op, OpContext, Saved};
use crate::tensor::Tensor;
use crate::tensor::edge::GradEdge;

/// # Compute gradients
impl Tensor {
    /// Computes the gradients of this scalar with respect to every leaf that it depends on.
    ///
    /// The pass frees saved tensors as it proceeds, so each graph supports only one pass.
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
    /// Before the pass starts: [`Error::NotScalar`], [`Error::NoGraph`], [`Error::GradientsOff`], and
    /// [`Error::StaleBackward`] if the pass would read old values of a parameter that requires a gradient.
    ///
    /// During the pass: [`Error::Allocation`], and [`Error::GraphSpent`] if an earlier pass used a part of
    /// the graph. [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] and [`Error::DeviceMismatch`] mean that
    /// a third-party op returned a gradient that does not match its input. All tensors keep their values, but
    /// the graph is used up to that point.
    pub fn backward(&self) -> Result<Gradients> {
        self.backward_if((1.0, false), version::check)
    }

    /// Computes the gradients of this scalar times a number, without memory for the product. Use it for parts of a batch with
    /// different numbers of examples: the factor is the share of the part.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[3.0f32], [1])?.requiring_grad()?;
    /// let gradients = x.square()?.sum_all()?.backward_scaled(0.5)?;
    /// assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>()?, [3.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`backward`](Self::backward).
    pub fn backward_scaled(&self, factor: f64) -> Result<Gradients> {
        self.backward_if((factor, false), version::check)
    }

    /// As [`backward_scaled`](Self::backward_scaled), for a factor that is the number of the loss's examples relative to other
    /// parts of the batch ([`Objective::examples_per`](super::Objective::examples_per)). A search for a plan reads this.
    ///
    /// # Errors
    /// As [`backward`](Self::backward).
    #[doc(hidden)]
    pub fn backward_weighed(&self, factor: f64) -> Result<Gradients> {
        self.backward_if((factor, true), version::check)
    }

    /// Computes gradients at the values that the forward pass used, even if parameters have changed since.
    /// Pipelined training uses it, where several passes overlap (Narayanan et al. 2019).
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
    /// As [`backward`](Self::backward), except [`Error::StaleBackward`].
    pub fn backward_stale(&self) -> Result<Gradients> {
        self.backward_if((1.0, false), |_| Ok(()))
    }

    /// Runs the backward pass of this scalar times `factor` if `check` accepts the graph. Also checks the graphs of second runs.
    fn backward_if(&self, (factor, is_weighed): (f64, bool), check: Check) -> Result<Gradients> {
        if self.elements() != 1 {
            return Err(Error::NotScalar { shape: *self.shape() });
        }
        let Some(edge) = self.grad_edge() else {
            return Err(if is_recording() { Error::NoGraph } else { Error::GradientsOff });
        };
        check(edge)?;
        no_grad(|| {
            let _phase = phase(Phase::Backward);
            let objective = passes::begin(self)?;
            let (mut pending, mut gradients) = (Pending::default(), Gradients::default());
            let (one, dtype) = (*self.shape(), self.dtype());
            let seed = Self::full_for(self.device(), one, factor, dtype, Category::Gradient)?;
            let mut hooks = HookedPass::begin(edge)?;
            deliver(edge.clone(), seed, &mut pending, &mut gradients)?;
            while let Some((node, grad)) = pending.pop_last() {
                step(&node, grad, self.device(), check, (&mut pending, &mut gradients, &mut hooks))?;
                if let Some(hooks) = &mut hooks {
                    hooks.advance(pending.next(), &mut gradients)?;
                }
            }
            if let Some(hooks) = hooks {
                hooks.finish(&mut gradients)?;
            }
            passes::note_end(self.device(), objective, (factor, is_weighed));
            Ok(gradients)
        })
    }
}

/// Rejects graphs with stale values.
type Check = fn(&GradEdge) -> Result<()>;

/// The nodes still to visit, by number. Each has the sum of the gradients that reached it so far.
#[derive(Default)]
struct Pending {
    /// The node with the largest number. In a chain it is the only node.
    last: Option<(Arc<Node>, Tensor)>,
    others: BTreeMap<u64, (Arc<Node>, Tensor)>,
}

impl Pending {
    /// Removes the node with the largest number.
    fn pop_last(&mut self) -> Option<(Arc<Node>, Tensor)> {
        let last = self.last.take();
        self.last = self.others.pop_last().map(|(_, next)| next);
        last
    }

    /// Returns the largest number.
    fn next(&self) -> Option<u64> {
        self.last.as_ref().map(|(node, _)| node.number)
    }

    /// Removes a node and returns its gradient so far.
    fn take(&mut self, number: u64) -> Option<Tensor> {
        match &self.last {
            Some((last, _)) if last.number == number => self.pop_last().map(|(_, grad)| grad),
            _ if self.others.is_empty() => None,
            _ => self.others.remove(&number).map(|(_, grad)| grad),
        }
    }

    /// Inserts a node that is not pending yet.
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

/// Runs the backward pass of one node and delivers its gradients.
fn step(
    node: &Node,
    grad: Tensor,
    loss_device: &Device,
    check: Check,
    (pending, gradients, hooks): (&mut Pending, &mut Gradients, &mut Option<HookedPass>),
) -> Result<()> {
    // All allocations of the node, including sums of gradients, count toward the module of its forward pass.
    let scope = node.scope;
    let _scope = scope.with_phase(Phase::Backward).enter();
    match node.take_step()? {
        BackwardStep::Op(op, mut saved) => {
            let _uniform = within(None);
            if let Some(input) = saved.only_edge()
                && op.adds_to_gradient()
            {
                let total = take_gradient(input, pending, gradients);
                saved.set_total(total);
            }
            let other_device = (grad.device() != loss_device).then(|| grad.device().clone());
            let device = other_device.as_ref().unwrap_or(loss_device);
            let destinations = match hooks {
                Some(hooks) => hooks.destinations(&saved, gradients)?,
                None => Vec::new(),
            };
            let found = run_backward(op, device, &mut saved, grad, destinations)?;
            saved.deliver(found, |edge, grad| {
                if let Some(hooks) = hooks {
                    hooks.check_open(&edge)?;
                }
                deliver(edge, grad, pending, gradients)
            })
        }
        BackwardStep::Replay(replay, edge) => {
            let _mixed = within(node.mixed);
            if let Some(edge) = replay.run(edge, &grad)? {
                // The edge may lead to other graphs that the replayed program captured.
                check(&edge)?;
                if let Some(hooks) = hooks {
                    hooks.search(&edge)?;
                    hooks.check_open(&edge)?;
                }
                deliver(edge, grad, pending, gradients)?;
            }
            Ok(())
        }
    }
}

/// Runs the backward pass of one op.
fn run_backward(
    op: &dyn Op,
    device: &Device,
    saved: &mut Saved,
    grad: Tensor,
    destinations: Vec<Destination>,
) -> Result<Vec<Option<Tensor>>> {
    let name = op.name();
    device.placement().notify(name, device, PlacementReason::Backward);
    let ctx = OpContext::backward(name, device, device.default_allocator()?).with_destinations(destinations);
    let gradients = op.backward(&ctx, saved, grad)?;
    saved.check(name, &gradients, device)?;
    Ok(gradients)
}

/// Delivers a gradient along an edge. Adds it to the gradient that is already there.
fn deliver(edge: GradEdge, grad: Tensor, pending: &mut Pending, gradients: &mut Gradients) -> Result<()> {
    // Removes the earlier gradient during the addition, so that its buffer has a single owner.
    match edge {
        GradEdge::Leaf(leaf) => gradients.by_leaf_mut().add(leaf, grad, sum)?,
        GradEdge::Node(node) => {
            let total = match pending.take(node.number) {
                None => grad,
                Some(first) => sum(first, grad)?,
            };
            pending.insert(node, total);
        }
    }
    Ok(())
}

/// Adds two gradients. Reuses the buffer of the first if no other tensor shares it. If one of them is in f32, for a parameter
/// with a 16-bit copy, so is the sum.
fn sum(mut first: Tensor, mut second: Tensor) -> Result<Tensor> {
    if first.dtype() != second.dtype() {
        (first, second) = (first.upcast()?, second.upcast()?);
    }
    let device = second.device();
    let ctx = OpContext::backward("sum_gradients", device, device.default_allocator()?);
    if let Some(acc) = first.view_mut() {
        ctx.compute(kernels::Accumulate { f: Binary::Add, input: second.view(), acc })?;
        return Ok(first);
    }
    let mut out = ctx.output(first.shape(), first.dtype())?;
    ctx.compute(kernels::Zip { f: Binary::Add, lhs: first.view(), rhs: second.view(), out: out.view_mut() })?;
    Ok(out.finish())
}

/// Takes the gradient that an edge's target has so far, for an op that adds to it.
fn take_gradient(edge: &GradEdge, pending: &mut Pending, gradients: &mut Gradients) -> Option<Tensor> {
    match edge {
        GradEdge::Leaf(leaf) => gradients.by_leaf_mut().remove(*leaf),
        GradEdge::Node(node) => pending.take(node.number),
    }
}
