//! What all optimisers share: each parameter with its state, and the order of a step.

use std::cell::Cell;
use std::collections::HashSet;

use bfc_core::Category;
use highwater_tracking::{ModuleName, Phase, phase};

use super::state::{Part, SlotState};
use crate::autograd::{Gradients, Parameter};
use crate::backend::Kernel;
use crate::device::{Device, PlacementReason};
use crate::error::{Error, Result};
use crate::op::widen::{self, rehearse};
use crate::op::{Buffer, OpContext};
use crate::shape::{DType, Scalar};
use crate::storage::leaf::LeafId;
use crate::storage::{View, ViewMut};
use crate::tensor::Tensor;

/// A parameter and what the optimiser keeps for it.
#[derive(Debug)]
pub(super) struct Slot<S> {
    pub(super) path: String,
    pub(super) parameter: Parameter,
    pub(super) state: S,
    /// The type of the numbers kept, if any are.
    kept_as: Option<DType>,
    /// Under which the step that runs has a gradient for it, if it has one.
    leaf: Option<LeafId>,
}

impl<S> Slot<S> {
    #[cold]
    fn converted(&self, op: &'static str, dtype: DType) -> Error {
        let kept_as = self.kept_as.unwrap_or(dtype);
        let got = format!("{} of type {dtype}, whose state is kept in {kept_as}", self.path);
        let expected = "of types that were not changed since the optimiser was made";
        Error::BadArgument { op, argument: "parameters", expected, got }
    }
}

/// Parameters of one module, on one device: they are updated by one execution of the op.
#[derive(Debug)]
struct Layer<S> {
    /// What their memory is charged to.
    module: ModuleName,
    device: Device,
    slots: Vec<Slot<S>>,
}

/// The parameters of an optimiser that keeps an `S` for each.
#[derive(Debug)]
pub(super) struct Slots<S> {
    pub(super) op: &'static str,
    layers: Vec<Layer<S>>,
}

