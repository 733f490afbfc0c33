//! The SGD optimizer.

use highwater_tensor::{
    Error, OpContext, Parameter, Result, View, ViewMut,
    backend::{SgdStep, kernels},
};

use super::parameter_set::{ParameterSet, ParameterState, impl_optimizer};
use super::{not_negative, share};

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
#[derive(Debug)]
pub struct Sgd {
    options: SgdStep,
    parameters: ParameterSet<1>,
}

const OP: &str = "sgd";

impl Sgd {
    /// Creates plain SGD with learning rate `lr`.
    ///
    /// # Errors
    /// [`Error::BadArgument`] without parameters, and unless `lr` is finite and not negative.
    pub fn new(parameters: Vec<(String, Parameter)>, lr: f64) -> Result<Self> {
        let lr = not_negative(OP, "lr", lr)?;
        let parameters = ParameterSet::new(OP, parameters, [("momentum", false)])?;
        Ok(Self { options: SgdStep { lr, momentum: 0.0, weight_decay: 0.0, nesterov: false }, parameters })
    }

    /// Sets the momentum, which needs one state value per element of the parameters; 0 by default.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless 0 ≤ `momentum` < 1, and for 0 with [Nesterov momentum](Self::with_nesterov);
    /// [`Error::Allocation`] if there is no memory for the state.
    pub fn with_momentum(mut self, momentum: f64) -> Result<Self> {
        self.options.momentum = share(OP, "momentum", momentum)?;
        if self.options.nesterov {
            self.check_nesterov()?;
        }
        self.parameters.keep(0, momentum > 0.0)?;
        Ok(self)
    }

    /// Sets the weight decay, which pulls parameters towards zero. It is added to the gradients.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless it is finite and not negative.
    pub fn with_weight_decay(mut self, weight_decay: f64) -> Result<Self> {
        self.options.weight_decay = not_negative(OP, "weight_decay", weight_decay)?;
        Ok(self)
    }

    /// Enables Nesterov momentum.
    ///
    /// # Errors
    /// [`Error::BadArgument`] without momentum.
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

    fn update(
        step: SgdStep,
        ctx: &OpContext<'_>,
        grad: View<'_>,
        state: &mut ParameterState<1>,
        param: ViewMut<'_>,
    ) -> Result<()> {
        let [momentum] = state.views_mut();
        ctx.compute(kernels::Sgd { step, grad, momentum, param })
    }
}

impl_optimizer!(Sgd, lr, momentum, weight_decay, nesterov);
