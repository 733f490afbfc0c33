//! Cumulative sums along an axis.
//!
//! `y[.., i, ..] = Σ x[.., j, ..]` over j ≤ i. ∂L/∂x is the reverse cumulative sum of ∂L/∂y. The op allocates one
//! output and saves nothing. Element types are those of `sum`. Floats are summed in f64 and each sum is rounded once, as
//! in PyTorch. So long sums lose no small elements.

use super::reduce::summed_as;
use crate::autograd::apply;
use crate::backend::kernels;
use crate::error::Result;
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::tensor::Tensor;

#[derive(Debug)]
struct Cumsum {
    axis: usize,
    /// Whether the sums run from the last element to the first.
    reverse: bool,
}

impl Op for Cumsum {
    fn name(&self) -> &'static str {
        "cumsum"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        let mut out = ctx.output(x.shape(), summed_as(x.dtype()))?;
        ctx.compute(kernels::Copy { input: x.view(), out: out.view_mut() })?;
        ctx.compute(kernels::RunningSum { axis: self.axis, reverse: self.reverse, out: out.view_mut() })?;
        Ok(out.finish())
    }

    fn backward(&self, _: &OpContext<'_>, _: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(apply(Self { reverse: !self.reverse, ..*self }, &[&grad])?)])
    }
}

/// # Cumulative sums
impl Tensor {
    /// Cumulative sum of the elements along an axis. Integers and booleans are summed as i64, which wraps. Floats are
    /// summed in f64, and each sum is rounded once.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[1.0f32, 2.0, 3.0], [3])?;
    /// assert_eq!(x.cumsum(0)?.to_vec::<f32>()?, [1.0, 3.0, 6.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::sum`].
    #[doc(alias("cumulative_sum"))]
    pub fn cumsum(&self, axis: isize) -> Result<Self> {
        let axis = self.shape().axis("cumsum", axis)?;
        apply(Cumsum { axis, reverse: false }, &[self])
    }
}
