//! Scaling and clipping, in place.

pub(super) mod cpu;
#[cfg(feature = "cuda")]
pub(super) mod cuda;

use super::Computation;
use crate::cost::{Class, Work};
use crate::error::Result;
use crate::families::fast;
use crate::operands::{Rules, operands};
use crate::shape::DType;
use crate::storage::ViewMut;

/// `values[i] = values[i] · factor`, in place, for floats (PyTorch's `mul_`).
#[derive(Debug)]
pub struct Scale<'a> {
    /// The factor.
    pub factor: f64,
    /// The values.
    pub values: ViewMut<'a>,
}

impl Scale<'_> {
    /// Whether a GPU computes both kernels in one launch.
    pub(super) fn shares_launch(&self, other: &Self) -> bool {
        self.factor == other.factor && self.values.dtype() == other.values.dtype()
    }
}

impl<'a> Computation<'a> for Scale<'a> {
    const SUPPORTS_HALF: bool = true;

    operands!(Update values);

    fn check(&self, _: &Rules<'_>) -> Result<()> {
        Ok(())
    }

    #[inline(always)]
    fn fast_check(&mut self, device: u32) -> Option<DType> {
        fast::equal_operands(self, device)
    }

    fn work(&self) -> Work {
        Work::over(Class::Arithmetic, self.values.layout())
    }
}

/// `values[i] = min(max(values[i], low), high)`, in place, for floats (PyTorch's `clamp_`). NaN stays NaN.
#[derive(Debug)]
pub struct Clip<'a> {
    /// The lower bound.
    pub low: f64,
    /// The upper bound.
    pub high: f64,
    /// The values.
    pub values: ViewMut<'a>,
}

impl Clip<'_> {
    /// Whether a GPU computes both kernels in one launch.
    pub(super) fn shares_launch(&self, other: &Self) -> bool {
        (self.low, self.high) == (other.low, other.high) && self.values.dtype() == other.values.dtype()
    }
}

impl<'a> Computation<'a> for Clip<'a> {
    const SUPPORTS_HALF: bool = true;

    operands!(Update values);

    fn check(&self, _: &Rules<'_>) -> Result<()> {
        Ok(())
    }

    fn work(&self) -> Work {
        Work::over(Class::Arithmetic, self.values.layout())
    }
}
