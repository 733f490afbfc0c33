//! Convolution and pooling layers.

use std::fmt;

use highwater_tensor::{
    Conv1dOptions, Conv2dOptions, DType, Error, Parameter, Place, Pool2dOptions, Result, Rng, Tensor,
};
use highwater_tracking::ModulePath;

use super::debug::{convolution, pooling};
use super::init::{Fans, Init};
use super::module::Module;
use super::{in_layer, in_path};

/// Checks that no window size is 0.
fn check_size(op: &'static str, size: &[usize]) -> Result<()> {
    if size.contains(&0) {
        let got = format!("{size:?}");
        return Err(Error::BadArgument { op, argument: "size", expected: "at least 1", got });
    }
    Ok(())
}

/// Checks that the groups divide the channels.
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

/// Creates the parameters of a layer from `inputs` to `outputs` channels: weights of this shape with Kaiming
/// initialization for ReLU, and a bias of 0.
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

/// Adds the optional bias of each channel in place. `places` is the number of axes after the channels.
fn with_bias(y: Tensor, bias: Option<&Parameter>, places: usize) -> Result<Tensor> {
    let Some(bias) = bias.map(Parameter::operand).transpose()? else { return Ok(y) };
    let mut shape = vec![1; places + 1];
    shape[0] = bias.elements();
    y + &bias.reshape(shape)?
}

