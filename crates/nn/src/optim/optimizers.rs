//! The optimizers: the options of a [rule](highwater_tensor::backend::kernels::OptimizerRule), with its states for each
//! parameter.

use highwater_tensor::backend::kernels::{
    AdadeltaRule, AdagradRule, AdamRule, LionRule, NAdamRule, RmsPropRule, SgdRule,
};
use highwater_tensor::{Error, Gradients, Parameter, Result};

use super::parameter_set::ParameterSet;
use super::{Optimizer, ParameterGroup, above_zero, not_negative, share};
use crate::io::Arrays;

/// An option as a setting; `None` if users cannot set it: `decoupled: _`.
macro_rules! setting {
    ($option:ident) => {
        Some((stringify!($option).to_owned(), $option.to_string()))
    };
    ($option:ident: _) => {
        None
    };
}

/// Defines an optimizer: its name, its rule with all options, and their defaults.
macro_rules! optimizer {
    (
        $(#[$doc:meta])*
        $name:ident = $op:literal, $rule:ident { $($option:ident $(: $fixed:tt)?),+ }, $defaults:expr
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            rule: $rule,
            parameters: ParameterSet,
        }

        impl $name {
            /// Creates the optimizer with learning rate `lr` and the usual defaults.
            ///
            /// # Errors
            /// [`Error::BadArgument`] without parameters, and unless `lr` is finite and not negative;
            /// [`Error::Allocation`] if there is no memory for the state of the parameters that are not frozen.
            pub fn new(parameters: impl Into<ParameterGroup>, lr: f64) -> Result<Self> {
                let rule = $rule { lr: not_negative($op, "lr", lr)?, ..$defaults };
                Ok(Self { rule, parameters: ParameterSet::new($op, parameters.into(), rule)? })
            }
        }

        impl Optimizer for $name {
            fn name(&self) -> &'static str {
                self.parameters.op
            }

            fn parameters(&self) -> Vec<(String, Parameter)> {
                self.parameters.parameters()
            }

            fn step(&mut self, gradients: Gradients) -> Result<()> {
                self.parameters.step(gradients, self.rule)
            }

            fn allocate_state(
                &mut self,
                gradients: &Gradients,
                then: &mut dyn FnMut() -> Result<()>,
            ) -> Result<()> {
                self.parameters.allocate(|slot| gradients.get(&slot.parameter.tensor()).is_some(), then)
            }

            fn learning_rate(&self) -> f64 {
                self.rule.lr
            }

            fn set_learning_rate(&mut self, learning_rate: f64) -> Result<()> {
                self.rule.lr = not_negative(self.parameters.op, "lr", learning_rate)?;
                Ok(())
            }

            fn settings(&self) -> Vec<(String, String)> {
                let $rule { $($option $(: $fixed)?),+ } = self.rule;
                [$(setting!($option $(: $fixed)?)),+].into_iter().flatten().collect()
            }

            fn state(&self) -> Result<Arrays> {
                self.parameters.state(self.rule.lr)
            }

            fn check_state(&self, state: &Arrays) -> Result<()> {
                self.parameters.check_state(state)
            }

            fn load_state(&mut self, state: &Arrays) -> Result<()> {
                self.rule.lr = self.parameters.load_state(state)?;
                Ok(())
            }
        }
    };
}

/// The values that a check accepts.
macro_rules! accepted {
    (not_negative) => {
        "finite and not negative"
    };
    (above_zero) => {
        "finite and above 0"
    };
    (share) => {
        "at least 0 and below 1"
    };
}

/// Defines methods that set options after a check, and allocate or free states as the options require.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($($option:ident: $check:ident),+);)+) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        $(#[doc = concat!("[`Error::BadArgument`] unless `", stringify!($option), "` is ", accepted!($check), ".")])+
        /// [`Error::Allocation`] if the options require further state and there is no memory.
        pub fn $name(mut self, $($option: f64),+) -> Result<Self> {
            $(self.rule.$option = $check(self.parameters.op, stringify!($option), $option)?;)+
            self.parameters.change_states(self.rule)?;
            Ok(self)
        }
    )+};
}

