//! Interpolation of images to another size: nearest neighbors and bilinear.
//!
//! With `s` = input size / output size along an axis, output i lies at this place of the input:
//!
//! | interpolation | place | y |
//! |---|---|---|
//! | nearest | ⌊i s⌋ | the element at the place |
//! | bilinear | (i + ½) s - ½ | the mean of both neighbors, weighted by their distances |
//! | bilinear, corners aligned | i (input size - 1) / (output size - 1) | the same |
//!
//! Selects rows, then columns, by index. The device computes the indices. A clamp is the last step, so that `index_select`
//! does not check them and wait. Nothing of the size of images is kept for backward. Bilinear interpolation needs
//! temporaries of twice the output's size, in f32 for 16-bit floats.

use super::supported;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::shape::{DType, Shape};
use crate::tensor::Tensor;

/// How [`Tensor::interpolate`] computes the pixels of an image of another size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Interpolation {
    /// The pixel at the rounded-down position, as PyTorch's `mode="nearest"`. Also for integers and booleans.
    #[default]
    Nearest,
    /// The mean of four neighbors, weighted by their distances, as PyTorch's `mode="bilinear"`.
    Bilinear {
        /// Whether the centers of the corner pixels of both images coincide; otherwise, the corners of these pixels do.
        align_corners: bool,
    },
}

/// The size of the result of [`Tensor::interpolate`], given directly or as a scale. Made from a pair of integers (the
/// size), or from a float or a pair of floats (the scale).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OutputSize {
    /// Height and width.
    Size([usize; 2]),
    /// Output size / input size, of height and width. Sizes are rounded down.
    Scale([f64; 2]),
}

impl From<[usize; 2]> for OutputSize {
    fn from(size: [usize; 2]) -> Self {
        Self::Size(size)
    }
}

impl From<f64> for OutputSize {
    fn from(scale: f64) -> Self {
        Self::Scale([scale; 2])
    }
}

impl From<[f64; 2]> for OutputSize {
    fn from(scales: [f64; 2]) -> Self {
        Self::Scale(scales)
    }
}

const OP: &str = "interpolate";

/// The change of one axis.
#[derive(Clone, Copy, Debug)]
struct Change {
    axis: isize,
    from: usize,
    to: usize,
    /// Distance of neighboring outputs, in elements of the input.
    step: f64,
}

impl OutputSize {
    /// Returns the change of an image's height (0) or width (1) with `len` elements.
    fn change(self, axis: usize, len: usize) -> Result<Change> {
        let bad = |argument, expected, got| Error::BadArgument { op: OP, argument, expected, got };
        let (to, step) = match self {
            Self::Size(size) => {
                let to = size[axis];
                if to == 0 {
                    return Err(bad("size", "at least 1", format!("{size:?}")));
                }
                (to, len as f64 / to as f64)
            }
            Self::Scale(scales) => {
                let scale = scales[axis];
                // A cast saturates.
                let to = (len as f64 * scale).floor() as usize;
                if !(scale.is_finite() && scale > 0.0) || to == 0 {
                    let expected = "a number above 0 that leaves at least one pixel";
                    return Err(bad("scale", expected, format!("{scales:?} for {len} pixels of an axis")));
                }
                (to, scale.recip())
            }
        };
        if len == 0 {
            let expected = "images with at least one pixel";
            return Err(bad("images", expected, "an axis without elements".to_owned()));
        }
        Ok(Change { axis: axis as isize + 2, from: len, to, step })
    }
}

impl Change {
    /// Returns the nearest neighbors of the outputs, which are indices of the input.
    fn nearest(&self, x: &Tensor) -> Result<Tensor> {
        // As in PyTorch: computed in f32, and axes of twice the size repeat each element, whatever the scale.
        let step = if Some(self.to) == self.from.checked_mul(2) { 0.5 } else { self.step };
        let places = Tensor::arange(x.device(), 0, self.to)?.to_dtype(DType::F32)?.mul_scalar(step)?;
        places.floor()?.to_dtype(DType::I64)?.clamp(0, self.last())
    }

    /// Selects the nearest neighbors.
    fn select_nearest(&self, x: &Tensor) -> Result<Tensor> {
        if self.from == self.to {
            return Ok(x.unchanged());
        }
        x.index_select(self.axis, &self.nearest(x)?)
    }

    /// Mixes the two neighbors of each output.
    fn mix_neighbors(&self, x: &Tensor, align_corners: bool) -> Result<Tensor> {
        if self.from == self.to {
            return Ok(x.unchanged());
        }
        let outputs = Tensor::arange(x.device(), 0, self.to)?.to_dtype(DType::F64)?;
        let places = if align_corners {
            outputs.mul_scalar(self.last() as f64 / self.to.saturating_sub(1).max(1) as f64)?
        } else {
            outputs.add_scalar(0.5)?.mul_scalar(self.step)?.sub_scalar(0.5)?
        };
        let places = places.clamp(0, self.last())?;
        let whole = places.floor()?;
        let before = whole.to_dtype(DType::I64)?.clamp(0, self.last())?;
        let after = before.add_scalar(1)?.clamp(0, self.last())?;
        // One weight per row or column.
        let mut shape = [1; 4];
        shape[self.axis as usize] = self.to;
        let weight = places.sub(&whole)?.to_dtype(x.dtype())?.reshape(shape)?;
        let [before, after] = [x.index_select(self.axis, &before)?, x.index_select(self.axis, &after)?];
        // The products and the sum reuse the neighbors' buffers.
        (before * &weight.neg()?.add_scalar(1)?)? + (after * &weight)?
    }

