//! A tensor with a border of one value.
//!
//! y is x at its place and the value around it; ∂L/∂x is the part of ∂L/∂y at the place of x: a view of it. One output is taken, nothing
//! is saved.

use crate::autograd::Saved;
use crate::backend::Kernel;
use crate::context::OpContext;
use crate::dtype::Scalar;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::op::{Op, apply};
use crate::ops::unary::holds;
use crate::shape::{MAX_RANK, Shape};
use crate::tensor::Tensor;

const OP: &str = "pad";

#[derive(Debug)]
struct Pad {
    /// How many go before and behind along each axis.
    widths: [(usize, usize); MAX_RANK],
    value: Scalar,
}

impl Pad {
    /// The place of a tensor of shape `of` in the padded one.
    fn inside(&self, of: &Shape, padded: &Layout) -> Result<Layout> {
        (0..of.rank()).try_fold(*padded, |part, axis| {
            let before = self.widths[axis].0;
            part.sliced(OP, axis, before..before.saturating_add(of[axis]), 1)
        })
    }
}

impl Op for Pad {
    fn name(&self) -> &'static str {
        OP
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        let padded = (0..x.rank()).zip(self.widths).fold(*x.shape(), |shape, (axis, (before, behind))| {
            shape.with_dim(axis, shape[axis].saturating_add(before).saturating_add(behind))
        });
        let mut out = ctx.output(&padded, x.dtype())?;
        ctx.compute(Kernel::Fill { value: self.value, out: out.view_mut() })?;
        let inside = self.inside(x.shape(), out.view().layout())?;
        let (input, mut out_view) = (x.view(), out.view_mut());
        let out_view = out_view.with_layout(&inside);
        ctx.compute(Kernel::CopyInto { input, axis: 0, start: 0, step: 1, out: out_view })?;
        Ok(out.finish())
    }

    fn backward(&self, _: &OpContext<'_>, saved: &Saved, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(grad.with_layout(self.inside(&saved.input_shape(0), grad.layout())?))])
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
        if widths.iter().all(|&widths| widths == (0, 0)) {
            return Ok(self.unchanged());
        }
        let widths = std::array::from_fn(|axis| widths.get(axis).copied().unwrap_or_default());
        apply(Pad { widths, value }, &[self])
    }
}
