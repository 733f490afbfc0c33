//! Stochastic gradient descent.

use super::slots::{Slots, keep_if};
use super::state::{Part, PartMut, SlotState};
use super::{Optimizer, not_negative, share};
use crate::autograd::{Gradients, Parameter};
use crate::backend::{Kernel, SgdStep};
use crate::error::{Error, Result};
use crate::io::Arrays;
use crate::op::Buffer;

/// Stochastic gradient descent, with momentum (Polyak 1964; Nesterov 1983) and weight decay if wished for.
///
/// With gradient g, parameter p and mean m (0 at first): g ← g + weight_decay·p; m ← momentum·m + g; p ← p - lr·m, or
/// p - lr·(g + momentum·m) in Nesterov's variant. Without momentum no state is kept.
///
/// ```
/// use highwater_tensor::nn::{Linear, Module};
/// use highwater_tensor::optim::Sgd;
/// use highwater_tensor::{Device, Rng};
/// let layer = Linear::new(&Device::cpu()?, 8, 2, &Rng::new(0))?;
/// let optimizer = Sgd::new(layer.parameters(), 0.1)?.with_momentum(0.9)?.with_weight_decay(1e-4)?.with_nesterov()?;
/// # Ok::<(), highwater_tensor::Error>(())
/// ```
#[derive(Debug)]
pub struct Sgd {
    options: SgdStep,
    slots: Slots<Option<Buffer>>,
}

const OP: &str = "sgd";

impl Sgd {
    /// Plain descent with learning rate `lr`.
    ///
    /// # Errors
    /// [`Error::BadArgument`] without parameters, and unless `lr` is finite and not negative.
    pub fn new(parameters: Vec<(String, Parameter)>, lr: f64) -> Result<Self> {
        let lr = not_negative(OP, "lr", lr)?;
        let slots = Slots::new(OP, parameters, |_, _| Ok(None))?;
        Ok(Self { options: SgdStep { lr, momentum: 0.0, weight_decay: 0.0, nesterov: false }, slots })
    }

    /// The same, which keeps the share `momentum` of its last step: a number for each of the parameters', 0 at first.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless 0 ≤ `momentum` < 1, and for 0 in [Nesterov's variant](Self::with_nesterov);
    /// [`Error::Allocation`] if there is no memory for the state.
    pub fn with_momentum(mut self, momentum: f64) -> Result<Self> {
        self.options.momentum = share(OP, "momentum", momentum)?;
        if self.options.nesterov {
            self.check_nesterov()?;
        }
        self.slots.change_state(|ctx, parameter, state| keep_if(state, momentum > 0.0, ctx, parameter))?;
        Ok(self)
    }

    /// The same with weight decay: a pull of parameters towards zero, added to gradients.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless it is finite and not negative.
    pub fn with_weight_decay(mut self, weight_decay: f64) -> Result<Self> {
        self.options.weight_decay = not_negative(OP, "weight_decay", weight_decay)?;
        Ok(self)
    }

    /// The same in Nesterov's variant.
    ///
    /// # Errors
    /// [`Error::BadArgument`] without momentum, where there is no such variant.
    pub fn with_nesterov(mut self) -> Result<Self> {
        self.check_nesterov()?;
        self.options.nesterov = true;
        Ok(self)
    }

    fn check_nesterov(&self) -> Result<()> {
        if self.options.momentum > 0.0 {
            return Ok(());
        }
        let (expected, got) = ("above 0 for Nesterov's variant", self.options.momentum.to_string());
        Err(Error::BadArgument { op: OP, argument: "momentum", expected, got })
    }
}

impl SlotState for Option<Buffer> {
    fn parts(&self) -> Vec<(&'static str, Part<'_>)> {
        self.iter().map(|buffer| ("momentum", Part::Mean(buffer))).collect()
    }

    fn parts_mut(&mut self) -> Vec<(&'static str, PartMut<'_>)> {
        self.iter_mut().map(|buffer| ("momentum", PartMut::Mean(buffer))).collect()
    }
}

impl Optimizer for Sgd {
    fn name(&self) -> &'static str {
        OP
    }

    fn parameters(&self) -> Vec<(String, Parameter)> {
        self.slots.parameters()
    }

    fn step(&mut self, gradients: Gradients) -> Result<()> {
        let options = self.options;
        self.slots.step(gradients, |ctx, gradient, momentum, values| {
            let momentum = momentum.as_mut().map(Buffer::view_mut);
            ctx.compute(Kernel::Sgd { step: options, grad: gradient, momentum, param: values })
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
