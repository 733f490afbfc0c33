//! Batch normalization (Ioffe and Szegedy 2015).

use std::fmt;

use highwater_tensor::{
    Activation, BatchStatistics, DType, Error, Parameter, Place, Result, Rng, RunningStatistics, Tensor,
    is_training,
};
use highwater_tracking::ModulePath;

use super::debug::when;
use super::in_layer;
use super::init::{Fans, Init};
use super::module::Module;
use super::norm::{EPSILON, norm};
use crate::recompute::note_batch_norm;

const OP: &str = "batch_norm";

const MOMENTUM: f64 = 0.1;

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
/// [`forward_relu`](Self::forward_relu) and [`forward_add_relu`](Self::forward_add_relu) apply ReLU in the same op, which saves
/// passes over memory. In a [`Sequential`](super::Sequential), a `Relu` after this layer does.
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
#[derive(Clone, Module)]
pub struct BatchNorm {
    path: ModulePath,
    weight: Parameter,
    bias: Parameter,
    #[module(buffer)]
    running_mean: Parameter,
    #[module(buffer)]
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
            momentum: MOMENTUM,
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
}

impl Module for BatchNorm {
    enters_itself!(path);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run(|weight, bias, statistics| x.batch_norm(weight, bias, statistics, self.epsilon))
    }

    fn forward_activated(&self, x: &Tensor, activation: Activation) -> Option<Result<Tensor>> {
        (activation == Activation::Relu).then(|| self.forward_relu(x))
    }
}

impl BatchNorm {
    /// Computes ReLU of the normalized input by one op, which saves two passes over memory. The report shows
    /// `batch_norm_relu`.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// use highwater::nn::{BatchNorm, Module};
    /// let device = Device::cpu()?;
    /// let (norm, x) = (BatchNorm::new(&device, 1)?, Tensor::from_slice(&device, &[1.0f32, 3.0], [2, 1])?);
    /// let y = norm.forward_relu(&x)?.to_vec::<f32>()?;
    /// assert!(y[0] == 0.0 && (y[1] - 1.0).abs() < 1e-4);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`forward`](Module::forward).
    pub fn forward_relu(&self, x: &Tensor) -> Result<Tensor> {
        self.run(|weight, bias, statistics| x.batch_norm_relu(weight, bias, statistics, self.epsilon))
    }

    /// Computes ReLU of the sum of the normalized input and `residual` by one op. The report shows `batch_norm_add_relu`.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// use highwater::nn::{BatchNorm, Module};
    /// let device = Device::cpu()?;
    /// let (norm, x) = (BatchNorm::new(&device, 1)?, Tensor::from_slice(&device, &[1.0f32, 3.0], [2, 1])?);
    /// let y = norm.forward_add_relu(&x, &x)?.to_vec::<f32>()?;
    /// assert!(y[0] < 1e-4 && (y[1] - 4.0).abs() < 1e-4);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`forward`](Module::forward) and [`Tensor::add`].
    pub fn forward_add_relu(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.run(|weight, bias, statistics| {
            x.batch_norm_add_relu(weight, bias, residual, statistics, self.epsilon)
        })
    }

    /// Calls `normalize` in this layer, with the weight, the bias and the statistics.
    fn run(
        &self,
        normalize: impl FnOnce(&Tensor, &Tensor, BatchStatistics<'_>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        in_layer(&self.path, &self.weight, || self.normalize(normalize))
    }

    fn normalize(
        &self,
        normalize: impl FnOnce(&Tensor, &Tensor, BatchStatistics<'_>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        self.check_options()?;
        // Not 16-bit copies: the kernels read f32 beside 16-bit inputs.
        let (weight, bias) = (self.weight.tensor(), self.bias.tensor());
        if is_training() {
            note_batch_norm();
            let running = RunningStatistics {
                mean: self.running_mean.clone(),
                variance: self.running_var.clone(),
                momentum: self.momentum,
            };
            let statistics = BatchStatistics::Batch { running: Some(&running) };
            return normalize(&weight, &bias, statistics);
        }
        // A repeated forward uses the running means of the first.
        let [mean, variance] = [&self.running_mean, &self.running_var].map(Parameter::replayed_value);
        let fixed = BatchStatistics::Fixed { mean: &mean, variance: &variance };
        normalize(&weight, &bias, fixed)
    }
}

impl fmt::Debug for BatchNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let momentum = when(self.momentum != MOMENTUM, format!("momentum {}", self.momentum));
        norm(f, "BatchNorm", &self.weight, momentum, self.epsilon)
    }
}