    fn last(&self) -> usize {
        self.from.saturating_sub(1)
    }
}

/// # Resize images
impl Tensor {
    /// Interpolates images to another size, as PyTorch's `functional.interpolate`.
    ///
    /// Shapes: `[n, channels, h, w]` to `[n, channels, height, width]`. `to` is the size as a pair of integers, or a scale as
    /// a float. A scale also determines the distances of the pixels, as in PyTorch. An axis that keeps its size does not
    /// change.
    ///
    /// ```
    /// use highwater::{Device, Interpolation, Tensor};
    /// let image = Tensor::from_slice(&Device::cpu()?, &[0.0f32, 4.0], [1, 1, 1, 2])?;
    /// let nearest = image.interpolate(2.0, Interpolation::Nearest)?;
    /// assert_eq!(nearest.dims(), [1, 1, 2, 4]);
    /// let bilinear = image.interpolate([1, 4], Interpolation::Bilinear { align_corners: false })?;
    /// assert_eq!(bilinear.to_vec::<f32>()?, [0.0, 1.0, 3.0, 4.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::BadRank`] unless the images have four axes
    /// - [`Error::BadArgument`] for a size of 0, a scale that is not above 0, and images without pixels
    /// - [`Error::UnsupportedDType`] for bilinear interpolation unless the elements are floats
    /// - [`Error::TooManyElements`]; [`Error::Allocation`] if there is no memory
    #[doc(alias("upsample", "resize"))]
    pub fn interpolate(&self, to: impl Into<OutputSize>, interpolation: Interpolation) -> Result<Self> {
        let &[n, channels, height, width] = self.dims() else {
            return Err(Error::BadRank { op: OP, expected: "four axes", shape: *self.shape() });
        };
        let to = to.into();
        let [rows, columns] = [to.change(0, height)?, to.change(1, width)?];
        Layout::contiguous(OP, Shape::new(&[n, channels, rows.to, columns.to])?, self.dtype())?;
        match interpolation {
            Interpolation::Nearest => columns.select_nearest(&rows.select_nearest(self)?),
            Interpolation::Bilinear { align_corners } => {
                supported(OP, self.dtype(), DType::is_float)?;
                let x = self.to_dtype(self.dtype().computed_as())?;
                let x = columns.mix_neighbors(&rows.mix_neighbors(&x, align_corners)?, align_corners)?;
                x.to_dtype(self.dtype())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Runtime;

    #[test]
    fn sizes_and_scales_that_leave_no_image_are_named() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let x = Tensor::ones(&device, [1, 1, 2, 3]).unwrap();
        let to = |to: OutputSize| x.interpolate(to, Interpolation::Nearest).unwrap_err().to_string();
        assert_eq!(to([4, 0].into()), "interpolate: size must be at least 1, got [4, 0]");
        for scale in [0.0, -1.0, f64::NAN, f64::INFINITY, 0.2] {
            let expected = "interpolate: scale must be a number above 0 that leaves at least one pixel";
            assert!(to(scale.into()).starts_with(expected), "{scale}");
        }
        assert!(matches!(
            x.interpolate(1e12, Interpolation::Nearest),
            Err(Error::TooManyElements { op: "interpolate", .. })
        ));
        let flat = x.reshape([2, 3]).unwrap().interpolate([1, 1], Interpolation::Nearest);
        assert!(matches!(flat, Err(Error::BadRank { op: "interpolate", .. })));
        let whole = x.to_dtype(DType::U8).unwrap();
        let bilinear = Interpolation::Bilinear { align_corners: false };
        assert!(matches!(whole.interpolate([4, 4], bilinear), Err(Error::UnsupportedDType { .. })));
        assert_eq!(whole.interpolate([4, 4], Interpolation::Nearest).unwrap().dtype(), DType::U8);
        let empty = Tensor::ones(&device, [1, 1, 0, 3]).unwrap();
        assert!(empty.interpolate([2, 2], Interpolation::Nearest).is_err());
        let no_images = Tensor::ones(&device, [0, 1, 2, 3]).unwrap();
        assert_eq!(no_images.interpolate(2.0, bilinear).unwrap().dims(), [0, 1, 4, 6]);
    }

    #[test]
    fn a_pixel_that_is_no_number_stays_local() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let values = [f32::NAN, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
        let x = Tensor::from_slice(&device, &values, [1, 1, 2, 4]).unwrap();
        for interpolation in [Interpolation::Nearest, Interpolation::Bilinear { align_corners: true }] {
            let y = x.interpolate([2, 7], interpolation).unwrap().to_vec::<f32>().unwrap();
            assert_eq!(y.iter().filter(|y| y.is_nan()).count(), 2, "{y:?}");
        }
    }

    #[test]
    fn interpolation_keeps_no_images_for_the_backward_pass() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let in_use = || device.default_allocator().unwrap().stats().bytes_in_use;
        let x = Tensor::ones(&device, [4, 16, 32, 32]).unwrap().requiring_grad().unwrap();
        for interpolation in [Interpolation::Nearest, Interpolation::Bilinear { align_corners: false }] {
            let before = in_use();
            let y = x.interpolate(2.0, interpolation).unwrap();
            let kept = in_use() - before - (y.elements() * 4) as u64;
            assert!(kept < 8192, "{interpolation:?} keeps {kept} bytes");
            let gradients = y.sum_all().unwrap().backward().unwrap();
            // Each output distributes a weight of 1 in all.
            assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>().unwrap(), [4.0; 4 * 16 * 32 * 32]);
        }
    }
}