optimizer! {
    /// SGD optimizer: stochastic gradient descent with optional momentum (Polyak 1964; Nesterov 1983) and weight decay.
    ///
    /// With gradient g, parameter p and momentum buffer m (initially 0): g ← g + weight_decay·p; m ← momentum·m + g; p ← p
    /// - lr·m, or p - lr·(g + momentum·m) with Nesterov momentum. Without momentum the optimizer has no state.
    ///
    /// ```
    /// use highwater::{Device, Rng};
    /// use highwater::nn::{Linear, Module};
    /// use highwater::optim::Sgd;
    /// let layer = Linear::new(&Device::cpu()?, 8, 2, &Rng::new(0))?;
    /// let optimizer = Sgd::new(layer.parameters(), 0.1)?.with_momentum(0.9)?.with_weight_decay(1e-4)?.with_nesterov()?;
    /// # Ok::<(), highwater::Error>(())
    /// ```
    Sgd = "sgd", SgdRule { lr, momentum, weight_decay, nesterov }, SgdRule::DEFAULT
}

impl Sgd {
    setters! {
        /// Sets the weight decay, which pulls parameters towards zero. It is added to the gradients.
        with_weight_decay(weight_decay: not_negative);
    }

    /// Sets the momentum, which needs one state value per element of the parameters; 0 by default.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless 0 ≤ `momentum` < 1, and for 0 with [Nesterov momentum](Self::with_nesterov);
    /// [`Error::Allocation`] if there is no memory for the state.
    pub fn with_momentum(mut self, momentum: f64) -> Result<Self> {
        self.rule.momentum = share(self.name(), "momentum", momentum)?;
        if self.rule.nesterov {
            self.check_nesterov()?;
        }
        self.parameters.change_states(self.rule)?;
        Ok(self)
    }

    /// Enables Nesterov momentum.
    ///
    /// # Errors
    /// [`Error::BadArgument`] without momentum.
    pub fn with_nesterov(mut self) -> Result<Self> {
        self.check_nesterov()?;
        self.rule.nesterov = true;
        Ok(self)
    }

    fn check_nesterov(&self) -> Result<()> {
        if self.rule.momentum > 0.0 {
            return Ok(());
        }
        let (expected, got) = ("above 0 for Nesterov's variant", self.rule.momentum.to_string());
        Err(Error::BadArgument { op: self.name(), argument: "momentum", expected, got })
    }
}

/// Defines the methods that both variants of Adam have.
macro_rules! adam_options {
    ($name:ident) => {
        impl $name {
            setters! {
                /// Sets the decay rates of the two moving averages; 0.9 and 0.999 by default.
                with_betas(beta1: share, beta2: share);
                /// Sets ε, which keeps the denominator above zero; 1e-8 by default.
                with_epsilon(epsilon: above_zero);
                /// Sets the weight decay, which pulls parameters towards zero.
                with_weight_decay(weight_decay: not_negative);
            }

            /// Enables AMSGrad (Reddi et al. 2018): steps divide by the root of the largest variance so far, so that their
            /// size never grows again. It needs one more state value per element of the parameters.
            ///
            /// # Errors
            /// [`Error::Allocation`] if there is no memory for the state.
            pub fn with_amsgrad(mut self) -> Result<Self> {
                self.rule.amsgrad = true;
                self.parameters.change_states(self.rule)?;
                Ok(self)
            }
        }
    };
}

optimizer! {
    /// Adam optimizer (Kingma and Ba 2015): adapts the step size of each parameter to moving averages of the gradients
    /// and their squares: two state values per element of the parameters. Weight decay (0 by default) is added to the
    /// gradients.
    Adam = "adam", AdamRule { lr, beta1, beta2, epsilon, weight_decay, decoupled: _, amsgrad }, AdamRule::DEFAULT
}
adam_options!(Adam);

optimizer! {
    /// AdamW optimizer (Loshchilov and Hutter 2019): Adam with decoupled weight decay (0.01 by default), which acts on
    /// the parameters directly. Two state values per element of the parameters.
    AdamW = "adamw", AdamRule { lr, beta1, beta2, epsilon, weight_decay, decoupled: _, amsgrad },
    AdamRule { weight_decay: 0.01, decoupled: true, ..AdamRule::DEFAULT }
}
adam_options!(AdamW);

