//! Optimizers, which update parameters in place.
//!
//! An optimizer allocates its memory when it is created. A [frozen](Parameter::freeze) parameter gets its state in the
//! first step after it is unfrozen, so a model with frozen parameters needs less memory. A step first makes every
//! parameter writable: it copies shared buffers. Only then it changes the first parameter. A step that lacks memory
//! therefore changes nothing.
//!
//! A graph from before a step needs the old values, so the step copies each parameter that such a graph has saved. A
//! later backward through that graph fails with [`Error::StaleBackward`]: run forward again after the step. To compute
//! gradients at the old values, use [`Tensor::backward_stale`](highwater_tensor::Tensor::backward_stale).
//!
//! Parameters may be 16-bit floats. Their state is f32. Their gradients are 16-bit floats or, from a [`LossScaler`],
//! f32. The step is computed in f32 and rounded once. Changes below half a unit in the last place are lost: below
//! 1/2,048 of the parameter in f16, and 1/256 in bf16.

mod ema;
mod groups;
mod loss_scaler;
mod optimizers;
mod parameter_group;
mod parameter_set;
mod plateau;
mod schedule;
mod state;

use std::fmt;

pub use ema::Ema;
pub use groups::Groups;
pub use loss_scaler::{LossScaler, ScaledStep};
pub use optimizers::*;
pub use parameter_group::ParameterGroup;
pub use plateau::ReduceOnPlateau;
pub use schedule::Schedule;

use highwater_tensor::{Error, Gradients, Parameter, Result};

use crate::io::{Array, Arrays};

/// An optimizer: updates parameters along their gradients.
///
/// ```
/// use highwater::{Device, Tensor};
/// use highwater::nn::Parameter;
/// use highwater::optim::{Optimizer, Sgd};
///
/// let x = Parameter::new(Tensor::ones(&Device::cpu()?, [1])?)?;
/// let mut optimizer = Sgd::new(vec![("x".to_owned(), x.clone())], 0.1)?;
/// let gradients = x.tensor().square()?.sum_all()?.backward()?;
/// optimizer.step(gradients)?;
/// assert_eq!(x.tensor().to_vec::<f32>()?, [0.8]);
/// # Ok::<(), highwater::Error>(())
/// ```
pub trait Optimizer: fmt::Debug + Send {
    /// Returns the kind of optimizer, such as "adamw"; empty if unknown. A checkpoint is not restored into another
    /// kind, whose state may look alike.
    fn name(&self) -> &'static str {
        ""
    }

    /// Returns the parameters of the optimizer with their paths, each once.
    fn parameters(&self) -> Vec<(String, Parameter)>;

    /// Updates every parameter that has a gradient, and frees each gradient after its use. Parameters without a
    /// gradient, and their state, do not change. Gradients of plain tensors are dropped.
    ///
    /// # Errors
    /// Nothing has changed after these errors:
    ///
    /// - [`Error::UnknownParameters`] for gradients of parameters that the optimizer does not hold. Implementations check this by
    ///   [`Gradients::check_parameters`]. Use [`step_partial`](Self::step_partial) to ignore such gradients.
    /// - [`Error::StaleGradient`] for gradients from before a conversion of the parameter.
    /// - [`Error::Allocation`] if a parameter must be copied, or gets its state because it was frozen so far, and there is no
    ///   memory.
    /// - Errors about gradients that do not match their parameter.
    ///
    /// A device that fails during the step leaves some parameters changed.
    fn step(&mut self, gradients: Gradients) -> Result<()>;

    /// [Steps](Self::step) along the gradients of the optimizer's own parameters. Drops all other gradients first, for
    /// example those of the other model in a common loss.
    ///
    /// ```
    /// use highwater::{Device, Error, Rng, Tensor};
    /// use highwater::nn::{Linear, Module};
    /// use highwater::optim::{Optimizer, Sgd};
    /// let (device, rng) = (Device::cpu()?, Rng::new(0));
    /// let (generator, critic) = (Linear::new(&device, 2, 2, &rng)?, Linear::new(&device, 2, 1, &rng)?);
    /// let mut optimizer = Sgd::new(generator.parameters(), 0.1)?;
    /// let loss = || critic.forward(&generator.forward(&Tensor::ones(&device, [4, 2])?)?)?.mean_all();
    /// let error = optimizer.step(loss()?.backward()?).unwrap_err();
    /// assert!(matches!(error, Error::UnknownParameters { op: "sgd", .. }));
    /// optimizer.step_partial(loss()?.backward()?)?; // changes the generator alone
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`step`](Self::step), except for [`Error::UnknownParameters`].
    fn step_partial(&mut self, mut gradients: Gradients) -> Result<()> {
        let own = gradients.split_off(&self.parameters());
        drop(gradients);
        self.step(own)
    }

    /// Allocates the state of parameters that have a gradient but were frozen so far, calls `then`, and keeps the state if
    /// `then` succeeds. A [`step`](Self::step) does this itself. Optimizers that consist of others, or of several processes,
    /// call it before the first parameter changes, with the rest of their preparation as `then`.
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory; the error of `then`. Nothing has changed then.
    fn allocate_state(&mut self, gradients: &Gradients, then: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let _ = gradients;
        then()
    }

    /// Returns the number of processes that step together; 1 unless the optimizer was wrapped for several.
    fn ranks(&self) -> usize {
        1
    }

    /// Scales the gradients of a step so that their norm is at most `max`, and returns the norm before. An optimizer
    /// whose gradients are divided among processes includes those of the others.
    ///
    /// # Errors
    /// See [`Gradients::clip_norm`].
    fn clip_norm(&self, gradients: &mut Gradients, max: f64) -> Result<f64> {
        gradients.clip_norm(max)
    }

    /// Returns the learning rate.
    fn learning_rate(&self) -> f64;

    /// Sets the learning rate of future steps.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless it is finite and not negative.
    fn set_learning_rate(&mut self, learning_rate: f64) -> Result<()>;

    /// Returns the options by name, such as `("momentum", "0.9")`. Processes that train together compare them.
    fn settings(&self) -> Vec<(String, String)> {
        vec![("lr".to_owned(), self.learning_rate().to_string())]
    }

    /// Returns whether the gradients of all processes are finite, given those of this process. A [`LossScaler`] calls
    /// it with its scale, so that all processes skip the same steps.
    ///
    /// # Errors
    /// Another process fails, or has another scale.
    fn all_finite(&self, is_finite: bool, scale: f64) -> Result<bool> {
        let _ = scale;
        Ok(is_finite)
    }

    /// Copies the state of the optimizer as arrays by name: the learning rate, and each parameter's state under its
    /// path.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if two parameters have the same path, [`Error::NoData`] on a dry device,
    /// [`Error::NoHostMemory`] if host memory runs out.
    fn state(&self) -> Result<Arrays>;

    /// Checks that `state` matches this kind of optimizer and its parameters.
    ///
    /// # Errors
    /// [`Error::Mismatch`], and [`Error::BadArgument`] for an invalid learning rate or if two parameters have the same
    /// path.
    fn check_state(&self, state: &Arrays) -> Result<()>;

    /// Loads a [`state`](Self::state). Options from the optimizer's creation, such as momentum, do not change.
    ///
    /// # Errors
    /// See [`check_state`](Self::check_state); [`Error::Allocation`] if there is no memory for the state of a parameter that
    /// was frozen so far. Nothing has changed then, except that [`Groups`] may have loaded some groups. If a device fails
    /// during the copies, some state has changed.
    fn load_state(&mut self, state: &Arrays) -> Result<()>;
}

