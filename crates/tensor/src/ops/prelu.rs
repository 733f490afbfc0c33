//! PReLU: a leaky ReLU whose slope is a tensor.
//!
//! y = max(x, 0) + w · min(x, 0), with one slope for each channel (axis 1) or one for all. ∂y/∂x is 1 for x > 0, else w;
//! ∂y/∂w is min(x, 0), summed. The op allocates the output and a temporary of its size; it saves x, and w for the gradient
//! of x, which also allocates a mask.

use super::create::constant_like;
use super::{apply_promoted, if_needed, same_dtype, supported};
use crate::backend::{Binary, Unary, kernels};
use crate::error::{Error, Result, ShapeRule};
use crate::op::{Buffer, Op, OpContext, Saved};
use crate::shape::{DType, Scalar, Shape};
use crate::tensor::Tensor;

const OP: &str = "prelu";

/// min(x, 0)
const LOWER_PART: Unary = Unary::Clamp(Scalar::Float(f64::NEG_INFINITY), Scalar::Float(0.0));

/// The slopes broadcast to x.
#[derive(Debug)]
struct PRelu;

/// `acc[i] = f(acc[i], input[i])`, with a broadcast input.
fn accumulate(ctx: &OpContext<'_>, f: Binary, input: &Tensor, acc: &mut Buffer) -> Result<()> {
    let spread = input.layout().broadcast_to(OP, acc.view().layout().shape())?;
    ctx.compute(kernels::Accumulate { f, input: input.view().with_layout(&spread), acc: acc.view_mut() })
}

impl Op for PRelu {
    fn name(&self) -> &'static str {
        OP
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let (x, weight) = (inputs[0], inputs[1]);
        same_dtype(OP, x, weight)?;
        supported(OP, x.dtype(), DType::is_float)?;
        let mut out = ctx.output(x.shape(), x.dtype())?;
        let mut upper = ctx.temp(x.shape(), x.dtype())?;
        ctx.compute(kernels::Map { f: LOWER_PART, input: x.view(), out: out.view_mut() })?;
        accumulate(ctx, Binary::Mul, weight, &mut out)?;
        ctx.compute(kernels::Map { f: Unary::Relu, input: x.view(), out: upper.view_mut() })?;
        accumulate(ctx, Binary::Add, &upper.finish(), &mut out)?;
        ctx.save(x);
        if x.requires_grad() {
            ctx.save(weight);
        }
        Ok(out.finish())
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let x = saved.tensor(0)?;
        let to_x = if_needed(saved, 0, || {
            let is_upper = x.gt(&constant_like(x, 0)?)?;
            is_upper.where_(&grad, &grad.mul(saved.tensor(1)?)?)
        })?;
        let to_weight = if_needed(saved, 1, || {
            let mut lower = ctx.temp(x.shape(), x.dtype())?;
            ctx.compute(kernels::Map { f: LOWER_PART, input: x.view(), out: lower.view_mut() })?;
            accumulate(ctx, Binary::Mul, &grad, &mut lower)?;
            lower.finish().sum_to(saved.input_shape(1))
        })?;
        Ok(vec![to_x, to_weight])
    }
}

/// # PReLU
impl Tensor {
    /// PReLU activation: x above 0, `weight` · x below. The derivative at 0 is `weight`.
    ///
    /// `weight` has one element, or one for each channel (axis 1), as in PyTorch.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let device = Device::cpu()?;
    /// let x = Tensor::from_slice(&device, &[-2.0f32, -2.0, 4.0, 4.0], [2, 2])?;
    /// let weight = Tensor::from_slice(&device, &[0.25f32, 0.5], [2])?;
    /// assert_eq!(x.prelu(&weight)?.to_vec::<f32>()?, [-0.5, -1.0, 4.0, 4.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for another number of slopes; [`Error::UnsupportedDType`] unless the elements are floats;
    /// [`Error::Allocation`] if there is no memory.
    #[doc(alias("PReLU"))]
    pub fn prelu(&self, weight: &Self) -> Result<Self> {
        let slopes = weight.elements();
        let channels = self.dims().get(1).copied().unwrap_or(1);
        if slopes == 1 {
            return apply_promoted(PRelu, self, &weight.reshape(())?);
        }
        if slopes != channels || weight.rank() != 1 {
            return Err(Error::ShapeMismatch {
                op: OP,
                lhs: *self.shape(),
                rhs: *weight.shape(),
                rule: &ShapeRule::Other("the weight must have one element, or one for each channel (axis 1)"),
            });
        }
        let by_channel = Shape::new(&vec![1; self.rank()])?.with_dim(1, slopes);
        apply_promoted(PRelu, self, &weight.reshape(by_channel)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Runtime;

    #[test]
    fn slopes_fit_one_or_each_channel() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let x = Tensor::ones(&device, [2, 3, 4]).unwrap();
        for (slopes, fits) in [(1, true), (3, true), (2, false), (4, false), (0, false)] {
            assert_eq!(x.prelu(&Tensor::ones(&device, slopes).unwrap()).is_ok(), fits, "{slopes}");
        }
        assert!(x.prelu(&Tensor::ones(&device, [3, 1]).unwrap()).is_err());
        assert!(Tensor::ones(&device, 3).unwrap().prelu(&Tensor::ones(&device, 3).unwrap()).is_err());
        let integers = Tensor::arange(&device, 0, 3).unwrap();
        assert!(matches!(
            integers.prelu(&integers.select(0, 0).unwrap()),
            Err(Error::UnsupportedDType { .. })
        ));
    }
}
