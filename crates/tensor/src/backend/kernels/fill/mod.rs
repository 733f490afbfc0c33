//! Kernels that fill an output from numbers.

use super::Computation;
use crate::backend::check::{Rules, fast};
use crate::backend::cost::{Class, Work};
use crate::backend::cpu::{self, Workers};
#[cfg(feature = "cuda")]
use crate::backend::cuda::{self, Launcher};
use crate::backend::operands::operands;
use crate::error::Result;
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

    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        cpu::copy::fill(workers, op, self.value, &mut self.out)
    }

    #[cfg(feature = "cuda")]
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        cuda::elementwise::fill(device, op, self.value, &self.out)
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

    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        cpu::copy::arange(workers, op, self.start, self.step, &mut self.out)
    }

    #[cfg(feature = "cuda")]
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        cuda::elementwise::arange(device, op, self.start, self.step, &self.out)
    }
}
