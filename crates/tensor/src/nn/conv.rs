//! Convolutional layers.

use super::init::{Fans, Init};
use super::module::Module;
use crate::autograd::Parameter;
use crate::device::Place;
use crate::error::{Error, Result};
use crate::ops::{Conv2dOptions, Pool2dOptions};
use crate::shape::DType;
use crate::tensor::{Rng, Tensor};

/// Filters of their own for each output channel, and a bias: for images `[n, channels, h, w]`.
///
/// ```
/// use highwater_tensor::nn::{Conv2d, Flatten, MaxPool2d, Module, Relu, Sequential};
/// use highwater_tensor::{Conv2dOptions, Device, Rng, Tensor};
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// let same = Conv2dOptions::padded(1);
/// let network = Sequential::new()
///     .with("conv", Conv2d::new(&device, 1, 16, [3, 3], same, &rng)?)
///     .with("relu", Relu)
///     .with("pool", MaxPool2d::new(2)?)
///     .with("flat", Flatten);
/// assert_eq!(network.forward(&Tensor::zeros(&device, [8, 1, 28, 28])?)?.dims(), [8, 16 * 14 * 14]);
/// # Ok::<(), highwater_tensor::Error>(())
/// ```
#[derive(Debug)]
pub struct Conv2d {
    weight: Parameter,
    bias: Option<Parameter>,
    options: Conv2dOptions,
}

/// Refuses windows that see nothing.
fn check_size(op: &'static str, size: &[usize]) -> Result<()> {
    if size.contains(&0) {
        let got = format!("{size:?}");
        return Err(Error::BadArgument { op, argument: "size", expected: "at least 1", got });
    }
    Ok(())
}

/// Refuses groups that do not divide the channels.
fn check_groups(op: &'static str, groups: usize, [inputs, outputs]: [usize; 2]) -> Result<()> {
    if groups == 0 || inputs % groups != 0 || outputs % groups != 0 {
        return Err(Error::BadArgument {
            op,
            argument: "groups",
            expected: "a divisor of the numbers of channels",
            got: format!("{groups} for {inputs} and {outputs} channels"),
        });
    }
    Ok(())
}

/// The parameters of a layer from `inputs` to `outputs` channels: weights of this shape as Kaiming's for ReLU, a bias of 0.
fn parameters(
    place: &impl Place,
    shape: &[usize],
    [inputs, outputs]: [usize; 2],
    groups: usize,
    rng: &Rng,
) -> Result<(Parameter, Parameter)> {
    let taps = shape[2..].iter().fold(1, |taps: usize, &k| taps.saturating_mul(k));
    let fans = Fans {
        inputs: (inputs / groups).saturating_mul(taps),
        outputs: (outputs / groups).saturating_mul(taps),
    };
    let weight = Init::KaimingUniform.parameter(place, shape, DType::F32, fans, rng)?;
    Ok((weight, Init::Zeros.parameter(place, [outputs], DType::F32, fans, rng)?))
}

/// A bias for each channel, if there is one, along so many axes of places. It is added where the sums lie.
fn with_bias(y: Tensor, bias: Option<&Parameter>, places: usize) -> Result<Tensor> {
    let Some(bias) = bias.map(Parameter::tensor) else { return Ok(y) };
    let mut shape = vec![1; places + 1];
    shape[0] = bias.elements();
    y + &bias.reshape(shape)?
}

impl Conv2d {
    /// A layer in `f32` from `inputs` to `outputs` channels, with windows of `size`. Weights start as Kaiming's for ReLU, the
    /// bias as 0.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless the groups divide both numbers of channels, and for options that no forward takes and a size
    /// of 0; [`Error::Allocation`] if there is no memory.
    pub fn new(
        place: &impl Place,
        inputs: usize,
        outputs: usize,
        size: [usize; 2],
        options: Conv2dOptions,
        rng: &Rng,
    ) -> Result<Self> {
        const OP: &str = "conv2d";
        let (channels, groups) = ([inputs, outputs], options.groups);
        check_groups(OP, groups, channels)?;
        check_size(OP, &size)?;
        options.plain(OP)?;
        let shape = [outputs, inputs / groups, size[0], size[1]];
        let (weight, bias) = parameters(place, &shape, channels, groups, rng)?;
        Ok(Self { weight, bias: Some(bias), options })
    }

