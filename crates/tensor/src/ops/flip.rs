//! Reversal and cyclic shifts along axes.
//!
//! | op | y | ∂L/∂x |
//! |---|---|---|
//! | `flip` | `y[i] = x[n - 1 - i]` | `flip`(∂L/∂y) |
//! | `roll` | `y[(i + shift) mod n] = x[i]` | ∂L/∂y, rolled back |
//!
//! Nothing is saved. The op allocates one output.

use super::axes::{Axes, AxisSet};
use crate::autograd::apply;
use crate::backend::kernels;
use crate::error::Result;
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::tensor::Tensor;

#[derive(Debug)]
struct Flip {
    axes: AxisSet,
}

impl Op for Flip {
    fn name(&self) -> &'static str {
        "flip"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        let mut out = ctx.output(x.shape(), x.dtype())?;
        ctx.compute(kernels::Flip { input: x.view(), axes: self.axes.as_slice(), out: out.view_mut() })?;
        Ok(out.finish())
    }

    fn backward(&self, _: &OpContext<'_>, _: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(apply(Self { axes: self.axes }, &[&grad])?)])
    }
}

#[derive(Debug)]
struct Roll {
    axis: usize,
    /// Less than the size of the axis.
    shift: usize,
}

impl Op for Roll {
    fn name(&self) -> &'static str {
        "roll"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let (x, axis) = (inputs[0], self.axis);
        let (size, mut out) = (x.dims()[axis], ctx.output(x.shape(), x.dtype())?);
        let cut = size - self.shift;
        for (range, start) in [(0..cut, self.shift), (cut..size, 0)] {
            let part = x.with_layout(x.layout().sliced(ctx.op(), axis, range, 1)?);
            let out = out.view_mut();
            ctx.compute(kernels::CopyInto { input: part.view(), axis, start, step: 1, out })?;
        }
        Ok(out.finish())
    }

    fn backward(&self, _: &OpContext<'_>, _: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let shift = grad.dims()[self.axis] - self.shift;
        Ok(vec![Some(apply(Self { shift, axis: self.axis }, &[&grad])?)])
    }
}

/// # Reverse and shift
impl Tensor {
    /// Reverses the order of the elements along axes, as PyTorch's `flip`.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::arange(&Device::cpu()?, 0, 4)?.reshape([2, 2])?;
    /// assert_eq!(x.flip(1)?.to_vec::<i64>()?, [1, 0, 3, 2]);
    /// assert_eq!(x.flip([0, 1])?.to_vec::<i64>()?, [3, 2, 1, 0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange), [`Error::BadArgument`](crate::Error::BadArgument) for a
    /// repeated axis, [`Error::Allocation`](crate::Error::Allocation) if there is no memory.
    pub fn flip(&self, axes: impl Axes) -> Result<Self> {
        let axes = AxisSet::of("flip", self.shape(), &axes)?;
        if axes.iter().next().is_none() { Ok(self.unchanged()) } else { apply(Flip { axes }, &[self]) }
    }

    /// Shifts the elements cyclically by `shift` positions along an axis, as PyTorch's `roll`.
    ///
    /// A positive shift moves them towards the end. Elements that leave one end enter at the other.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::arange(&Device::cpu()?, 0, 5)?;
    /// assert_eq!(x.roll(2, 0)?.to_vec::<i64>()?, [3, 4, 0, 1, 2]);
    /// assert_eq!(x.roll(-1, 0)?.to_vec::<i64>()?, [1, 2, 3, 4, 0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange), [`Error::Allocation`](crate::Error::Allocation) if there is
    /// no memory.
    pub fn roll(&self, shift: isize, axis: isize) -> Result<Self> {
        let axis = self.shape().axis("roll", axis)?;
        // Only an axis of an empty tensor can be longer than an isize.
        let shift = isize::try_from(self.dims()[axis]).map_or(0, |size| match size {
            0 => 0,
            size => shift.rem_euclid(size),
        });
        if shift == 0 { Ok(self.unchanged()) } else { apply(Roll { axis, shift: shift as usize }, &[self]) }
    }
}
