//! The logarithm of a sum of exponentials along axes, which does not overflow.
//!
//! y = m + ln Σ eˣ⁻ᵐ with the largest element m; -∞ for no elements. ∂y/∂x = eˣ⁻ʸ. Saves x and y (in f32 for 16-bit
//! floats), and allocates a temporary of the size of x.

use bfc_core::Category;

use super::axes::Axes;
use super::create::constant_like;
use super::reduce::Target;
use super::supported;
use crate::autograd::apply;
use crate::error::Result;
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::shape::DType;
use crate::tensor::Tensor;

#[derive(Debug)]
struct LogSumExp(Target);

impl Op for LogSumExp {
    fn name(&self) -> &'static str {
        "logsumexp"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        supported(ctx.op(), inputs[0].dtype(), DType::is_float)?;
        let x = &inputs[0].upcast()?;
        let result = if x.elements() == 0 {
            let folded = self.0.axes.folded_shape(x.shape());
            Tensor::full_for(x.device(), folded, f64::NEG_INFINITY, x.dtype(), Category::Output)?
        } else {
            let largest = x.max_over(self.0.kept())?;
            // ∞ - ∞ is NaN, so nothing is subtracted where the maximum is infinite.
            let infinite = largest.abs()?.eq(&constant_like(x, f64::INFINITY)?)?;
            let largest = infinite.where_(&constant_like(x, 0)?, &largest)?;
            x.sub(&largest)?.exp()?.sum_over(self.0.kept())?.log()?.add(&largest)?
        };
        ctx.save(inputs[0]);
        ctx.save(&result);
        self.0.finish(result.to_dtype(inputs[0].dtype())?, x.shape())
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let (x, y) = (&saved.tensor(0)?.upcast()?, saved.tensor(1)?);
        // If all elements are -∞, each gets a gradient of 0.
        let nothing = y.eq(&constant_like(x, f64::NEG_INFINITY)?)?;
        let y = nothing.where_(&constant_like(x, 0)?, y)?;
        let gradient = x.sub(&y)?.exp()?.mul(&self.0.restore(&grad)?.upcast()?)?;
        Ok(vec![Some(gradient.to_dtype(saved.input_dtype(0))?)])
    }
}

/// # Log-sum-exp
impl Tensor {
    /// Log-sum-exp ln Σ eˣ along axes, which vanish; -∞ for no elements. It does not overflow or underflow where eˣ
    /// does.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[1000.0f32, 1000.0], [2])?;
    /// assert_eq!(x.logsumexp(0)?.item::<f32>()?, 1000.0 + 2f32.ln());
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::mean`].
    pub fn logsumexp(&self, axes: impl Axes) -> Result<Self> {
        apply(LogSumExp(self.target("logsumexp", &axes, false)?), &[self])
    }

    /// Log-sum-exp along axes, which stay with size 1.
    ///
    /// # Errors
    /// See [`Tensor::mean`].
    pub fn logsumexp_keepdim(&self, axes: impl Axes) -> Result<Self> {
        apply(LogSumExp(self.target("logsumexp", &axes, true)?), &[self])
    }
}
