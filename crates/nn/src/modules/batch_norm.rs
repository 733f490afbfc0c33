//! Batch normalization (Ioffe and Szegedy 2015).

use highwater_tensor::{
    DType, Error, Parameter, Place, Result, Rng, Tensor, error::ShapeRule, is_replaying, is_training, no_grad,
};
use highwater_tracking::ModulePath;

use super::in_layer;
use super::init::{Fans, Init};
use super::module::Module;
use super::norm::EPSILON;

const OP: &str = "batch_norm";

/// Batch normalization of rows `[n, channels]`, sequences `[n, channels, len]`, images `[n, channels, h, w]` and
/// tensors with more axes. Brings each channel to mean 0 and variance 1, then scales and shifts it.
///
/// [In training](highwater_tensor::is_training), the layer uses the mean and variance of the batch. It moves the
/// running means towards them by the momentum 0.1; the running variance is the unbiased one. Under
/// [`no_grad`](highwater_tensor::no_grad) and inside [`evaluating`](highwater_tensor::evaluating), it uses the running
/// means and does not change them. As with [`Dropout`](super::Dropout), there is no switch.
///
/// Checkpoints store the running means under PyTorch's names, `running_mean` and `running_var`. Inside a
/// [`checkpoint`](highwater_tensor::checkpoint()) they move once. If the forward of this layer fails, they do not move.
/// If a later layer fails, they have moved.
///
/// The result has the float type of the input. 16-bit floats are computed in f32 and rounded once. The running means
/// stay f32 when the model is [converted](Module::convert).
///
/// ```
/// use highwater::{Device, Tensor, no_grad};
/// use highwater::nn::{BatchNorm, Module};
/// let device = Device::cpu()?;
/// let norm = BatchNorm::new(&device, 2)?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 10.0, 3.0, 30.0], [2, 2])?;
/// let y = norm.forward(&x)?.to_vec::<f32>()?;
/// assert!(y.iter().zip([-1.0, -1.0, 1.0, 1.0]).all(|(y, expected)| (y - expected).abs() < 1e-4));
/// // The mean has moved to (0.2, 2), the variance to (1.1, 20.9).
/// let used = no_grad(|| norm.forward(&x))?.to_vec::<f32>()?;
/// assert!((used[0] - 0.8 / 1.1f32.sqrt()).abs() < 1e-4);
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Debug)]
pub struct BatchNorm {
    path: ModulePath,
    weight: Parameter,
    bias: Parameter,
    running_mean: Parameter,
    running_var: Parameter,
    momentum: f64,
    epsilon: f64,
}

impl BatchNorm {
    /// Creates a batch norm for `channels` channels (`f32`), with ε = 10⁻⁵.
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory.
    pub fn new(place: &impl Place, channels: usize) -> Result<Self> {
        // The values are constants.
        let (fans, unused) = (Fans { inputs: channels, outputs: channels }, Rng::new(0));
        let constant = |value| Init::Constant(value).parameter(place, [channels], DType::F32, fans, &unused);
        Ok(Self {
            path: ModulePath::new(),
            weight: constant(1.0)?,
            bias: constant(0.0)?,
            running_mean: constant(0.0)?,
            running_var: constant(1.0)?,
            momentum: 0.1,
            epsilon: EPSILON,
        })
    }

    /// Sets ε, which is added to variances; 10⁻⁵ by default.
    ///
    /// Forward fails with [`Error::BadArgument`] unless it is finite and not negative.
    #[must_use]
    pub fn with_epsilon(self, epsilon: f64) -> Self {
        Self { epsilon, ..self }
    }

    /// Sets the momentum: the share by which running means move towards those of each batch; 0.1 by default.
    ///
    /// Forward fails with [`Error::BadArgument`] unless it is between 0 and 1.
    #[must_use]
    pub fn with_momentum(self, momentum: f64) -> Self {
        Self { momentum, ..self }
    }

    /// Checks ε and the momentum.
    fn check_options(&self) -> Result<()> {
        let bad = |argument, expected, got: f64| Error::BadArgument {
            op: OP,
            argument,
            expected,
            got: got.to_string(),
        };
        if !(self.epsilon.is_finite() && self.epsilon >= 0.0) {
            return Err(bad("epsilon", "finite and not negative", self.epsilon));
        }
        if !(0.0..=1.0).contains(&self.momentum) {
            return Err(bad("momentum", "between 0 and 1", self.momentum));
        }
        Ok(())
    }

