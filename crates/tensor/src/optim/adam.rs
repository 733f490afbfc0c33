//! Adam and AdamW.

use super::slots::{Slots, zero_state};
use super::state::{Part, PartMut, SlotState};
use super::{Optimizer, above_zero, not_negative, share};
use crate::autograd::{Gradients, Parameter};
use crate::backend::{AdamStep, Kernel};
use crate::error::Result;
use crate::io::Arrays;
use crate::op::Buffer;

/// What Adam keeps for a parameter.
#[derive(Debug)]
struct Moments {
    mean: Buffer,
    variance: Buffer,
    /// Steps that this parameter has taken: means that started later are corrected as ones that started later.
    steps: u64,
}

impl SlotState for Moments {
    fn parts(&self) -> Vec<(&'static str, Part<'_>)> {
        let Self { mean, variance, steps } = self;
        vec![("mean", Part::Mean(mean)), ("variance", Part::Mean(variance)), ("steps", Part::Count(*steps))]
    }

    fn parts_mut(&mut self) -> Vec<(&'static str, PartMut<'_>)> {
        let Self { mean, variance, steps } = self;
        vec![
            ("mean", PartMut::Mean(mean)),
            ("variance", PartMut::Mean(variance)),
            ("steps", PartMut::Count(steps)),
        ]
    }
}

/// Both variants: they differ in their name and in what the weight decay acts on.
#[derive(Debug)]
struct Core {
    op: &'static str,
    options: AdamStep,
    slots: Slots<Moments>,
}

impl Core {
    fn new(op: &'static str, parameters: Vec<(String, Parameter)>, options: AdamStep) -> Result<Self> {
        let lr = not_negative(op, "lr", options.lr)?;
        let slots = Slots::new(op, parameters, |ctx, parameter| {
            let (mean, variance) = (zero_state(ctx, parameter)?, zero_state(ctx, parameter)?);
            Ok(Moments { mean, variance, steps: 0 })
        })?;
        Ok(Self { op, options: AdamStep { lr, ..options }, slots })
    }

    fn set_betas(&mut self, beta1: f64, beta2: f64) -> Result<()> {
        self.options.beta1 = share(self.op, "beta1", beta1)?;
        self.options.beta2 = share(self.op, "beta2", beta2)?;
        Ok(())
    }

    fn set_epsilon(&mut self, epsilon: f64) -> Result<()> {
        self.options.epsilon = above_zero(self.op, "epsilon", epsilon)?;
        Ok(())
    }

    fn set_weight_decay(&mut self, weight_decay: f64) -> Result<()> {
        self.options.weight_decay = not_negative(self.op, "weight_decay", weight_decay)?;
        Ok(())
    }

    fn step(&mut self, gradients: Gradients) -> Result<()> {
        let options = self.options;
        self.slots.step(gradients, |ctx, gradient, moments, values| {
            let options = AdamStep { step: moments.steps + 1, ..options };
            let (mean, variance) = (moments.mean.view_mut(), moments.variance.view_mut());
            ctx.compute(Kernel::Adam { step: options, grad: gradient, mean, variance, param: values })?;
            moments.steps += 1;
            Ok(())
        })
    }
}

const DEFAULTS: AdamStep = AdamStep {
    lr: 1e-3,
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.0,
    decoupled: false,
    step: 1,
};

macro_rules! adam {
    ($(#[$doc:meta])* $name:ident, $op:literal, $defaults:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(Core);

        impl $name {
            /// The optimiser with learning rate `lr` and otherwise the usual values.
            ///
            /// # Errors
            /// [`crate::Error::BadArgument`] without parameters, and unless `lr` is finite and not negative; [`crate::Error::Allocation`] if there is no
            /// memory for the state, two numbers for each of the parameters'.
            pub fn new(parameters: Vec<(String, Parameter)>, lr: f64) -> Result<Self> {
                Core::new($op, parameters, AdamStep { lr, ..$defaults }).map(Self)
            }

            /// The same with other shares of the means that are kept at each step; 0.9 and 0.999 unless set.
            ///
            /// # Errors
            /// [`crate::Error::BadArgument`] unless both are at least 0 and below 1.
            pub fn with_betas(mut self, beta1: f64, beta2: f64) -> Result<Self> {
                self.0.set_betas(beta1, beta2)?;
                Ok(self)
            }

            /// The same with another number that keeps the denominator from zero; 1e-8 unless set.
            ///
            /// # Errors
            /// [`crate::Error::BadArgument`] unless it is finite and above 0.
            pub fn with_epsilon(mut self, epsilon: f64) -> Result<Self> {
                self.0.set_epsilon(epsilon)?;
                Ok(self)
            }

            /// The same with another pull of parameters towards zero.
            ///
            /// # Errors
            /// [`crate::Error::BadArgument`] unless it is finite and not negative.
            pub fn with_weight_decay(mut self, weight_decay: f64) -> Result<Self> {
                self.0.set_weight_decay(weight_decay)?;
                Ok(self)
            }
        }

        impl Optimizer for $name {
            fn name(&self) -> &'static str {
                $op
            }

            fn parameters(&self) -> Vec<(String, Parameter)> {
                self.0.slots.parameters()
            }

            fn step(&mut self, gradients: Gradients) -> Result<()> {
                self.0.step(gradients)
            }

            fn learning_rate(&self) -> f64 {
                self.0.options.lr
            }

            fn set_learning_rate(&mut self, learning_rate: f64) -> Result<()> {
                self.0.options.lr = not_negative($op, "lr", learning_rate)?;
                Ok(())
            }

            fn state(&self) -> Result<Arrays> {
                self.0.slots.state(self.0.options.lr)
            }

            fn check_state(&self, state: &Arrays) -> Result<()> {
                self.0.slots.check_state(state)
            }

            fn load_state(&mut self, state: &Arrays) -> Result<()> {
                self.0.options.lr = self.0.slots.load_state(state)?;
                Ok(())
            }
        }
    };
}

adam! {
    /// Adam (Kingma and Ba 2015): steps of like size for all parameters, from the means of gradients and of their
    /// squares. Weight decay, 0 unless set, is added to gradients.
    Adam, "adam", DEFAULTS
}
adam! {
    /// AdamW (Loshchilov and Hutter 2019): Adam whose weight decay, 0.01 unless set, acts on parameters directly.
    AdamW, "adamw", AdamStep { weight_decay: 0.01, decoupled: true, ..DEFAULTS }
}
