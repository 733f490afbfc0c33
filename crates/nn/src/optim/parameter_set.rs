//! The loop that all optimizers share: each parameter with its state, and the order of a step.
//!
//! A step first finds all gradients, makes all parameters writable and allocates missing state. Only then it changes the
//! first parameter. So a step that lacks memory changes nothing.

use std::collections::HashSet;

use bfc_core::{Category, OwnerId};
use highwater_tensor::{
    Buffer, DType, Device, Error, Gradients, OpContext, Parameter, PlacementReason, Result, Scalar, Tensor,
    backend::kernels::{self, MAX_STATES, OptimizerRule, States},
};
use highwater_tracking::{Phase, enter_path, intern_path, phase};

use super::ParameterGroup;

/// The optimizer state of one parameter.
#[derive(Debug)]
pub(super) struct ParameterState {
    /// Tensors of the parameter's shape. Which of them there are depends on the options. A parameter that was frozen
    /// from the beginning has none before its first step.
    pub(super) tensors: [Option<Buffer>; MAX_STATES],
    /// The steps that the parameter has taken.
    pub(super) steps: u64,
}

impl ParameterState {
    /// Whether the parameter has state tensors.
    pub(super) fn is_allocated(&self) -> bool {
        self.tensors.iter().any(Option::is_some)
    }

    /// The type of the state tensors, if there are any.
    fn dtype(&self) -> Option<DType> {
        self.tensors.iter().flatten().next().map(|tensor| tensor.view().dtype())
    }
}

/// A parameter with its state.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) path: String,
    pub(super) parameter: Parameter,
    device: Device,
    /// The module that owns the memory.
    module: OwnerId,
    pub(super) state: ParameterState,
    /// Whether the current step updates the parameter.
    is_updated: bool,
}

impl Slot {
    /// Creates the tensors that the options require and the parameter lacks.
    fn allocate(&self, op: &'static str, states: &States) -> Result<[Option<Buffer>; MAX_STATES]> {
        let _scope = enter_path(self.module);
        let tensor = self.parameter.value();
        let device = tensor.device();
        let ctx = OpContext::create(op, device, device.default_allocator()?, Category::OptimizerState);
        let mut tensors = [const { None }; MAX_STATES];
        for ((new, old), state) in tensors.iter_mut().zip(&self.state.tensors).zip(states) {
            if let (None, Some(value)) = (old, state.initial) {
                *new = Some(filled_like(&ctx, &tensor, value)?);
            }
        }
        Ok(tensors)
    }

    /// Adds the tensors that [`allocate`](Self::allocate) has created.
    fn add_state(&mut self, tensors: [Option<Buffer>; MAX_STATES]) {
        for (old, new) in self.state.tensors.iter_mut().zip(tensors) {
            *old = old.take().or(new);
        }
    }
}

/// The parameters of an optimizer.
#[derive(Debug)]
pub(super) struct ParameterSet {
    pub(super) op: &'static str,
    /// The state tensors of the rule, and which of them its options require.
    pub(super) states: States,
    /// Whether checkpoints contain the number of steps of each parameter.
    pub(super) saves_steps: bool,
    slots: Vec<Slot>,
}

impl ParameterSet {
    /// Allocates the state of each parameter that is not frozen, as the rule requires it. A frozen parameter gets its
    /// state in its first step. A parameter that is listed twice, because two layers share it, is kept once, under its first
    /// path.
    ///
    /// # Errors
    /// [`Error::BadArgument`] without parameters, unless the group may be empty. [`Error::Allocation`] if there is no
    /// memory.
    pub(super) fn new(
        op: &'static str,
        parameters: ParameterGroup,
        rule: impl Into<OptimizerRule>,
    ) -> Result<Self> {
        let _phase = phase(Phase::Optimizer);
        let parameters = parameters.into_parameters(op)?;
        let rule = rule.into();
        let states = rule.states();
        let mut set = Self { op, states, saves_steps: rule.counts_steps(), slots: Vec::new() };
        let mut seen = HashSet::new();
        for (path, parameter) in parameters {
            if !seen.insert(parameter.address()) {
                continue;
            }
            let module = intern_path(OwnerId::ROOT, path.rsplit_once('.').map_or("", |(layer, _)| layer));
            let device = parameter.value().device().clone();
            let state = ParameterState { tensors: [const { None }; MAX_STATES], steps: 0 };
            let mut slot = Slot { path, parameter, device, module, state, is_updated: false };
            if !slot.parameter.is_frozen() {
                slot.add_state(slot.allocate(op, &states)?);
            }
            set.slots.push(slot);
        }
        Ok(set)
    }

    /// Allocates and frees the state of each parameter as the options of the rule now require it. Keeps tensors that are
    /// required before and after. Parameters that were frozen from the beginning get theirs in their first step.
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory.
    pub(super) fn change_states(&mut self, rule: impl Into<OptimizerRule>) -> Result<()> {
        let _phase = phase(Phase::Optimizer);
        let states = rule.into().states();
        let old = std::mem::replace(&mut self.states, states);
        if old == states {
            return Ok(());
        }
        let (op, has_new) =
            (self.op, (0..MAX_STATES).any(|n| states[n] != old[n] && states[n].initial.is_some()));
        for slot in self.iter_mut() {
            let is_kept = !slot.parameter.is_frozen() || slot.state.is_allocated();
            for ((tensor, old), new) in slot.state.tensors.iter_mut().zip(old).zip(states) {
                tensor.take_if(|_| old != new);
            }
            if is_kept && has_new {
                slot.add_state(slot.allocate(op, &states)?);
            }
        }
        Ok(())
    }

