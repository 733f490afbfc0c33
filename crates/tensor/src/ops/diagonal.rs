//! Diagonals: elements whose indices along two axes differ by a constant.
//!
//! `y[.., i] = x[.., i, .., i + offset, ..]`, or `x[.., i - offset, .., i, ..]` for a negative offset. The result is a
//! view; the op allocates and saves nothing. ∂L/∂x is ∂L/∂y at the diagonal and 0 elsewhere.

use crate::autograd::apply;
use crate::backend::kernels;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::shape::Scalar;
use crate::tensor::Tensor;

const OP: &str = "diagonal";

/// The op. The diagonal's axis replaces the first of the two axes.
#[derive(Debug)]
struct Diagonal {
    axes: [usize; 2],
    offset: isize,
}

impl Diagonal {
    /// Returns the layout of the diagonal.
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

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let mut out = ctx.gradient(0, &saved.input_shape(0), grad.dtype())?;
        ctx.compute(kernels::Fill { value: Scalar::Int(0), out: out.view_mut() })?;
        let place = self.place(out.view().layout())?;
        let mut whole = out.view_mut();
        let part = whole.with_layout(&place);
        ctx.compute(kernels::CopyInto { input: grad.view(), axis: 0, start: 0, step: 1, out: part })?;
        Ok(vec![Some(out.finish())])
    }
}

/// # Diagonals
impl Tensor {
    /// Returns the diagonal over two axes as a view, as NumPy's `diagonal`. The diagonal is the last axis of the
    /// result.
    ///
    /// A positive `offset` shifts the diagonal along the second axis, a negative one along the first.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::arange(&Device::cpu()?, 0, 6)?.reshape([2, 3])?;
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

    /// Returns the diagonal in the position of the first axis, without the second axis.
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
        let x = Tensor::arange(&Device::cpu().unwrap(), 0, 24).unwrap().reshape([2, 3, 4]).unwrap();
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