optimizer! {
    /// RMSprop optimizer (Tieleman and Hinton 2012), in PyTorch's variant: divides gradients by the root of the moving
    /// average of their squares, one state value per element of the parameters.
    ///
    /// With gradient g, parameter p and means v and m (0 at first): g ← g + weight_decay·p; v ← smoothing·v + (1 -
    /// smoothing)·g²; p ← p - lr·g / (√v + epsilon). With momentum, m ← momentum·m + g / (√v + epsilon) and p ← p - lr·m.
    ///
    /// ```
    /// use highwater::{Device, Rng};
    /// use highwater::nn::{Linear, Module};
    /// use highwater::optim::RmsProp;
    /// let layer = Linear::new(&Device::cpu()?, 8, 2, &Rng::new(0))?;
    /// let optimizer = RmsProp::new(layer.parameters(), 0.01)?.with_momentum(0.9)?.with_smoothing(0.95)?;
    /// # Ok::<(), highwater::Error>(())
    /// ```
    RmsProp = "rms_prop", RmsPropRule { lr, smoothing, epsilon, momentum, weight_decay }, RmsPropRule::DEFAULT
}

impl RmsProp {
    setters! {
        /// Sets the momentum, which needs one more state value per element; 0 by default.
        with_momentum(momentum: share);
        /// Sets the decay rate of the moving average of squares; 0.99 by default.
        with_smoothing(smoothing: share);
        /// Sets ε, which keeps the denominator above zero; 1e-8 by default.
        with_epsilon(epsilon: above_zero);
        /// Sets the weight decay, which pulls parameters towards zero. It is added to the gradients.
        with_weight_decay(weight_decay: not_negative);
    }
}

optimizer! {
    /// Lion optimizer (Chen et al. 2023): steps of one size for all parameters, in the direction of the sign of averaged
    /// gradients.
    ///
    /// With gradient g, parameter p and average m (initially 0): p ← p - lr·(sign(beta1·m + (1 - beta1)·g) +
    /// weight_decay·p); m ← beta2·m + (1 - beta2)·g. Learning rates are typically three to ten times smaller than AdamW's,
    /// and weight decays as much larger.
    ///
    /// ```
    /// use highwater::{Device, Rng};
    /// use highwater::nn::{Linear, Module};
    /// use highwater::optim::Lion;
    /// let layer = Linear::new(&Device::cpu()?, 8, 2, &Rng::new(0))?;
    /// let optimizer = Lion::new(layer.parameters(), 1e-4)?.with_betas(0.95, 0.98)?.with_weight_decay(0.1)?;
    /// # Ok::<(), highwater::Error>(())
    /// ```
    Lion = "lion", LionRule { lr, beta1, beta2, weight_decay }, LionRule::DEFAULT
}

impl Lion {
    setters! {
        /// Sets the decay rates of the moving average: for the direction of a step, and for the stored average; 0.9 and
        /// 0.99 by default.
        with_betas(beta1: share, beta2: share);
        /// Sets the decoupled weight decay, which pulls parameters towards zero; 0 by default.
        with_weight_decay(weight_decay: not_negative);
    }
}

optimizer! {
    /// Adagrad optimizer (Duchi, Hazan and Singer 2011): divides gradients by the root of the sum of all their squares.
    /// Steps of parameters with rare gradients, such as embeddings, stay large. PyTorch's learning rate is 0.01.
    ///
    /// With gradient g, parameter p and sum s (initially `initial_sum`): g ← g + weight_decay·p; s ← s + g²;
    /// p ← p - lr / (1 + (step - 1)·lr_decay)·g / (√s + epsilon).
    ///
    /// ```
    /// use highwater::{Device, Rng};
    /// use highwater::nn::{Linear, Module};
    /// use highwater::optim::Adagrad;
    /// let layer = Linear::new(&Device::cpu()?, 8, 2, &Rng::new(0))?;
    /// let optimizer = Adagrad::new(layer.parameters(), 0.01)?.with_lr_decay(1e-3)?.with_initial_sum(0.1)?;
    /// # Ok::<(), highwater::Error>(())
    /// ```
    Adagrad = "adagrad", AdagradRule { lr, lr_decay, weight_decay, initial_sum, epsilon }, AdagradRule::DEFAULT
}

