//! Concatenation along an existing axis (`concat`) or a new axis (`stack`).
//!
//! The shapes must agree except along the axis. The op allocates one output and saves nothing. ∂L/∂xᵢ is a view of the
//! part of ∂L/∂y at the position of xᵢ.

use super::{if_needed, promote, same_dtype};
use crate::autograd::apply;
use crate::backend::kernels;
use crate::error::{Error, Result, ShapeRule};
use crate::op::Saved;
use crate::op::{Op, OpContext, Summation};
use crate::shape::{DType, MAX_RANK, Shape};
use crate::tensor::Tensor;

#[derive(Debug)]
struct Concat {
    axis: isize,
    inputs: usize,
}

impl Op for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let (op, first) = (ctx.op(), inputs[0]);
        let axis = first.shape().axis(op, self.axis)?;
        let mut total = 0usize;
        for other in inputs {
            same_dtype(op, first, other)?;
            let comparable = other.rank() == first.rank();
            if !comparable || other.shape().with_dim(axis, first.dims()[axis]) != *first.shape() {
                return Err(Error::ShapeMismatch {
                    op,
                    lhs: *first.shape(),
                    rhs: *other.shape(),
                    rule: &ShapeRule::Other("all sizes must be equal except along the axis"),
                });
            }
            total = total.checked_add(other.dims()[axis]).ok_or_else(|| Error::TooManyElements {
                op,
                shape: first.shape().with_dim(axis, usize::MAX),
                dtype: first.dtype(),
            })?;
        }
        let mut out = ctx.output(&first.shape().with_dim(axis, total), first.dtype())?;
        let mut start = 0;
        for input in inputs {
            ctx.compute(kernels::CopyInto {
                input: input.view(),
                axis,
                start,
                step: 1,
                out: out.view_mut(),
            })?;
            start += input.dims()[axis];
        }
        Ok(out.finish())
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let axis = grad.shape().axis(ctx.op(), self.axis)?;
        let mut start = 0;
        let part = |index| {
            let range = start..start + saved.input_shape(index)[axis];
            start = range.end;
            if_needed(saved, index, || {
                Ok(grad.with_layout(grad.layout().sliced(ctx.op(), axis, range, 1)?))
            })
        };
        (0..self.inputs).map(part).collect()
    }

    fn summation(&self, _: &[Shape]) -> Summation {
        Summation::ONCE
    }
}

/// # Concatenate and stack
impl Tensor {
    /// Concatenates tensors along an existing axis, promoted to one element type.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let device = Device::cpu()?;
    /// let (zeros, ones) = (Tensor::zeros(&device, [2, 1])?, Tensor::ones(&device, [2, 2])?);
    /// let both = Tensor::concat(&[&zeros, &ones], 1)?;
    /// assert_eq!(both.to_vec::<f32>()?, [0.0, 1.0, 1.0, 0.0, 1.0, 1.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`] for an empty list, [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`] if the other axes
    /// differ, [`Error::Allocation`] if there is no memory.
    #[doc(alias("cat", "concatenate"))]
    pub fn concat(tensors: &[&Self], axis: isize) -> Result<Self> {
        let op = Concat { axis, inputs: tensors.len() };
        let mut dtypes = tensors.iter().map(|tensor| tensor.dtype());
        let first = dtypes.next().unwrap_or(DType::F32);
        if dtypes.clone().all(|dtype| dtype == first) {
            return apply(op, tensors);
        }
        let dtype = dtypes.fold(first, promote);
        let converted = tensors.iter().map(|tensor| tensor.to_dtype(dtype)).collect::<Result<Vec<_>>>()?;
        apply(op, &converted.iter().collect::<Vec<_>>())
    }

