//! Pixel shuffle: moves elements between channels and space (Shi et al. 2016).
//!
//! | op | x | y |
//! |---|---|---|
//! | `pixel_shuffle` | `[.., c · r², h, w]` | `[.., c, h · r, w · r]` |
//! | `pixel_unshuffle` | `[.., c, h · r, w · r]` | `[.., c · r², h, w]` |
//!
//! Each is the inverse of the other. Both split axes, permute them and merge them again, which makes one copy. Nothing is
//! saved.

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// # Pixel shuffle
impl Tensor {
    /// Rearranges channels to larger images, as PyTorch's `pixel_shuffle`: each pixel of factor² channels becomes a square
    /// of factor · factor pixels.
    ///
    /// Shapes: `[.., channels · factor², h, w]` to `[.., channels, h · factor, w · factor]`.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::arange(&Device::cpu()?, 0, 8)?.reshape([1, 4, 1, 2])?;
    /// let y = x.pixel_shuffle(2)?;
    /// assert_eq!(y.dims(), [1, 1, 2, 4]);
    /// assert_eq!(y.to_vec::<i64>()?, [0, 2, 1, 3, 4, 6, 5, 7]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadRank`] below three axes; [`Error::BadArgument`] unless factor² divides the channels;
    /// [`Error::RankTooLarge`] above six axes; [`Error::Allocation`] if there is no memory.
    #[doc(alias("depth_to_space"))]
    pub fn pixel_shuffle(&self, factor: usize) -> Result<Self> {
        let op = "pixel_shuffle";
        let (outer, [channels, height, width]) = self.image(op)?;
        let inner = factor.checked_mul(factor).filter(|&area| area > 0 && channels % area == 0);
        let Some(inner) = inner.map(|area| channels / area) else {
            return Err(self.bad_factor(op, factor, "at least 1, with a square that divides the channels"));
        };
        // Row and column within the square follow the channel, and move behind row and column of the pixel.
        let split = [outer, &[inner, factor, factor, height, width]].concat();
        let merged = [outer, &[inner, height.saturating_mul(factor), width.saturating_mul(factor)]].concat();
        self.rearranged(op, &split, [0, 3, 1, 4, 2], &merged)
    }

    /// Rearranges squares of pixels to channels, as PyTorch's `pixel_unshuffle`: the inverse of
    /// [`pixel_shuffle`](Self::pixel_shuffle).
    ///
    /// Shapes: `[.., channels, h · factor, w · factor]` to `[.., channels · factor², h, w]`.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::arange(&Device::cpu()?, 0, 4)?.reshape([1, 1, 2, 2])?;
    /// assert_eq!(x.pixel_unshuffle(2)?.dims(), [1, 4, 1, 1]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::pixel_shuffle`]; [`Error::BadArgument`] unless the factor divides height and width.
    #[doc(alias("space_to_depth"))]
    pub fn pixel_unshuffle(&self, factor: usize) -> Result<Self> {
        let op = "pixel_unshuffle";
        let (outer, [channels, height, width]) = self.image(op)?;
        if factor == 0 || height % factor != 0 || width % factor != 0 {
            return Err(self.bad_factor(op, factor, "a divisor of height and width"));
        }
        let [height, width] = [height / factor, width / factor];
        let split = [outer, &[channels, height, factor, width, factor]].concat();
        let area = factor.saturating_mul(factor);
        let merged = [outer, &[channels.saturating_mul(area), height, width]].concat();
        self.rearranged(op, &split, [0, 2, 4, 1, 3], &merged)
    }

    /// Returns the sizes of the leading axes, and channels, height and width.
    fn image(&self, op: &'static str) -> Result<(&[usize], [usize; 3])> {
        match *self.dims() {
            [ref outer @ .., channels, height, width] => Ok((outer, [channels, height, width])),
            _ => Err(Error::BadRank { op, expected: "at least three axes", shape: *self.shape() }),
        }
    }

    fn bad_factor(&self, op: &'static str, factor: usize, expected: &'static str) -> Error {
        let got = format!("{factor} for shape {}", self.shape());
        Error::BadArgument { op, argument: "factor", expected, got }
    }

    /// Splits axes, permutes the last five, and merges axes.
    fn rearranged(
        &self,
        op: &'static str,
        split: &[usize],
        last_axes: [isize; 5],
        merged: &[usize],
    ) -> Result<Self> {
        let first = split.len() as isize - 5;
        let axes: Vec<isize> = (0..first).chain(last_axes.map(|axis| first + axis)).collect();
        let moved = self.reshape(split).and_then(|x| x.permute(&axes)).and_then(|x| x.reshape(merged));
        moved.map_err(|error| error.in_op(op))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Runtime;

    fn counting(dims: &[usize]) -> Tensor {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        Tensor::arange(&device, 0, dims.iter().product::<usize>()).unwrap().reshape(dims).unwrap()
    }

    #[test]
    fn a_pixel_moves_from_its_channel_to_its_place() {
        // y[n, c, h · r + i, w · r + j] = x[n, c · r² + i · r + j, h, w], also of a tensor with strides.
        let x = counting(&[2, 3, 2 * 9, 2]).permute([0, 2, 3, 1]).unwrap();
        let y = x.pixel_shuffle(3).unwrap();
        assert_eq!(y.dims(), [2, 2, 6, 9]);
        for (index, [n, c, row, column]) in [(0, [0, 0, 0, 0]), (1, [1, 1, 5, 7]), (2, [0, 1, 3, 8])] {
            let moved = y.at((n, c, row, column)).unwrap().item::<i64>().unwrap();
            let channel = c * 9 + (row % 3) * 3 + column % 3;
            let from = x.at((n, channel, row / 3, column / 3)).unwrap().item::<i64>().unwrap();
            assert_eq!(moved, from, "{index}");
        }
        assert_eq!(y.pixel_unshuffle(3).unwrap().to_vec::<i64>().unwrap(), x.to_vec::<i64>().unwrap());
        assert_eq!(counting(&[4, 1, 1]).pixel_shuffle(2).unwrap().to_vec::<i64>().unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn factors_that_do_not_divide_are_named() {
        let x = counting(&[1, 6, 2, 3]);
        let message = |result: Result<Tensor>| result.unwrap_err().to_string();
        for factor in [0, 2, usize::MAX] {
            assert_eq!(
                message(x.pixel_shuffle(factor)),
                format!(
                    "pixel_shuffle: factor must be at least 1, with a square that divides the channels, \
                     got {factor} for shape [1, 6, 2, 3]"
                )
            );
        }
        for factor in [0, 2] {
            assert_eq!(
                message(x.pixel_unshuffle(factor)),
                format!(
                    "pixel_unshuffle: factor must be a divisor of height and width, \
                     got {factor} for shape [1, 6, 2, 3]"
                )
            );
        }
        assert!(matches!(counting(&[4, 2]).pixel_shuffle(1), Err(Error::BadRank { .. })));
        let deepest = counting(&[1; crate::MAX_RANK]).pixel_shuffle(1);
        assert!(matches!(deepest, Err(Error::RankTooLarge { .. })));
    }
}
