//! Optimizers: change parameters along their gradients, in place.
//!
//! All memory that an optimizer needs is taken when it is made. A step first makes sure that every parameter it will
//! change can be written (a buffer that somebody still looks into is copied), and only then changes the first one: so
//! a step that lacks memory changes nothing.
//!
//! A graph that was recorded before a step has the values from before it: each parameter that such a graph has saved is copied by the
//! step. To pass it backward afterwards is an error, [`Error::StaleBackward`]: forward has to run again after the step. Who wants
//! the gradients at the old values asks for them, by [`Tensor::backward_stale`](highwater_tensor::Tensor::backward_stale).
//!
//! Parameters may be halves. Their state is f32, their gradients are halves or, from a [`LossScaler`], f32, and a step is
//! computed in f32 and rounded once. A change of less than half a step of the type is lost: relative to the parameter, below
//! 1/2,048 in f16 and 1/256 in bf16.

mod adam;
mod groups;
mod lion;
mod loss_scaler;
mod parameter_set;
mod rms_prop;
mod schedule;
mod sgd;
mod state;

use std::fmt;

pub use adam::{Adam, AdamW};
pub use groups::Groups;
pub use lion::Lion;
pub use loss_scaler::{LossScaler, ScaledStep};
pub use rms_prop::RmsProp;
pub use schedule::Schedule;
pub use sgd::Sgd;

use highwater_tensor::{Error, Gradients, Parameter, Result};

use crate::io::{Array, Arrays};

/// Changes parameters so that the loss falls.
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
    /// What kind of optimizer it is, as "adamw": a checkpoint is not restored into one of another kind, whose state may look
    /// alike. Empty for one that does not tell.
    fn name(&self) -> &'static str {
        ""
    }

    /// The parameters that the optimizer holds, with their paths, each once.
    fn parameters(&self) -> Vec<(String, Parameter)>;

    /// Changes every parameter that has a gradient, and frees each gradient as soon as it was used. Parameters
    /// without a gradient, and their state, stay as they are. Gradients of plain tensors that require gradients are dropped.
    ///
    /// # Errors
    /// Nothing has changed after these errors:
    ///
    /// - [`Error::UnknownParameters`] for gradients of parameters that the optimizer does not hold. Implementations check this by
    ///   [`Gradients::check_parameters`]. Use [`step_partial`](Self::step_partial) to ignore such gradients.
    /// - [`Error::StaleGradient`] for gradients from before a conversion of the parameter.
    /// - [`Error::Allocation`] if a parameter has to be copied and there is no memory.
    /// - Errors about gradients that do not fit their parameter.
    ///
    /// A device that fails during the step leaves some parameters changed.
    fn step(&mut self, gradients: Gradients) -> Result<()>;

    /// [`step`](Self::step) along the gradients of the optimizer's own parameters. Drops all other gradients first, as for one
    /// of two models that a loss depends on.
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

    /// The learning rate.
    fn learning_rate(&self) -> f64;

    /// Sets the learning rate of the steps to come.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless it is finite and not negative.
    fn set_learning_rate(&mut self, learning_rate: f64) -> Result<()>;

    /// A copy of what the optimizer keeps from step to step, by name: the learning rate, and for each parameter what
    /// stands behind its path.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if two parameters have the same path, [`Error::NoData`] on a device that computes nothing,
    /// [`Error::NoHostMemory`] if the host has no room.
    fn state(&self) -> Result<Arrays>;

    /// Checks that `state` is one of an optimizer like this, of parameters like these.
    ///
    /// # Errors
    /// [`Error::Mismatch`], and [`Error::BadArgument`] for a learning rate that is none and if two parameters have the same path.
    fn check_state(&self, state: &Arrays) -> Result<()>;

    /// Goes on from a [`state`](Self::state). What was set when the optimizer was made, as momentum, stays.
    ///
    /// # Errors
    /// See [`check_state`](Self::check_state): nothing has changed then. A device that fails on the way leaves some changed.
    fn load_state(&mut self, state: &Arrays) -> Result<()>;
}

/// What is in a box is no other for it: which optimizer trains may be chosen at run time, as `Box<dyn Optimizer>`.
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

    fn learning_rate(&self) -> f64 {
        (**self).learning_rate()
    }

    fn set_learning_rate(&mut self, learning_rate: f64) -> Result<()> {
        (**self).set_learning_rate(learning_rate)
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

/// The learning rate, among the arrays of a state. Parameters' names have more parts.
const LEARNING_RATE: &str = "learning_rate";

/// The learning rate of a state that was checked for one, itself unchecked.
fn learning_rate_of(state: &Arrays) -> f64 {
    state.get(LEARNING_RATE).and_then(Array::item).unwrap_or(f64::NAN)
}

/// Passes `value` on if it is finite and not negative.
fn not_negative(op: &'static str, argument: &'static str, value: f64) -> Result<f64> {
    check(op, argument, value, "finite and not negative", value.is_finite() && value >= 0.0)
}

/// Passes `value` on if it is finite and above 0, as what keeps denominators from zero: with 0, 0/0 would come of a
/// parameter whose gradients were all zero.
fn above_zero(op: &'static str, argument: &'static str, value: f64) -> Result<f64> {
    check(op, argument, value, "finite and above 0", value.is_finite() && value > 0.0)
}

/// Passes `value` on if it is a share that a mean may keep: at least 0, below 1.
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
