//! Normalization of the channels of a batch.

pub(super) mod cpu;
#[cfg(feature = "cuda")]
pub(super) mod cuda;

use super::{Computation, Normalized};
use crate::cost::{Class, Work};
use crate::error::{KernelError, Result};
use crate::operands::{CheckedOperand, Rules, checked, operands};
use crate::storage::{View, ViewMut};

/// `out = (input - μ) · s · weight + bias` for each channel of the batch (PyTorch's `batch_norm` in training).
///
/// μ and σ² are the mean and the variance of a channel, and s = 1/√(σ² + epsilon). Only for backends that
/// [fuse it](crate::rules::DeviceRules::fuses_batch_norm).
#[derive(Debug)]
pub struct NormalizeChannels<'a> {
    /// Added to the variance.
    pub epsilon: f64,
    /// Contiguous, of shape `[n, channels, ..]`.
    pub input: View<'a>,
    /// The weight, of shape `[channels]`.
    pub weight: View<'a>,
    /// The bias, of shape `[channels]`.
    pub bias: View<'a>,
    /// The output.
    pub out: ViewMut<'a>,
    /// Shape `[channels, 2]`: μ and s.
    pub statistics: ViewMut<'a>,
    /// Shape `[channels]`: σ².
    pub variance: ViewMut<'a>,
}

impl<'a> Computation<'a> for NormalizeChannels<'a> {
    operands!(
        ReadContiguous input, ReadContiguous weight, ReadContiguous bias,
        Write out, Write statistics, Write variance,
    );

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (input, weight, bias) = checked!(self: input, weight, bias);
        let (out, statistics, variance) = checked!(self: out, statistics, variance);
        rules.same_shape(out, input)?;
        rules.same_computed(&[out, input])?;
        let channels = channels(rules, input, &[Some(weight), Some(bias)])?;
        channel_statistics(rules, statistics, input, channels)?;
        rules.sized(variance, &[channels], input, CHANNELS)?;
        rules.typed(variance, input.dtype().computed_as())
    }

    fn work(&self) -> Work {
        Work::over(Class::BatchNorm, self.out.layout())
    }
}

/// The gradients of [`NormalizeChannels`], with x̂ = (input - μ) · s:
/// `out = s · weight · (grad - mean(grad) - x̂ · mean(x̂ · grad))`, `weight = Σ x̂ · grad` and `bias = Σ grad`.
#[derive(Debug)]
pub struct NormalizeChannelsGrad<'a> {
    /// The normalization, with the weight and the statistics of the forward pass. The input is contiguous.
    pub of: Normalized<'a>,
    /// The gradient of the output. Contiguous.
    pub grad: View<'a>,
    /// The gradient of the input, if required.
    pub out: Option<ViewMut<'a>>,
    /// The weight's gradient, of shape `[channels]`.
    pub weight: ViewMut<'a>,
    /// The bias's gradient, of shape `[channels]`.
    pub bias: ViewMut<'a>,
}

impl<'a> Computation<'a> for NormalizeChannelsGrad<'a> {
    operands!(
        ReadContiguous of.input, ReadContiguous of.weight, ReadContiguous of.statistics, ReadContiguous grad,
        Write out, Write weight, Write bias,
    );

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (input, normalized_weight, statistics) = checked!(self: of.input, of.weight, of.statistics);
        let (grad, out, weight, bias) = checked!(self: grad, out, weight, bias);
        rules.same_shape(grad, input)?;
        rules.same_computed(&[input, grad])?;
        if let Some(out) = out {
            rules.same_shape(out, input)?;
            rules.computed_like(out, input)?;
        }
        let channels = channels(rules, input, &[Some(weight), Some(bias), normalized_weight])?;
        channel_statistics(rules, statistics, input, channels)
    }

    fn work(&self) -> Work {
        Work::over(Class::BatchNormGrad, self.grad.layout())
    }
}

const CHANNELS: &str = "it must have one element per channel, which is axis 1";

/// Checks that the input has channels, and that each operand has the input's computed type and one row per channel.
fn channels(
    rules: &Rules<'_>,
    input: CheckedOperand<'_>,
    of_channels: &[Option<CheckedOperand<'_>>],
) -> Result<usize> {
    let &[_, channels, ..] = input.dims() else {
        let expected = "at least two axes: batch, channels, positions";
        return Err(KernelError::BadRank { op: rules.op, expected, shape: *input.shape() });
    };
    for &operand in of_channels.iter().flatten() {
        rules.sized(operand, &[channels], input, CHANNELS)?;
        rules.computed_like(operand, input)?;
    }
    Ok(channels)
}

/// Checks the mean and the scale of each channel.
fn channel_statistics(
    rules: &Rules<'_>,
    statistics: CheckedOperand<'_>,
    input: CheckedOperand<'_>,
    channels: usize,
) -> Result<()> {
    rules.sized(statistics, &[channels, 2], input, "it must be [channels, 2]")?;
    rules.typed(statistics, input.dtype().computed_as())
}
