//! Softmax and its logarithm.

use super::Computation;
use crate::backend::check::Rules;
use crate::backend::cost::{Class, Work};
use crate::backend::cpu::{self, Workers};
#[cfg(feature = "cuda")]
use crate::backend::cuda::{self, Launcher};
use crate::backend::operands::operands;
use crate::error::Result;
use crate::storage::{View, ViewMut};

/// PyTorch's `softmax` or `log_softmax` along the last axis: `out[i] = exp(input[i]) / Σⱼ exp(input[j])`.
#[derive(Debug)]
pub struct Softmax<'a> {
    /// Whether to compute the logarithm.
    pub log: bool,
    /// The logits.
    pub input: View<'a>,
    /// The output.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for Softmax<'a> {
    operands!(Read input, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        rules.elementwise()
    }

    fn work(&self) -> Work {
        Work::over(Class::Softmax, self.input.layout())
    }

    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        cpu::softmax::softmax(workers, op, self.log, self.input, &mut self.out)
    }

    #[cfg(feature = "cuda")]
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        cuda::rows::softmax(device, op, self.log, self.input, &self.out)
    }
}

/// The gradient of [`Softmax`]: s·(g - Σ g·s), or g - eˢ·Σ g for the logarithm.
#[derive(Debug)]
pub struct SoftmaxGrad<'a> {
    /// Whether the output is the logarithm.
    pub log: bool,
    /// The output of softmax: s.
    pub output: View<'a>,
    /// The gradient of the output: g.
    pub grad: View<'a>,
    /// The output.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for SoftmaxGrad<'a> {
    operands!(Read output, Read grad, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        rules.elementwise()
    }

    fn work(&self) -> Work {
        Work::over(Class::SoftmaxGrad, self.out.layout())
    }

    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        cpu::softmax::softmax_grad(workers, op, self.log, self.output, self.grad, &mut self.out)
    }

    #[cfg(feature = "cuda")]
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        cuda::rows::softmax_grad(device, op, self.log, self.output, self.grad, &self.out)
    }
}
