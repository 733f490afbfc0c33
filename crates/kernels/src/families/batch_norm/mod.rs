//! Normalization of the channels of a batch, with a residual and a ReLU in the same pass.

pub(super) mod cpu;
#[cfg(feature = "cuda")]
pub(super) mod cuda;

use super::{Computation, Normalized, Workspace};
use crate::cost::{Class, Work};
use crate::error::{KernelError, Result};
use crate::operands::{CheckedOperand, Rules, checked, field, operands};
use crate::shape::{DType, Shape};
use crate::storage::{View, ViewMut};

/// `out = f((input - μ) · s · weight + bias + residual)` for each channel of the batch (PyTorch's `batch_norm`), where f
/// is the identity or ReLU.
///
/// μ and σ² are the mean and the variance of a channel, or given values, and s = 1/√(σ² + epsilon). The sums subtract one
/// value of the channel from its elements, so that a mean that is large beside σ costs no accuracy. Operands of channels may
/// have the type of the computation while the input has 16 bits.
#[derive(Debug)]
pub struct NormalizeChannels<'a> {
    /// Added to the variance.
    pub epsilon: f64,
    /// Whether f is ReLU.
    pub rectified: bool,
    /// Contiguous, of shape `[n, channels, ..]`.
    pub input: View<'a>,
    /// The weight, of shape `[channels]`.
    pub weight: View<'a>,
    /// The bias, of shape `[channels]`.
    pub bias: View<'a>,
    /// The given means, of shape `[channels]`; `None` for those of the batch.
    pub fixed_mean: Option<View<'a>>,
    /// The given variances, of shape `[channels]`, present with the means.
    pub fixed_variance: Option<View<'a>>,
    /// Contiguous, of the input's shape; counts as 0 if absent.
    pub residual: Option<View<'a>>,
    /// At least as many bytes as [`NormalizeChannelsWorkspace`] requires; `None` if it requires none.
    pub workspace: Option<ViewMut<'a>>,
    /// The output.
    pub out: ViewMut<'a>,
    /// Shape `[channels, 2]`: μ and s.
    pub statistics: ViewMut<'a>,
    /// Shape `[channels]`: the variances of the batch; absent if they are given.
    pub variance: Option<ViewMut<'a>>,
}

impl<'a> Computation<'a> for NormalizeChannels<'a> {
    operands!(
        ReadContiguous input, ReadContiguous weight, ReadContiguous bias,
        ReadContiguous fixed_mean, ReadContiguous fixed_variance, ReadContiguous residual,
        Scratch workspace, Write out, Write statistics, Write variance,
    );

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (input, weight, bias) = checked!(self: input, weight, bias);
        let (mean, given, residual) = checked!(self: fixed_mean, fixed_variance, residual);
        let (workspace, out, statistics, variance) = checked!(self: workspace, out, statistics, variance);
        rules.same_shape(out, input)?;
        rules.same_computed(&[out, input])?;
        if let Some(residual) = residual {
            rules.same_shape(residual, input)?;
            rules.computed_like(residual, input)?;
        }
        let channels = channels(rules, input, &[Some(weight), Some(bias), mean, given])?;
        rules.present(field!(self.fixed_variance), given, mean.is_some(), input)?;
        rules.present(field!(self.variance), variance, mean.is_none(), input)?;
        channel_statistics(rules, statistics, input, channels)?;
        if let Some(variance) = variance {
            rules.sized(variance, &[channels], input, CHANNELS)?;
            rules.typed(variance, input.dtype().computed_as())?;
        }
        let (shape, dtype) = (input.shape(), input.dtype());
        rules.workspace(workspace, &NormalizeChannelsWorkspace { shape, dtype })
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        Work::over(Class::BatchNorm, self.out.layout())
    }
}

