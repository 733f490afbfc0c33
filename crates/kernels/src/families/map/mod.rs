//! Elementwise functions of one argument, and their gradients.

pub(super) mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
pub(super) mod functions;

use super::Computation;
use crate::cost::{Class, Work};
use crate::error::Result;
use crate::families::{Unary, fast};
use crate::operands::{Operand, Rules, Visit, field, operands};
use crate::shape::DType;
use crate::storage::{View, ViewMut};

/// `out[i] = f(input[i])`.
#[derive(Debug)]
pub struct Map<'a> {
    /// The function.
    pub f: Unary,
    /// The argument.
    pub input: View<'a>,
    /// The result.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for Map<'a> {
    const SUPPORTS_HALF: bool = true;

    operands!(Read input, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        rules.elementwise()
    }

    #[inline(always)]
    fn fast_check(&mut self, device: u32) -> Option<DType> {
        fast::equal_operands(self, device)
    }

    fn work(&self) -> Work {
        let class = if self.f.is_light() { Class::Arithmetic } else { Class::Function };
        Work::over(class, self.out.layout())
    }
}

/// `out[i] = grad[i] · f'(x[i])`, the backward pass of [`Map`].
#[derive(Debug)]
pub struct MapGrad<'a> {
    /// The function.
    pub f: Unary,
    /// The function's value f(x) if [`Unary::grad_reads_output`] is true, otherwise its argument x.
    pub saved: View<'a>,
    /// The gradient of the function's value; `None` if `out` contains it.
    pub grad: Option<View<'a>>,
    /// The gradient of the function's argument.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for MapGrad<'a> {
    const SUPPORTS_HALF: bool = true;

    #[inline(always)]
    fn operands<'k>(&'k mut self, visit: &mut impl Visit<'k, 'a>) -> Result<()> {
        visit(field!(self.saved), Operand::Read(&mut self.saved))?;
        let (grad, out) = (field!(self.grad), field!(self.out));
        match &mut self.grad {
            Some(view) => {
                visit(grad, Operand::Read(view))?;
                visit(out, Operand::Write(&mut self.out))
            }
            None => visit(out, Operand::Update(&mut self.out)),
        }
    }

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        rules.elementwise()
    }

    #[inline(always)]
    fn fast_check(&mut self, device: u32) -> Option<DType> {
        fast::equal_operands(self, device)
    }

    fn work(&self) -> Work {
        let class = if self.f.is_grad_light() { Class::Arithmetic } else { Class::FunctionGrad };
        Work::over(class, self.out.layout())
    }
}