    /// The same layer without a bias, as where a norm follows, which would take it away again.
    #[must_use]
    pub fn without_bias(self) -> Self {
        Self { bias: None, ..self }
    }

    /// The filters, of shape `[outputs, inputs / groups, height, width]`.
    #[must_use]
    pub const fn weight(&self) -> &Parameter {
        &self.weight
    }

    /// The bias, of shape `[outputs]`, if there is one.
    #[must_use]
    pub const fn bias(&self) -> Option<&Parameter> {
        self.bias.as_ref()
    }
}

impl Module for Conv2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        with_bias(x.conv2d(&self.weight.tensor(), self.options)?, self.bias.as_ref(), 2)
    }

    fn visit(&self, visitor: &mut dyn FnMut(&str, &Parameter)) {
        visitor("weight", &self.weight);
        if let Some(bias) = &self.bias {
            visitor("bias", bias);
        }
    }
}

/// The same for sequences `[n, channels, len]`: see [`Tensor::conv1d`].
///
/// ```
/// use highwater_tensor::nn::{Conv1d, Module};
/// use highwater_tensor::{Conv2dOptions, Device, Rng, Tensor};
/// let device = Device::cpu()?;
/// let options = Conv2dOptions { padding: [0, 2], stride: [1, 2], ..Conv2dOptions::default() };
/// let layer = Conv1d::new(&device, 3, 8, 5, options, &Rng::new(0))?;
/// assert_eq!(layer.forward(&Tensor::zeros(&device, [4, 3, 100])?)?.dims(), [4, 8, 50]);
/// # Ok::<(), highwater_tensor::Error>(())
/// ```
#[derive(Debug)]
pub struct Conv1d {
    weight: Parameter,
    bias: Option<Parameter>,
    options: Conv2dOptions,
}

impl Conv1d {
    /// A layer in `f32` from `inputs` to `outputs` channels, with windows of `size`. Of the options, the second of each pair
    /// counts, as for [`Tensor::conv1d`]. Weights start as Kaiming's for ReLU, the bias as 0.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless the groups divide both numbers of channels, and for options that no forward takes and a size
    /// of 0; [`Error::Allocation`] if there is no memory.
    pub fn new(
        place: &impl Place,
        inputs: usize,
        outputs: usize,
        size: usize,
        options: Conv2dOptions,
        rng: &Rng,
    ) -> Result<Self> {
        const OP: &str = "conv1d";
        let (channels, groups) = ([inputs, outputs], options.groups);
        check_groups(OP, groups, channels)?;
        check_size(OP, &[size])?;
        options.along_rows(OP)?;
        let shape = [outputs, inputs / groups, size];
        let (weight, bias) = parameters(place, &shape, channels, groups, rng)?;
        Ok(Self { weight, bias: Some(bias), options })
    }

    /// The same layer without a bias, as where a norm follows, which would take it away again.
    #[must_use]
    pub fn without_bias(self) -> Self {
        Self { bias: None, ..self }
    }
}

impl Module for Conv1d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        with_bias(x.conv1d(&self.weight.tensor(), self.options)?, self.bias.as_ref(), 1)
    }

    fn visit(&self, visitor: &mut dyn FnMut(&str, &Parameter)) {
        visitor("weight", &self.weight);
        if let Some(bias) = &self.bias {
            visitor("bias", bias);
        }
    }
}

