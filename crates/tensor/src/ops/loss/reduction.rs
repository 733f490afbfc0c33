//! What becomes of many losses: one number, or themselves.

use crate::error::Result;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// What a loss function makes of the losses of its elements or rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// Their mean; NaN for none.
    #[default]
    Mean,
    /// Their sum; 0 for none.
    Sum,
    /// Nothing: the losses themselves, one for each.
    None,
}

impl Reduction {
    /// The loss function's result.
    pub(super) fn fold(self, losses: Tensor) -> Result<Tensor> {
        match self {
            Self::Mean => losses.mean_all(),
            Self::Sum => losses.sum_all(),
            Self::None => Ok(losses),
        }
    }

    /// The gradient of each of the losses, whose shape this is, from that of the result.
    pub(super) fn spread(self, grad: &Tensor, shape: &Shape) -> Result<Tensor> {
        match self {
            Self::Mean => grad.div_scalar(shape.elements() as f64)?.broadcast_to(shape),
            Self::Sum => grad.broadcast_to(shape),
            Self::None => Ok(grad.clone()),
        }
    }
}
