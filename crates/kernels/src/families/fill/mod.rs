//! Kernels that fill an output from numbers.

pub(super) mod cpu;
#[cfg(feature = "cuda")]
pub(super) mod cuda;

use super::Computation;
use crate::cost::{Class, Work};
use crate::error::Result;
use crate::families::fast;
use crate::operands::{Rules, operands};
use crate::shape::{DType, Scalar};
use crate::storage::ViewMut;

/// `out[i] = value` (PyTorch's `fill_`).
#[derive(Debug)]
pub struct Fill<'a> {
    /// The value, of `out`'s type.
    pub value: Scalar,
    /// The output.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for Fill<'a> {
    const SUPPORTS_HALF: bool = true;

    operands!(Write out);

    fn check(&self, _: &Rules<'_>) -> Result<()> {
        Ok(())
    }

    #[inline(always)]
    fn fast_check(&mut self, device: u32) -> Option<DType> {
        fast::equal_operands(self, device)
    }

    fn work(&self) -> Work {
        Work::over(Class::Arithmetic, self.out.layout())
    }
}

/// `out[i] = start + i·step` (PyTorch's `arange`), for any number type.
#[derive(Debug)]
pub struct Arange<'a> {
    /// The first element.
    pub start: Scalar,
    /// The difference between neighbors.
    pub step: Scalar,
    /// The output.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for Arange<'a> {
    const SUPPORTS_HALF: bool = true;

    operands!(Write out);

    fn check(&self, _: &Rules<'_>) -> Result<()> {
        Ok(())
    }

    fn work(&self) -> Work {
        Work::over(Class::Arithmetic, self.out.layout())
    }
}
