//! Broadcasting, and the sum that reverses it. Each is the gradient of the other.
//!
//! - `broadcast_to`: y = x, repeated. A view, so it allocates nothing. ∂L/∂x = `sum_to`(∂L/∂y, shape of x).
//! - `sum_to`: y = x, summed over the axes that broadcasting from y to x repeats. ∂L/∂x = `broadcast_to`(∂L/∂y, shape
//!   of x).

use super::axes::AxisSet;
use super::reduce;
use crate::autograd::apply;
use crate::backend::Reduce;
use crate::error::{Error, Result, ShapeRule};
use crate::layout::IntoShape;
use crate::op::Saved;
use crate::op::{Op, OpContext, Summation};
use crate::shape::Shape;
use crate::tensor::Tensor;

#[derive(Debug)]
struct BroadcastTo(Shape);

impl Op for BroadcastTo {
    fn name(&self) -> &'static str {
        "broadcast_to"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        // Kernels rely on addressable element counts.
        self.0.checked_elements().ok_or_else(|| Error::TooManyElements {
            op: ctx.op(),
            shape: self.0,
            dtype: x.dtype(),
        })?;
        Ok(x.with_layout(x.layout().broadcast_to(ctx.op(), &self.0)?))
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(grad.sum_to(saved.input_shape(0))?)])
    }

    fn summation(&self, _: &[Shape]) -> Summation {
        Summation::ELEMENTWISE
    }
}

#[derive(Debug)]
struct SumTo(Shape);

impl Op for SumTo {
    fn name(&self) -> &'static str {
        "sum_to"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        let axes = repeated_axes(ctx.op(), x.shape(), &self.0)?;
        reduce::reshaped(reduce::fold_wide(ctx, Reduce::Sum, x, &axes)?, self.0)
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(grad.broadcast_to(saved.input_shape(0))?)])
    }

    fn summation(&self, _: &[Shape]) -> Summation {
        Summation::ONCE
    }
}

/// Returns the axes of `from` that broadcasting `to` to `from` repeats.
fn repeated_axes(op: &'static str, from: &Shape, to: &Shape) -> Result<AxisSet> {
    let mismatch = || Error::ShapeMismatch {
        op,
        lhs: *from,
        rhs: *to,
        rule: &ShapeRule::Other("each size of the second must be that of the first or 1"),
    };
    let Some(extra) = from.rank().checked_sub(to.rank()) else { return Err(mismatch()) };
    let mut axes = AxisSet::none(from.rank());
    for axis in 0..from.rank() {
        match axis.checked_sub(extra).map(|axis| to[axis]) {
            None => axes.insert(axis),
            Some(size) if size == from[axis] => {}
            Some(1) => axes.insert(axis),
            Some(_) => return Err(mismatch()),
        }
    }
    Ok(axes)
}

/// # Broadcasting
impl Tensor {
    /// Broadcasts this tensor to `shape`, as a view.
    ///
    /// Repeats the elements along axes of size 1 and along new leading axes.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if this tensor does not broadcast to `shape`; [`Error::TooManyElements`] if the shape
    /// has more elements than can be counted.
    #[doc(alias("expand"))]
    pub fn broadcast_to(&self, shape: impl IntoShape) -> Result<Self> {
        let shape = shape.into_shape().map_err(|error| error.in_op("broadcast_to"))?;
        if shape == *self.shape() {
            return Ok(self.unchanged());
        }
        apply(BroadcastTo(shape), &[self])
    }

    /// Sums over the axes that broadcasting from `shape` to this tensor's shape repeats.
    ///
    /// It maps the gradient of a broadcast operand back to the operand's shape. Returns the tensor itself if it already
    /// has that shape.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::ones(&Device::cpu()?, [2, 3, 4])?;
    /// assert_eq!(x.sum_to([3, 1])?.to_vec::<f32>()?, [8.0; 3]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if `shape` does not broadcast to this tensor's; [`Error::UnsupportedDType`] as
    /// [`Tensor::sum`]; [`Error::Allocation`] if there is no memory.
    pub fn sum_to(&self, shape: impl IntoShape) -> Result<Self> {
        let shape = shape.into_shape().map_err(|error| error.in_op("sum_to"))?;
        if shape == *self.shape() {
            return Ok(self.unchanged());
        }
        apply(SumTo(shape), &[self])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Runtime;

    #[test]
    fn broadcasting_takes_no_memory_and_sums_its_gradient() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let x = Tensor::from_slice(&device, &[1.0f32, 2.0], [2, 1]).unwrap().requiring_grad().unwrap();
        let y = x.broadcast_to([4, 2, 3]).unwrap();
        assert!(y.shares_buffer_with(&x));
        let gradients = y.sum_all().unwrap().backward().unwrap();
        assert_eq!(gradients.get(&x).unwrap().dims(), [2, 1]);
        assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>().unwrap(), [12.0, 12.0]);
    }

    #[test]
    fn a_sum_over_no_repetitions_is_zero() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let none = Tensor::ones(&device, [0, 3]).unwrap();
        assert_eq!(none.sum_to([1, 3]).unwrap().to_vec::<f32>().unwrap(), [0.0; 3]);
    }

    #[test]
    fn shapes_that_do_not_broadcast_are_named() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let x = Tensor::ones(&device, [2, 3]).unwrap();
        assert_eq!(
            x.broadcast_to([3, 2]).unwrap_err().to_string(),
            "broadcast_to: shapes [2, 3] and [3, 2] do not match: each size of the first must be that of the second or 1"
        );
        assert_eq!(
            x.sum_to([2]).unwrap_err().to_string(),
            "sum_to: shapes [2, 3] and [2] do not match: each size of the second must be that of the first or 1"
        );
        assert!(matches!(
            Tensor::ones(&device, 1).unwrap().broadcast_to([1usize << 40, 1 << 40]),
            Err(Error::TooManyElements { op: "broadcast_to", .. })
        ));
    }
}
