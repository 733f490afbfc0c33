//! Running sums.

pub(super) mod cpu;
#[cfg(feature = "cuda")]
pub(super) mod cuda;

use super::Computation;
use crate::backend::check::Rules;
use crate::backend::cost::{Class, Work};
use crate::backend::operands::{checked, operands};
use crate::error::Result;
use crate::storage::ViewMut;

/// `out[.., i, ..] = Σ out[.., j, ..]` over j ≤ i along `axis`, in place and in order (PyTorch's `cumsum_`). Floats are
/// summed in f64.
#[derive(Debug)]
pub struct RunningSum<'a> {
    /// The axis.
    pub axis: usize,
    /// Whether the sums run from the last element to the first.
    pub reverse: bool,
    /// The elements, which their sums replace.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for RunningSum<'a> {
    operands!(Update out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        rules.axis(self.axis, checked!(self: out))
    }

    fn work(&self) -> Work {
        Work::over(Class::Scan, self.out.layout())
    }
}
