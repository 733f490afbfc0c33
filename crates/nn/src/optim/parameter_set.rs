//! The loop that all optimizers share: each parameter with its state, and the order of a step.
//!
//! A step first finds all gradients, makes all parameters writable and allocates missing state. Only then it changes the
//! first parameter. So a step that lacks memory changes nothing.

use std::cell::Cell;
use std::collections::HashSet;

use bfc_core::{Category, OwnerId};
use highwater_tensor::{
    Buffer, DType, Device, Error, Gradients, OpContext, Parameter, PlacementReason, Result, Scalar, Tensor,
    View, ViewMut, backend::kernels,
};
use highwater_tracking::{Phase, enter_path, intern_path, phase};

/// The optimizer state of one parameter.
#[derive(Debug)]
pub(super) struct ParameterState<const N: usize> {
    /// Tensors of the parameter's shape. Which of them there are depends on the options. A parameter that was frozen
    /// from the beginning has none before its first step.
    pub(super) tensors: [Option<Buffer>; N],
    /// The steps that the parameter has taken.
    pub(super) steps: u64,
}

impl<const N: usize> ParameterState<N> {
    /// The state tensors as kernels change them.
    pub(super) fn views_mut(&mut self) -> [Option<ViewMut<'_>>; N] {
        self.tensors.each_mut().map(|tensor| tensor.as_mut().map(Buffer::view_mut))
    }

    /// See [`views_mut`](Self::views_mut), for optimizers that always keep all tensors.
    pub(super) fn all_mut(&mut self) -> [ViewMut<'_>; N] {
        self.views_mut().map(|tensor| tensor.expect("`ParameterSet::step` allocated it"))
    }

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
pub(super) struct Slot<const N: usize> {
    pub(super) path: String,
    pub(super) parameter: Parameter,
    /// The module that owns the memory.
    module: OwnerId,
    pub(super) state: ParameterState<N>,
    /// Whether the current step updates the parameter.
    is_updated: bool,
}

impl<const N: usize> Slot<N> {
    /// Creates the tensors that the options require and the parameter lacks, with zeros.
    fn allocate(&self, op: &'static str, kept: [bool; N]) -> Result<[Option<Buffer>; N]> {
        let _scope = enter_path(self.module);
        let tensor = self.parameter.value();
        let device = tensor.device();
        let ctx = OpContext::create(op, device, device.default_allocator()?, Category::OptimizerState);
        let mut tensors = [const { None }; N];
        for ((new, old), is_kept) in tensors.iter_mut().zip(&self.state.tensors).zip(kept) {
            *new = (is_kept && old.is_none()).then(|| zeros_like(&ctx, &tensor)).transpose()?;
        }
        Ok(tensors)
    }

