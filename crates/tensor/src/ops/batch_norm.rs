//! Batch normalization (Ioffe and Szegedy 2015), with a residual and a ReLU in the same kernel.
//!
//! | op | y |
//! |---|---|
//! | `batch_norm` | x̂ · w + b |
//! | `batch_norm_relu` | max(x̂ · w + b, 0) |
//! | `batch_norm_add_relu` | max(x̂ · w + b + r, 0) |
//!
//! | statistics | ∂L/∂x |
//! |---|---|
//! | of the batch | s w (g - mean(g) - x̂ mean(g x̂)) |
//! | fixed | s w g |
//!
//! Here x̂ = (x - μ) s and s = 1/√(σ² + ε), with μ and σ² per channel, which is axis 1. g is ∂L/∂y, and 0 where a ReLU's y is 0.
//! ∂L/∂w = Σ x̂ g, ∂L/∂b = Σ g and ∂L/∂r = g.
//!
//! Saves x and two values per channel, in f32 for 16-bit floats. With a ReLU, it also saves y. Weight, bias and fixed statistics
//! may be f32 while x has 16 bits.

use super::supported;
use crate::autograd::{Parameter, apply};
use crate::backend::kernels;
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

/// The function after the normalization, in the same kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Nothing,
    Relu,
    /// Adds the input after the bias, and applies ReLU.
    AddRelu,
}

#[derive(Debug)]
struct BatchNorm {
    epsilon: f64,
    then: Then,
    /// Whether the statistics are those of the batch. Otherwise they are the last inputs.
    of_batch: bool,
    running: Option<RunningStatistics>,
}

/// Returns the number of elements of a channel.
fn count(x: &Tensor) -> usize {
    x.elements() / x.dims()[1].max(1)
}

/// Returns values of channels as the kernel reads them for inputs of this type.
fn of_channels(values: &Tensor, dtype: DType) -> Result<Tensor> {
    let values =
        if values.dtype() == dtype { values.clone() } else { values.to_dtype(dtype.computed_as())? };
    values.contiguous()
}

impl BatchNorm {
    /// Returns the number of inputs that the gradients belong to.
    const fn variable_inputs(&self) -> usize {
        if matches!(self.then, Then::AddRelu) { 4 } else { 3 }
    }

    /// Fails unless all inputs fit x.
    fn check(&self, inputs: &[&Tensor]) -> Result<()> {
        let (op, x) = (self.name(), inputs[0]);
        if x.rank() < 2 {
            let expected = "at least two axes: batch, channels, positions";
            return Err(Error::BadRank { op, expected, shape: *x.shape() });
        }
        let (lhs, added) = (*x.shape(), if self.then == Then::AddRelu { Some(inputs[3]) } else { None });
        if let Some(added) = added.filter(|added| *added.shape() != lhs) {
            let rule = &ShapeRule::Other("the residual must have the shape of the input");
            return Err(Error::ShapeMismatch { op, lhs, rhs: *added.shape(), rule });
        }
        let mut of_channels = inputs[1..3].iter().chain(&inputs[self.variable_inputs()..]);
        if let Some(other) = of_channels.find(|input| *input.dims() != [x.dims()[1]]) {
            let rule = &ShapeRule::Other("axis 1 of the input must have one element per channel");
            return Err(Error::ShapeMismatch { op, lhs, rhs: *other.shape(), rule });
        }
        inputs.iter().try_for_each(|input| supported(op, input.dtype(), DType::is_float))?;
        if self.of_batch && count(x) < 2 {
            return Err(Error::BadArgument {
                op,
                argument: "x",
                expected: "at least two values per channel in training",
                got: format!("shape {}", x.shape()),
            });
        }
        Ok(())
    }

    /// Moves the running statistics. A repeated forward of the same batch, in the backward pass, does not count again.
    fn update_running(&self, mean: &Tensor, variance: &Tensor, x: &Tensor) -> Result<()> {
        match self.running.as_ref().filter(|_| !is_replaying()) {
            Some(running) => running.update(mean, variance, count(x) as f64),
            None => Ok(()),
        }
    }
}

