//! Steps of optimizers, in place.

use super::Computation;
use crate::backend::check::{CheckedOperand, Rules, fast};
use crate::backend::cost::{Class, Work};
use crate::backend::cpu::{self, Workers};
#[cfg(feature = "cuda")]
use crate::backend::cuda::{self, Launcher};
use crate::backend::operands::{checked, field, operands};
use crate::backend::{AdamStep, LionStep, RmsPropStep, SgdStep};
use crate::error::Result;
use crate::shape::DType;
use crate::storage::{View, ViewMut};

/// Checks that the gradient and the states fit the parameter.
fn fits(
    rules: &Rules<'_>,
    [grad, param]: [CheckedOperand<'_>; 2],
    states: &[Option<CheckedOperand<'_>>],
) -> Result<()> {
    rules.same_shapes(rules.operands)?;
    rules.same_computed(&[param, grad])?;
    states.iter().flatten().try_for_each(|state| rules.computed_like(*state, param))
}

/// PyTorch's `optim.SGD`: one step in place. [`SgdStep`] states the formula.
#[derive(Debug)]
pub struct Sgd<'a> {
    /// The options of the step.
    pub step: SgdStep,
    /// The gradient.
    pub grad: View<'a>,
    /// Required if and only if the step's momentum is not 0.
    pub momentum: Option<ViewMut<'a>>,
    /// The parameter.
    pub param: ViewMut<'a>,
}

impl<'a> Computation<'a> for Sgd<'a> {
    const SUPPORTS_HALF: bool = true;

    operands!(Read grad, Update momentum, Update param);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (grad, momentum, param) = checked!(self: grad, momentum, param);
        fits(rules, [grad, param], &[momentum])?;
        rules.present(field!(self.momentum), momentum, self.step.momentum != 0.0, param)
    }

    #[inline(always)]
    fn fast_check(&mut self, device: u32) -> Option<DType> {
        let is_plain = self.momentum.is_none() && self.step.momentum == 0.0;
        if is_plain { fast::equal_operands(self, device) } else { None }
    }

    fn work(&self) -> Work {
        Work::over(Class::Sgd, self.param.layout())
    }

    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        cpu::optim::sgd(workers, op, self.step, self.grad, &mut self.momentum, &mut self.param)
    }

    #[cfg(feature = "cuda")]
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        cuda::optim::sgd(device, op, self.step, self.grad, self.momentum.as_ref(), &self.param)
    }
}

/// PyTorch's `optim.Adam` or `optim.AdamW`: one step in place.
#[derive(Debug)]
pub struct Adam<'a> {
    /// The options of the step.
    pub step: AdamStep,
    /// The gradient.
    pub grad: View<'a>,
    /// The running mean of gradients.
    pub mean: ViewMut<'a>,
    /// The running mean of squared gradients.
    pub variance: ViewMut<'a>,
    /// The largest elements of `variance` so far. Required if and only if the step has `amsgrad`.
    pub max_variance: Option<ViewMut<'a>>,
    /// The parameter.
    pub param: ViewMut<'a>,
}

impl<'a> Computation<'a> for Adam<'a> {
    const SUPPORTS_HALF: bool = true;

    operands!(Read grad, Update mean, Update variance, Update max_variance, Update param);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (grad, mean, variance, max_variance, param) =
            checked!(self: grad, mean, variance, max_variance, param);
        fits(rules, [grad, param], &[Some(mean), Some(variance), max_variance])?;
        rules.present(field!(self.max_variance), max_variance, self.step.amsgrad, param)
    }

    fn work(&self) -> Work {
        Work::over(Class::Adam, self.param.layout())
    }

    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let states = [&mut self.mean, &mut self.variance, &mut self.param];
        cpu::optim::adam(workers, op, self.step, self.grad, states, &mut self.max_variance)
    }

    #[cfg(feature = "cuda")]
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let states = ([&self.param, &self.mean, &self.variance], self.max_variance.as_ref());
        cuda::optim::adam(device, op, self.step, self.grad, states)
    }
}

/// PyTorch's `optim.RMSprop`: one step in place. [`RmsPropStep`] states the formula.
#[derive(Debug)]
pub struct RmsProp<'a> {
    /// The options of the step.
    pub step: RmsPropStep,
    /// The gradient.
    pub grad: View<'a>,
    /// The running mean of squared gradients.
    pub variance: ViewMut<'a>,
    /// Required if and only if the step's momentum is not 0.
    pub momentum: Option<ViewMut<'a>>,
    /// The parameter.
    pub param: ViewMut<'a>,
}

impl<'a> Computation<'a> for RmsProp<'a> {
    const SUPPORTS_HALF: bool = true;

    operands!(Read grad, Update variance, Update momentum, Update param);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (grad, variance, momentum, param) = checked!(self: grad, variance, momentum, param);
        fits(rules, [grad, param], &[Some(variance), momentum])?;
        rules.present(field!(self.momentum), momentum, self.step.momentum != 0.0, param)
    }

    fn work(&self) -> Work {
        Work::over(Class::Adam, self.param.layout())
    }

    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let states = [&mut self.variance, &mut self.param];
        cpu::optim::rms_prop(workers, op, self.step, self.grad, states, &mut self.momentum)
    }

    #[cfg(feature = "cuda")]
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let states = (&self.param, &self.variance, self.momentum.as_ref());
        cuda::optim::rms_prop(device, op, self.step, self.grad, states)
    }
}

/// The Lion optimizer: one step in place. [`LionStep`] states the formula.
#[derive(Debug)]
pub struct Lion<'a> {
    /// The options of the step.
    pub step: LionStep,
    /// The gradient.
    pub grad: View<'a>,
    /// The running mean of gradients.
    pub mean: ViewMut<'a>,
    /// The parameter.
    pub param: ViewMut<'a>,
}

impl<'a> Computation<'a> for Lion<'a> {
    const SUPPORTS_HALF: bool = true;

    operands!(Read grad, Update mean, Update param);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (grad, mean, param) = checked!(self: grad, mean, param);
        fits(rules, [grad, param], &[Some(mean)])
    }

    fn work(&self) -> Work {
        Work::over(Class::Sgd, self.param.layout())
    }

    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        cpu::optim::lion(workers, op, self.step, self.grad, [&mut self.mean, &mut self.param])
    }

    #[cfg(feature = "cuda")]
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        cuda::optim::lion(device, op, self.step, self.grad, [&self.param, &self.mean])
    }
}