    /// Adds the tensors that [`allocate`](Self::allocate) has created.
    fn add_state(&mut self, tensors: [Option<Buffer>; N]) {
        for (old, new) in self.state.tensors.iter_mut().zip(tensors) {
            *old = old.take().or(new);
        }
    }
}

/// Parameters of one module on one device, which one execution of the op updates.
#[derive(Debug)]
struct Layer<const N: usize> {
    device: Device,
    slots: Vec<Slot<N>>,
}

/// The parameters of an optimizer that keeps up to `N` tensors for each.
#[derive(Debug)]
pub(super) struct ParameterSet<const N: usize> {
    pub(super) op: &'static str,
    /// The names of the state tensors in checkpoints.
    pub(super) names: [&'static str; N],
    /// Which of these tensors the options require.
    pub(super) kept: [bool; N],
    /// Whether checkpoints contain the number of steps of each parameter.
    pub(super) saves_steps: bool,
    layers: Vec<Layer<N>>,
}

impl<const N: usize> ParameterSet<N> {
    /// Allocates the state of each parameter that is not frozen: zeros for each name with `true`. A frozen parameter gets its
    /// state in its first step. A parameter that is listed twice, because two layers share it, is kept once, under its first
    /// path.
    ///
    /// # Errors
    /// [`Error::BadArgument`] without parameters, except in a [group](super::Groups). [`Error::Allocation`] if there is no
    /// memory.
    pub(super) fn new(
        op: &'static str,
        parameters: Vec<(String, Parameter)>,
        state: [(&'static str, bool); N],
    ) -> Result<Self> {
        let _phase = phase(Phase::Optimizer);
        if parameters.is_empty() && !MAY_BE_EMPTY.get() {
            let (argument, expected) = ("parameters", "at least one");
            return Err(Error::BadArgument { op, argument, expected, got: "none".to_owned() });
        }
        let (names, kept) = (state.map(|(name, _)| name), state.map(|(_, is_kept)| is_kept));
        let mut set = Self { op, names, kept, saves_steps: false, layers: Vec::new() };
        let mut seen = HashSet::new();
        for (path, parameter) in parameters {
            if !seen.insert(parameter.address()) {
                continue;
            }
            let module = intern_path(OwnerId::ROOT, path.rsplit_once('.').map_or("", |(layer, _)| layer));
            let device = parameter.value().device().clone();
            let is_of_module =
                |layer: &&Layer<N>| layer.slots.last().is_some_and(|slot| slot.module == module);
            let known = set.layers.last().filter(is_of_module).filter(|last| last.device == device);
            if known.is_none() {
                set.layers.push(Layer { device, slots: Vec::new() });
            }
            let Some(layer) = set.layers.last_mut() else { continue };
            let state = ParameterState { tensors: [const { None }; N], steps: 0 };
            let mut slot = Slot { path, parameter, module, state, is_updated: false };
            if !slot.parameter.is_frozen() {
                slot.add_state(slot.allocate(op, kept)?);
            }
            layer.slots.push(slot);
        }
        Ok(set)
    }

    /// Saves the number of steps of each parameter in checkpoints.
    pub(super) fn saving_steps(self) -> Self {
        Self { saves_steps: true, ..self }
    }

    /// Allocates or frees this optional state tensor of each parameter; keeps it if it already exists. Parameters that were
    /// frozen from the beginning get it in their first step.
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory.
    pub(super) fn keep(&mut self, tensor: usize, is_kept: bool) -> Result<()> {
        let _phase = phase(Phase::Optimizer);
        self.kept[tensor] = is_kept;
        let (op, kept) = (self.op, self.kept);
        for slot in self.iter_mut() {
            if !is_kept {
                slot.state.tensors[tensor] = None;
            } else if !slot.parameter.is_frozen() || slot.state.is_allocated() {
                slot.add_state(slot.allocate(op, kept)?);
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
        select: impl Fn(&Slot<N>) -> bool,
        then: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let _phase = phase(Phase::Optimizer);
        let (op, kept) = (self.op, self.kept);
        let lacks = |slot: &Slot<N>| {
            slot.state.tensors.iter().zip(kept).any(|(tensor, is_kept)| is_kept && tensor.is_none())
        };
        let selects = |slot: &Slot<N>| lacks(slot) && select(slot);
        let new = self.iter().filter(|slot| selects(slot)).map(|slot| slot.allocate(op, kept));
        let new = new.collect::<Result<Vec<_>>>()?;
        then()?;
        let slots = self.iter_mut().filter(|slot| selects(slot));
        slots.zip(new).for_each(|(slot, tensors)| slot.add_state(tensors));
        Ok(())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot<N>> {
        self.layers.iter().flat_map(|layer| &layer.slots)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slot<N>> {
        self.layers.iter_mut().flat_map(|layer| &mut layer.slots)
    }

    /// The parameters with their paths, each once.
    pub(super) fn parameters(&self) -> Vec<(String, Parameter)> {
        self.iter().map(|slot| (slot.path.clone(), slot.parameter.clone())).collect()
    }

    /// Calls `update` for each parameter that has a gradient, once all of them can be written. Frees each gradient after its
    /// use.
    ///
    /// # Errors
    /// See [`Optimizer::step`](super::Optimizer::step).
    pub(super) fn step(
        &mut self,
        mut gradients: Gradients,
        update: impl Fn(&OpContext<'_>, View<'_>, &mut ParameterState<N>, ViewMut<'_>) -> Result<()>,
    ) -> Result<()> {
        let _phase = phase(Phase::Optimizer);
        self.prepare(&gradients)?;
        for Layer { device, slots } in &mut self.layers {
            let Some(updated) = slots.iter().find(|slot| slot.is_updated) else { continue };
            let _scope = enter_path(updated.module);
            device.log_placement(self.op, PlacementReason::Inputs);
            let ctx = OpContext::create(self.op, device, device.default_allocator()?, Category::Parameter);
            for Slot { parameter, state, is_updated, .. } in slots {
                let Some(gradient) = is_updated.then(|| gradients.take_of(parameter)).flatten() else {
                    continue;
                };
                let change = |grad: View<'_>, values: ViewMut<'_>| update(&ctx, grad, state, values);
                parameter.apply_gradient(gradient.view(), change)?;
                state.steps += 1;
            }
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

#[cold]
fn converted<const N: usize>(op: &'static str, slot: &Slot<N>, dtype: DType) -> Error {
    let kept = slot.state.dtype().unwrap_or(dtype);
    let got = format!("{} of type {dtype}, whose state is kept in {kept}", slot.path);
    let expected = "of unchanged element types since the optimizer was created";
    Error::BadArgument { op, argument: "parameters", expected, got }
}

/// Zeros of a parameter's shape. For 16-bit floats they are f32, because a mean moves by less than their precision.
fn zeros_like(ctx: &OpContext<'_>, parameter: &Tensor) -> Result<Buffer> {
    let mut buffer = ctx.output(parameter.shape(), parameter.dtype().computed_as())?;
    ctx.compute(kernels::Fill { value: Scalar::Float(0.0), out: buffer.view_mut() })?;
    Ok(buffer)
}

thread_local! {
    /// Whether optimizers that this thread makes may have no parameters.
    static MAY_BE_EMPTY: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function that makes optimizers, which may have no parameters: those of a [group](super::Groups), or of a
/// process that owns none.
pub fn allow_no_parameters<O>(make: impl FnOnce() -> O) -> O {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            MAY_BE_EMPTY.set(self.0);
        }
    }
    let _restore = Restore(MAY_BE_EMPTY.replace(true));
    make()
}

/// Implements [`Optimizer`](super::Optimizer) for a type with the fields `options`, which hold the learning rate, and
/// `parameters`, a [`ParameterSet`], and with a function `update` that changes one parameter. The names are those of
/// all options.
macro_rules! impl_optimizer {
    ($optimizer:ident, $($option:ident),+) => {
        impl $crate::optim::Optimizer for $optimizer {
            fn name(&self) -> &'static str {
                self.parameters.op
            }

            fn parameters(&self) -> Vec<(String, $crate::modules::Parameter)> {
                self.parameters.parameters()
            }

            fn step(&mut self, gradients: highwater_tensor::Gradients) -> highwater_tensor::Result<()> {
                let options = self.options;
                self.parameters
                    .step(gradients, |ctx, grad, state, param| Self::update(options, ctx, grad, state, param))
            }

            fn allocate_state(
                &mut self,
                gradients: &highwater_tensor::Gradients,
                then: &mut dyn FnMut() -> highwater_tensor::Result<()>,
            ) -> highwater_tensor::Result<()> {
                self.parameters.allocate(|slot| gradients.get(&slot.parameter.tensor()).is_some(), then)
            }

            fn learning_rate(&self) -> f64 {
                self.options.lr
            }

            fn set_learning_rate(&mut self, learning_rate: f64) -> highwater_tensor::Result<()> {
                self.options.lr = $crate::optim::not_negative(self.parameters.op, "lr", learning_rate)?;
                Ok(())
            }

            fn settings(&self) -> Vec<(String, String)> {
                vec![$((stringify!($option).to_owned(), self.options.$option.to_string())),+]
            }

            fn state(&self) -> highwater_tensor::Result<$crate::io::Arrays> {
                self.parameters.state(self.options.lr)
            }

            fn check_state(&self, state: &$crate::io::Arrays) -> highwater_tensor::Result<()> {
                self.parameters.check_state(state)
            }

            fn load_state(&mut self, state: &$crate::io::Arrays) -> highwater_tensor::Result<()> {
                self.options.lr = self.parameters.load_state(state)?;
                Ok(())
            }
        }
    };
}

pub(super) use impl_optimizer;
