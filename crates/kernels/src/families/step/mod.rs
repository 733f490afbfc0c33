//! A step of an optimizer, in place: one kernel for all [rules](OptimizerRule).

mod cpu;
#[cfg(feature = "cuda")]
pub(super) mod cuda;
mod rules;

pub use self::rules::*;

use self::cpu::StepOnCpu;
use super::{Computation, RunCpu};
use crate::cost::{Class, Work};
use crate::cpu::parallel::Workers;
use crate::error::Result;
use crate::families::fast;
use crate::operands::{Field, Operand, Rules, Visit, checked};
use crate::shape::DType;
use crate::storage::{View, ViewMut};

/// One step of an optimizer, in place.
#[derive(Debug)]
pub struct OptimizerStep<'a> {
    /// The formula with its options.
    pub rule: OptimizerRule,
    /// The number of the step, starting at 1.
    pub number: u64,
    /// The gradient.
    pub grad: View<'a>,
    /// The [states](OptimizerRule::states) of the parameter: `None` if and only if the options do not require them.
    pub states: [Option<ViewMut<'a>>; MAX_STATES],
    /// The parameter.
    pub param: ViewMut<'a>,
}

impl<'a> OptimizerStep<'a> {
    /// Creates a step of a parameter without states.
    #[must_use]
    pub fn stateless(rule: impl Into<OptimizerRule>, grad: View<'a>, param: ViewMut<'a>) -> Self {
        Self { rule: rule.into(), number: 1, grad, states: [const { None }; MAX_STATES], param }
    }

    /// Whether a GPU computes both steps in one launch: they have the same formula and types, and contiguous gradients.
    pub(super) fn shares_launch(&self, other: &Self) -> bool {
        let types = |step: &Self| {
            let states = step.states.each_ref().map(|state| state.as_ref().map(ViewMut::dtype));
            (step.grad.dtype(), step.param.dtype(), states)
        };
        let is_contiguous = |step: &Self| step.grad.layout().is_contiguous();
        (self.rule, self.number) == (other.rule, other.number)
            && types(self) == types(other)
            && is_contiguous(self)
            && is_contiguous(other)
    }
}

impl<'a> Computation<'a> for OptimizerStep<'a> {
    const SUPPORTS_HALF: bool = true;

    #[inline(always)]
    fn operands<'k>(&'k mut self, visit: &mut impl Visit<'k, 'a>) -> Result<()> {
        visit("grad", Operand::Read(&mut self.grad))?;
        for (state, tensor) in self.rule.states().iter().zip(&mut self.states) {
            if let Some(tensor) = tensor {
                visit(state.name, Operand::Update(tensor))?;
            }
        }
        visit("param", Operand::Update(&mut self.param))
    }

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (grad, param) = checked!(self: grad, param);
        rules.same_shapes(rules.operands)?;
        rules.same_computed(&[param, grad])?;
        for (state, tensor) in self.rule.states().iter().zip(&self.states) {
            let tensor = Field::checked(tensor, state.name);
            tensor.map_or(Ok(()), |tensor| rules.computed_like(tensor, param))?;
            rules.present(state.name, tensor, state.initial.is_some(), param)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn fast_check(&mut self, device: u32) -> Option<DType> {
        let mut states = self.rule.states().into_iter().zip(&self.states);
        let fits = states.all(|(state, tensor)| state.initial.is_some() == tensor.is_some());
        if fits { fast::equal_operands(self, device) } else { None }
    }

    fn work(&self) -> Work {
        let class = if self.rule.has_root() { Class::Adam } else { Class::Sgd };
        Work::over(class, self.param.layout())
    }
}

impl RunCpu for OptimizerStep<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { rule, number, grad, states, param } = self;
        let (number, grad) = (*number, *grad);
        rule.run_on_cpu(StepOnCpu { workers, op, number, grad, states, param })
    }
}

#[cfg(test)]
mod tests;