    /// Stacks tensors of one shape along a new axis.
    ///
    /// # Errors
    /// See [`Tensor::concat`].
    pub fn stack(tensors: &[&Self], axis: isize) -> Result<Self> {
        let op = "stack";
        let [first, rest @ ..] = tensors else {
            let (argument, expected) = ("inputs", "at least one tensor");
            return Err(Error::BadArgument { op, argument, expected, got: "none".to_owned() });
        };
        if let Some(other) = rest.iter().find(|other| other.shape() != first.shape()) {
            return Err(Error::ShapeMismatch {
                op,
                lhs: *first.shape(),
                rhs: *other.shape(),
                rule: &ShapeRule::Same,
            });
        }
        if first.rank() == MAX_RANK {
            return Err(Error::RankTooLarge { op, rank: MAX_RANK + 1 });
        }
        // The new axis may follow all other axes.
        let rank = first.rank() as isize;
        if !(-rank - 1..=rank).contains(&axis) {
            return Err(Error::AxisOutOfRange { op, axis, shape: *first.shape() });
        }
        let rows = tensors.iter().map(|tensor| tensor.unsqueeze(axis)).collect::<Result<Vec<_>>>()?;
        Self::concat(&rows.iter().collect::<Vec<_>>(), axis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Runtime;

    #[test]
    fn parts_of_any_layout_and_of_no_elements_follow_one_another() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let x = Tensor::arange(&device, 0, 6).unwrap().reshape([2, 3]).unwrap();
        let none = Tensor::zeros_of(&device, [0, 2], DType::I64).unwrap();
        let rows = Tensor::concat(&[&x.t().unwrap(), &none, &x.slice(1, 1..).unwrap()], 0).unwrap();
        assert_eq!(rows.dims(), [5, 2]);
        assert_eq!(rows.to_vec::<i64>().unwrap(), [0, 3, 1, 4, 2, 5, 1, 2, 4, 5]);
        let stacked = Tensor::stack(&[&x, &x], -1).unwrap();
        assert_eq!(stacked.dims(), [2, 3, 2]);
        assert_eq!(stacked.slice(0, ..1).unwrap().to_vec::<i64>().unwrap(), [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn sizes_that_cannot_be_added_up_are_an_error_on_every_device() {
        let runtime = Runtime::builder().threads(1).build().unwrap();
        for device in [runtime.cpu().unwrap(), runtime.dry().unwrap()] {
            let none = Tensor::zeros(&device, [0, usize::MAX]).unwrap();
            let error = Tensor::concat(&[&none, &none], 1).unwrap_err();
            assert!(matches!(error, Error::TooManyElements { op: "concat", .. }), "{error}");
        }
    }

    #[test]
    fn gradients_go_to_the_parts_that_ask_for_them() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let constant = Tensor::ones(&device, 2).unwrap();
        let x = Tensor::from_slice(&device, &[3.0f32], 1).unwrap().requiring_grad().unwrap();
        let y = Tensor::concat(&[&constant, &x], 0).unwrap().square().unwrap().sum_all().unwrap();
        let gradients = y.backward().unwrap();
        assert_eq!(gradients.len(), 1);
        assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>().unwrap(), [6.0]);
    }

    #[test]
    fn parts_that_do_not_fit_are_named() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let (a, b) = (Tensor::ones(&device, [2, 3]).unwrap(), Tensor::ones(&device, [2, 4]).unwrap());
        let message = |result: Result<Tensor>| result.unwrap_err().to_string();
        assert_eq!(
            message(Tensor::concat(&[&a, &b], 0)),
            "concat: shapes [2, 3] and [2, 4] do not match: all sizes must be equal except along the axis"
        );
        assert_eq!(
            message(Tensor::stack(&[&a, &b], 0)),
            "stack: shapes [2, 3] and [2, 4] do not match: they must be equal"
        );
        assert_eq!(
            message(Tensor::concat(&[&a, &a.sum(0).unwrap()], 0)),
            "concat: shapes [2, 3] and [3] do not match: all sizes must be equal except along the axis"
        );
        assert_eq!(message(Tensor::concat(&[], 0)), "concat: inputs must be at least one tensor, got none");
        assert_eq!(message(Tensor::stack(&[], 0)), "stack: inputs must be at least one tensor, got none");
        for axis in [3, -4] {
            let expected = format!("stack: axis {axis} is out of range for shape [2, 3]");
            assert_eq!(message(Tensor::stack(&[&a, &a], axis)), expected);
        }
        assert_eq!(Tensor::stack(&[&a], 2).unwrap().dims(), [2, 3, 1]);
        assert_eq!(Tensor::stack(&[&a], -3).unwrap().dims(), [1, 2, 3]);
        let promoted = Tensor::concat(&[&a, &a.to_dtype(DType::F64).unwrap()], 0).unwrap();
        assert_eq!(promoted.dtype(), DType::F64);
        assert!(Tensor::concat(&[&a], 2).is_err());
    }
}
