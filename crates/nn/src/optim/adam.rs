//! The Adam and AdamW optimizers.

use highwater_tensor::{
    OpContext, Parameter, Result, View, ViewMut,
    backend::{AdamStep, kernels},
};

use super::parameter_set::{ParameterSet, ParameterState, impl_optimizer};
use super::{above_zero, not_negative, share};

const DEFAULTS: AdamStep = AdamStep {
    lr: 1e-3,
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.0,
    decoupled: false,
    amsgrad: false,
    step: 1,
};

/// Defines both variants, which differ in their name and in the effect of weight decay.
macro_rules! adam {
    ($(#[$doc:meta])* $name:ident, $op:literal, $defaults:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            options: AdamStep,
            parameters: ParameterSet<3>,
        }

        impl $name {
            /// Creates the optimizer with learning rate `lr` and the usual defaults.
            ///
            /// # Errors
            /// [`Error::BadArgument`](highwater_tensor::Error::BadArgument) without parameters, and unless `lr` is
            /// finite and not negative; [`Error::Allocation`](highwater_tensor::Error::Allocation) if there is no
            /// memory for the state: two values per element of the parameters that are not frozen.
            pub fn new(parameters: Vec<(String, Parameter)>, lr: f64) -> Result<Self> {
                let options = AdamStep { lr: not_negative($op, "lr", lr)?, ..$defaults };
                let state = [("mean", true), ("variance", true), ("max_variance", false)];
                Ok(Self { options, parameters: ParameterSet::new($op, parameters, state)?.saving_steps() })
            }

            /// Sets the decay rates of the two moving averages; 0.9 and 0.999 by default.
            ///
            /// # Errors
            /// [`Error::BadArgument`](highwater_tensor::Error::BadArgument) unless both are at least 0 and below 1.
            pub fn with_betas(mut self, beta1: f64, beta2: f64) -> Result<Self> {
                self.options.beta1 = share($op, "beta1", beta1)?;
                self.options.beta2 = share($op, "beta2", beta2)?;
                Ok(self)
            }

            /// Sets ε, which keeps the denominator above zero; 1e-8 by default.
            ///
            /// # Errors
            /// [`Error::BadArgument`](highwater_tensor::Error::BadArgument) unless it is finite and above 0.
            pub fn with_epsilon(mut self, epsilon: f64) -> Result<Self> {
                self.options.epsilon = above_zero($op, "epsilon", epsilon)?;
                Ok(self)
            }

            /// Sets the weight decay, which pulls parameters towards zero.
            ///
            /// # Errors
            /// [`Error::BadArgument`](highwater_tensor::Error::BadArgument) unless it is finite and not negative.
            pub fn with_weight_decay(mut self, weight_decay: f64) -> Result<Self> {
                self.options.weight_decay = not_negative($op, "weight_decay", weight_decay)?;
                Ok(self)
            }

            /// Enables AMSGrad (Reddi et al. 2018): steps divide by the root of the largest variance so far, so that their
            /// size never grows again. It needs one more state value per element of the parameters.
            ///
            /// # Errors
            /// [`Error::Allocation`](highwater_tensor::Error::Allocation) if there is no memory for the state.
            pub fn with_amsgrad(mut self) -> Result<Self> {
                self.parameters.keep(2, true)?;
                self.options.amsgrad = true;
                Ok(self)
            }

            /// Each parameter counts its own steps, for the bias correction of its moving averages.
            fn update(
                options: AdamStep,
                ctx: &OpContext<'_>,
                grad: View<'_>,
                state: &mut ParameterState<3>,
                param: ViewMut<'_>,
            ) -> Result<()> {
                let step = AdamStep { step: state.steps + 1, ..options };
                let [mean, variance, max_variance] = state.views_mut();
                let [mean, variance] =
                    [mean, variance].map(|tensor| tensor.expect("`ParameterSet::step` allocated it"));
                ctx.compute(kernels::Adam { step, grad, mean, variance, max_variance, param })
            }
        }

        impl_optimizer!($name, lr, beta1, beta2, epsilon, weight_decay, amsgrad);
    };
}

adam! {
    /// Adam optimizer (Kingma and Ba 2015): adapts the step size of each parameter to moving averages of the gradients
    /// and their squares. Weight decay (0 by default) is added to the gradients.
    Adam, "adam", DEFAULTS
}
adam! {
    /// AdamW optimizer (Loshchilov and Hutter 2019): Adam with decoupled weight decay (0.01 by default), which acts on
    /// the parameters directly.
    AdamW, "adamw", AdamStep { weight_decay: 0.01, decoupled: true, ..DEFAULTS }
}