    /// Returns the running mean and the running variance, each of shape `[channels]`.
    #[must_use]
    pub fn running(&self) -> [Tensor; 2] {
        [self.running_mean.value(), self.running_var.value()]
    }

    /// Normalizes by the batch's mean and variance, and updates the running means.
    fn normalize_by_batch(&self, x: &Tensor, shape: &[usize]) -> Result<Tensor> {
        let count = x.elements() / shape[1].max(1);
        if count < 2 {
            return Err(Error::BadArgument {
                op: OP,
                argument: "x",
                expected: "at least two values per channel in training",
                got: format!("shape {}", x.shape()),
            });
        }
        let axes: Vec<isize> = (0..x.rank() as isize).filter(|&axis| axis != 1).collect();
        let (dtype, x) = (x.dtype(), x.to_dtype(x.dtype().computed_as())?);
        let mean = x.mean_keepdim(&axes[..])?;
        let centered = x.sub(&mean)?;
        let variance = centered.square()?.mean_keepdim(&axes[..])?;
        let scale = variance.add_scalar(self.epsilon)?.rsqrt()?;
        let scale = scale.mul(&self.weight.tensor().reshape(shape)?)?;
        let result = centered.mul(&scale)?.add(&self.bias.tensor().reshape(shape)?)?.to_dtype(dtype)?;
        // A repeated forward of the same batch, in the backward pass, does not count again.
        if !is_replaying() {
            let unbiased = count as f64 / (count - 1) as f64;
            no_grad(|| self.update_running(&mean.detach(), &variance.detach(), unbiased))?;
        }
        Ok(result)
    }

    /// Moves both running means towards the batch's mean and its variance times `unbiased`. Allocates all memory before
    /// the first moves.
    fn update_running(&self, mean: &Tensor, variance: &Tensor, unbiased: f64) -> Result<()> {
        let running = [&self.running_mean, &self.running_var];
        let moved =
            [self.moved_towards(running[0], mean, 1.0)?, self.moved_towards(running[1], variance, unbiased)?];
        running.iter().try_for_each(|running| running.make_unique())?;
        running.iter().zip(&moved).try_for_each(|(running, moved)| running.set(moved))
    }

    /// Returns a running mean after its move towards `factor` times the batch's value.
    fn moved_towards(&self, running: &Parameter, of_batch: &Tensor, factor: f64) -> Result<Tensor> {
        let before = running.value();
        let part = of_batch.reshape([of_batch.elements()])?.mul_scalar(self.momentum * factor)?;
        before.mul_scalar(1.0 - self.momentum)?.add(&part)?.to_dtype(before.dtype())
    }

    /// Normalizes by the running means.
    fn normalize_by_running(&self, x: &Tensor, shape: &[usize]) -> Result<Tensor> {
        // A repeated forward uses the running means of the first.
        let [mean, variance] =
            [&self.running_mean, &self.running_var].map(|running| running.replayed_value());
        let scale = variance.add_scalar(self.epsilon)?.rsqrt()?.mul(&self.weight.tensor())?;
        let shift = self.bias.tensor().sub(&mean.mul(&scale)?)?;
        x.mul(&scale.reshape(shape)?)?.add(&shift.reshape(shape)?)?.to_dtype(x.dtype())
    }
}

impl Module for BatchNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_layer(&self.path, &self.weight, || self.normalize(x))
    }

    visit_parts!(path, weight, bias; buffers: running_mean, running_var);
}

impl BatchNorm {
    fn normalize(&self, x: &Tensor) -> Result<Tensor> {
        self.check_options()?;
        let channels = self.weight.value().elements();
        if x.rank() < 2 {
            let expected = "at least two axes: batch, channels, positions";
            return Err(Error::BadRank { op: OP, expected, shape: *x.shape() });
        }
        if x.dims()[1] != channels {
            let rhs = *self.weight.value().shape();
            return Err(Error::ShapeMismatch {
                op: OP,
                lhs: *x.shape(),
                rhs,
                rule: &ShapeRule::Other("axis 1 of the input must have one element per channel"),
            });
        }
        if !x.dtype().is_float() {
            return Err(Error::UnsupportedDType { op: OP, dtype: x.dtype() });
        }
        let mut shape = vec![1; x.rank()];
        shape[1] = channels;
        if is_training() { self.normalize_by_batch(x, &shape) } else { self.normalize_by_running(x, &shape) }
    }
}
