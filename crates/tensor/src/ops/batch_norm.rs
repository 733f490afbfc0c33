//! Batch normalization (Ioffe and Szegedy 2015).
//!
//! | statistics | y | ∂L/∂x |
//! |---|---|---|
//! | of the batch | x̂ · w + b | s w (g - mean(g) - x̂ mean(g x̂)) |
//! | fixed | x̂ · w + b | s w g |
//!
//! x̂ = (x - μ) s and s = 1/√(σ² + ε), with μ and σ² per channel, which is axis 1; g = ∂L/∂y. ∂L/∂w = Σ x̂ g and ∂L/∂b = Σ g.
//!
//! Saves x and two values per channel, in f32 for 16-bit floats. On the CPU, one kernel computes the forward pass for
//! statistics of the batch, and one the backward pass. Elsewhere, other ops do the work inside of this op, so that it is
//! one op in reports. Then forward allocates only its result, and backward one temporary of the size of x.

use super::reduce::Target;
use super::{mixed_operands, supported};
use crate::autograd::{Parameter, apply};
use crate::backend::{Reduce, kernels};
use crate::error::{Error, Result, ShapeRule};
use crate::op::{Buffer, Op, OpContext, Saved, Summation};
use crate::shape::{DType, Shape};
use crate::tensor::{Tensor, is_replaying};

const OP: &str = "batch_norm";

/// The mean and the variance of each channel that [`Tensor::batch_norm`] uses.
#[derive(Clone, Copy, Debug)]
pub enum BatchStatistics<'a> {
    /// Those of the batch. Also moves the running statistics towards them.
    Batch {
        /// The running statistics, if there are any.
        running: Option<&'a RunningStatistics>,
    },
    /// These values, each of shape `[channels]`.
    Fixed {
        /// The means.
        mean: &'a Tensor,
        /// The variances.
        variance: &'a Tensor,
    },
}

/// Running averages of the means and unbiased variances of batches.
#[derive(Clone, Debug)]
pub struct RunningStatistics {
    /// The means, of shape `[channels]`.
    pub mean: Parameter,
    /// The variances, of shape `[channels]`.
    pub variance: Parameter,
    /// The share by which a batch moves them.
    pub momentum: f64,
}

impl RunningStatistics {
    /// Moves both towards the statistics of a batch. Allocates all memory before the first moves.
    fn update(&self, mean: &Tensor, variance: &Tensor, count: f64) -> Result<()> {
        let moved = [
            self.moved(&self.mean, mean, 1.0)?,
            self.moved(&self.variance, variance, count / (count - 1.0))?,
        ];
        let running = [&self.mean, &self.variance];
        running.iter().try_for_each(|running| running.make_unique())?;
        running.iter().zip(&moved).try_for_each(|(running, moved)| running.set(moved))
    }

    /// Returns a running statistic after its move towards `factor` times the batch's value.
    fn moved(&self, running: &Parameter, of_batch: &Tensor, factor: f64) -> Result<Tensor> {
        let before = running.value();
        let part = of_batch.reshape([of_batch.elements()])?.mul_scalar(self.momentum * factor)?;
        before.mul_scalar(1.0 - self.momentum)?.add(&part)?.to_dtype(before.dtype())
    }
}

#[derive(Debug)]
struct BatchNorm {
    epsilon: f64,
    /// Whether the statistics are those of the batch. Otherwise they are the inputs after x, weight and bias.
    of_batch: bool,
    running: Option<RunningStatistics>,
}

/// Returns the reduction over all axes but the channels.
fn channels(x: &Tensor) -> Result<Target> {
    let axes: Vec<isize> = (0..x.rank() as isize).filter(|&axis| axis != 1).collect();
    x.target(OP, &&axes[..], true)
}

/// Returns one value per channel in the shape and the type that broadcast to `x`.
fn spread(of_channels: &Tensor, x: &Tensor) -> Result<Tensor> {
    let mut shape = vec![1; x.rank()];
    shape[1] = of_channels.elements();
    of_channels.reshape(shape)?.to_dtype(x.dtype().computed_as())
}

/// Returns the number of elements of a channel.
fn count(x: &Tensor) -> usize {
    x.elements() / x.dims()[1].max(1)
}

impl BatchNorm {
    fn normalize_by_batch(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let count = count(inputs[0]);
        if count < 2 {
            return Err(Error::BadArgument {
                op: OP,
                argument: "x",
                expected: "at least two values per channel in training",
                got: format!("shape {}", inputs[0].shape()),
            });
        }
        if ctx.backend().rules().fuses_batch_norm() {
            return self.normalize_fused(ctx, inputs);
        }
        let (x, axes) = (inputs[0].upcast()?, channels(inputs[0])?);
        let mean = x.mean_over(axes.kept())?;
        let centered = x.sub(&mean)?;
        let variance = centered.folded_shares((Reduce::SumSquares, count as f64), axes.kept())?;
        let scale = variance.add_scalar(self.epsilon)?.rsqrt()?;
        let scaled = (centered * &scale.mul(&spread(inputs[1], &x)?)?)?;
        let y = (scaled + &spread(inputs[2], &x)?)?.to_dtype(inputs[0].dtype())?;
        self.update_running(&mean, &variance, &x)?;
        [inputs[0], &mean, &scale, inputs[1]].iter().for_each(|saved| ctx.save(saved));
        Ok(y)
    }

