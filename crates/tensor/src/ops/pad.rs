//! A tensor with a border of one value.
//!
//! y is x at its place and the value around it; ∂L/∂x is the part of ∂L/∂y at the place of x: a view of it. Nothing is saved.
//! Axis after axis: one output is taken for each axis that grows.

use crate::autograd::Saved;
use crate::backend::Kernel;
use crate::context::OpContext;
use crate::dtype::Scalar;
use crate::error::{Error, Result};
use crate::op::{Op, apply};
use crate::ops::unary::holds;
use crate::tensor::Tensor;

const OP: &str = "pad";

/// Along one axis.
#[derive(Debug)]
struct Pad {
    axis: usize,
    before: usize,
    after: usize,
    value: Scalar,
}

impl Op for Pad {
    fn name(&self) -> &'static str {
        OP
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        let size = x.dims()[self.axis].saturating_add(self.before).saturating_add(self.after);
        let mut out = ctx.output(&x.shape().with_dim(self.axis, size), x.dtype())?;
        ctx.compute(Kernel::Fill { value: self.value, out: out.view_mut() })?;
        ctx.compute(Kernel::CopyInto {
            input: x.view(),
            axis: self.axis,
            start: self.before,
            step: 1,
            out: out.view_mut(),
        })?;
        Ok(out.finish())
    }

    fn backward(&self, _: &OpContext<'_>, saved: &Saved, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let range = self.before..self.before + saved.input_shape(0)[self.axis];
        Ok(vec![Some(grad.with_layout(grad.layout().sliced(OP, self.axis, range, 1)?))])
    }
}

impl Tensor {
    /// This tensor with `value` around it: `widths` has for each axis how many go before and how many after.
    ///
    /// ```
    /// use highwater_tensor::{Device, Tensor};
    /// let x = Tensor::ones(&Device::cpu()?, [1, 2])?;
    /// let padded = x.pad(&[(0, 1), (1, 0)], 7.0)?;
    /// assert_eq!(padded.dims(), [2, 3]);
    /// assert_eq!(padded.to_vec::<f32>()?, [7.0, 1.0, 1.0, 7.0, 7.0, 7.0]);
    /// # Ok::<(), highwater_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless there are widths for each axis, and if the value is none of the element type;
    /// [`Error::TooManyElements`], [`Error::Allocation`] if there is no memory.
    pub fn pad(&self, widths: &[(usize, usize)], value: impl Into<Scalar>) -> Result<Self> {
        if widths.len() != self.rank() {
            let got = format!("{} for shape {}", widths.len(), self.shape());
            return Err(Error::BadArgument {
                op: OP,
                argument: "widths",
                expected: "a pair for each axis",
                got,
            });
        }
        let value = holds(OP, value.into(), self.dtype())?;
        let mut grows = widths.iter().enumerate().filter(|&(_, &widths)| widths != (0, 0));
        grows.try_fold(self.unchanged(), |padded, (axis, &(before, after))| {
            apply(Pad { axis, before, after, value }, &[&padded])
        })
    }
}