/// The gradients of [`NormalizeChannels`], with x̂ = (input - μ) · s and g the gradient where the output is not 0:
/// `out = s · weight · (g - mean(g) - x̂ · mean(x̂ · g))`, `residual = g`, `weight = Σ x̂ · g` and `bias = Σ g`.
#[derive(Debug)]
pub struct NormalizeChannelsGrad<'a> {
    /// Whether the statistics are those of the batch. Otherwise `out = s · weight · g`.
    pub of_batch: bool,
    /// The normalization, with the weight and the statistics of the forward pass. The input is contiguous.
    pub of: Normalized<'a>,
    /// The gradient of the output. Contiguous.
    pub grad: View<'a>,
    /// The output of the forward pass after a ReLU, contiguous; `None` without a ReLU.
    pub output: Option<View<'a>>,
    /// At least as many bytes as [`NormalizeChannelsWorkspace`] requires; `None` if it requires none.
    pub workspace: Option<ViewMut<'a>>,
    /// The gradient of the input, if required.
    pub out: Option<ViewMut<'a>>,
    /// The gradient of the residual, if required. Without a ReLU, it is the gradient of the output.
    pub residual: Option<ViewMut<'a>>,
    /// The weight's gradient, of shape `[channels]`, in the type of the computation.
    pub weight: ViewMut<'a>,
    /// The bias's gradient, of shape `[channels]`, in the type of the computation.
    pub bias: ViewMut<'a>,
}

impl<'a> Computation<'a> for NormalizeChannelsGrad<'a> {
    operands!(
        ReadContiguous of.input, ReadContiguous of.weight, ReadContiguous of.statistics, ReadContiguous grad,
        ReadContiguous output, Scratch workspace, Write out, Write residual, Write weight, Write bias,
    );

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (input, normalized_weight, statistics) = checked!(self: of.input, of.weight, of.statistics);
        let (grad, output, workspace) = checked!(self: grad, output, workspace);
        let (out, residual, weight, bias) = checked!(self: out, residual, weight, bias);
        rules.same_shape(grad, input)?;
        rules.same_computed(&[input, grad])?;
        for operand in [output, out, residual].into_iter().flatten() {
            rules.same_shape(operand, input)?;
            rules.computed_like(operand, input)?;
        }
        let channels = channels(rules, input, &[normalized_weight])?;
        channel_statistics(rules, statistics, input, channels)?;
        for sums in [weight, bias] {
            rules.sized(sums, &[channels], input, CHANNELS)?;
            rules.typed(sums, input.dtype().computed_as())?;
        }
        let (shape, dtype) = (input.shape(), input.dtype());
        rules.workspace(workspace, &NormalizeChannelsWorkspace { shape, dtype })
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        Work::over(Class::BatchNormGrad, self.grad.layout())
    }
}

/// The workspace of a [`NormalizeChannels`] or a [`NormalizeChannelsGrad`]: sums over slabs of each channel on a GPU.
#[derive(Clone, Copy, Debug)]
pub struct NormalizeChannelsWorkspace<'a> {
    /// The input's shape.
    pub shape: &'a Shape,
    /// The input's element type.
    pub dtype: DType,
}

impl Workspace for NormalizeChannelsWorkspace<'_> {
    fn cpu_bytes(&self) -> usize {
        0
    }

    fn gpu_bytes(&self) -> usize {
        let Slabs { channels, slabs, .. } = Slabs::new(self.shape);
        let values = channels.saturating_mul(slabs).saturating_mul(VALUES);
        values.saturating_mul(self.dtype.computed_as().size())
    }
}

/// The values of a slab of a channel in the workspace.
const VALUES: usize = 3;

/// The split of channels into slabs of elements, which a GPU sums in parallel.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only launches use all fields"))]
struct Slabs {
    channels: usize,
    /// The elements of an image in a channel.
    places: usize,
    /// The elements of a channel.
    elements: usize,
    /// The slabs of a channel; at least 1.
    slabs: usize,
    /// The elements of a slab, except for the last.
    slab: usize,
}

impl Slabs {
    fn new(shape: &Shape) -> Self {
        /// The elements of a slab that keep a block of threads busy.
        const LEAST: usize = 4096;
        /// The blocks that fill a large GPU.
        const BLOCKS: usize = 1024;
        let (images, rest) = shape.dims().split_first().unwrap_or((&1, &[]));
        let (channels, rest) = rest.split_first().unwrap_or((&1, &[]));
        // Saturates: a size of 0 makes the product 0 even if the others overflow.
        let places = rest.iter().fold(1_usize, |all, &size| all.saturating_mul(size));
        let elements = images.saturating_mul(places);
        let most = BLOCKS.div_ceil((*channels).max(1));
        let slab = elements.div_ceil((elements / LEAST).clamp(1, most)).max(1);
        Self { channels: *channels, places, elements, slabs: elements.div_ceil(slab).max(1), slab }
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
