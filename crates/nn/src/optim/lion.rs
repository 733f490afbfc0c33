//! The Lion optimizer.

use highwater_tensor::{
    OpContext, Parameter, Result, View, ViewMut,
    backend::{LionStep, kernels},
};

use super::parameter_set::{ParameterSet, ParameterState, impl_optimizer};
use super::{not_negative, share};

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
#[derive(Debug)]
pub struct Lion {
    options: LionStep,
    parameters: ParameterSet<1>,
}

const OP: &str = "lion";

impl Lion {
    /// Creates the optimizer with learning rate `lr` and the usual defaults.
    ///
    /// # Errors
    /// [`Error::BadArgument`](highwater_tensor::Error::BadArgument) without parameters, and unless `lr` is finite and
    /// not negative; [`Error::Allocation`](highwater_tensor::Error::Allocation) if there is no memory for the state:
    /// one value per element of the parameters that are not frozen.
    pub fn new(parameters: Vec<(String, Parameter)>, lr: f64) -> Result<Self> {
        let lr = not_negative(OP, "lr", lr)?;
        let parameters = ParameterSet::new(OP, parameters, [("mean", true)])?;
        let options = LionStep { lr, beta1: 0.9, beta2: 0.99, weight_decay: 0.0 };
        Ok(Self { options, parameters })
    }

    /// Sets the decay rates of the moving average: for the direction of a step, and for the stored average; 0.9 and
    /// 0.99 by default.
    ///
    /// # Errors
    /// [`Error::BadArgument`](highwater_tensor::Error::BadArgument) unless both are at least 0 and below 1.
    pub fn with_betas(mut self, beta1: f64, beta2: f64) -> Result<Self> {
        self.options.beta1 = share(OP, "beta1", beta1)?;
        self.options.beta2 = share(OP, "beta2", beta2)?;
        Ok(self)
    }

    /// Sets the decoupled weight decay, which pulls parameters towards zero; 0 by default.
    ///
    /// # Errors
    /// [`Error::BadArgument`](highwater_tensor::Error::BadArgument) unless it is finite and not negative.
    pub fn with_weight_decay(mut self, weight_decay: f64) -> Result<Self> {
        self.options.weight_decay = not_negative(OP, "weight_decay", weight_decay)?;
        Ok(self)
    }

    fn update(
        step: LionStep,
        ctx: &OpContext<'_>,
        grad: View<'_>,
        state: &mut ParameterState<1>,
        param: ViewMut<'_>,
    ) -> Result<()> {
        let [mean] = state.all_mut();
        ctx.compute(kernels::Lion { step, grad, mean, param })
    }
}

impl_optimizer!(Lion, lr, beta1, beta2, weight_decay);