impl Adagrad {
    setters! {
        /// Sets the decay of the learning rate: step n uses lr / (1 + (n - 1)·lr_decay); 0 by default.
        with_lr_decay(lr_decay: not_negative);
        /// Sets the weight decay, which pulls parameters towards zero. It is added to the gradients.
        with_weight_decay(weight_decay: not_negative);
        /// Sets the initial value of the sums of squares; 0 by default. Another value restarts all sums.
        with_initial_sum(initial_sum: not_negative);
        /// Sets ε, which keeps the denominator above zero; 1e-10 by default.
        with_epsilon(epsilon: above_zero);
    }
}

optimizer! {
    /// Adadelta optimizer (Zeiler 2012): scales steps by the ratio of the moving averages of squared steps and squared
    /// gradients. The learning rate is a factor of these steps, usually 1.
    ///
    /// With gradient g, parameter p and means v and u (initially 0): g ← g + weight_decay·p; v ← rho·v + (1 - rho)·g²;
    /// d ← √(u + epsilon) / √(v + epsilon)·g; u ← rho·u + (1 - rho)·d²; p ← p - lr·d.
    ///
    /// ```
    /// use highwater::{Device, Rng};
    /// use highwater::nn::{Linear, Module};
    /// use highwater::optim::Adadelta;
    /// let layer = Linear::new(&Device::cpu()?, 8, 2, &Rng::new(0))?;
    /// let optimizer = Adadelta::new(layer.parameters(), 1.0)?.with_rho(0.95)?;
    /// # Ok::<(), highwater::Error>(())
    /// ```
    Adadelta = "adadelta", AdadeltaRule { lr, rho, epsilon, weight_decay }, AdadeltaRule::DEFAULT
}

impl Adadelta {
    setters! {
        /// Sets the decay rate of the moving averages; 0.9 by default.
        with_rho(rho: share);
        /// Sets ε, which is added to both averages; 1e-6 by default.
        with_epsilon(epsilon: above_zero);
        /// Sets the weight decay, which pulls parameters towards zero. It is added to the gradients.
        with_weight_decay(weight_decay: not_negative);
    }
}

optimizer! {
    /// NAdam optimizer (Dozat 2016): Adam with Nesterov momentum, which warms up over the first steps. PyTorch's learning
    /// rate is 0.002.
    ///
    /// With the means m and v of [`Adam`], μₜ = beta1·(1 - ½·0.96^(t·momentum_decay)) and the product M of μ₁ to μₜ:
    /// p ← p - lr·((1 - μₜ) / (1 - M)·g + μₜ₊₁ / (1 - M·μₜ₊₁)·m) / (√(v / (1 - beta2ᵗ)) + epsilon).
    ///
    /// ```
    /// use highwater::{Device, Rng};
    /// use highwater::nn::{Linear, Module};
    /// use highwater::optim::NAdam;
    /// let layer = Linear::new(&Device::cpu()?, 8, 2, &Rng::new(0))?;
    /// let optimizer = NAdam::new(layer.parameters(), 0.002)?.with_weight_decay(0.01)?.with_decoupled_weight_decay();
    /// # Ok::<(), highwater::Error>(())
    /// ```
    NAdam = "nadam",
    NAdamRule { lr, beta1, beta2, epsilon, weight_decay, momentum_decay, decoupled },
    NAdamRule::DEFAULT
}

impl NAdam {
    setters! {
        /// Sets the decay rates of the two moving averages; 0.9 and 0.999 by default.
        with_betas(beta1: share, beta2: share);
        /// Sets ε, which keeps the denominator above zero; 1e-8 by default.
        with_epsilon(epsilon: above_zero);
        /// Sets the weight decay, which pulls parameters towards zero; 0 by default.
        with_weight_decay(weight_decay: not_negative);
        /// Sets how fast the momentum warms up; 0.004 by default.
        with_momentum_decay(momentum_decay: not_negative);
    }

    /// Applies the weight decay to the parameters directly, as [`AdamW`] does, instead of adding it to the gradients.
    #[must_use]
    pub const fn with_decoupled_weight_decay(mut self) -> Self {
        self.rule.decoupled = true;
        self
    }
}
