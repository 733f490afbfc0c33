//! Normalization layers.

use std::fmt;

use highwater_tensor::{DType, Error, Parameter, Place, Result, Rng, Tensor};
use highwater_tracking::ModulePath;

use super::debug::{dtype, layer, size, when};
use super::init::{Fans, Init};
use super::module::Module;
use super::{in_layer, in_path};

/// The default ε, which is added to variances to prevent a division by 0.
pub(super) const EPSILON: f64 = 1e-5;

/// Creates a parameter with one value everywhere.
fn constant(place: &impl Place, size: usize, value: f64) -> Result<Parameter> {
    // The value is a constant.
    let (fans, unused) = (Fans { inputs: size, outputs: size }, Rng::new(0));
    Init::Constant(value).parameter(place, [size], DType::F32, fans, &unused)
}

/// Layer normalization over the last axis; see [`Tensor::layer_norm`].
///
/// ```
/// use highwater::{Device, Tensor};
/// use highwater::nn::{LayerNorm, Module};
/// let device = Device::cpu()?;
/// let norm = LayerNorm::new(&device, 2)?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 3.0], [1, 2])?;
/// assert!((norm.forward(&x)?.to_vec::<f32>()?[1] - 1.0).abs() < 1e-4);
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct LayerNorm {
    path: ModulePath,
    weight: Parameter,
    bias: Parameter,
    epsilon: f64,
}

impl LayerNorm {
    /// Creates a layer for rows of `width` values (`f32`), with ε = 10⁻⁵.
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory.
    pub fn new(place: &impl Place, width: usize) -> Result<Self> {
        let (weight, bias) = (constant(place, width, 1.0)?, constant(place, width, 0.0)?);
        Ok(Self { path: ModulePath::new(), weight, bias, epsilon: EPSILON })
    }

    /// Creates a layer from existing parameters of shape `[width]`, with ε = 10⁻⁵.
    ///
    /// Forward fails with [`Error::ShapeMismatch`] for parameters of another shape.
    #[must_use]
    pub const fn from_parameters(weight: Parameter, bias: Parameter) -> Self {
        Self { path: ModulePath::new(), weight, bias, epsilon: EPSILON }
    }

    /// Sets ε; 10⁻⁵ by default. Models of other libraries also use 10⁻⁶ or 10⁻¹².
    ///
    /// Forward fails with [`Error::BadArgument`] unless it is finite and not negative.
    #[must_use]
    pub fn with_epsilon(self, epsilon: f64) -> Self {
        Self { epsilon, ..self }
    }
}

impl Module for LayerNorm {
    enters_itself!(path);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_layer(&self.path, &self.weight, || {
            x.layer_norm(Some((&self.weight.operand()?, &self.bias.operand()?)), self.epsilon)
        })
    }
}

/// RMS normalization over the last axis; see [`Tensor::rms_norm`].
#[derive(Clone, Module)]
pub struct RmsNorm {
    path: ModulePath,
    weight: Parameter,
    epsilon: f64,
}

impl RmsNorm {
    /// Creates a layer for rows of `width` values (`f32`), with ε = 10⁻⁵.
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory.
    pub fn new(place: &impl Place, width: usize) -> Result<Self> {
        let weight = constant(place, width, 1.0)?;
        Ok(Self { path: ModulePath::new(), weight, epsilon: EPSILON })
    }

    /// Creates a layer from an existing parameter of shape `[width]`, with ε = 10⁻⁵.
    ///
    /// Forward fails with [`Error::ShapeMismatch`] for a parameter of another shape.
    #[must_use]
    pub const fn from_parameter(weight: Parameter) -> Self {
        Self { path: ModulePath::new(), weight, epsilon: EPSILON }
    }

    /// Sets ε; 10⁻⁵ by default. Models of other libraries also use 10⁻⁶ or 10⁻¹².
    ///
    /// Forward fails with [`Error::BadArgument`] unless it is finite and not negative.
    #[must_use]
    pub fn with_epsilon(self, epsilon: f64) -> Self {
        Self { epsilon, ..self }
    }
}

impl Module for RmsNorm {
    enters_itself!(path);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_layer(&self.path, &self.weight, || x.rms_norm(Some(&self.weight.operand()?), self.epsilon))
    }
}

/// Group normalization of the channels; see [`Tensor::group_norm`].
#[derive(Clone, Module)]
pub struct GroupNorm {
    path: ModulePath,
    groups: usize,
    weight: Parameter,
    bias: Parameter,
    epsilon: f64,
}

impl GroupNorm {
    /// Creates a layer for `channels` channels (`f32`) in `groups` groups, with ε = 10⁻⁵.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless the groups divide the channels; [`Error::Allocation`] if there is no memory.
    pub fn new(place: &impl Place, groups: usize, channels: usize) -> Result<Self> {
        check_groups("group_norm", groups, channels)?;
        let (weight, bias) = (constant(place, channels, 1.0)?, constant(place, channels, 0.0)?);
        Ok(Self { path: ModulePath::new(), groups, weight, bias, epsilon: EPSILON })
    }