impl<S: SlotState> Slots<S> {
    /// One slot per parameter, with the state that `state` makes for it. A parameter that is listed twice, as one that
    /// two layers share, is kept once, under its first path.
    ///
    /// # Errors
    /// [`Error::BadArgument`] without parameters, except in a [group](super::Groups); what `state` says.
    pub(super) fn new(
        op: &'static str,
        parameters: Vec<(String, Parameter)>,
        state: impl Fn(&OpContext<'_>, &Tensor) -> Result<S>,
    ) -> Result<Self> {
        let _phase = phase(Phase::Optimizer);
        if parameters.is_empty() && !MAY_BE_EMPTY.get() {
            let (argument, expected) = ("parameters", "at least one");
            return Err(Error::BadArgument { op, argument, expected, got: "none".to_owned() });
        }
        let (mut slots, mut seen) = (Self { op, layers: Vec::new() }, HashSet::new());
        for (path, parameter) in parameters {
            if !seen.insert(parameter.address()) {
                continue;
            }
            let module = path.rsplit_once('.').map_or("", |(layer, _)| layer);
            let tensor = parameter.tensor();
            let device = tensor.device();
            let known =
                slots.layers.last().filter(|last| last.module.as_str() == module && last.device == *device);
            if known.is_none() {
                let (module, device) = (ModuleName::new(module), device.clone());
                slots.layers.push(Layer { module, device, slots: Vec::new() });
            }
            let Some(layer) = slots.layers.last_mut() else { continue };
            let _scope = layer.module.enter();
            let ctx = OpContext::create(op, device, device.default_allocator()?, Category::OptimizerState);
            let state = state(&ctx, &tensor)?;
            let kept_as = kept_as(&state);
            layer.slots.push(Slot { path, parameter, state, kept_as, leaf: None });
        }
        Ok(slots)
    }

    /// Has what is kept for each parameter changed, charged as when it was made. What was changed before an error stays so.
    ///
    /// # Errors
    /// What `change` says.
    pub(super) fn change_state(
        &mut self,
        change: impl Fn(&OpContext<'_>, &Tensor, &mut S) -> Result<()>,
    ) -> Result<()> {
        let _phase = phase(Phase::Optimizer);
        for Layer { module, device, slots } in &mut self.layers {
            let _scope = module.enter();
            for slot in slots {
                let memory = device.default_allocator()?;
                let ctx = OpContext::create(self.op, device, memory, Category::OptimizerState);
                change(&ctx, &slot.parameter.tensor(), &mut slot.state)?;
                slot.kept_as = kept_as(&slot.state);
            }
        }
        Ok(())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot<S>> {
        self.layers.iter().flat_map(|layer| &layer.slots)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slot<S>> {
        self.layers.iter_mut().flat_map(|layer| &mut layer.slots)
    }

    /// The parameters with their paths, each once.
    pub(super) fn parameters(&self) -> Vec<(String, Parameter)> {
        self.iter().map(|slot| (slot.path.clone(), slot.parameter.clone())).collect()
    }

    /// Calls `update` for each parameter that has a gradient, once all of them can be written. Each gradient goes once it was used.
    ///
    /// # Errors
    /// As [`Optimizer::step`](super::Optimizer::step).
    pub(super) fn step(
        &mut self,
        mut gradients: Gradients,
        update: impl Fn(&OpContext<'_>, View<'_>, &mut S, ViewMut<'_>) -> Result<()>,
    ) -> Result<()> {
        let _phase = phase(Phase::Optimizer);
        let any_halves = self.make_ready(&gradients)?;
        for Layer { module, device, slots } in &mut self.layers {
            if slots.iter().all(|slot| slot.leaf.is_none()) {
                continue;
            }
            let _scope = module.enter();
            device.placement().tell(self.op, device, PlacementReason::Inputs);
            let ctx = OpContext::create(self.op, device, device.default_allocator()?, Category::Parameter);
            for Slot { parameter, state, leaf, .. } in slots {
                let Some(gradient) = leaf.and_then(|leaf| gradients.take_of(leaf)) else { continue };
                if any_halves {
                    let change = |grad: View<'_>, values: ViewMut<'_>| update(&ctx, grad, state, values);
                    widen::update(&ctx, parameter, gradient.view(), change)?;
                } else {
                    parameter.update(|values| update(&ctx, gradient.view(), state, values))?;
                }
            }
        }
        Ok(())
    }

    /// Finds the parameters that have a gradient, and makes sure that all gradients belong to them and that all of them can be
    /// updated. Whether any of these parameters are halves.
    fn make_ready(&mut self, gradients: &Gradients) -> Result<bool> {
        let (op, mut any_halves, mut found) = (self.op, false, 0);
        // Parameters come in the order of their leaves, as a rule.
        let mut cursor = gradients.cursor();
        for Layer { module, slots, .. } in &mut self.layers {
            for slot in slots {
                let named = (&slot.path[..], module.as_str());
                let ready = slot.parameter.make_ready(op, named, gradients, &mut cursor)?;
                slot.leaf = ready.map(|(leaf, _)| leaf);
                let Some((_, dtype)) = ready else { continue };
                found += 1;
                // Before the first is changed: one that was converted since the state was made cannot be.
                if slot.kept_as.is_some_and(|kept_as| kept_as != dtype.computed_as()) {
                    return Err(slot.converted(op, dtype));
                }
                any_halves |= dtype.is_half();
            }
        }
        // Each leaf has one gradient and each slot another leaf: only where some are left over do they have to be looked at.
        if found != gradients.len() {
            gradients.check_held(op, self.iter().map(|slot| &slot.parameter))?;
        }
        if any_halves {
            let ready = self.iter().filter_map(|slot| Some((gradients.of(slot.leaf?)?, slot)));
            rehearse(op, ready.map(|(gradient, slot)| [gradient.clone(), slot.parameter.value()]))?;
        }
        Ok(any_halves)
    }
}

thread_local! {
    /// Whether optimizers that this thread makes may have no parameters.
    static MAY_BE_EMPTY: Cell<bool> = const { Cell::new(false) };
}

/// Makes the optimizer of a group, which may have no parameters.
pub(super) fn make_group<O>(make: impl FnOnce() -> O) -> O {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            MAY_BE_EMPTY.set(self.0);
        }
    }
    let _restore = Restore(MAY_BE_EMPTY.replace(true));
    make()
}

/// The type of the numbers kept, if any are.
fn kept_as(state: &impl SlotState) -> Option<DType> {
    state.parts().iter().find_map(|(_, part)| match part {
        Part::Mean(buffer) => Some(buffer.view().dtype()),
        Part::Count(_) => None,
    })
}

/// Makes a mean that may be there or not be there, or not: one that is there already stays.
///
/// # Errors
/// [`crate::Error::Allocation`] if there is no memory.
pub(super) fn keep_if(
    mean: &mut Option<Buffer>,
    kept: bool,
    ctx: &OpContext<'_>,
    like: &Tensor,
) -> Result<()> {
    if !kept {
        *mean = None;
    } else if mean.is_none() {
        *mean = Some(zero_state(ctx, like)?);
    }
    Ok(())
}

/// Zeros for a mean of gradients of `like`, for halves in f32: a mean moves by less than they can tell apart.
///
/// # Errors
/// [`crate::Error::Allocation`] if there is no memory.
pub(super) fn zero_state(ctx: &OpContext<'_>, like: &Tensor) -> Result<Buffer> {
    let mut buffer = ctx.output(like.shape(), like.dtype().computed_as())?;
    ctx.compute(Kernel::Fill { value: Scalar::Float(0.0), out: buffer.view_mut() })?;
    Ok(buffer)
}