/// The transpose of a convolution, from small images to larger ones: see [`Tensor::conv_transpose2d`].
///
/// ```
/// use highwater_tensor::nn::{ConvTranspose2d, Module};
/// use highwater_tensor::{Conv2dOptions, Device, Rng, Tensor};
/// let device = Device::cpu()?;
/// let options = Conv2dOptions { stride: [2, 2], ..Conv2dOptions::default() };
/// let layer = ConvTranspose2d::new(&device, 16, 1, [2, 2], options, &Rng::new(0))?;
/// assert_eq!(layer.forward(&Tensor::zeros(&device, [8, 16, 14, 14])?)?.dims(), [8, 1, 28, 28]);
/// # Ok::<(), highwater_tensor::Error>(())
/// ```
#[derive(Debug)]
pub struct ConvTranspose2d {
    weight: Parameter,
    bias: Option<Parameter>,
    options: Conv2dOptions,
}

impl ConvTranspose2d {
    /// A layer in `f32` from `inputs` to `outputs` channels, with windows of `size`. Weights, of shape `[inputs,
    /// outputs / groups, height, width]`, start as Kaiming's for ReLU, the bias as 0.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless the groups divide both numbers of channels, and for options that no forward takes and a size
    /// of 0; [`Error::Allocation`] if there is no memory.
    pub fn new(
        place: &impl Place,
        inputs: usize,
        outputs: usize,
        size: [usize; 2],
        options: Conv2dOptions,
        rng: &Rng,
    ) -> Result<Self> {
        const OP: &str = "conv_transpose2d";
        let (channels, groups) = ([inputs, outputs], options.groups);
        check_groups(OP, groups, channels)?;
        check_size(OP, &size)?;
        options.transposed(OP)?;
        let shape = [inputs, outputs / groups, size[0], size[1]];
        let (weight, bias) = parameters(place, &shape, channels, groups, rng)?;
        Ok(Self { weight, bias: Some(bias), options })
    }

    /// The same layer without a bias, as where a norm follows, which would take it away again.
    #[must_use]
    pub fn without_bias(self) -> Self {
        Self { bias: None, ..self }
    }
}

impl Module for ConvTranspose2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        with_bias(x.conv_transpose2d(&self.weight.tensor(), self.options)?, self.bias.as_ref(), 2)
    }

    fn visit(&self, visitor: &mut dyn FnMut(&str, &Parameter)) {
        visitor("weight", &self.weight);
        if let Some(bias) = &self.bias {
            visitor("bias", bias);
        }
    }
}

/// The largest element of each window, see [`Tensor::max_pool2d`].
///
/// ```
/// use highwater_tensor::nn::{MaxPool2d, Module};
/// use highwater_tensor::{Device, Tensor};
/// let halves = MaxPool2d::new(2)?;
/// assert_eq!(halves.forward(&Tensor::zeros(&Device::cpu()?, [8, 16, 28, 28])?)?.dims(), [8, 16, 14, 14]);
/// assert!(MaxPool2d::new(0).is_err());
/// # Ok::<(), highwater_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MaxPool2d(Pool2dOptions);

impl MaxPool2d {
    /// A layer with windows as `options` say; a number alone is the size of square ones side by side.
    ///
    /// # Errors
    /// [`Error::BadArgument`] for sizes and strides of 0, and for padding of more than half the size.
    pub fn new(options: impl Into<Pool2dOptions>) -> Result<Self> {
        let options = options.into();
        options.axes("max_pool2d")?;
        Ok(Self(options))
    }
}

impl Module for MaxPool2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.max_pool2d(self.0)
    }
}

/// The mean of each window, see [`Tensor::avg_pool2d`].
#[derive(Clone, Copy, Debug)]
pub struct AvgPool2d(Pool2dOptions);

impl AvgPool2d {
    /// A layer with windows as `options` say; a number alone is the size of square ones side by side.
    ///
    /// # Errors
    /// [`Error::BadArgument`] for sizes and strides of 0, and for padding of more than half the size.
    pub fn new(options: impl Into<Pool2dOptions>) -> Result<Self> {
        let options = options.into();
        options.axes("avg_pool2d")?;
        Ok(Self(options))
    }
}

impl Module for AvgPool2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.avg_pool2d(self.0)
    }
}

/// All axes but the first become one: from images to what a linear layer takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flatten;

impl Module for Flatten {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.flatten_from(1)
    }
}