    /// Sets ε; 10⁻⁵ by default. Models of other libraries also use 10⁻⁶ or 10⁻¹².
    ///
    /// Forward fails with [`Error::BadArgument`] unless it is finite and not negative.
    #[must_use]
    pub fn with_epsilon(self, epsilon: f64) -> Self {
        Self { epsilon, ..self }
    }
}

impl Module for GroupNorm {
    enters_itself!(path);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_layer(&self.path, &self.weight, || {
            x.group_norm(self.groups, Some((&self.weight.operand()?, &self.bias.operand()?)), self.epsilon)
        })
    }
}

/// Instance normalization: brings each channel of each example to mean 0 and variance 1; see [`Tensor::instance_norm`].
///
/// As in PyTorch, the layer has no parameters unless [`with_affine`](Self::with_affine) adds them, and keeps no running
/// means.
///
/// ```
/// use highwater::{Device, Tensor};
/// use highwater::nn::{InstanceNorm, Module};
/// let device = Device::cpu()?;
/// let (norm, affine) = (InstanceNorm::new(1), InstanceNorm::new(1).with_affine(&device)?);
/// let x = Tensor::from_slice(&device, &[1.0f32, 3.0], [1, 1, 2])?;
/// assert!((norm.forward(&x)?.to_vec::<f32>()?[1] - 1.0).abs() < 1e-4);
/// assert_eq!((norm.parameter_count(), affine.parameter_count()), (0, 2));
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct InstanceNorm {
    path: ModulePath,
    channels: usize,
    weight: Option<Parameter>,
    bias: Option<Parameter>,
    epsilon: f64,
}

impl InstanceNorm {
    /// Creates a layer for `channels` channels without parameters, with ε = 10⁻⁵.
    ///
    /// Forward fails with [`Error::BadArgument`] for another number of channels.
    #[must_use]
    pub const fn new(channels: usize) -> Self {
        Self { path: ModulePath::new(), channels, weight: None, bias: None, epsilon: EPSILON }
    }

    /// Adds a weight of 1 and a bias of 0 for each channel (`f32`), as PyTorch's `affine=True`.
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory.
    pub fn with_affine(self, place: &impl Place) -> Result<Self> {
        let (weight, bias) = (constant(place, self.channels, 1.0)?, constant(place, self.channels, 0.0)?);
        Ok(Self { weight: Some(weight), bias: Some(bias), ..self })
    }

    /// Sets ε; 10⁻⁵ by default. Models of other libraries also use 10⁻⁶ or 10⁻¹².
    ///
    /// Forward fails with [`Error::BadArgument`] unless it is finite and not negative.
    #[must_use]
    pub fn with_epsilon(self, epsilon: f64) -> Self {
        Self { epsilon, ..self }
    }

    fn check_channels(&self, x: &Tensor) -> Result<()> {
        match x.dims() {
            [_, channels, ..] if *channels != self.channels => Err(Error::BadArgument {
                op: "instance_norm",
                argument: "x",
                expected: "of the layer's number of channels",
                got: format!("shape {} for {} channels", x.shape(), self.channels),
            }),
            _ => Ok(()),
        }
    }
}

impl Module for InstanceNorm {
    enters_itself!(path);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let normalized = |affine: Option<(&Tensor, &Tensor)>| {
            self.check_channels(x)?;
            x.instance_norm(affine, self.epsilon)
        };
        match (&self.weight, &self.bias) {
            (Some(weight), Some(bias)) => {
                in_layer(&self.path, weight, || normalized(Some((&weight.operand()?, &bias.operand()?))))
            }
            _ => in_path(&self.path, || normalized(None)),
        }
    }
}

/// Checks that `channels` can be divided into groups of equal size.
fn check_groups(op: &'static str, groups: usize, channels: usize) -> Result<()> {
    if groups > 0 && channels.is_multiple_of(groups) {
        return Ok(());
    }
    let (argument, expected) = ("groups", "a divisor of the number of channels");
    Err(Error::BadArgument { op, argument, expected, got: format!("{groups} for {channels} channels") })
}

impl fmt::Debug for LayerNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        norm(f, "LayerNorm", &self.weight, None, self.epsilon)
    }
}

impl fmt::Debug for RmsNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        norm(f, "RmsNorm", &self.weight, None, self.epsilon)
    }
}

impl fmt::Debug for GroupNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        norm(f, "GroupNorm", &self.weight, Some(format!("groups {}", self.groups)), self.epsilon)
    }
}

impl fmt::Debug for InstanceNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let option = when(self.weight.is_some(), "affine");
        let epsilon = when(self.epsilon != EPSILON, format!("epsilon {:?}", self.epsilon));
        let dtype = self.weight.as_ref().and_then(dtype);
        layer(f, "InstanceNorm", [Some(self.channels.to_string()), option, epsilon, dtype])
    }
}

/// Writes a norm with its width and options.
pub(super) fn norm(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    weight: &Parameter,
    option: Option<String>,
    epsilon: f64,
) -> fmt::Result {
    let epsilon = when(epsilon != EPSILON, format!("epsilon {epsilon:?}"));
    layer(f, name, [Some(size(weight, 0).to_string()), option, epsilon, dtype(weight)])
}
