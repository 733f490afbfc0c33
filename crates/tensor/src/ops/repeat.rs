//! Repetition of a tensor (`tile`) or of its elements (`repeat_interleave`).
//!
//! | op | along an axis | ∂L/∂x |
//! |---|---|---|
//! | `tile` | 1 2 3 1 2 3 | ∂L/∂y, summed over the copies |
//! | `repeat_interleave` | 1 1 2 2 3 3 | the same |
//!
//! `tile` allocates one output for each axis that grows, `repeat_interleave` one. A strided tensor of the maximum rank
//! is copied first. Nothing is saved. [`Tensor::broadcast_to`] repeats along axes of size 1 without copies.

use super::reduce::reshaped;
use crate::autograd::apply;
use crate::backend::kernels;
use crate::error::{Error, Result};
use crate::layout::IntoShape;
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::shape::{MAX_RANK, Shape};
use crate::tensor::Tensor;

/// Repetition along one axis.
#[derive(Debug)]
struct Repeat {
    op: &'static str,
    axis: usize,
    times: usize,
    /// Whether the copies of each element are adjacent.
    together: bool,
}

impl Repeat {
    /// Returns a shape with at least one axis to spare, and the axis that grows. At the maximum rank, it merges the
    /// axes before and those after.
    fn roomy(&self, of: &Shape) -> Result<(Shape, usize)> {
        if of.rank() < MAX_RANK {
            return Ok((*of, self.axis));
        }
        // The product of sizes overflows only if another size is 0.
        let folded = |dims: &[usize]| dims.iter().try_fold(1, |all: usize, &size| all.checked_mul(size));
        let (before, behind) = (&of.dims()[..self.axis], &of.dims()[self.axis + 1..]);
        let dims = [folded(before).unwrap_or(0), of[self.axis], folded(behind).unwrap_or(0)];
        Ok((Shape::new(&dims)?, 1))
    }

    /// Returns the result's shape with a separate axis for the copies, and the index of that axis.
    fn apart(&self, of: &Shape) -> Result<(Shape, usize)> {
        let (roomy, axis) = self.roomy(of)?;
        let copies = axis + usize::from(self.together);
        let mut dims = roomy.dims().to_vec();
        dims.insert(copies, self.times);
        Ok((Shape::new(&dims)?, copies))
    }
}

impl Op for Repeat {
    fn name(&self) -> &'static str {
        self.op
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let shape = inputs[0].shape();
        let (apart, copies) = self.apart(shape)?;
        let x = inputs[0].reshape(self.roomy(shape)?.0)?;
        let mut out = ctx.output(&apart, x.dtype())?;
        // Copies of an empty tensor need no memory, but their count must fit into an usize.
        let size = shape[self.axis].checked_mul(self.times).ok_or_else(|| Error::TooManyElements {
            op: self.op,
            shape: shape.with_dim(self.axis, usize::MAX),
            dtype: x.dtype(),
        })?;
        let input = x.with_layout(x.layout().with_axis(copies)?.broadcast_to(self.op, &apart)?);
        ctx.compute(kernels::Copy { input: input.view(), out: out.view_mut() })?;
        reshaped(out.finish(), shape.with_dim(self.axis, size))
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let shape = saved.input_shape(0);
        let (apart, copies) = self.apart(&shape)?;
        Ok(vec![Some(grad.reshape(apart)?.sum(copies as isize)?.reshape(shape)?)])
    }
}

/// # Repeat
impl Tensor {
    /// Repeats this tensor `times[axis]` times along each axis, as NumPy's `tile` and PyTorch's `repeat`. More numbers
    /// than axes add new leading axes.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[1.0f32, 2.0], [2])?;
    /// assert_eq!(x.tile(2)?.to_vec::<f32>()?, [1.0, 2.0, 1.0, 2.0]);
    /// assert_eq!(x.tile([3, 2])?.dims(), [3, 4]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`] for fewer numbers than axes; [`Error::RankTooLarge`] for more than [`MAX_RANK`] numbers;
    /// [`Error::TooManyElements`]; [`Error::Allocation`] if there is no memory.
    #[doc(alias("repeat"))]
    pub fn tile(&self, times: impl IntoShape) -> Result<Self> {
        let op = "tile";
        let times = times.into_shape().map_err(|error| error.in_op(op))?;
        let Some(new) = times.rank().checked_sub(self.rank()) else {
            let got = format!("{} for shape {}", times.rank(), self.shape());
            return Err(Error::BadArgument {
                op,
                argument: "times",
                expected: "at least one number per axis",
                got,
            });
        };
        let mut tiled = self.unchanged();
        for _ in 0..new {
            tiled = tiled.unsqueeze(0)?;
        }
        // The last axis first, so that all later copies are of large blocks.
        for (axis, &times) in times.dims().iter().enumerate().rev().filter(|&(_, &times)| times != 1) {
            tiled = apply(Repeat { op, axis, times, together: false }, &[&tiled])?;
        }
        Ok(tiled)
    }

    /// Repeats each element `times` times along an axis, as PyTorch's `repeat_interleave` and NumPy's `repeat`.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[1.0f32, 2.0], [2])?;
    /// assert_eq!(x.repeat_interleave(0, 2)?.to_vec::<f32>()?, [1.0, 1.0, 2.0, 2.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`]; otherwise see [`Tensor::tile`].
    #[doc(alias("repeat"))]
    pub fn repeat_interleave(&self, axis: isize, times: usize) -> Result<Self> {
        let op = "repeat_interleave";
        let axis = self.shape().axis(op, axis)?;
        apply(Repeat { op, axis, times, together: true }, &[self])
    }
}
