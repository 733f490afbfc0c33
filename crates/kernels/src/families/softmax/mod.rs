//! Softmax and its logarithm.

pub(super) mod cpu;
#[cfg(feature = "cuda")]
pub(super) mod cuda;

use super::Computation;
use crate::cost::{Class, Work};
use crate::error::Result;
use crate::operands::{Rules, operands};
use crate::storage::{View, ViewMut};

/// PyTorch's `softmax` or `log_softmax` along the last axis: `out[i] = exp(input[i]) / Σⱼ exp(input[j])`.
#[derive(Debug)]
pub struct SoftmaxRows<'a> {
    /// Whether to compute the logarithm.
    pub log: bool,
    /// The logits.
    pub input: View<'a>,
    /// The output.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for SoftmaxRows<'a> {
    operands!(Read input, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        rules.elementwise()
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        Work::over(Class::Softmax, self.input.layout())
    }
}

/// The gradient of [`SoftmaxRows`]: s·(g - Σ g·s), or g - eˢ·Σ g for the logarithm.
#[derive(Debug)]
pub struct SoftmaxRowsGrad<'a> {
    /// Whether the output is the logarithm.
    pub log: bool,
    /// The output of softmax: s.
    pub output: View<'a>,
    /// The gradient of the output: g.
    pub grad: View<'a>,
    /// The output.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for SoftmaxRowsGrad<'a> {
    operands!(Read output, Read grad, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        rules.elementwise()
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        Work::over(Class::SoftmaxGrad, self.out.layout())
    }
}