/// Forwards to the boxed optimizer, so that a program can choose the optimizer at run time.
impl<O: Optimizer + ?Sized> Optimizer for Box<O> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn parameters(&self) -> Vec<(String, Parameter)> {
        (**self).parameters()
    }

    fn step(&mut self, gradients: Gradients) -> Result<()> {
        (**self).step(gradients)
    }

    fn step_partial(&mut self, gradients: Gradients) -> Result<()> {
        (**self).step_partial(gradients)
    }

    fn allocate_state(&mut self, gradients: &Gradients, then: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        (**self).allocate_state(gradients, then)
    }

    fn ranks(&self) -> usize {
        (**self).ranks()
    }

    fn clip_norm(&self, gradients: &mut Gradients, max: f64) -> Result<f64> {
        (**self).clip_norm(gradients, max)
    }

    fn learning_rate(&self) -> f64 {
        (**self).learning_rate()
    }

    fn set_learning_rate(&mut self, learning_rate: f64) -> Result<()> {
        (**self).set_learning_rate(learning_rate)
    }

    fn settings(&self) -> Vec<(String, String)> {
        (**self).settings()
    }

    fn all_finite(&self, is_finite: bool, scale: f64) -> Result<bool> {
        (**self).all_finite(is_finite, scale)
    }

    fn state(&self) -> Result<Arrays> {
        (**self).state()
    }

    fn check_state(&self, state: &Arrays) -> Result<()> {
        (**self).check_state(state)
    }

    fn load_state(&mut self, state: &Arrays) -> Result<()> {
        (**self).load_state(state)
    }
}

/// The name of the learning rate in a state. The names of parameters have more parts.
const LEARNING_RATE: &str = "learning_rate";

/// Returns the learning rate of a state that is known to contain one.
fn learning_rate_of(state: &Arrays) -> f64 {
    state.get(LEARNING_RATE).and_then(Array::item).unwrap_or(f64::NAN)
}

/// Returns `value` if it is finite and not negative.
fn not_negative(op: &'static str, argument: &'static str, value: f64) -> Result<f64> {
    check(op, argument, value, "finite and not negative", value.is_finite() && value >= 0.0)
}

/// Returns `value` if it is finite and above 0. An ε of 0 would give 0/0 for a parameter whose gradients were all zero.
fn above_zero(op: &'static str, argument: &'static str, value: f64) -> Result<f64> {
    check(op, argument, value, "finite and above 0", value.is_finite() && value > 0.0)
}

/// Returns `value` if it is a valid decay rate: at least 0 and below 1.
fn share(op: &'static str, argument: &'static str, value: f64) -> Result<f64> {
    check(op, argument, value, "at least 0 and below 1", (0.0..1.0).contains(&value))
}

fn check(
    op: &'static str,
    argument: &'static str,
    value: f64,
    expected: &'static str,
    holds: bool,
) -> Result<f64> {
    if holds { Ok(value) } else { Err(Error::BadArgument { op, argument, expected, got: value.to_string() }) }
}
