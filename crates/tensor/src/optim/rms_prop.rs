//! RmsProp.

use super::slots::{Slots, keep_if, zero_state};
use super::state::{Part, PartMut, SlotState};
use super::{Optimizer, above_zero, not_negative, share};
use crate::autograd::{Gradients, Parameter};
use crate::backend::{Kernel, RmsPropStep};
use crate::error::Result;
use crate::io::Arrays;
use crate::op::Buffer;

/// What RmsProp keeps for a parameter.
#[derive(Debug)]
struct Means {
    variance: Buffer,
    momentum: Option<Buffer>,
}

impl SlotState for Means {
    fn parts(&self) -> Vec<(&'static str, Part<'_>)> {
        let momentum = self.momentum.iter().map(|buffer| ("momentum", Part::Mean(buffer)));
        std::iter::once(("variance", Part::Mean(&self.variance))).chain(momentum).collect()
    }

    fn parts_mut(&mut self) -> Vec<(&'static str, PartMut<'_>)> {
        let momentum = self.momentum.iter_mut().map(|buffer| ("momentum", PartMut::Mean(buffer)));
        std::iter::once(("variance", PartMut::Mean(&mut self.variance))).chain(momentum).collect()
    }
}

/// RmsProp (Tieleman and Hinton 2012): gradients over the root of the mean of their squares, as PyTorch has it.
///
/// With gradient g, parameter p and means v and m (0 at first): g ← g + weight_decay·p; v ← smoothing·v + (1 -
/// smoothing)·g²; p ← p - lr·g / (√v + epsilon). With momentum, m ← momentum·m + g / (√v + epsilon) and p ← p - lr·m.
///
/// ```
/// use highwater_tensor::nn::{Linear, Module};
/// use highwater_tensor::optim::RmsProp;
/// use highwater_tensor::{Device, Rng};
/// let layer = Linear::new(&Device::cpu()?, 8, 2, &Rng::new(0))?;
/// let optimizer = RmsProp::new(layer.parameters(), 0.01)?.with_momentum(0.9)?.with_smoothing(0.95)?;
/// # Ok::<(), highwater_tensor::Error>(())
/// ```
#[derive(Debug)]
pub struct RmsProp {
    options: RmsPropStep,
    slots: Slots<Means>,
}

const OP: &str = "rms_prop";

impl RmsProp {
    /// The optimiser with learning rate `lr` and otherwise the usual values.
    ///
    /// # Errors
    /// [`crate::Error::BadArgument`] without parameters, and unless `lr` is finite and not negative; [`crate::Error::Allocation`] if there is no
    /// memory for the state, a number for each of the parameters'.
    pub fn new(parameters: Vec<(String, Parameter)>, lr: f64) -> Result<Self> {
        let lr = not_negative(OP, "lr", lr)?;
        let slots = Slots::new(OP, parameters, |ctx, parameter| {
            Ok(Means { variance: zero_state(ctx, parameter)?, momentum: None })
        })?;
        let options = RmsPropStep { lr, smoothing: 0.99, epsilon: 1e-8, momentum: 0.0, weight_decay: 0.0 };
        Ok(Self { options, slots })
    }

    /// The same, which keeps the share `momentum` of its last step: one more number for each of the parameters', 0 at first.
    ///
    /// # Errors
    /// [`crate::Error::BadArgument`] unless 0 ≤ `momentum` < 1; [`crate::Error::Allocation`] if there is no memory for the state.
    pub fn with_momentum(mut self, momentum: f64) -> Result<Self> {
        self.options.momentum = share(OP, "momentum", momentum)?;
        self.slots.change_state(|ctx, parameter, means| {
            keep_if(&mut means.momentum, momentum > 0.0, ctx, parameter)
        })?;
        Ok(self)
    }

    /// The same with another share of the mean of squares that is kept at each step; 0.99 unless set.
    ///
    /// # Errors
    /// [`crate::Error::BadArgument`] unless it is at least 0 and below 1.
    pub fn with_smoothing(mut self, smoothing: f64) -> Result<Self> {
        self.options.smoothing = share(OP, "smoothing", smoothing)?;
        Ok(self)
    }

    /// The same with another number that keeps the denominator from zero; 1e-8 unless set.
    ///
    /// # Errors
    /// [`crate::Error::BadArgument`] unless it is finite and above 0.
    pub fn with_epsilon(mut self, epsilon: f64) -> Result<Self> {
        self.options.epsilon = above_zero(OP, "epsilon", epsilon)?;
        Ok(self)
    }

    /// The same with weight decay: a pull of parameters towards zero, added to gradients.
    ///
    /// # Errors
    /// [`crate::Error::BadArgument`] unless it is finite and not negative.
    pub fn with_weight_decay(mut self, weight_decay: f64) -> Result<Self> {
        self.options.weight_decay = not_negative(OP, "weight_decay", weight_decay)?;
        Ok(self)
    }
}

impl Optimizer for RmsProp {
    fn name(&self) -> &'static str {
        OP
    }

    fn parameters(&self) -> Vec<(String, Parameter)> {
        self.slots.parameters()
    }

    fn step(&mut self, gradients: Gradients) -> Result<()> {
        let options = self.options;
        self.slots.step(gradients, |ctx, gradient, means, values| {
            let (variance, momentum) =
                (means.variance.view_mut(), means.momentum.as_mut().map(Buffer::view_mut));
            ctx.compute(Kernel::RmsProp { step: options, grad: gradient, variance, momentum, param: values })
        })
    }

    fn learning_rate(&self) -> f64 {
        self.options.lr
    }

    fn set_learning_rate(&mut self, learning_rate: f64) -> Result<()> {
        self.options.lr = not_negative(OP, "lr", learning_rate)?;
        Ok(())
    }

    fn state(&self) -> Result<Arrays> {
        self.slots.state(self.options.lr)
    }

    fn check_state(&self, state: &Arrays) -> Result<()> {
        self.slots.check_state(state)
    }

    fn load_state(&mut self, state: &Arrays) -> Result<()> {
        self.options.lr = self.slots.load_state(state)?;
        Ok(())
    }
}