    /// Normalizes with one kernel, if the backend has it. Saves x, the statistics and the weight.
    fn normalize_fused(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let (x, dtype) = (inputs[0].contiguous()?, inputs[0].dtype().computed_as());
        let [weight, bias] = [1, 2].map(|input| inputs[input].to_dtype(dtype)?.contiguous());
        let channels = x.dims()[1];
        let mut out = ctx.output(x.shape(), x.dtype())?;
        let mut statistics = ctx.temp_saved(&Shape::new(&[channels, 2])?, dtype)?;
        let mut variance = ctx.temp(&Shape::new(&[channels])?, dtype)?;
        ctx.compute(kernels::NormalizeChannels {
            epsilon: self.epsilon,
            input: x.view(),
            weight: weight?.view(),
            bias: bias?.view(),
            out: out.view_mut(),
            statistics: statistics.view_mut(),
            variance: variance.view_mut(),
        })?;
        let (statistics, variance) = (statistics.finish(), variance.finish());
        self.update_running(&statistics.narrow(1, 0, 1)?, &variance, &x)?;
        [inputs[0], &statistics, inputs[1]].iter().for_each(|saved| ctx.save(saved));
        Ok(out.finish())
    }

    /// Moves the running statistics. A repeated forward of the same batch, in the backward pass, does not count again.
    fn update_running(&self, mean: &Tensor, variance: &Tensor, x: &Tensor) -> Result<()> {
        match self.running.as_ref().filter(|_| !is_replaying()) {
            Some(running) => running.update(mean, variance, count(x) as f64),
            None => Ok(()),
        }
    }

    fn normalize_by_fixed(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0].upcast()?;
        let [weight, bias, mean, variance] = [1, 2, 3, 4].map(|input| spread(inputs[input], &x));
        let (weight, mean) = (weight?, mean?);
        let scale = variance?.add_scalar(self.epsilon)?.rsqrt()?;
        let factor = scale.mul(&weight)?;
        let shift = bias?.sub(&mean.mul(&factor)?)?;
        [inputs[0], &mean, &scale, inputs[1]].iter().for_each(|saved| ctx.save(saved));
        (x.mul(&factor)? + &shift)?.to_dtype(inputs[0].dtype())
    }
}

/// Computes the gradients of [`BatchNorm::normalize_fused`] with one kernel.
fn fused_backward(ctx: &OpContext<'_>, saved: &Saved, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
    let (x, statistics, weight) = (saved.tensor(0)?.contiguous()?, saved.tensor(1)?, saved.tensor(2)?);
    let (grad, dtype, of_channels) = (grad.contiguous()?, statistics.dtype(), *weight.shape());
    let weight = weight.to_dtype(dtype)?.contiguous()?;
    let mut of_x = saved.needs_grad(0).then(|| ctx.gradient(0, x.shape(), x.dtype())).transpose()?;
    let (mut of_weight, mut of_bias) =
        (ctx.gradient(1, &of_channels, dtype)?, ctx.gradient(2, &of_channels, dtype)?);
    ctx.compute(kernels::NormalizeChannelsGrad {
        of: kernels::Normalized {
            centered: true,
            input: x.view(),
            weight: Some(weight.view()),
            statistics: statistics.view(),
        },
        grad: grad.view(),
        out: of_x.as_mut().map(Buffer::view_mut),
        weight: of_weight.view_mut(),
        bias: of_bias.view_mut(),
    })?;
    let typed = |gradient: Buffer, input: usize| {
        saved.needs_grad(input).then(|| gradient.finish().to_dtype(saved.input_dtype(input))).transpose()
    };
    Ok(vec![of_x.map(Buffer::finish), typed(of_weight, 1)?, typed(of_bias, 2)?])
}

