//! Parts of a tensor along one axis.
//!
//! `y = x[.., start..end by step, ..]`: a view, nothing is taken or saved. ∂L/∂x is ∂L/∂y in its place, 0 elsewhere.

use std::ops::{Bound, Range, RangeBounds};

use crate::autograd::Saved;
use crate::backend::Kernel;
use crate::context::OpContext;
use crate::dtype::Scalar;
use crate::error::Result;
use crate::op::{Op, apply};
use crate::tensor::Tensor;

#[derive(Debug)]
struct Slice {
    op: &'static str,
    axis: usize,
    range: Range<usize>,
    step: usize,
}

impl Op for Slice {
    fn name(&self) -> &'static str {
        self.op
    }

    fn forward(&self, _: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let layout = inputs[0].layout().sliced(self.op, self.axis, self.range.clone(), self.step)?;
        Ok(inputs[0].with_layout(layout))
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &Saved, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let mut out = ctx.output(&saved.input_shape(0), grad.dtype())?;
        ctx.compute(Kernel::Fill { value: Scalar::Int(0), out: out.view_mut() })?;
        ctx.compute(Kernel::CopyInto {
            input: grad.view(),
            axis: self.axis,
            start: self.range.start,
            step: self.step,
            out: out.view_mut(),
        })?;
        Ok(vec![Some(out.finish())])
    }
}

impl Tensor {
    /// The elements of a range along one axis: `x.slice(0, 2..5)`, `x.slice(-1, ..3)`. A view.
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange), and
    /// [`Error::RangeOutOfBounds`](crate::Error::RangeOutOfBounds) if the range leaves the axis.
    pub fn slice(&self, axis: isize, range: impl RangeBounds<usize>) -> Result<Self> {
        self.part("slice", axis, &range, 1)
    }

    /// Every `step`-th of the elements of a range along one axis. A view.
    ///
    /// ```
    /// use highwater_tensor::{Device, Tensor};
    /// let x = Tensor::arange(&Device::cpu()?, 10)?;
    /// assert_eq!(x.slice_step(0, 1.., 4)?.to_vec::<i64>()?, [1, 5, 9]);
    /// # Ok::<(), highwater_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::slice`]; also for a step of 0.
    pub fn slice_step(&self, axis: isize, range: impl RangeBounds<usize>, step: usize) -> Result<Self> {
        self.part("slice_step", axis, &range, step)
    }

    /// `len` elements along one axis, from `start` on. A view.
    ///
    /// # Errors
    /// As [`Tensor::slice`].
    pub fn narrow(&self, axis: isize, start: usize, len: usize) -> Result<Self> {
        self.part("narrow", axis, &(start..start.saturating_add(len)), 1)
    }

    fn part(
        &self,
        op: &'static str,
        axis: isize,
        range: &impl RangeBounds<usize>,
        step: usize,
    ) -> Result<Self> {
        let axis = self.shape().axis(op, axis)?;
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.dims()[axis],
        };
        self.sliced(op, axis, start..end, step)
    }

    /// Every `step`-th element of a range, in the name of an op; `axis` is one of this tensor's.
    pub(super) fn sliced(
        &self,
        op: &'static str,
        axis: usize,
        range: Range<usize>,
        step: usize,
    ) -> Result<Self> {
        apply(Slice { op, axis, range, step }, &[self])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::runtime::Runtime;

    fn counting(n: usize) -> Tensor {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        Tensor::arange(&device, n).unwrap().to_dtype(DType::F32).unwrap()
    }

    #[test]
    fn ranges_of_every_kind_name_a_part_of_the_same_buffer() {
        let x = counting(6);
        let values = |part: Result<Tensor>| {
            let part = part.unwrap();
            assert!(part.shares_buffer_with(&x));
            part.to_vec::<f32>().unwrap()
        };
        assert_eq!(values(x.slice(0, 1..3)), [1.0, 2.0]);
        assert_eq!(values(x.slice(0, 4..)), [4.0, 5.0]);
        assert_eq!(values(x.slice(-1, ..=1)), [0.0, 1.0]);
        assert_eq!(values(x.slice(0, 6..)), [0.0; 0]);
        assert_eq!(values(x.slice_step(0, .., 4)), [0.0, 4.0]);
        assert_eq!(values(x.narrow(0, 2, 3)), [2.0, 3.0, 4.0]);
    }

    #[test]
    fn the_gradient_is_zero_outside_the_part() {
        let x = counting(5).requiring_grad().unwrap();
        let y = x.slice_step(0, 1.., 2).unwrap().square().unwrap().sum_all().unwrap();
        let gradients = y.backward().unwrap();
        assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>().unwrap(), [0.0, 2.0, 0.0, 6.0, 0.0]);
    }

    #[test]
    fn ranges_that_leave_the_axis_are_named() {
        let x = counting(5);
        assert_eq!(
            x.slice(0, 3..6).unwrap_err().to_string(),
            "slice: range 3..6 with step 1 is out of bounds for axis 0 of shape [5]"
        );
        assert!(x.narrow(0, usize::MAX, 2).is_err());
        assert!(x.slice_step(0, .., 0).is_err());
        assert!(x.slice(0, ..=usize::MAX).is_err());
        assert!(x.slice(1, ..).is_err());
    }
}
