//! Elementwise functions of several arguments.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
pub(super) mod functions;

use super::Computation;
use crate::cost::{Class, Work};
use crate::error::Result;
use crate::families::{Binary, Compare, fast};
use crate::layout::Layout;
use crate::operands::{Rules, checked, operands};
use crate::shape::DType;
use crate::storage::{View, ViewMut};

/// `out[i] = f(lhs[i], rhs[i])`.
#[derive(Debug)]
pub struct Zip<'a> {
    /// The function.
    pub f: Binary,
    /// The first argument.
    pub lhs: View<'a>,
    /// The second argument.
    pub rhs: View<'a>,
    /// The result.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for Zip<'a> {
    const SUPPORTS_HALF: bool = true;

    operands!(Read lhs, Read rhs, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        rules.elementwise()
    }

    #[inline(always)]
    fn fast_check(&mut self, device: u32) -> Option<DType> {
        fast::equal_operands(self, device)
    }

    fn work(&self) -> Work {
        work_of(self.f, self.out.layout())
    }
}

/// The work of a binary function.
fn work_of(f: Binary, out: &Layout) -> Work {
    Work::over(if f.is_light() { Class::Arithmetic } else { Class::Function }, out)
}

/// `acc[i] = f(acc[i], input[i])`, in place.
#[derive(Debug)]
pub struct Accumulate<'a> {
    /// The function.
    pub f: Binary,
    /// The second argument.
    pub input: View<'a>,
    /// The first argument, which the result replaces.
    pub acc: ViewMut<'a>,
}

impl<'a> Computation<'a> for Accumulate<'a> {
    const SUPPORTS_HALF: bool = true;

    operands!(Read input, Update acc);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        rules.elementwise()
    }

    #[inline(always)]
    fn fast_check(&mut self, device: u32) -> Option<DType> {
        fast::equal_operands(self, device)
    }

    fn work(&self) -> Work {
        work_of(self.f, self.acc.layout())
    }
}

/// `out[i] = f(lhs[i], rhs[i])`, as booleans (PyTorch's `eq`, `lt` and so on).
#[derive(Debug)]
pub struct Comparison<'a> {
    /// The comparison.
    pub f: Compare,
    /// The first operand.
    pub lhs: View<'a>,
    /// The second operand.
    pub rhs: View<'a>,
    /// Booleans.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for Comparison<'a> {
    operands!(Read lhs, Read rhs, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (lhs, rhs, out) = checked!(self: lhs, rhs, out);
        rules.same_shapes(&[out, lhs, rhs])?;
        rules.same_computed(&[lhs, rhs])?;
        rules.typed(out, DType::Bool)
    }

    fn work(&self) -> Work {
        Work::over(Class::Arithmetic, self.out.layout())
    }
}

/// `out[i] = condition[i] ? lhs[i] : rhs[i]` (PyTorch's `where`).
#[derive(Debug)]
pub struct Select<'a> {
    /// Booleans.
    pub condition: View<'a>,
    /// The value where the condition is true.
    pub lhs: View<'a>,
    /// The value where the condition is false.
    pub rhs: View<'a>,
    /// The output.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for Select<'a> {
    const SUPPORTS_HALF: bool = true;

    operands!(Read condition, Read lhs, Read rhs, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (condition, lhs, rhs, out) = checked!(self: condition, lhs, rhs, out);
        rules.same_shapes(&[out, condition, lhs, rhs])?;
        rules.typed(condition, DType::Bool)?;
        rules.same_type(lhs, out)?;
        rules.same_type(rhs, out)
    }

    fn work(&self) -> Work {
        Work::over(Class::Arithmetic, self.out.layout())
    }
}
