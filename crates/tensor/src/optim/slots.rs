//! What all optimisers share: each parameter with its state, and the order of a step.

use bfc_core::Category;
use highwater_tracking::{Phase, module, phase};

use super::state::{Part, SlotState};
use crate::autograd::Gradients;
use crate::backend::Kernel;
use crate::backend::widen::rehearse;
use crate::context::{Buffer, OpContext};
use crate::device::Device;
use crate::dtype::{DType, Scalar};
use crate::error::{Error, Result};
use crate::nn::Parameter;
use crate::placement::PlacementReason;
use crate::storage::{View, ViewMut};
use crate::tensor::Tensor;

/// A parameter, the module that its memory is charged to, and what the optimiser keeps for it.
#[derive(Debug)]
pub(super) struct Slot<S> {
    pub(super) path: String,
    module: String,
    pub(super) parameter: Parameter,
    pub(super) state: S,
    /// The type of the numbers kept, if any are.
    kept_as: Option<DType>,
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

/// A slot that can be written, and the gradient that it is updated by.
type Ready<'a, S> = (&'a mut Slot<S>, Tensor);

/// The parameters of an optimiser that keeps an `S` for each.
#[derive(Debug)]
pub(super) struct Slots<S> {
    pub(super) op: &'static str,
    pub(super) slots: Vec<Slot<S>>,
}

impl<S: SlotState> Slots<S> {
    /// One slot per parameter, with the state that `state` makes for it. A parameter that is listed twice, as one that
    /// two layers share, is kept once, under its first path.
    ///
    /// # Errors
    /// What `state` says.
    pub(super) fn new(
        op: &'static str,
        parameters: Vec<(String, Parameter)>,
        state: impl Fn(&OpContext<'_>, &Tensor) -> Result<S>,
    ) -> Result<Self> {
        let _phase = phase(Phase::Optimizer);
        let mut slots: Vec<Slot<S>> = Vec::with_capacity(parameters.len());
        for (path, parameter) in parameters {
            if slots.iter().any(|slot| slot.parameter.is_same(&parameter)) {
                continue;
            }
            let layer = path.rsplit_once('.').map_or("", |(layer, _)| layer).to_owned();
            let _scope = module(&layer);
            let tensor = parameter.tensor();
            let device = tensor.device();
            let ctx = OpContext::create(op, device, device.default_allocator()?, Category::OptimizerState);
            let state = state(&ctx, &tensor)?;
            let kept_as = state.parts().iter().find_map(|(_, part)| match part {
                Part::Mean(buffer) => Some(buffer.view().dtype()),
                Part::Count(_) => None,
            });
            slots.push(Slot { path, module: layer, parameter, state, kept_as });
        }
        Ok(Self { op, slots })
    }

    /// Calls `update` for each parameter that has a gradient, once all of them can be written.
    ///
    /// # Errors
    /// As [`Optimizer::step`](super::Optimizer::step).
    pub(super) fn step(
        &mut self,
        mut gradients: Gradients,
        update: impl Fn(&OpContext<'_>, View<'_>, &mut S, ViewMut<'_>) -> Result<()>,
    ) -> Result<()> {
        let _phase = phase(Phase::Optimizer);
        let mut ready: Vec<Ready<'_, S>> = Vec::with_capacity(self.slots.len());
        let mut any_halves = false;
        for slot in &mut self.slots {
            let taken = slot.parameter.take_gradient(self.op, &slot.module, &mut gradients);
            if let Some((gradient, dtype)) = taken.map_err(|error| error.of_parameter(&slot.path))? {
                // Before the first is changed: one that was converted since the state was made cannot be.
                if slot.kept_as.is_some_and(|kept_as| kept_as != dtype.computed_as()) {
                    return Err(slot.converted(self.op, dtype));
                }
                any_halves |= dtype.is_half();
                ready.push((slot, gradient));
            }
        }
        if any_halves {
            let operands = ready.iter().map(|(slot, gradient)| [gradient.clone(), slot.parameter.value()]);
            rehearse(self.op, operands)?;
        }
        let mut ready = ready.into_iter();
        // That of the gradients, which themselves go on the way: one for all, as a rule.
        let mut known: Option<Device> = None;
        while let Some((mut slot, mut gradient)) = ready.next() {
            known = known.filter(|known| known == gradient.device());
            let device = &*known.get_or_insert_with(|| gradient.device().clone());
            let _scope = module(&slot.module);
            device.placement().tell(self.op, device, PlacementReason::Inputs);
            let ctx = OpContext::create(self.op, device, device.default_allocator()?, Category::Parameter);
            // A layer's parameters are updated by one execution of the op.
            loop {
                slot.parameter.update(|values| update(&ctx, gradient.view(), &mut slot.state, values))?;
                let of_layer =
                    |(next, by): &Ready<'_, S>| next.module == slot.module && by.device() == device;
                if !ready.as_slice().first().is_some_and(of_layer) {
                    break;
                }
                let Some(next) = ready.next() else { break };
                (slot, gradient) = next;
            }
        }
        Ok(())
    }
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