/// Defines a convolutional layer with windows of type `$size_type` along `$axes` axes. `$method` is the method of [`Tensor`],
/// `$check` the method that checks the `$options`, and `$shape` the shape of the weight.
macro_rules! conv_layer {
    (
        $(#[$doc:meta])*
        $name:ident: $method:ident, $options:ident, $check:ident, $axes:literal, $size_type:ty,
        |$inputs:ident, $outputs:ident, $groups:ident, $size:ident| $shape:expr
    ) => {
        $(#[$doc])*
        #[derive(Clone, Module)]
        pub struct $name {
            path: ModulePath,
            weight: Parameter,
            bias: Option<Parameter>,
            options: $options,
        }

        impl $name {
            /// Creates a layer in `f32` from `inputs` to `outputs` channels, with windows of `size`. The weight has
            /// Kaiming initialization for ReLU, and the bias is 0.
            ///
            /// # Errors
            /// [`Error::BadArgument`] unless the groups divide both numbers of channels, for options that no forward
            /// accepts, and for a size of 0; [`Error::Allocation`] if there is no memory.
            pub fn new(
                place: &impl Place,
                inputs: usize,
                outputs: usize,
                size: $size_type,
                options: $options,
                rng: &Rng,
            ) -> Result<Self> {
                const OP: &str = stringify!($method);
                let ($inputs, $outputs, $groups, $size) = (inputs, outputs, options.groups, size);
                check_groups(OP, options.groups, [inputs, outputs])?;
                let shape = $shape;
                check_size(OP, &shape[2..])?;
                options.$check(OP)?;
                let (weight, bias) = parameters(place, &shape, [inputs, outputs], options.groups, rng)?;
                Ok(Self { path: ModulePath::new(), weight, bias: Some(bias), options })
            }

            /// Returns the layer without a bias. A norm after the layer would cancel it.
            #[must_use]
            pub fn without_bias(self) -> Self {
                Self { bias: None, ..self }
            }

            /// Returns the weight.
            #[must_use]
            pub const fn weight(&self) -> &Parameter {
                &self.weight
            }

            /// Returns the bias, of shape `[outputs]`, if the layer has one.
            #[must_use]
            pub const fn bias(&self) -> Option<&Parameter> {
                self.bias.as_ref()
            }
        }

        impl Module for $name {
            enters_itself!(path);

            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                in_layer(&self.path, &self.weight, || {
                    with_bias(x.$method(&self.weight.operand()?, self.options)?, self.bias.as_ref(), $axes)
                })
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                convolution(f, stringify!($name), &self.weight, self.bias.is_some(), self.options)
            }
        }
    };
}

conv_layer! {
    /// 2D convolution layer for images `[n, channels, h, w]`, with a filter and a bias for each output channel.
    ///
    /// ```
    /// use highwater::{Conv2dOptions, Device, Rng, Tensor};
    /// use highwater::nn::{Conv2d, Flatten, MaxPool2d, Module, Relu, Sequential};
    /// let (device, rng) = (Device::cpu()?, Rng::new(0));
    /// let same = Conv2dOptions::same();
    /// let network = Sequential::new()
    ///     .with("conv", Conv2d::new(&device, 1, 16, [3, 3], same, &rng)?)
    ///     .with("relu", Relu)
    ///     .with("pool", MaxPool2d::new(2))
    ///     .with("flat", Flatten);
    /// assert_eq!(network.forward(&Tensor::zeros(&device, [8, 1, 28, 28])?)?.dims(), [8, 16 * 14 * 14]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// The weight has the shape `[outputs, inputs / groups, height, width]`.
    Conv2d: conv2d, Conv2dOptions, for_conv2d, 2, [usize; 2],
    |inputs, outputs, groups, size| [outputs, inputs / groups, size[0], size[1]]
}

conv_layer! {
    /// 1D convolution layer for sequences `[n, channels, len]`: see [`Tensor::conv1d`].
    ///
    /// ```
    /// use highwater::{Conv1dOptions, Device, Rng, Tensor};
    /// use highwater::nn::{Conv1d, Module};
    /// let device = Device::cpu()?;
    /// let options = Conv1dOptions { stride: 2, ..Conv1dOptions::padded(2) };
    /// let layer = Conv1d::new(&device, 3, 8, 5, options, &Rng::new(0))?;
    /// assert_eq!(layer.forward(&Tensor::zeros(&device, [4, 3, 100])?)?.dims(), [4, 8, 50]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// The weight has the shape `[outputs, inputs / groups, len]`.
    Conv1d: conv1d, Conv1dOptions, for_conv1d, 1, usize,
    |inputs, outputs, groups, size| [outputs, inputs / groups, size]
}

conv_layer! {
    /// Transposed 2D convolution layer, from small images to larger ones: see [`Tensor::conv_transpose2d`].
    ///
    /// ```
    /// use highwater::{Conv2dOptions, Device, Rng, Tensor};
    /// use highwater::nn::{ConvTranspose2d, Module};
    /// let device = Device::cpu()?;
    /// let options = Conv2dOptions { stride: [2, 2], ..Conv2dOptions::default() };
    /// let layer = ConvTranspose2d::new(&device, 16, 1, [2, 2], options, &Rng::new(0))?;
    /// assert_eq!(layer.forward(&Tensor::zeros(&device, [8, 16, 14, 14])?)?.dims(), [8, 1, 28, 28]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// The weight has the shape `[inputs, outputs / groups, height, width]`.
    ConvTranspose2d: conv_transpose2d, Conv2dOptions, for_conv_transpose2d, 2, [usize; 2],
    |inputs, outputs, groups, size| [inputs, outputs / groups, size[0], size[1]]
}

/// Defines a pooling layer.
macro_rules! pool_layer {
    ($(#[$doc:meta])* $name:ident, $method:ident) => {
        $(#[$doc])*
        #[derive(Clone, Module)]
        pub struct $name {
            path: ModulePath,
            options: Pool2dOptions,
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                pooling(f, stringify!($name), &self.options)
            }
        }

        impl $name {
            /// Creates a layer with the windows of `options`. A number is the size of square windows without overlap.
            ///
            /// Forward fails with [`Error::BadArgument`] for sizes and strides of 0, and for padding of more than half
            /// the size.
            #[must_use]
            pub fn new(options: impl Into<Pool2dOptions>) -> Self {
                Self { path: ModulePath::new(), options: options.into() }
            }
        }

        impl Module for $name {
            enters_itself!(path);

            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                in_path(&self.path, || x.$method(self.options))
            }
        }
    };
}

pool_layer! {
    /// 2D max pooling layer; see [`Tensor::max_pool2d`].
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// use highwater::nn::{MaxPool2d, Module};
    /// let pool = MaxPool2d::new(2);
    /// assert_eq!(pool.forward(&Tensor::zeros(&Device::cpu()?, [8, 16, 28, 28])?)?.dims(), [8, 16, 14, 14]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    MaxPool2d, max_pool2d
}

pool_layer! {
    /// 2D average pooling layer; see [`Tensor::avg_pool2d`].
    AvgPool2d, avg_pool2d
}
