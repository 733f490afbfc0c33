//! The RMSprop optimizer.

use highwater_tensor::{
    OpContext, Parameter, Result, View, ViewMut,
    backend::{RmsPropStep, kernels},
};

use super::parameter_set::{ParameterSet, ParameterState, impl_optimizer};
use super::{above_zero, not_negative, share};

/// RMSprop optimizer (Tieleman and Hinton 2012), in PyTorch's variant: divides gradients by the root of the moving
/// average of their squares.
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
#[derive(Debug)]
pub struct RmsProp {
    options: RmsPropStep,
    parameters: ParameterSet<2>,
}

const OP: &str = "rms_prop";

impl RmsProp {
    /// Creates the optimizer with learning rate `lr` and the usual defaults.
    ///
    /// # Errors
    /// [`Error::BadArgument`](highwater_tensor::Error::BadArgument) without parameters, and unless `lr` is finite and
    /// not negative; [`Error::Allocation`](highwater_tensor::Error::Allocation) if there is no memory for the state:
    /// one value per element of the parameters that are not frozen.
    pub fn new(parameters: Vec<(String, Parameter)>, lr: f64) -> Result<Self> {
        let lr = not_negative(OP, "lr", lr)?;
        let parameters = ParameterSet::new(OP, parameters, [("variance", true), ("momentum", false)])?;
        let options = RmsPropStep { lr, smoothing: 0.99, epsilon: 1e-8, momentum: 0.0, weight_decay: 0.0 };
        Ok(Self { options, parameters })
    }

    /// Sets the momentum, which needs one more state value per element; 0 by default.
    ///
    /// # Errors
    /// [`Error::BadArgument`](highwater_tensor::Error::BadArgument) unless 0 ≤ `momentum` < 1; [`Error::Allocation`](highwater_tensor::Error::Allocation) if there is no memory for the state.
    pub fn with_momentum(mut self, momentum: f64) -> Result<Self> {
        self.options.momentum = share(OP, "momentum", momentum)?;
        self.parameters.keep(1, momentum > 0.0)?;
        Ok(self)
    }

    /// Sets the decay rate of the moving average of squares; 0.99 by default.
    ///
    /// # Errors
    /// [`Error::BadArgument`](highwater_tensor::Error::BadArgument) unless it is at least 0 and below 1.
    pub fn with_smoothing(mut self, smoothing: f64) -> Result<Self> {
        self.options.smoothing = share(OP, "smoothing", smoothing)?;
        Ok(self)
    }

    /// Sets ε, which keeps the denominator above zero; 1e-8 by default.
    ///
    /// # Errors
    /// [`Error::BadArgument`](highwater_tensor::Error::BadArgument) unless it is finite and above 0.
    pub fn with_epsilon(mut self, epsilon: f64) -> Result<Self> {
        self.options.epsilon = above_zero(OP, "epsilon", epsilon)?;
        Ok(self)
    }

    /// Sets the weight decay, which pulls parameters towards zero. It is added to the gradients.
    ///
    /// # Errors
    /// [`Error::BadArgument`](highwater_tensor::Error::BadArgument) unless it is finite and not negative.
    pub fn with_weight_decay(mut self, weight_decay: f64) -> Result<Self> {
        self.options.weight_decay = not_negative(OP, "weight_decay", weight_decay)?;
        Ok(self)
    }

    fn update(
        step: RmsPropStep,
        ctx: &OpContext<'_>,
        grad: View<'_>,
        state: &mut ParameterState<2>,
        param: ViewMut<'_>,
    ) -> Result<()> {
        let [variance, momentum] = state.views_mut();
        let variance = variance.expect("`ParameterSet::step` allocated it");
        ctx.compute(kernels::RmsProp { step, grad, variance, momentum, param })
    }
}

impl_optimizer!(RmsProp, lr, smoothing, epsilon, momentum, weight_decay);