    /// Allocates the missing state of the parameters that `select` accepts, calls `then`, and adds the state: of all of them,
    /// or of none after an error.
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory; the error of `then`.
    pub(super) fn allocate(
        &mut self,
        select: impl Fn(&Slot) -> bool,
        then: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let _phase = phase(Phase::Optimizer);
        let (op, states) = (self.op, self.states);
        let lacks = |slot: &Slot| {
            slot.state
                .tensors
                .iter()
                .zip(states)
                .any(|(tensor, state)| state.initial.is_some() && tensor.is_none())
        };
        let selects = |slot: &Slot| lacks(slot) && select(slot);
        let new = self.iter().filter(|slot| selects(slot)).map(|slot| slot.allocate(op, &states));
        let new = new.collect::<Result<Vec<_>>>()?;
        then()?;
        let slots = self.iter_mut().filter(|slot| selects(slot));
        slots.zip(new).for_each(|(slot, tensors)| slot.add_state(tensors));
        Ok(())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.slots.iter_mut()
    }

    /// The parameters with their paths, each once.
    pub(super) fn parameters(&self) -> Vec<(String, Parameter)> {
        self.iter().map(|slot| (slot.path.clone(), slot.parameter.clone())).collect()
    }

    /// Updates each parameter that has a gradient by the rule, once all of them can be written: in one execution of the op per
    /// device. Then frees the gradients.
    ///
    /// # Errors
    /// See [`Optimizer::step`](super::Optimizer::step).
    pub(super) fn step(&mut self, mut gradients: Gradients, rule: impl Into<OptimizerRule>) -> Result<()> {
        let _phase = phase(Phase::Optimizer);
        self.prepare(&gradients)?;
        let (op, rule) = (self.op, rule.into());
        let mut updated: Vec<_> = self.slots.iter_mut().filter(|slot| slot.is_updated).collect();
        while let Some(device) = updated.first().map(|slot| slot.device.clone()) {
            let (own, others) = updated.into_iter().partition(|slot| slot.device == device);
            update(op, &device, rule, own, &mut gradients)?;
            updated = others;
        }
        Ok(())
    }

    /// Finds the parameters that have a gradient, checks that all of them can be updated, and allocates missing state.
    fn prepare(&mut self, gradients: &Gradients) -> Result<()> {
        let op = self.op;
        let parameters = self.iter().map(|slot| (&slot.path[..], &slot.parameter));
        let dtypes = gradients.prepare_update(op, parameters)?;
        for (slot, dtype) in self.iter_mut().zip(dtypes) {
            slot.is_updated = dtype.is_some();
            // A parameter that was converted after its state was allocated cannot be updated.
            if let (Some(dtype), Some(kept)) = (dtype, slot.state.dtype())
                && kept != dtype.computed_as()
            {
                return Err(converted(op, slot, dtype));
            }
        }
        self.allocate(|slot| slot.is_updated, || Ok(()))
    }
}

/// Updates parameters of one device in one execution of the op, and frees their gradients.
fn update(
    op: &'static str,
    device: &Device,
    rule: OptimizerRule,
    slots: Vec<&mut Slot>,
    gradients: &mut Gradients,
) -> Result<()> {
    let mut modules = slots.iter().map(|slot| slot.module);
    // Parameters of several modules count toward none of them.
    let module = modules.next().filter(|first| modules.all(|module| module == *first));
    let _scope = module.map(enter_path);
    device.log_placement(op, PlacementReason::Inputs);
    let ctx = OpContext::create(op, device, device.default_allocator()?, Category::Parameter);
    let mut parts: Vec<_> = slots
        .into_iter()
        .filter_map(|slot| Some((gradients.take_of(&slot.parameter)?, &slot.parameter, &mut slot.state)))
        .collect();
    let parameters: Vec<_> = parts.iter().map(|(_, parameter, _)| *parameter).collect();
    Parameter::update_together(&parameters, |values| {
        let steps = parts.iter_mut().zip(values).map(|((gradient, _, state), param)| {
            let (grad, number) = (gradient.view(), state.steps + 1);
            let states = state.tensors.each_mut().map(|tensor| tensor.as_mut().map(Buffer::view_mut));
            kernels::OptimizerStep { rule, number, grad, states, param }.into()
        });
        ctx.compute_together(steps.collect())
    })?;
    parts.iter_mut().for_each(|(_, _, state)| state.steps += 1);
    Ok(())
}

#[cold]
fn converted(op: &'static str, slot: &Slot, dtype: DType) -> Error {
    let kept = slot.state.dtype().unwrap_or(dtype);
    let got = format!("{} of type {dtype}, whose state is kept in {kept}", slot.path);
    let expected = "of unchanged element types since the optimizer was created";
    Error::BadArgument { op, argument: "parameters", expected, got }
}

/// A tensor of a parameter's shape. For 16-bit floats it is f32, because a mean moves by less than their precision.
fn filled_like(ctx: &OpContext<'_>, parameter: &Tensor, value: f64) -> Result<Buffer> {
    let mut buffer = ctx.output(parameter.shape(), parameter.dtype().computed_as())?;
    ctx.compute(kernels::Fill { value: Scalar::Float(value), out: buffer.view_mut() })?;
    Ok(buffer)
}
