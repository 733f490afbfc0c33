//! Convolutional layers.

use super::init::{Fans, Init};
use super::module::Module;
use super::parameter::Parameter;
use crate::device::Place;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{Conv2dOptions, Pool2dOptions};
use crate::rng::Rng;
use crate::tensor::Tensor;

/// Filters of their own for each output channel, and a bias: for images `[n, channels, h, w]`.
///
/// ```
/// use highwater_tensor::nn::{Conv2d, Flatten, MaxPool2d, Module, Relu, Sequential};
/// use highwater_tensor::{Conv2dOptions, Device, Pool2dOptions, Rng, Tensor};
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// let same = Conv2dOptions { padding: [1, 1], ..Conv2dOptions::default() };
/// let network = Sequential::new()
///     .with("conv", Conv2d::new(&device, 1, 16, [3, 3], same, &rng)?)
///     .with("relu", Relu)
///     .with("pool", MaxPool2d(Pool2dOptions::square(2)))
///     .with("flat", Flatten);
/// assert_eq!(network.forward(&Tensor::zeros(&device, [8, 1, 28, 28])?)?.dims(), [8, 16 * 14 * 14]);
/// # Ok::<(), highwater_tensor::Error>(())
/// ```
#[derive(Debug)]
pub struct Conv2d {
    weight: Parameter,
    bias: Parameter,
    options: Conv2dOptions,
}

impl Conv2d {
    /// A layer in `f32` from `inputs` to `outputs` channels, with windows of `size`. Weights start as Kaiming's for ReLU, the
    /// bias as 0.
    ///
    /// # Errors
    /// [`Error::Allocation`](crate::Error::Allocation) if there is no memory.
    pub fn new(
        place: &impl Place,
        inputs: usize,
        outputs: usize,
        size: [usize; 2],
        options: Conv2dOptions,
        rng: &Rng,
    ) -> Result<Self> {
        let groups = options.groups.max(1);
        let taps = size[0].saturating_mul(size[1]);
        let fans = Fans {
            inputs: (inputs / groups).saturating_mul(taps),
            outputs: (outputs / groups).saturating_mul(taps),
        };
        let shape = [outputs, inputs / groups, size[0], size[1]];
        let weight = Init::KaimingUniform.parameter(place, shape, DType::F32, fans, rng)?;
        let bias = Init::Zeros.parameter(place, [outputs], DType::F32, fans, rng)?;
        Ok(Self { weight, bias, options })
    }

    /// The filters, of shape `[outputs, inputs / groups, height, width]`.
    #[must_use]
    pub const fn weight(&self) -> &Parameter {
        &self.weight
    }

    /// The bias, of shape `[outputs]`.
    #[must_use]
    pub const fn bias(&self) -> &Parameter {
        &self.bias
    }
}

impl Module for Conv2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let bias = self.bias.tensor();
        let channels = bias.elements();
        x.conv2d(&self.weight.tensor(), self.options)?.add(&bias.reshape([channels, 1, 1])?)
    }

    fn visit(&self, visitor: &mut dyn FnMut(&str, &Parameter)) {
        visitor("weight", &self.weight);
        visitor("bias", &self.bias);
    }
}

/// The largest element of each window, see [`Tensor::max_pool2d`].
#[derive(Clone, Copy, Debug)]
pub struct MaxPool2d(pub Pool2dOptions);

impl Module for MaxPool2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.max_pool2d(self.0)
    }
}

/// The mean of each window, see [`Tensor::avg_pool2d`].
#[derive(Clone, Copy, Debug)]
pub struct AvgPool2d(pub Pool2dOptions);

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
