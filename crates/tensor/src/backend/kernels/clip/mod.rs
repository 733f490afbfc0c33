//! Scaling and clipping, in place.

use super::Computation;
use crate::backend::check::{Rules, fast};
use crate::backend::cost::{Class, Work};
use crate::backend::cpu::{self, Workers};
#[cfg(feature = "cuda")]
use crate::backend::cuda::{self, Launcher};
use crate::backend::operands::operands;
use crate::error::Result;
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

    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        cpu::clip::scale(workers, op, self.factor, &mut self.values)
    }

    #[cfg(feature = "cuda")]
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        cuda::optim::clip(device, op, [self.factor, f64::NEG_INFINITY, f64::INFINITY], &self.values)
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

impl<'a> Computation<'a> for Clip<'a> {
    const SUPPORTS_HALF: bool = true;

    operands!(Update values);

    fn check(&self, _: &Rules<'_>) -> Result<()> {
        Ok(())
    }

    fn work(&self) -> Work {
        Work::over(Class::Arithmetic, self.values.layout())
    }

    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        cpu::clip::clip(workers, op, [self.low, self.high], &mut self.values)
    }

    #[cfg(feature = "cuda")]
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        cuda::optim::clip(device, op, [1.0, self.low, self.high], &self.values)
    }
}
