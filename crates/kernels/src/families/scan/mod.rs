//! Running sums and products.

pub(super) mod cpu;
#[cfg(feature = "cuda")]
pub(super) mod cuda;

use super::Computation;
use crate::cost::{Class, Work};
use crate::error::Result;
use crate::operands::{Rules, checked, operands};
use crate::storage::ViewMut;

/// The function of a [`Scan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanFunction {
    /// PyTorch's `cumsum_`.
    Sum,
    /// PyTorch's `cumprod_`.
    Product,
}

/// `out[.., i, ..] = Σ out[.., j, ..]` or `Π out[.., j, ..]` over j ≤ i along `axis`, in place and in order. Floats are
/// computed in f64.
#[derive(Debug)]
pub struct Scan<'a> {
    /// The function.
    pub f: ScanFunction,
    /// The axis.
    pub axis: usize,
    /// Whether the results run from the last element to the first.
    pub reverse: bool,
    /// The elements, which the results replace.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for Scan<'a> {
    operands!(Update out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        rules.axis(self.axis, checked!(self: out))
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        Work::over(Class::Scan, self.out.layout())
    }
}
