//! Exponential moving averages of parameters.

use std::collections::{BTreeMap, HashSet};

use bfc_core::{Category, OwnerId};
use highwater_tensor::{
    Buffer, DType, Error, OpContext, Parameter, Result, Shape, Tensor,
    backend::kernels::{self, SgdRule},
};
use highwater_tracking::{Phase, enter_path, intern_path, phase};

use super::share;
use crate::io::{Array, Arrays, mismatch};

const OP: &str = "ema";
/// The name of the number of updates in a state. The names of averages have more parts. A parameter that was frozen so far
/// has no average: its only array is a number of updates of 0.
const UPDATES: &str = "updates";
/// The last part of the names of averages in a state.
const AVERAGE: &str = "average";

/// Exponential moving averages of parameters (PyTorch: `AveragedModel` with `get_ema_multi_avg_fn`, timm: `ModelEma`).
/// Models often have better evaluations with averaged parameters than with those of the last step.
///
/// With average a and parameter p, each [`update`](Self::update) computes a ← decay·a + (1 - decay)·p. The averages begin
/// with the values at the creation. They are f32 for 16-bit floats. Buffers, such as running means, are not averaged.
///
/// ```
/// use highwater::{Device, Rng, Tensor};
/// use highwater::nn::{Linear, Module};
/// use highwater::optim::{AdamW, Ema, Optimizer};
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// let model = Linear::new(&device, 4, 2, &rng)?;
/// let mut optimizer = AdamW::new(model.parameters(), 1e-2)?;
/// let mut ema = Ema::new(model.parameters(), 0.99)?;
/// let loss = || model.forward(&Tensor::ones(&device, [8, 4])?)?.square()?.mean_all();
/// for _ in 0..10 {
///     optimizer.step(loss()?.backward()?)?;
///     ema.update()?;
/// }
/// let averaged = ema.with_averages(|| loss()?.item::<f32>())?;
/// assert!(averaged > loss()?.item::<f32>()?); // the averages are behind
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// A [frozen](Parameter::freeze) parameter has no average until the first update after it is unfrozen. A
/// [`Checkpoint`](crate::checkpoint::Checkpoint::with_ema) saves the averages. The memory of the averages is in the category
/// optimizer state.
#[derive(Debug)]
pub struct Ema {
    decay: f64,
    warms_up: bool,
    updates: u64,
    averages: Vec<Average>,
}

/// A parameter with its average.
#[derive(Debug)]
struct Average {
    path: String,
    parameter: Parameter,
    /// The module that owns the memory.
    module: OwnerId,
    /// `None` for a parameter that was frozen so far.
    value: Option<Buffer>,
}

impl Average {
    /// Returns a context that creates and changes averages.
    fn run<T>(&self, f: impl FnOnce(&OpContext<'_>) -> Result<T>) -> Result<T> {
        let _scope = enter_path(self.module);
        // Without the tensor, so that the parameter stays the only owner of its buffer.
        let device = self.parameter.value().device().clone();
        f(&OpContext::create(OP, &device, device.default_allocator()?, Category::OptimizerState))
    }

    /// Creates an average with the present values of the parameter.
    fn allocate(&self) -> Result<Buffer> {
        let value = self.parameter.value();
        self.run(|ctx| {
            let mut average = ctx.output(value.shape(), value.dtype().computed_as())?;
            ctx.compute(kernels::Copy { input: value.view(), out: average.view_mut() })?;
            Ok(average)
        })
    }

    fn name(&self) -> String {
        format!("{}.{AVERAGE}", self.path)
    }

    /// The name of the array of a parameter without an average.
    fn name_without(&self) -> String {
        format!("{}.{UPDATES}", self.path)
    }

    /// Whether a saved parameter had no average.
    fn is_without(&self, state: &Arrays) -> bool {
        let updates = state.get(&self.name_without()).and_then(Array::item::<i64>);
        updates == Some(0) && !state.contains_key(&self.name())
    }
}

impl Ema {
    /// Creates averages of these parameters, such as those of a model. A shared parameter has one average.
    ///
    /// # Errors
    /// [`Error::BadArgument`] without parameters, and unless 0 ≤ `decay` < 1; [`Error::Allocation`] if there is no memory:
    /// one value per element of the parameters that are not frozen.
    pub fn new(parameters: Vec<(String, Parameter)>, decay: f64) -> Result<Self> {
        let decay = share(OP, "decay", decay)?;
        if parameters.is_empty() {
            let (argument, expected) = ("parameters", "at least one");
            return Err(Error::BadArgument { op: OP, argument, expected, got: "none".to_owned() });
        }
        let mut seen = HashSet::new();
        let averages = parameters.into_iter().filter(|(_, parameter)| seen.insert(parameter.address()));
        let averages = averages.map(|(path, parameter)| {
            let layer = path.rsplit_once('.').map_or("", |(layer, _)| layer);
            Average { module: intern_path(OwnerId::ROOT, layer), path, parameter, value: None }
        });
        let mut ema = Self { decay, warms_up: false, updates: 0, averages: averages.collect() };
        ema.allocate(|average| !average.parameter.is_frozen())?;
        Ok(ema)
    }

