//! Replacement of elements by one value under a mask.
//!
//! y = mask ? value : x. ∂L/∂x is ∂L/∂y where the mask is false, else 0. The op allocates one output and saves the
//! mask.

use super::create::constant_like;
use super::expect_mask;
use super::unary::exact_scalar;
use crate::autograd::apply;
use crate::error::{Error, Result, ShapeRule};
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::shape::{Scalar, Shape};
use crate::tensor::Tensor;

#[derive(Debug)]
struct MaskedFill(Scalar);

impl Op for MaskedFill {
    fn name(&self) -> &'static str {
        "masked_fill"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let (op, [x, mask]) = (ctx.op(), [inputs[0], inputs[1]]);
        expect_mask(op, "mask", mask, x)?;
        if Shape::broadcast(op, x.shape(), mask.shape())? != *x.shape() {
            return Err(Error::ShapeMismatch {
                op,
                lhs: *x.shape(),
                rhs: *mask.shape(),
                rule: &ShapeRule::Other("the mask must broadcast to the tensor"),
            });
        }
        let value = exact_scalar(op, self.0, x.dtype())?;
        let filled = mask.where_(&constant_like(x, value)?, x)?;
        ctx.save(mask);
        Ok(filled)
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let kept = saved.tensor(0)?.where_(&constant_like(&grad, 0)?, &grad)?;
        Ok(vec![Some(kept), None])
    }
}

/// # Masked replacement
impl Tensor {
    /// Replaces elements by `value` where the boolean mask is true. The mask broadcasts to this tensor's shape.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let device = Device::cpu()?;
    /// let scores = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0], [3])?;
    /// let hidden = Tensor::from_slice(&device, &[false, true, false], [3])?;
    /// let masked = scores.masked_fill(&hidden, f32::NEG_INFINITY)?;
    /// assert_eq!(masked.to_vec::<f32>()?, [1.0, f32::NEG_INFINITY, 3.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless the mask is boolean and this tensor's type can represent `value`;
    /// [`Error::ShapeMismatch`] if the mask does not broadcast to this tensor's shape; [`Error::Allocation`] if there
    /// is no memory.
    pub fn masked_fill(&self, mask: &Self, value: impl Into<Scalar>) -> Result<Self> {
        apply(MaskedFill(value.into()), &[self, mask])
    }
}
