//! Activations with options or parameters, and softmax along an axis.

use std::fmt;

use highwater_tensor::{DType, Parameter, Place, Result, Rng, Tensor};
use highwater_tracking::ModulePath;

use super::debug::{dtype, layer, size};
use super::init::{Fans, Init};
use super::module::Module;
use super::{in_layer, in_path};

/// Leaky ReLU activation: x above 0, `slope` x below; see [`Tensor::leaky_relu`].
#[derive(Clone, Module)]
pub struct LeakyRelu {
    path: ModulePath,
    slope: f64,
}

impl LeakyRelu {
    /// Creates an activation with this slope below 0.
    #[must_use]
    pub const fn new(slope: f64) -> Self {
        Self { path: ModulePath::new(), slope }
    }
}

impl Default for LeakyRelu {
    /// A slope of 0.01, as in PyTorch.
    fn default() -> Self {
        Self::new(0.01)
    }
}

impl Module for LeakyRelu {
    enters_itself!(path);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_path(&self.path, || x.leaky_relu(self.slope))
    }
}

/// ELU activation: x above 0, `alpha` (eˣ - 1) below; see [`Tensor::elu`].
#[derive(Clone, Module)]
pub struct Elu {
    path: ModulePath,
    alpha: f64,
}

impl Elu {
    /// Creates an activation that approaches -`alpha` far below 0.
    #[must_use]
    pub const fn new(alpha: f64) -> Self {
        Self { path: ModulePath::new(), alpha }
    }
}

impl Default for Elu {
    /// An alpha of 1, as in PyTorch.
    fn default() -> Self {
        Self::new(1.0)
    }
}

impl Module for Elu {
    enters_itself!(path);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_path(&self.path, || x.elu(self.alpha))
    }
}

/// PReLU activation: x above 0, w x below, with a trained slope w; see [`Tensor::prelu`].
///
/// ```
/// use highwater::{Device, Tensor};
/// use highwater::nn::{Module, PRelu};
/// let device = Device::cpu()?;
/// let x = Tensor::full(&device, [2, 8, 4, 4], -1.0)?;
/// assert_eq!(PRelu::new(&device)?.forward(&x)?.at((0, 0, 0, 0))?.item::<f32>()?, -0.25);
/// assert_eq!(PRelu::per_channel(&device, 8)?.parameter_count(), 8);
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct PRelu {
    path: ModulePath,
    weight: Parameter,
}

impl PRelu {
    /// Creates an activation with one slope for all elements (`f32`), which starts at 0.25.
    ///
    /// # Errors
    /// [`Error::Allocation`](highwater_tensor::Error::Allocation) if there is no memory.
    pub fn new(place: &impl Place) -> Result<Self> {
        Self::per_channel(place, 1)
    }

    /// Creates an activation with one slope for each channel (axis 1), which start at 0.25.
    ///
    /// # Errors
    /// [`Error::Allocation`](highwater_tensor::Error::Allocation) if there is no memory.
    pub fn per_channel(place: &impl Place, channels: usize) -> Result<Self> {
        // The values are constants.
        let (fans, unused) = (Fans { inputs: channels, outputs: channels }, Rng::new(0));
        let weight = Init::Constant(0.25).parameter(place, [channels], DType::F32, fans, &unused)?;
        Ok(Self { path: ModulePath::new(), weight })
    }

    /// Returns the slopes, of shape `[channels]`.
    #[must_use]
    pub const fn weight(&self) -> &Parameter {
        &self.weight
    }
}

impl Module for PRelu {
    enters_itself!(path);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_layer(&self.path, &self.weight, || x.prelu(&self.weight.operand()?))
    }
}

/// Softmax along an axis; see [`Tensor::softmax`]. For training, use [`Tensor::cross_entropy`] on the logits instead.
///
/// ```
/// use highwater::{Device, Tensor};
/// use highwater::nn::{Module, Softmax};
/// let y = Softmax::new(-1).forward(&Tensor::zeros(&Device::cpu()?, [2, 4])?)?;
/// assert_eq!(y.to_vec::<f32>()?, [0.25; 8]);
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct Softmax {
    path: ModulePath,
    axis: isize,
}

impl Softmax {
    /// Creates a softmax along this axis. Negative axes count from the last one, which is -1.
    #[must_use]
    pub const fn new(axis: isize) -> Self {
        Self { path: ModulePath::new(), axis }
    }
}

impl Module for Softmax {
    enters_itself!(path);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_path(&self.path, || x.softmax(self.axis))
    }
}

/// Logarithm of the softmax along an axis; see [`Tensor::log_softmax`].
#[derive(Clone, Module)]
pub struct LogSoftmax {
    path: ModulePath,
    axis: isize,
}

impl LogSoftmax {
    /// Creates a logarithm of the softmax along this axis. Negative axes count from the last one, which is -1.
    #[must_use]
    pub const fn new(axis: isize) -> Self {
        Self { path: ModulePath::new(), axis }
    }
}

impl Module for LogSoftmax {
    enters_itself!(path);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_path(&self.path, || x.log_softmax(self.axis))
    }
}

impl fmt::Debug for LeakyRelu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        layer(f, "LeakyRelu", [Some(self.slope.to_string())])
    }
}

impl fmt::Debug for Elu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        layer(f, "Elu", [Some(self.alpha.to_string())])
    }
}

impl fmt::Debug for PRelu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        layer(f, "PRelu", [Some(size(&self.weight, 0).to_string()), dtype(&self.weight)])
    }
}

impl fmt::Debug for Softmax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        layer(f, "Softmax", [Some(format!("axis {}", self.axis))])
    }
}

impl fmt::Debug for LogSoftmax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        layer(f, "LogSoftmax", [Some(format!("axis {}", self.axis))])
    }
}