    /// Limits the decay of update n, counted from 0, to (1 + n) / (10 + n), so that the averages soon leave the initial
    /// values (TensorFlow: `num_updates`).
    #[must_use]
    pub const fn with_warm_up(mut self) -> Self {
        self.warms_up = true;
        self
    }

    /// Returns the decay.
    #[must_use]
    pub const fn decay(&self) -> f64 {
        self.decay
    }

    /// Returns whether the first updates have a [smaller decay](Self::with_warm_up).
    #[must_use]
    pub const fn has_warm_up(&self) -> bool {
        self.warms_up
    }

    /// Returns the number of updates so far.
    #[must_use]
    pub const fn updates(&self) -> u64 {
        self.updates
    }

    /// Moves the averages towards the present values. Call it after each step of the optimizer.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if a parameter was converted to another element type since the creation; [`Error::Allocation`]
    /// if there is no memory for the average of an unfrozen parameter. Nothing has changed then.
    pub fn update(&mut self) -> Result<()> {
        let _phase = phase(Phase::Optimizer);
        self.averages.iter().try_for_each(Self::check_dtype)?;
        self.allocate(|average| !average.parameter.is_frozen())?;
        let updates = self.updates as f64;
        let decay =
            if self.warms_up { self.decay.min((1.0 + updates) / (10.0 + updates)) } else { self.decay };
        // A step of SGD, p ← p - lr·(g + weight_decay·p), with these numbers is a ← a + (1 - decay)·(p - a).
        let rule = SgdRule { lr: decay - 1.0, weight_decay: -1.0, ..SgdRule::DEFAULT };
        for average in &mut self.averages {
            let Some(mut value) = average.value.take() else { continue };
            let parameter = average.parameter.value();
            let (grad, param) = (parameter.view(), value.view_mut());
            let updated =
                average.run(|ctx| ctx.compute(kernels::OptimizerStep::stateless(rule, grad, param)));
            average.value = Some(value);
            updated?;
        }
        self.updates += 1;
        Ok(())
    }

    /// Calls a function while the parameters have their averages as values, for example to evaluate or save a model. The
    /// parameters have their own values again afterwards, also after an error or a panic.
    ///
    /// The averages are copied for this time, in the types of the parameters, which needs as much memory as the parameters.
    /// Steps, updates and conversions inside of the function would work on these copies: do not call them there. A backward
    /// pass fails with [`Error::StaleBackward`] if the other values were present in its forward pass, inside or outside of the
    /// function.
    ///
    /// # Errors
    /// The error of the function; [`Error::Allocation`] if there is no memory, before the call.
    pub fn with_averages<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut averaged = Averaged::new(self)?;
        let result = f();
        let restored = averaged.restore();
        let result = result?;
        restored.map(|()| result)
    }

    /// Copies the averages as arrays by name, and the number of updates.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if two parameters have the same path, [`Error::NoData`] on a dry device,
    /// [`Error::NoHostMemory`] if host memory runs out.
    pub fn state(&self) -> Result<Arrays> {
        self.check_paths()?;
        let mut state = Arrays::new();
        // The count stays below 2⁶³.
        state.insert(UPDATES.to_owned(), Array::from_slice(&[self.updates as i64], Shape::SCALAR)?);
        for average in &self.averages {
            let device = average.parameter.value().device().clone();
            if device.is_dry() {
                return Err(Error::NoData { op: OP, device: device.to_string() });
            }
            match &average.value {
                Some(value) => state.insert(average.name(), Array::download(OP, &device, value.view())?),
                None => state.insert(average.name_without(), Array::from_slice(&[0_i64], Shape::SCALAR)?),
            };
        }
        Ok(state)
    }

    /// Checks that `state` has averages of these parameters, or says that a parameter was frozen so far.
    ///
    /// # Errors
    /// [`Error::Mismatch`], and [`Error::BadArgument`] for an invalid number of updates or if two parameters have the same
    /// path.
    pub fn check_state(&self, state: &Arrays) -> Result<()> {
        self.check_paths()?;
        let mut expected = BTreeMap::new();
        expected.insert(UPDATES.to_owned(), (DType::I64, Shape::SCALAR));
        for average in &self.averages {
            if average.is_without(state) {
                expected.insert(average.name_without(), (DType::I64, Shape::SCALAR));
                continue;
            }
            let value = average.parameter.value();
            expected.insert(average.name(), (value.dtype().computed_as(), *value.shape()));
        }
        mismatch::check(OP, &expected, state)?;
        self.averages.iter().try_for_each(Self::check_dtype)?;
        updates_of(state).map(drop)
    }

