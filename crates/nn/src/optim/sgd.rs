//! Stochastic gradient descent.

use highwater_tensor::{
    Error, OpContext, Parameter, Result, View, ViewMut,
    backend::{Kernel, SgdStep},
};

use super::parameter_set::{ParameterSet, ParameterState, impl_optimizer};
use super::{not_negative, share};

/// Stochastic gradient descent, with momentum (Polyak 1964; Nesterov 1983) and weight decay if wished for.
///
/// With gradient g, parameter p and mean m (0 at first): g ← g + weight_decay·p; m ← momentum·m + g; p ← p - lr·m, or
/// p - lr·(g + momentum·m) in Nesterov's variant. Without momentum no state is kept.
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
    /// Plain descent with learning rate `lr`.
    ///
    /// # Errors
    /// [`Error::BadArgument`] without parameters, and unless `lr` is finite and not negative.
    pub fn new(parameters: Vec<(String, Parameter)>, lr: f64) -> Result<Self> {
        let lr = not_negative(OP, "lr", lr)?;
        let parameters = ParameterSet::new(OP, parameters, [("momentum", false)])?;
        Ok(Self { options: SgdStep { lr, momentum: 0.0, weight_decay: 0.0, nesterov: false }, parameters })
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
        self.parameters.keep(0, momentum > 0.0)?;
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

    fn update(
        step: SgdStep,
        ctx: &OpContext<'_>,
        grad: View<'_>,
        state: &mut ParameterState<1>,
        param: ViewMut<'_>,
    ) -> Result<()> {
        let [momentum] = state.views_mut();
        ctx.compute(Kernel::Sgd { step, grad, momentum, param })
    }
}

impl_optimizer!(Sgd);
