//! The padding of convolutions: numbers of zeros, or as many as keep the size.

use std::borrow::Cow;

use super::Conv2dOptions;
use crate::error::Result;
use crate::tensor::Tensor;

/// The zeros around the input of a convolution: one number for sequences, and a pair for height and width for images.
/// Made from one number, or from such a pair.
///
/// ```
/// use highwater::{Conv2dOptions, Device, Padding, Tensor};
/// let device = Device::cpu()?;
/// let (images, filters) = (Tensor::ones(&device, [1, 1, 9, 9])?, Tensor::ones(&device, [1, 1, 4, 3])?);
/// let options = Conv2dOptions { padding: Padding::Same, ..Conv2dOptions::default() };
/// assert_eq!(images.conv2d(&filters, options)?.dims(), [1, 1, 9, 9]);
/// let options = Conv2dOptions { padding: [2, 0].into(), ..Conv2dOptions::default() };
/// assert_eq!(images.conv2d(&filters, options)?.dims(), [1, 1, 10, 7]);
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Padding<N = [usize; 2]> {
    /// This many zeros before the first element and as many after the last.
    Zeros(N),
    /// As many zeros as keep the size, as PyTorch's `padding="same"`; requires stride 1. If their number is odd, the
    /// additional zero follows the last element, and the op `pad` copies the input.
    Same,
}

impl Padding {
    /// Returns the zeros on each side. [`Same`](Self::Same) has none before [`Conv2dOptions::padded_for`] replaces it.
    pub(in crate::ops) const fn zeros(self) -> [usize; 2] {
        match self {
            Self::Zeros(zeros) => zeros,
            Self::Same => [0, 0],
        }
    }
}

impl From<usize> for Padding<usize> {
    fn from(zeros: usize) -> Self {
        Self::Zeros(zeros)
    }
}

impl From<usize> for Padding {
    fn from(zeros: usize) -> Self {
        Self::Zeros([zeros; 2])
    }
}

impl From<[usize; 2]> for Padding {
    fn from(zeros: [usize; 2]) -> Self {
        Self::Zeros(zeros)
    }
}

impl Conv2dOptions {
    /// Replaces [`Padding::Same`] by numbers of zeros for windows of these sizes. Returns the input of `rank` axes as
    /// well, with additional zeros at the end of the axes that need an odd number of them.
    pub(in crate::ops) fn padded_for<'a>(
        self,
        x: &'a Tensor,
        sizes: &[usize],
        rank: usize,
    ) -> Result<(Cow<'a, Tensor>, Self)> {
        // The op itself reports a wrong rank.
        if self.padding != Padding::Same || x.rank() != rank || sizes.len() + 2 != rank {
            return Ok((Cow::Borrowed(x), self));
        }
        let (mut zeros, mut widths) = ([0; 2], vec![(0, 0); rank]);
        // Sequences have the second axis of the options only.
        for (place, size) in sizes.iter().enumerate() {
            let axis = place + 4 - rank;
            let total = size.saturating_sub(1).saturating_mul(self.dilation[axis]);
            zeros[axis] = total / 2;
            widths[2 + place].1 = total % 2;
        }
        let options = Self { padding: Padding::Zeros(zeros), ..self };
        if widths.iter().all(|&(_, after)| after == 0) {
            return Ok((Cow::Borrowed(x), options));
        }
        Ok((Cow::Owned(x.pad(widths, 0)?), options))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Conv1dOptions;
    use super::*;
    use crate::device::Runtime;
    use crate::error::Error;

    #[test]
    fn same_padding_equals_explicit_zeros() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let x = Tensor::arange(&device, 0.0, 2.0 * 5.0 * 7.0).unwrap().reshape([1, 2, 5, 7]).unwrap();
        for (size, dilation) in
            [([3, 3], [1, 1]), ([2, 3], [1, 2]), ([4, 2], [1, 1]), ([2, 2], [3, 3]), ([1, 6], [1, 1])]
        {
            let taps = 2 * size[0] * size[1];
            let weight = Tensor::arange(&device, 1.0, 1.0 + taps as f64).unwrap();
            let weight = weight.reshape([1, 2, size[0], size[1]]).unwrap();
            let total = [0, 1].map(|axis| (size[axis] - 1) * dilation[axis]);
            let widths =
                [(0, 0), (0, 0)].into_iter().chain(total.map(|total| (total / 2, total - total / 2)));
            let explicit = x.pad(widths.collect::<Vec<_>>(), 0).unwrap();
            let expected =
                explicit.conv2d(&weight, Conv2dOptions { dilation, ..Conv2dOptions::default() }).unwrap();
            let same = x.conv2d(&weight, Conv2dOptions { dilation, ..Conv2dOptions::same() }).unwrap();
            assert_eq!(same.dims(), [1, 1, 5, 7]);
            assert_eq!(same.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap(), "{size:?}");
        }
        let row = Tensor::arange(&device, 0.0, 5.0).unwrap().reshape([1, 1, 5]).unwrap();
        let weight = Tensor::ones(&device, [1, 1, 2]).unwrap();
        let same = row.conv1d(&weight, Conv1dOptions::same()).unwrap();
        assert_eq!(same.to_vec::<f32>().unwrap(), [1.0, 3.0, 5.0, 7.0, 4.0]);
    }

    #[test]
    fn same_padding_requires_stride_one() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let x = Tensor::ones(&device, [1, 1, 4, 4]).unwrap();
        let strided = Conv2dOptions { stride: [2, 1], ..Conv2dOptions::same() };
        assert_eq!(
            x.conv2d(&x, strided).unwrap_err().to_string(),
            "conv2d: stride must be 1, as Padding::Same keeps the size, got [2, 1]"
        );
        let transposed = x.conv_transpose2d(&x, Conv2dOptions::same());
        assert!(matches!(transposed, Err(Error::BadArgument { argument: "padding", .. })));
        let ranks = x.conv2d(&Tensor::ones(&device, [2]).unwrap(), Conv2dOptions::same());
        assert!(matches!(ranks, Err(Error::BadRank { .. })));
        let huge = Conv2dOptions { dilation: [usize::MAX, 2], ..Conv2dOptions::same() };
        assert!(x.conv2d(&Tensor::ones(&device, [1, 1, 3, 3]).unwrap(), huge).is_err());
    }
}