    /// Loads a [`state`](Self::state). The decay does not change.
    ///
    /// # Errors
    /// See [`check_state`](Self::check_state); [`Error::Allocation`] if there is no memory. Nothing has changed then. If a
    /// device fails during the copies, some averages have changed.
    pub fn load_state(&mut self, state: &Arrays) -> Result<()> {
        self.check_state(state)?;
        let updates = updates_of(state)?;
        self.allocate(|average| state.contains_key(&average.name()))?;
        for average in &mut self.averages {
            match state.get(&average.name()).zip(average.value.as_mut()) {
                Some((array, value)) => {
                    let device = average.parameter.value().device().clone();
                    array.upload(OP, &device, value.view_mut())?;
                }
                None => average.value = None,
            }
        }
        self.updates = updates;
        Ok(())
    }

    /// Creates the missing averages of the parameters that `select` accepts: all of them, or none after an error.
    fn allocate(&mut self, select: impl Fn(&Average) -> bool) -> Result<()> {
        let _phase = phase(Phase::Optimizer);
        let is_missing = |average: &Average| average.value.is_none() && select(average);
        let new = self.averages.iter().filter(|average| is_missing(average)).map(Average::allocate);
        let new = new.collect::<Result<Vec<_>>>()?;
        let missing = self.averages.iter_mut().filter(|average| is_missing(average));
        missing.zip(new).for_each(|(average, value)| average.value = Some(value));
        Ok(())
    }

    fn check_dtype(average: &Average) -> Result<()> {
        let dtype = average.parameter.value().dtype();
        match average.value.as_ref().map(|value| value.view().dtype()) {
            Some(kept) if kept != dtype.computed_as() => Err(Error::BadArgument {
                op: OP,
                argument: "parameters",
                expected: "of unchanged element types since the averages were created",
                got: format!("{} of type {dtype}, whose average is kept in {kept}", average.path),
            }),
            _ => Ok(()),
        }
    }

    /// Checks that all paths differ: two networks may both have a `fc1.weight`.
    fn check_paths(&self) -> Result<()> {
        let mut paths = HashSet::new();
        match self.averages.iter().find(|average| !paths.insert(&average.path)) {
            None => Ok(()),
            Some(Average { path, .. }) => Err(Error::BadArgument {
                op: OP,
                argument: "parameters",
                expected: "parameters with unique paths",
                got: format!("{path} twice"),
            }),
        }
    }
}

/// Returns the number of updates of a state with checked names and types.
///
/// # Errors
/// [`Error::BadArgument`] for a negative number, which only a damaged file contains.
fn updates_of(state: &Arrays) -> Result<u64> {
    let updates = state.get(UPDATES).and_then(Array::item::<i64>).unwrap_or(0);
    updates.try_into().map_err(|_| Error::BadArgument {
        op: OP,
        argument: UPDATES,
        expected: "a count",
        got: updates.to_string(),
    })
}

/// The parameters while they have their averages as values.
struct Averaged<'a> {
    /// The own values of each parameter.
    originals: Vec<(&'a Parameter, Tensor)>,
}

impl<'a> Averaged<'a> {
    /// Copies all averages before the first parameter changes. The parameters then exchange their buffers for the copies, so
    /// that they need no memory to get their own values back.
    fn new(ema: &'a Ema) -> Result<Self> {
        let mut copies = Vec::new();
        for average in &ema.averages {
            let Some(averaged) = &average.value else { continue };
            let value = average.parameter.value();
            let copy = average.run(|ctx| {
                let mut copy = ctx.output(value.shape(), value.dtype())?;
                ctx.compute(kernels::Copy { input: averaged.view(), out: copy.view_mut() })?;
                Ok(copy.finish())
            })?;
            copies.push((&average.parameter, copy));
        }
        // From here on, dropping it restores the values.
        let mut averaged = Self { originals: Vec::new() };
        for (parameter, copy) in copies {
            averaged.originals.push((parameter, parameter.replace(copy)?));
        }
        Ok(averaged)
    }

    /// Sets the parameters to their own values, and returns the first error.
    fn restore(&mut self) -> Result<()> {
        let originals = self.originals.drain(..);
        let restored = originals.map(|(parameter, original)| parameter.replace(original).map(drop));
        restored.fold(Ok(()), Result::and)
    }
}

impl Drop for Averaged<'_> {
    fn drop(&mut self) {
        // A panic or an error is on its way; nothing can report another one.
        let _ = self.restore();
    }
}
