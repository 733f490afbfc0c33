//! The reduction of per-element losses.

use crate::error::Result;
use crate::op::Summation;
use crate::shape::{DType, Shape};
use crate::tensor::Tensor;

/// The reduction that a loss function applies to the losses of its elements or rows.
///
/// A loss function without a reduction, such as [`Tensor::mse_loss`], returns the mean. Its variant that ends in `_with`
/// takes the reduction.
///
/// ```
/// use highwater::{Device, Reduction, Tensor};
/// let device = Device::cpu()?;
/// let (logits, classes) = (Tensor::zeros(&device, [3, 2])?, Tensor::from_slice(&device, &[0i64, 1, 1], [3])?);
/// assert_eq!(logits.cross_entropy(&classes)?.item::<f32>()?, 2f32.ln());
/// assert_eq!(logits.cross_entropy_with(&classes, Reduction::None)?.dims(), [3]);
/// assert_eq!(logits.mse_loss_with(&logits, Reduction::Sum)?.item::<f32>()?, 0.0);
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// The mean; NaN for no elements.
    #[default]
    Mean,
    /// The sum; 0 for no elements.
    Sum,
    /// No reduction: returns the individual losses.
    None,
}

impl Reduction {
    /// Reduces the losses to the loss function's result.
    pub(super) fn fold(self, losses: Tensor) -> Result<Tensor> {
        match self {
            Self::Mean => losses.mean_all(),
            Self::Sum => losses.sum_all(),
            Self::None => Ok(losses),
        }
    }

    /// Returns the element type of the result: losses of 16-bit floats add up to an f32.
    pub(super) const fn dtype(self, of: DType) -> DType {
        match self {
            Self::None => of,
            Self::Mean | Self::Sum => of.computed_as(),
        }
    }

    /// Returns how the result adds up the losses of this many rows or elements.
    pub(super) fn summation(self, terms: usize) -> Summation {
        match self {
            Self::Mean => Summation::Functions { terms, factor: 1.0 / terms as f64 },
            Self::Sum => Summation::Functions { terms, factor: 1.0 },
            Self::None => Summation::Other,
        }
    }

    /// Computes the gradient of each loss from the gradient of the result.
    pub(super) fn spread(self, grad: &Tensor, shape: &Shape) -> Result<Tensor> {
        match self {
            Self::Mean => grad.div_scalar(shape.elements() as f64)?.broadcast_to(shape),
            Self::Sum => grad.broadcast_to(shape),
            Self::None => Ok(grad.clone()),
        }
    }
}
