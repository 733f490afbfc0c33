//! Diagonals: elements whose places along two axes differ by a constant.
//!
//! `y[.., i] = x[.., i, .., i + offset, ..]`, or `x[.., i - offset, .., i, ..]` with an offset below 0: a view, nothing is taken or
//! saved. ∂L/∂x is ∂L/∂y in its place, 0 elsewhere.

use crate::autograd::apply;
use crate::backend::Kernel;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::shape::Scalar;
use crate::tensor::Tensor;

const OP: &str = "diagonal";

/// The axis of the diagonal stands in the place of the first of the two.
#[derive(Debug)]
struct Diagonal {
    axes: [usize; 2],
    offset: isize,
}

impl Diagonal {
    /// Where the diagonal of a tensor lies.
    fn place(&self, of: &Layout) -> Result<Layout> {
        let starts = [self.offset.min(0), self.offset.max(0)].map(isize::unsigned_abs);
        let parts = self.axes.into_iter().zip(starts).try_fold(*of, |part, (axis, start)| {
            let size = of.shape()[axis];
            part.sliced(OP, axis, start.min(size)..size, 1)
        })?;
        Ok(parts.diagonal(self.axes[0], self.axes[1]))
    }
}

impl Op for Diagonal {
    fn name(&self) -> &'static str {
        OP
    }

    fn forward(&self, _: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        Ok(inputs[0].with_layout(self.place(inputs[0].layout())?))
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &Saved, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let mut out = ctx.output(&saved.input_shape(0), grad.dtype())?;
        ctx.compute(Kernel::Fill { value: Scalar::Int(0), out: out.view_mut() })?;
        let place = self.place(out.view().layout())?;
        let mut whole = out.view_mut();
        let part = whole.with_layout(&place);
        ctx.compute(Kernel::CopyInto { input: grad.view(), axis: 0, start: 0, step: 1, out: part })?;
        Ok(vec![Some(out.finish())])
    }
}

impl Tensor {
    /// The elements that have the same place along two axes, or with an offset those that stand so many places further along
    /// the second axis (or below 0 along the first): a view, whose last axis they stand along. As NumPy's `diagonal`.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::arange(&Device::cpu()?, 6)?.reshape([2, 3])?;
    /// assert_eq!(x.diagonal(0, 0, 1)?.to_vec::<i64>()?, [0, 4]);
    /// assert_eq!(x.diagonal(1, 0, 1)?.to_vec::<i64>()?, [1, 5]);
    /// assert_eq!(x.diagonal(-1, 0, 1)?.to_vec::<i64>()?, [3]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`], [`Error::BadArgument`] if the axes are the same.
    #[doc(alias("diag"))]
    pub fn diagonal(&self, offset: isize, first: isize, second: isize) -> Result<Self> {
        let [first, second] = [self.shape().axis(OP, first)?, self.shape().axis(OP, second)?];
        if first == second {
            let got = format!("{first} twice for shape {}", self.shape());
            return Err(Error::BadArgument { op: OP, argument: "axes", expected: "two", got });
        }
        let diagonal = self.diagonal_in_place(offset, [first, second])?;
        let (own, rank) = (first - usize::from(second < first), diagonal.rank());
        let axes: Vec<isize> =
            (0..rank).filter(|&axis| axis != own).chain([own]).map(|axis| axis as isize).collect();
        diagonal.permute(&axes)
    }

    /// The same along the first of two axes that this tensor has, without the second one.
    pub(super) fn diagonal_in_place(&self, offset: isize, axes: [usize; 2]) -> Result<Self> {
        apply(Diagonal { axes, offset }, &[self])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    #[test]
    fn a_diagonal_is_a_view_and_one_beyond_the_corner_is_empty() {
        let x = Tensor::arange(&Device::cpu().unwrap(), 24).unwrap().reshape([2, 3, 4]).unwrap();
        let diagonal = x.diagonal(0, 2, 0).unwrap();
        assert!(diagonal.shares_buffer_with(&x));
        assert_eq!(diagonal.dims(), [3, 2]);
        assert_eq!(diagonal.to_vec::<i64>().unwrap(), [0, 13, 4, 17, 8, 21]);
        for offset in [4, -3, isize::MAX, isize::MIN] {
            assert_eq!(x.diagonal(offset, 1, 2).unwrap().dims(), [2, 0], "{offset}");
        }
    }

    #[test]
    fn axes_that_are_none_or_the_same_are_named() {
        let x = Tensor::ones(&Device::cpu().unwrap(), [2, 3]).unwrap();
        let same = x.diagonal(0, 1, -1).unwrap_err().to_string();
        assert_eq!(same, "diagonal: axes must be two, got 1 twice for shape [2, 3]");
        assert!(matches!(x.diagonal(0, 0, 2), Err(Error::AxisOutOfRange { .. })));
    }
}
