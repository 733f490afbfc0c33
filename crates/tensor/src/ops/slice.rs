//! Slices along one axis.
//!
//! `y = x[.., start..end by step, ..]`: a view; the op allocates and saves nothing. ∂L/∂x is ∂L/∂y at the slice, 0
//! elsewhere. If x already has a gradient, for example from another slice, ∂L/∂y is added to its slice.

use std::ops::{Bound, Range, RangeBounds};

use bfc_core::Category;

use crate::autograd::apply;
use crate::backend::{Binary, kernels};
use crate::error::{Error, Result};
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::shape::Scalar;
use crate::storage::ViewMut;
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

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let grad = grad.to_dtype(saved.gradient_dtype(0))?;
        if let Some(total) = saved.take_total() {
            return Ok(vec![Some(self.added(ctx, &grad, total)?)]);
        }
        let mut out = ctx.gradient(0, &saved.input_shape(0), grad.dtype())?;
        ctx.compute(kernels::Fill { value: Scalar::Int(0), out: out.view_mut() })?;
        ctx.compute(kernels::CopyInto {
            input: grad.view(),
            axis: self.axis,
            start: self.range.start,
            step: self.step,
            out: out.view_mut(),
        })?;
        Ok(vec![Some(out.finish())])
    }

    fn adds_to_gradient(&self) -> bool {
        true
    }
}

impl Slice {
    /// Adds the gradient of this slice to the gradient of the whole, in place if no other handle shares the buffer.
    fn added(&self, ctx: &OpContext<'_>, grad: &Tensor, mut total: Tensor) -> Result<Tensor> {
        let place = total.layout().sliced(self.op, self.axis, self.range.clone(), self.step)?;
        let mut sum = ctx.temp(grad.shape(), grad.dtype())?;
        ctx.compute(kernels::Zip {
            f: Binary::Add,
            lhs: total.view().with_layout(&place),
            rhs: grad.view(),
            out: sum.view_mut(),
        })?;
        let put = |out: ViewMut<'_>| {
            let (input, axis, start, step) = (sum.view(), self.axis, self.range.start, self.step);
            ctx.compute(kernels::CopyInto { input, axis, start, step, out })
        };
        if let Some(out) = total.view_mut() {
            put(out)?;
            return Ok(total);
        }
        let mut out = ctx.gradient(0, total.shape(), total.dtype())?;
        ctx.compute(kernels::Copy { input: total.view(), out: out.view_mut() })?;
        put(out.view_mut())?;
        Ok(out.finish())
    }
}