impl Op for BatchNorm {
    fn name(&self) -> &'static str {
        match self.then {
            Then::Nothing => OP,
            Then::Relu => "batch_norm_relu",
            Then::AddRelu => "batch_norm_add_relu",
        }
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        self.check(inputs)?;
        let (x, dtype) = (inputs[0].contiguous()?, inputs[0].dtype());
        let (channels, computed) = (Shape::new(&[x.dims()[1]])?, dtype.computed_as());
        let [weight, bias] = [1, 2].map(|input| of_channels(inputs[input], dtype));
        let residual = (self.then == Then::AddRelu).then(|| inputs[3].contiguous()).transpose()?;
        let given = (inputs[self.variable_inputs()..].iter())
            .map(|values| of_channels(values, dtype))
            .collect::<Result<Vec<_>>>()?;
        let rectified = self.then != Then::Nothing;
        let mut out =
            if rectified { ctx.output_saved(x.shape(), dtype)? } else { ctx.output(x.shape(), dtype)? };
        let mut statistics = ctx.temp_saved(&Shape::new(&[x.dims()[1], 2])?, computed)?;
        let mut variance = self.of_batch.then(|| ctx.temp(&channels, computed)).transpose()?;
        let shape = x.shape();
        let mut workspace = ctx.workspace(kernels::NormalizeChannelsWorkspace { shape, dtype })?;
        ctx.compute(kernels::NormalizeChannels {
            epsilon: self.epsilon,
            rectified,
            input: x.view(),
            weight: weight?.view(),
            bias: bias?.view(),
            fixed_mean: given.first().map(Tensor::view),
            fixed_variance: given.get(1).map(Tensor::view),
            residual: residual.as_ref().map(Tensor::view),
            workspace: workspace.as_mut().map(Buffer::view_mut),
            out: out.view_mut(),
            statistics: statistics.view_mut(),
            variance: variance.as_mut().map(Buffer::view_mut),
        })?;
        drop(workspace);
        let (y, statistics) = (out.finish(), statistics.finish());
        if let Some(variance) = variance {
            self.update_running(&statistics.narrow(1, 0, 1)?, &variance.finish(), &x)?;
        }
        [inputs[0], &statistics, inputs[1]].iter().for_each(|saved| ctx.save(saved));
        if rectified {
            ctx.save(&y);
        }
        Ok(y)
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let (x, statistics, weight) = (saved.tensor(0)?.contiguous()?, saved.tensor(1)?, saved.tensor(2)?);
        let y = (self.then != Then::Nothing).then(|| saved.tensor(3)?.contiguous()).transpose()?;
        let (grad, weight, channels) = (grad.contiguous()?, of_channels(weight, x.dtype())?, *weight.shape());
        let large = |input| {
            let wanted = saved.needs_grad(input).then(|| ctx.gradient(input, x.shape(), x.dtype()));
            wanted.transpose()
        };
        let mut of_x = large(0)?;
        let mut of_residual = if self.then == Then::AddRelu { large(3)? } else { None };
        let [mut of_weight, mut of_bias] = {
            let sums = |input| ctx.gradient(input, &channels, statistics.dtype());
            [sums(1)?, sums(2)?]
        };
        let (shape, dtype) = (x.shape(), x.dtype());
        let mut workspace = ctx.workspace(kernels::NormalizeChannelsWorkspace { shape, dtype })?;
        ctx.compute(kernels::NormalizeChannelsGrad {
            of_batch: self.of_batch,
            of: kernels::Normalized {
                centered: true,
                input: x.view(),
                weight: Some(weight.view()),
                statistics: statistics.view(),
            },
            grad: grad.view(),
            output: y.as_ref().map(Tensor::view),
            workspace: workspace.as_mut().map(Buffer::view_mut),
            out: of_x.as_mut().map(Buffer::view_mut),
            residual: of_residual.as_mut().map(Buffer::view_mut),
            weight: of_weight.view_mut(),
            bias: of_bias.view_mut(),
        })?;
        let typed = |gradient: Buffer, input: usize| {
            let dtype = saved.gradient_dtype(input);
            saved.needs_grad(input).then(|| gradient.finish().to_dtype(dtype)).transpose()
        };
        let mut gradients = vec![of_x.map(Buffer::finish), typed(of_weight, 1)?, typed(of_bias, 2)?];
        gradients.extend((self.then == Then::AddRelu).then(|| of_residual.map(Buffer::finish)));
        // Given statistics are constants.
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
        self.normalized([weight, bias], statistics, epsilon, (Then::Nothing, None))
    }

    /// ReLU of the [batch normalization](Self::batch_norm), in one kernel per pass. Keeps x and the result for backward.
    ///
    /// ```
    /// use highwater::tensor::BatchStatistics;
    /// use highwater::{Device, Tensor};
    /// let device = Device::cpu()?;
    /// let x = Tensor::from_slice(&device, &[1.0f32, 10.0, 3.0, 30.0], [2, 2])?;
    /// let (one, zero) = (Tensor::ones(&device, [2])?, Tensor::zeros(&device, [2])?);
    /// let y = x.batch_norm_relu(&one, &zero, BatchStatistics::Batch { running: None }, 0.0)?;
    /// assert_eq!(y.to_vec::<f32>()?, [0.0, 0.0, 1.0, 1.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::batch_norm`].
    pub fn batch_norm_relu(
        &self,
        weight: &Self,
        bias: &Self,
        statistics: BatchStatistics<'_>,
        epsilon: f64,
    ) -> Result<Self> {
        self.normalized([weight, bias], statistics, epsilon, (Then::Relu, None))
    }

    /// ReLU of the sum of the [batch normalization](Self::batch_norm) and `residual`, in one kernel per pass. Keeps x and the
    /// result for backward. A residual of another shape or type is added by a separate op.
    ///
    /// ```
    /// use highwater::tensor::BatchStatistics;
    /// use highwater::{Device, Tensor};
    /// let device = Device::cpu()?;
    /// let x = Tensor::from_slice(&device, &[1.0f32, 10.0, 3.0, 30.0], [2, 2])?;
    /// let (one, zero) = (Tensor::ones(&device, [2])?, Tensor::zeros(&device, [2])?);
    /// let y = x.batch_norm_add_relu(&one, &zero, &x, BatchStatistics::Batch { running: None }, 0.0)?;
    /// assert_eq!(y.to_vec::<f32>()?, [0.0, 9.0, 4.0, 31.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::batch_norm`] and [`Tensor::add`].
    pub fn batch_norm_add_relu(
        &self,
        weight: &Self,
        bias: &Self,
        residual: &Self,
        statistics: BatchStatistics<'_>,
        epsilon: f64,
    ) -> Result<Self> {
        if residual.shape() != self.shape() || residual.dtype() != self.dtype() {
            return self.batch_norm(weight, bias, statistics, epsilon)?.add(residual)?.relu();
        }
        self.normalized([weight, bias], statistics, epsilon, (Then::AddRelu, Some(residual)))
    }

    fn normalized(
        &self,
        [weight, bias]: [&Self; 2],
        statistics: BatchStatistics<'_>,
        epsilon: f64,
        (then, residual): (Then, Option<&Self>),
    ) -> Result<Self> {
        let mut inputs = vec![self, weight, bias];
        inputs.extend(residual);
        match statistics {
            BatchStatistics::Batch { running } => {
                apply(BatchNorm { epsilon, then, of_batch: true, running: running.cloned() }, &inputs)
            }
            BatchStatistics::Fixed { mean, variance } => {
                let (mean, variance) = (mean.detach(), variance.detach());
                inputs.extend([&mean, &variance]);
                apply(BatchNorm { epsilon, then, of_batch: false, running: None }, &inputs)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Runtime;

    type Function<'f> = &'f dyn Fn(&[Tensor; 4], BatchStatistics<'_>) -> Result<Tensor>;

    /// The result and the gradients of all inputs, as f64.
    fn results(inputs: &[Tensor; 4], fixed: bool, f: Function<'_>) -> Vec<Vec<f64>> {
        let leaves = inputs.each_ref().map(|input| input.clone().requiring_grad().unwrap());
        let one = Tensor::ones(inputs[0].device(), inputs[1].dims()).unwrap();
        let statistics = if fixed {
            BatchStatistics::Fixed { mean: &one, variance: &one }
        } else {
            BatchStatistics::Batch { running: None }
        };
        let y = f(&leaves, statistics).unwrap();
        // The same weights for all types.
        let weights: Vec<f32> = (0..y.elements()).map(|i| (i * 37 % 61) as f32 / 32.0 - 1.0).collect();
        let weights =
            Tensor::from_slice(y.device(), &weights, y.dims()).unwrap().to_dtype(y.dtype()).unwrap();
        let gradients = y.mul(&weights).unwrap().sum_all().unwrap().backward().unwrap();
        let wide = |tensor: &Tensor| tensor.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
        std::iter::once(wide(&y))
            .chain(leaves.iter().filter_map(|leaf| gradients.get(leaf)).map(wide))
            .collect()
    }

    #[test]
    fn fused_functions_have_the_values_and_gradients_of_separate_ops() {
        let device = Runtime::builder().threads(2).build().unwrap().cpu().unwrap();
        let rng = crate::tensor::Rng::new(3);
        let normal = |shape: &[usize]| Tensor::normal(&device, shape, 0.5, 1.0, &rng).unwrap();
        let shape = [5, 6, 7];
        let inputs = [normal(&shape), normal(&[6]), normal(&[6]), normal(&shape)];
        for (dtype, tolerance) in
            [(DType::F32, 1e-5), (DType::F64, 1e-12), (DType::F16, 2e-3), (DType::BF16, 2e-2)]
        {
            // Weights and biases in f32 beside 16-bit inputs too.
            for of_channels in [dtype, dtype.computed_as()] {
                let typed = [dtype, of_channels, of_channels, dtype];
                let mut inputs = inputs.clone();
                for (input, dtype) in inputs.iter_mut().zip(typed) {
                    *input = input.to_dtype(dtype).unwrap();
                }
                for fixed in [false, true] {
                    let pairs: [[Function<'_>; 2]; 2] = [
                        [
                            &|[x, w, b, _], statistics| x.batch_norm_relu(w, b, statistics, 1e-5),
                            &|[x, w, b, _], statistics| x.batch_norm(w, b, statistics, 1e-5)?.relu(),
                        ],
                        [
                            &|[x, w, b, r], statistics| x.batch_norm_add_relu(w, b, r, statistics, 1e-5),
                            &|[x, w, b, r], statistics| x.batch_norm(w, b, statistics, 1e-5)?.add(r)?.relu(),
                        ],
                    ];
                    for [fused, separate] in pairs {
                        // In f64, because a sum of 16 bits could have another sign.
                        let wide = inputs.each_ref().map(|input| input.to_dtype(DType::F64).unwrap());
                        let (fused, separate) =
                            (results(&inputs, fixed, fused), results(&wide, fixed, separate));
                        assert_eq!(fused.len(), separate.len());
                        for (fused, separate) in fused.iter().zip(&separate) {
                            let largest = separate.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
                            for (a, b) in fused.iter().zip(separate) {
                                assert!((a - b).abs() <= tolerance * largest, "{dtype}: {a} and {b}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_residual_of_another_shape_is_added_by_another_op() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let x = Tensor::from_slice(&device, &[1.0f32, 10.0, 3.0, 30.0], [2, 2]).unwrap();
        let (one, zero) = (Tensor::ones(&device, 2).unwrap(), Tensor::zeros(&device, 2).unwrap());
        let statistics = BatchStatistics::Batch { running: None };
        let y = x.batch_norm_add_relu(&one, &zero, &one, statistics, 0.0).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), [0.0, 0.0, 2.0, 2.0]);
    }
}
