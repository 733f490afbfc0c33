//! Lion.

use super::slots::{Slots, zero_state};
use super::state::{Part, PartMut, SlotState};
use super::{Optimizer, not_negative, share};
use crate::autograd::{Gradients, Parameter};
use crate::backend::{Kernel, LionStep};
use crate::error::Result;
use crate::io::Arrays;
use crate::op::Buffer;

/// What Lion keeps for a parameter: half of what Adam keeps.
#[derive(Debug)]
struct Mean(Buffer);

impl SlotState for Mean {
    fn parts(&self) -> Vec<(&'static str, Part<'_>)> {
        vec![("mean", Part::Mean(&self.0))]
    }

    fn parts_mut(&mut self) -> Vec<(&'static str, PartMut<'_>)> {
        vec![("mean", PartMut::Mean(&mut self.0))]
    }
}

/// Lion (Chen et al. 2023): steps of one size for all parameters, in the direction of the mean of gradients.
///
/// With gradient g, parameter p and mean m (0 at first): p ← p - lr·(sign(beta1·m + (1 - beta1)·g) + weight_decay·p);
/// m ← beta2·m + (1 - beta2)·g. Learning rates are some three to ten times smaller than AdamW's, decays as much larger.
///
/// ```
/// use highwater_tensor::nn::{Linear, Module};
/// use highwater_tensor::optim::Lion;
/// use highwater_tensor::{Device, Rng};
/// let layer = Linear::new(&Device::cpu()?, 8, 2, &Rng::new(0))?;
/// let optimizer = Lion::new(layer.parameters(), 1e-4)?.with_betas(0.95, 0.98)?.with_weight_decay(0.1)?;
/// # Ok::<(), highwater_tensor::Error>(())
/// ```
#[derive(Debug)]
pub struct Lion {
    options: LionStep,
    slots: Slots<Mean>,
}

const OP: &str = "lion";

impl Lion {
    /// The optimiser with learning rate `lr` and otherwise the usual values.
    ///
    /// # Errors
    /// [`crate::Error::BadArgument`] without parameters, and unless `lr` is finite and not negative; [`crate::Error::Allocation`] if there is no
    /// memory for the state, a number for each of the parameters'.
    pub fn new(parameters: Vec<(String, Parameter)>, lr: f64) -> Result<Self> {
        let lr = not_negative(OP, "lr", lr)?;
        let slots = Slots::new(OP, parameters, |ctx, parameter| zero_state(ctx, parameter).map(Mean))?;
        let options = LionStep { lr, beta1: 0.9, beta2: 0.99, weight_decay: 0.0 };
        Ok(Self { options, slots })
    }

    /// The same with other shares of the mean that are kept: for the direction of a step, and from step to step; 0.9 and
    /// 0.99 unless set.
    ///
    /// # Errors
    /// [`crate::Error::BadArgument`] unless both are at least 0 and below 1.
    pub fn with_betas(mut self, beta1: f64, beta2: f64) -> Result<Self> {
        self.options.beta1 = share(OP, "beta1", beta1)?;
        self.options.beta2 = share(OP, "beta2", beta2)?;
        Ok(self)
    }

    /// The same with weight decay: a pull of parameters towards zero, which acts on them directly; 0 unless set.
    ///
    /// # Errors
    /// [`crate::Error::BadArgument`] unless it is finite and not negative.
    pub fn with_weight_decay(mut self, weight_decay: f64) -> Result<Self> {
        self.options.weight_decay = not_negative(OP, "weight_decay", weight_decay)?;
        Ok(self)
    }
}

impl Optimizer for Lion {
    fn name(&self) -> &'static str {
        OP
    }

    fn parameters(&self) -> Vec<(String, Parameter)> {
        self.slots.parameters()
    }

    fn step(&mut self, gradients: Gradients) -> Result<()> {
        let options = self.options;
        self.slots.step(gradients, |ctx, gradient, Mean(mean), values| {
            let mean = mean.view_mut();
            ctx.compute(Kernel::Lion { step: options, grad: gradient, mean, param: values })
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