/// # Slice
impl Tensor {
    /// Slices a range along one axis: `x.slice(0, 2..5)`, `x.slice(-1, ..3)`. Returns a view.
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange), and
    /// [`Error::RangeOutOfBounds`](crate::Error::RangeOutOfBounds) if the range exceeds the axis.
    pub fn slice(&self, axis: isize, range: impl RangeBounds<usize>) -> Result<Self> {
        self.part("slice", axis, &range, 1)
    }

    /// Slices every `step`-th element of a range along one axis. Returns a view.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::arange(&Device::cpu()?, 0, 10)?;
    /// assert_eq!(x.slice_step(0, 1.., 4)?.to_vec::<i64>()?, [1, 5, 9]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::slice`]; also for a step of 0.
    pub fn slice_step(&self, axis: isize, range: impl RangeBounds<usize>, step: usize) -> Result<Self> {
        self.part("slice_step", axis, &range, step)
    }

    /// Slices `len` elements from `start` on along one axis, as PyTorch's `narrow`. Returns a view.
    ///
    /// # Errors
    /// See [`Tensor::slice`].
    pub fn narrow(&self, axis: isize, start: usize, len: usize) -> Result<Self> {
        // A sum that overflows is beyond every axis.
        let end = start.checked_add(len).map_or(Bound::Included(usize::MAX), Bound::Excluded);
        self.part("narrow", axis, &(Bound::Included(start), end), 1)
    }

    /// Overwrites the elements from `start` on along one axis with `values`, in place, as PyTorch's
    /// `x.narrow(axis, start, n).copy_(values)`. The sizes of the other axes and the element types are equal.
    ///
    /// Shared buffers are immutable: this must be the only tensor of its buffer, so views of it must have been dropped.
    /// No gradient flows to `values`.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let device = Device::cpu()?;
    /// let mut x = Tensor::zeros(&device, [2, 4])?;
    /// x.write_slice(1, 1, &Tensor::ones(&device, [2, 2])?)?;
    /// assert_eq!(x.to_vec::<f32>()?, [0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
    /// let view = x.narrow(0, 0, 1)?;
    /// assert!(x.write_slice(1, 0, &Tensor::ones(&device, [2, 1])?).is_err());
    /// drop(view);
    /// x.write_slice(1, 0, &Tensor::ones(&device, [2, 1])?)?;
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`](crate::Error::BadArgument) if another tensor shares the buffer, if this is a view that is not
    /// contiguous from the start of the buffer, or if this tensor requires a gradient;
    /// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch),
    /// [`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange), [`Error::Operand`](crate::Error::Operand) for other shapes
    /// or types, [`Error::RangeOutOfBounds`](crate::Error::RangeOutOfBounds) if the values exceed the axis. The tensor is
    /// unchanged then.
    pub fn write_slice(&mut self, axis: isize, start: usize, values: &Self) -> Result<()> {
        const OP: &str = "write_slice";
        let axis = self.shape().axis(OP, axis)?;
        let device = self.device().clone();
        if &device != values.device() {
            let (lhs, rhs) = (device.to_string(), values.device().to_string());
            return Err(Error::DeviceMismatch { op: OP, lhs, rhs });
        }
        let refused = |got: &str| {
            let expected = "the only tensor of its buffer, contiguous from its start, without a gradient";
            Error::BadArgument { op: OP, argument: "self", expected, got: got.to_owned() }
        };
        if self.requires_grad() {
            return Err(refused("a tensor that requires a gradient"));
        }
        let Some(out) = self.view_mut() else { return Err(refused("a shared buffer or a view")) };
        let ctx = OpContext::create(OP, &device, device.default_allocator()?, Category::Output);
        ctx.compute(kernels::CopyInto { input: values.view(), axis, start, step: 1, out })
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
            Bound::Included(&start) => Some(start),
            Bound::Excluded(&before) => before.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.checked_add(1),
            Bound::Excluded(&end) => Some(end),
            Bound::Unbounded => Some(self.dims()[axis]),
        };
        match (start, end) {
            (Some(start), Some(end)) => self.sliced(op, axis, start..end, step),
            _ => {
                let range = start.unwrap_or(usize::MAX)..end.unwrap_or(usize::MAX);
                Err(Error::RangeOutOfBounds { op, range, step, axis, shape: *self.shape() })
            }
        }
    }

    /// Slices every `step`-th element of a range on behalf of an op. The tensor has `axis`.
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
    use crate::device::Runtime;
    use crate::shape::DType;

    fn counting(n: usize) -> Tensor {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        Tensor::arange(&device, 0, n).unwrap().to_dtype(DType::F32).unwrap()
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
    fn gradients_of_many_parts_are_put_into_one_whole() {
        const PARTS: usize = 64;
        let x = counting(PARTS * 256).requiring_grad().unwrap();
        let memory = x.device().default_allocator().unwrap();
        let whole = (x.elements() * 4) as u64;
        let (mut loss, before) = (Tensor::zeros(x.device(), ()).unwrap(), memory.stats().bytes_in_use);
        for (number, part) in x.chunk(0, PARTS).unwrap().iter().enumerate() {
            loss = loss.add(&part.mul_scalar(number as f64).unwrap().sum_all().unwrap()).unwrap();
        }
        memory.clear_stats();
        let gradients = loss.backward().unwrap();
        // The gradients of the parts, which are there first, and one whole: a part has none of its own.
        assert!(memory.stats().peak_bytes_in_use - before < 5 * whole / 2);
        let gradient = gradients.get(&x).unwrap().to_vec::<f32>().unwrap();
        assert!(gradient.iter().enumerate().all(|(place, &of)| of == (place / 256) as f32));
    }

    #[test]
    fn gradients_of_overlapping_slices_add_up() {
        let x = counting(8).requiring_grad().unwrap();
        // Of a leaf, and of what an op has made.
        for is_leaf in [true, false] {
            // The gradient of a sum is one repeated value, so it cannot be added to in place.
            for slope in [2.0, 0.0] {
                let of = if is_leaf { x.clone() } else { x.mul_scalar(1.0).unwrap() };
                let first = if slope == 0.0 { of.clone() } else { of.square().unwrap() };
                let mut loss = first.sum_all().unwrap();
                for part in [of.slice(0, 1..5), of.slice_step(0, 3.., 2), of.slice(0, ..0)] {
                    loss = loss.add(&part.unwrap().mul_scalar(10.0).unwrap().sum_all().unwrap()).unwrap();
                }
                let loss = loss.add(&of.sum_all().unwrap()).unwrap();
                let gradient = loss.backward().unwrap().get(&x).unwrap().to_vec::<f32>().unwrap();
                let parts = [0.0, 10.0, 10.0, 20.0, 10.0, 10.0, 0.0, 10.0];
                for (place, found) in gradient.into_iter().enumerate() {
                    let of_first = if slope == 0.0 { 1.0 } else { slope * place as f32 };
                    assert_eq!(found, 1.0 + of_first + parts[place], "{place}");
                }
            }
        }
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
