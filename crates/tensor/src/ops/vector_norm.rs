//! Vector norms along axes.
//!
//! | norm | y | ∂y/∂x |
//! |---|---|---|
//! | `L1` | Σ \|x\| | sign x |
//! | `L2` | √(Σ x²) | x / y, 0 where y is |
//! | `Max` | the largest \|x\| | sign x at the largest, shared evenly among ties |
//!
//! Saves x and y (in f32 for 16-bit floats); `Max` allocates a temporary of the size of x.

use super::axes::Axes;
use super::create::constant_like;
use super::reduce::{Target, not_empty};
use super::supported;
use crate::autograd::apply;
use crate::backend::Reduce;
use crate::error::Result;
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::shape::DType;
use crate::tensor::Tensor;

/// A vector norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// The sum of the absolute values (p = 1).
    L1,
    /// The square root of the sum of the squares: the Euclidean norm (p = 2).
    L2,
    /// The largest absolute value (p = ∞).
    Max,
}

#[derive(Debug)]
struct VectorNorm {
    norm: Norm,
    target: Target,
}

impl Op for VectorNorm {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        supported(ctx.op(), inputs[0].dtype(), DType::is_float)?;
        let (x, kept) = (&inputs[0].upcast()?, self.target.kept());
        let length = match self.norm {
            Norm::L1 => x.folded(Reduce::SumMagnitudes, kept)?,
            Norm::L2 => x.folded(Reduce::SumSquares, kept)?.sqrt()?,
            Norm::Max => {
                not_empty(ctx.op(), x, &kept.axes.folded_shape(x.shape()))?;
                x.abs()?.max_over(kept)?
            }
        };
        ctx.save(inputs[0]);
        ctx.save(&length);
        self.target.finish(length.to_dtype(inputs[0].dtype())?, x.shape())
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let (x, length) = (&saved.tensor(0)?.upcast()?, saved.tensor(1)?);
        let grad = self.target.restore(&grad)?.upcast()?;
        let gradient = match self.norm {
            Norm::L1 => x.sign()?.mul(&grad)?,
            Norm::L2 => {
                let zero = constant_like(x, 0)?;
                x.mul(&length.eq(&zero)?.where_(&zero, &grad.div(length)?)?)?
            }
            Norm::Max => {
                let hits = x.abs()?.eq(length)?.to_dtype(grad.dtype())?;
                let share = grad.div(&hits.sum_over(self.target.kept())?)?;
                hits.mul(&x.sign()?)?.mul(&share)?
            }
        };
        Ok(vec![Some(gradient.to_dtype(saved.input_dtype(0))?)])
    }
}

/// # Vector norms
impl Tensor {
    /// Vector norm along axes, which vanish. Several axes form one vector. 0 for no elements, except for [`Norm::Max`].
    ///
    /// ```
    /// use highwater::{Device, Norm, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[3.0f32, -4.0], [2])?;
    /// assert_eq!(x.norm(Norm::L1, 0)?.item::<f32>()?, 7.0);
    /// assert_eq!(x.norm(Norm::L2, 0)?.item::<f32>()?, 5.0);
    /// assert_eq!(x.norm(Norm::Max, 0)?.item::<f32>()?, 4.0);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::mean`]; [`Error::EmptyReduction`](crate::Error::EmptyReduction) for [`Norm::Max`] of no elements.
    #[doc(alias("vector_norm"))]
    pub fn norm(&self, norm: Norm, axes: impl Axes) -> Result<Self> {
        apply(VectorNorm { norm, target: self.target("norm", &axes, false)? }, &[self])
    }

    /// Vector norm along axes, which stay with size 1. See [`Tensor::norm`].
    ///
    /// # Errors
    /// See [`Tensor::norm`].
    pub fn norm_keepdim(&self, norm: Norm, axes: impl Axes) -> Result<Self> {
        apply(VectorNorm { norm, target: self.target("norm", &axes, true)? }, &[self])
    }
}