impl Op for BatchNorm {
    fn name(&self) -> &'static str {
        OP
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        if x.rank() < 2 {
            let expected = "at least two axes: batch, channels, positions";
            return Err(Error::BadRank { op: OP, expected, shape: *x.shape() });
        }
        if let Some(other) = inputs[1..].iter().find(|input| *input.dims() != [x.dims()[1]]) {
            return Err(Error::ShapeMismatch {
                op: OP,
                lhs: *x.shape(),
                rhs: *other.shape(),
                rule: &ShapeRule::Other("axis 1 of the input must have one element per channel"),
            });
        }
        inputs.iter().try_for_each(|input| supported(OP, input.dtype(), DType::is_float))?;
        if self.of_batch {
            self.normalize_by_batch(ctx, inputs)
        } else {
            self.normalize_by_fixed(ctx, inputs)
        }
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        if self.of_batch && ctx.backend().rules().fuses_batch_norm() {
            return fused_backward(ctx, saved, &grad);
        }
        let [x, mean, scale, weight] = [0, 1, 2, 3].map(|number| saved.tensor(number));
        let (x, grad, mean, scale) = (x?.upcast()?, grad.upcast()?, mean?, scale?);
        let (axes, factor) = (channels(&x)?, scale.mul(&spread(weight?, &x)?)?);
        let [of_x, of_weight, of_bias] = [0, 1, 2].map(|input| saved.needs_grad(input));
        let through_statistics = of_x && self.of_batch;

        let bias = (of_bias || through_statistics).then(|| grad.sum_over(axes.kept())).transpose()?;
        let mut normal = None;
        let mut weight = None;
        if of_weight || through_statistics {
            let x = normal.insert((x.sub(mean)? * scale)?);
            weight = Some(x.mul(&grad)?.sum_over(axes.kept())?);
        }
        let x_gradient = match (normal, &weight, &bias) {
            (Some(normal), Some(weight), Some(bias)) if through_statistics => {
                let share = -1.0 / count(&x) as f64;
                let along = ((normal * &weight.mul_scalar(share)?)? + &bias.mul_scalar(share)?)?;
                Some(((along + &grad)? * &factor)?)
            }
            _ => of_x.then(|| grad.mul(&factor)).transpose()?,
        };
        let typed = |gradient: Tensor, input: usize| gradient.to_dtype(saved.input_dtype(input));
        let of_channels = |gradient: Option<Tensor>, wanted: bool, input: usize| {
            let gradient = gradient.filter(|_| wanted);
            gradient.map(|gradient| typed(gradient.reshape([gradient.elements()])?, input)).transpose()
        };
        let mut gradients = vec![
            x_gradient.map(|gradient| typed(gradient, 0)).transpose()?,
            of_channels(weight, of_weight, 1)?,
            of_channels(bias, of_bias, 2)?,
        ];
        // Fixed statistics are constants.
        gradients.resize(saved.inputs(), None);
        Ok(gradients)
    }

    fn summation(&self, _: &[Shape]) -> Summation {
        if self.of_batch { Summation::OfAll } else { Summation::Other }
    }
}

impl Tensor {
    /// Batch normalization of x `[n, channels, ..]`: (x - μ) / √(σ² + `epsilon`) · w + b for each channel.
    ///
    /// `weight` and `bias` have the shape `[channels]`. 16-bit floats are computed in f32 and rounded once. No gradient
    /// flows to fixed statistics. If this fails, no running statistics have moved.
    ///
    /// ```
    /// use highwater::tensor::BatchStatistics;
    /// use highwater::{Device, Tensor};
    /// let device = Device::cpu()?;
    /// let x = Tensor::from_slice(&device, &[1.0f32, 10.0, 3.0, 30.0], [2, 2])?;
    /// let (one, zero) = (Tensor::ones(&device, [2])?, Tensor::zeros(&device, [2])?);
    /// let y = x.batch_norm(&one, &zero, BatchStatistics::Batch { running: None }, 0.0)?;
    /// assert_eq!(y.to_vec::<f32>()?, [-1.0, -1.0, 1.0, 1.0]);
    /// let y = x.batch_norm(&one, &zero, BatchStatistics::Fixed { mean: &zero, variance: &one }, 0.0)?;
    /// assert_eq!(y.to_vec::<f32>()?, [1.0, 10.0, 3.0, 30.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadRank`] below two axes, [`Error::ShapeMismatch`] unless all other tensors have one element per
    /// channel, [`Error::UnsupportedDType`] unless all are floats, [`Error::BadArgument`] for statistics of a batch with
    /// fewer than two values per channel, [`Error::Allocation`] if there is no memory.
    #[doc(alias("batchnorm"))]
    pub fn batch_norm(
        &self,
        weight: &Self,
        bias: &Self,
        statistics: BatchStatistics<'_>,
        epsilon: f64,
    ) -> Result<Self> {
        if let Some([x, weight, bias]) = mixed_operands([self, weight, bias])? {
            return x.batch_norm(&weight, &bias, statistics, epsilon);
        }
        match statistics {
            BatchStatistics::Batch { running } => {
                let op = BatchNorm { epsilon, of_batch: true, running: running.cloned() };
                apply(op, &[self, weight, bias])
            }
            BatchStatistics::Fixed { mean, variance } => {
                let op = BatchNorm { epsilon, of_batch: false, running: None };
                let (mean, variance) = (mean.detach(), variance.detach());
                apply(op, &[self, weight, bias, &mean, &variance])
            }
        }
    }
}
