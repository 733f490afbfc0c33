//! Layers that enlarge images.

use std::fmt;

use highwater_tensor::{Interpolation, OutputSize, Result, Tensor};
use highwater_tracking::ModulePath;

use super::debug::{layer, when, window};
use super::in_path;
use super::module::Module;

/// Upsampling layer: interpolates images to another size; see [`Tensor::interpolate`].
///
/// ```
/// use highwater::{Device, Interpolation, Tensor};
/// use highwater::nn::{Module, Upsample};
/// let twice = Upsample::new(2.0, Interpolation::Nearest);
/// assert_eq!(twice.forward(&Tensor::zeros(&Device::cpu()?, [8, 16, 14, 14])?)?.dims(), [8, 16, 28, 28]);
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct Upsample {
    path: ModulePath,
    to: OutputSize,
    interpolation: Interpolation,
}

impl Upsample {
    /// Creates a layer. A pair of integers is the size of its outputs, a float the factor to its inputs.
    ///
    /// Forward fails with [`Error::BadArgument`](highwater_tensor::Error::BadArgument) for sizes and factors that leave no
    /// pixel.
    #[must_use]
    pub fn new(to: impl Into<OutputSize>, interpolation: Interpolation) -> Self {
        Self { path: ModulePath::new(), to: to.into(), interpolation }
    }
}

impl Module for Upsample {
    enters_itself!(path);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_path(&self.path, || x.interpolate(self.to, self.interpolation))
    }
}

impl fmt::Debug for Upsample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = match self.to {
            OutputSize::Size(size) => window(&size),
            OutputSize::Scale([height, width]) if height == width => format!("scale {height}"),
            OutputSize::Scale([height, width]) => format!("scale {height}x{width}"),
        };
        let (name, aligned) = match self.interpolation {
            Interpolation::Nearest => ("nearest", false),
            Interpolation::Bilinear { align_corners } => ("bilinear", align_corners),
        };
        layer(f, "Upsample", [Some(to), Some(name.to_owned()), when(aligned, "align corners")])
    }
}

/// Pixel shuffle layer: rearranges channels to larger images; see [`Tensor::pixel_shuffle`].
///
/// ```
/// use highwater::{Device, Tensor};
/// use highwater::nn::{Module, PixelShuffle};
/// let shuffle = PixelShuffle::new(2);
/// assert_eq!(shuffle.forward(&Tensor::zeros(&Device::cpu()?, [8, 16, 14, 14])?)?.dims(), [8, 4, 28, 28]);
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct PixelShuffle {
    path: ModulePath,
    factor: usize,
}

impl PixelShuffle {
    /// Creates a layer that multiplies height and width by `factor`.
    ///
    /// Forward fails with [`Error::BadArgument`](highwater_tensor::Error::BadArgument) unless factor² divides the channels.
    #[must_use]
    pub const fn new(factor: usize) -> Self {
        Self { path: ModulePath::new(), factor }
    }
}

impl Module for PixelShuffle {
    enters_itself!(path);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_path(&self.path, || x.pixel_shuffle(self.factor))
    }
}

impl fmt::Debug for PixelShuffle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        layer(f, "PixelShuffle", [Some(self.factor.to_string())])
    }
}
