//! Elementwise comparisons, and the selection between two tensors by a condition.
//!
//! - `eq`, `ne`, `lt`, `le`, `gt`, `ge`: the second operand is a tensor or a number. Tensors broadcast as in NumPy and are
//!   promoted to one element type. The result is boolean. No gradient flows. A number needs a temporary of one element.
//! - `where_`: y = condition ? a : b. ∂y/∂a is 1 where the condition holds, ∂y/∂b where it does not; saves the condition.

use bfc_core::Category;
use half::{bf16, f16};

use super::unary::exact_scalar;
use super::{apply_promoted, broadcast_pair, expect_mask, if_needed, promote, same_dtype};
use crate::autograd::apply;
use crate::backend::{Compare, comparisons, kernels};
use crate::error::Result;
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::shape::{DType, Scalar, Shape};
use crate::tensor::Tensor;

/// The second operand of a comparison: a tensor or a number. Made from `&Tensor` and from numbers.
#[derive(Clone, Copy, Debug)]
pub enum TensorOrScalar<'a> {
    /// A tensor.
    Tensor(&'a Tensor),
    /// A number.
    Scalar(Scalar),
}

impl<'a> From<&'a Tensor> for TensorOrScalar<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self::Tensor(tensor)
    }
}

macro_rules! operand_from {
    ($($number:ty),*) => {$(
        impl From<$number> for TensorOrScalar<'_> {
            fn from(number: $number) -> Self {
                Self::Scalar(number.into())
            }
        }
    )*};
}

operand_from!(Scalar, f32, f64, f16, bf16, i64, i32, u32, u8, usize, bool);

/// Compares each element with a number.
#[derive(Debug)]
struct CompareScalar {
    f: Compare,
    scalar: Scalar,
}

impl Op for CompareScalar {
    fn name(&self) -> &'static str {
        self.f.name()
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        let value = exact_scalar(self.name(), self.scalar, x.dtype())?;
        let mut number = ctx.temp(&Shape::SCALAR, x.dtype())?;
        ctx.compute(kernels::Fill { value, out: number.view_mut() })?;
        broadcast_pair(ctx, [x, &number.finish()], DType::Bool, |[lhs, rhs], out| {
            kernels::Comparison { f: self.f, lhs, rhs, out }.into()
        })
    }
}

#[derive(Debug)]
struct CompareOp(Compare);

impl Op for CompareOp {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let (op, [lhs, rhs]) = (self.name(), [inputs[0], inputs[1]]);
        same_dtype(op, lhs, rhs)?;
        broadcast_pair(ctx, [lhs, rhs], DType::Bool, |[lhs, rhs], out| {
            kernels::Comparison { f: self.0, lhs, rhs, out }.into()
        })
    }
}

#[derive(Debug)]
struct Where;

impl Op for Where {
    fn name(&self) -> &'static str {
        "where"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let (op, [condition, lhs, rhs]) = (self.name(), [inputs[0], inputs[1], inputs[2]]);
        expect_mask(op, "condition", condition, lhs)?;
        same_dtype(op, lhs, rhs)?;
        let operands = Shape::broadcast(op, lhs.shape(), rhs.shape())?;
        let shape = Shape::broadcast(op, condition.shape(), &operands)?;
        let mut out = ctx.output(&shape, lhs.dtype())?;
        let spread = |tensor: &Tensor| tensor.layout().broadcast_to(op, &shape);
        let (choice, left, right) = (spread(condition)?, spread(lhs)?, spread(rhs)?);
        ctx.compute(kernels::Select {
            condition: condition.view().with_layout(&choice),
            lhs: lhs.view().with_layout(&left),
            rhs: rhs.view().with_layout(&right),
            out: out.view_mut(),
        })?;
        ctx.save(condition);
        Ok(out.finish())
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let condition = saved.tensor(0)?;
        let zero = || Tensor::full_for(grad.device(), Shape::SCALAR, 0.0, grad.dtype(), Category::Temporary);
        let lhs = if_needed(saved, 1, || condition.where_(&grad, &zero()?)?.sum_to(saved.input_shape(1)))?;
        let rhs = if_needed(saved, 2, || condition.where_(&zero()?, &grad)?.sum_to(saved.input_shape(2)))?;
        Ok(vec![None, lhs, rhs])
    }
}

/// Defines the methods.
macro_rules! methods {
    ($($(#[$meta:meta])* $name:ident: $variant:ident($holds:expr),)*) => {
        /// # Comparisons
        ///
        /// The second operand is a tensor or a number: `x.gt(&y)`, `x.gt(0.5)`.
        impl Tensor {$(
            $(#[$meta])*
            ///
            /// # Errors
            /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) if the shapes do not broadcast,
            /// [`Error::BadArgument`](crate::Error::BadArgument) for integer elements and a number that their type
            /// cannot represent, [`Error::Allocation`](crate::Error::Allocation) if there is no memory.
            pub fn $name<'a>(&self, rhs: impl Into<TensorOrScalar<'a>>) -> Result<Self> {
                self.compare(Compare::$variant, rhs)
            }
        )*}
    };
}

comparisons!(methods);

impl Tensor {
    /// Applies a comparison of the table.
    #[doc(hidden)]
    pub fn compare<'a>(&self, f: Compare, rhs: impl Into<TensorOrScalar<'a>>) -> Result<Self> {
        match rhs.into() {
            TensorOrScalar::Tensor(rhs) => apply_promoted(CompareOp(f), self, rhs),
            TensorOrScalar::Scalar(scalar) => apply(CompareScalar { f, scalar }, &[self]),
        }
    }
}

/// # Tests of elements, and selection by a condition
impl Tensor {
    /// Tests each element for NaN; always false for integers.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[1.0f32, f32::NAN, f32::INFINITY], [3])?;
    /// assert_eq!(x.is_nan()?.to_vec::<bool>()?, [false, true, false]);
    /// assert_eq!(x.is_finite()?.to_vec::<bool>()?, [true, false, false]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Allocation`](crate::Error::Allocation) if there is no memory.
    pub fn is_nan(&self) -> Result<Self> {
        self.ne(self)
    }

    /// Tests each element for being finite (neither infinite nor NaN); always true for integers and booleans. Allocates
    /// a temporary of the size of x.
    ///
    /// # Errors
    /// [`Error::Allocation`](crate::Error::Allocation) if there is no memory.
    pub fn is_finite(&self) -> Result<Self> {
        if self.dtype() == DType::Bool {
            return self.eq(self);
        }
        // x - x is 0 for finite x, and NaN otherwise.
        let nothing = self.detach().sub(self)?;
        nothing.eq(&nothing)
    }

    /// Selects elements from `lhs` where this condition is true, and from `rhs` elsewhere.
    ///
    /// All three operands broadcast. `lhs` and `rhs` are promoted to one element type.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let device = Device::cpu()?;
    /// let x = Tensor::from_slice(&device, &[-1.0f32, 2.0], [2])?;
    /// let clipped = x.gt(0.0)?.where_(&x, &Tensor::scalar(&device, 0.0f32)?)?;
    /// assert_eq!(clipped.to_vec::<f32>()?, [0.0, 2.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`](crate::Error::BadArgument) unless this tensor's elements are booleans,
    /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) if the shapes do not broadcast,
    /// [`Error::Allocation`](crate::Error::Allocation) if there is no memory.
    #[doc(alias("where"))]
    pub fn where_(&self, lhs: &Self, rhs: &Self) -> Result<Self> {
        let dtype = promote(lhs.dtype(), rhs.dtype());
        apply(Where, &[self, &lhs.to_dtype(dtype)?, &rhs.to_dtype(dtype)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Runtime;

    #[test]
    fn comparisons_with_nan_are_false_except_for_inequality() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let a = Tensor::from_slice(&device, &[1.0f32, 2.0, f32::NAN], 3).unwrap();
        let b = Tensor::from_slice(&device, &[2.0f32, 2.0, f32::NAN], 3).unwrap();
        let truths = |result: Result<Tensor>| result.unwrap().to_vec::<bool>().unwrap();
        assert_eq!(truths(a.eq(&b)), [false, true, false]);
        assert_eq!(truths(a.ne(&b)), [true, false, true]);
        assert_eq!(truths(a.lt(&b)), [true, false, false]);
        assert_eq!(truths(a.le(&b)), [true, true, false]);
        assert_eq!(truths(a.gt(&b)), [false, false, false]);
        assert_eq!(truths(a.ge(&b)), [false, true, false]);
    }

    #[test]
    fn truth_values_can_be_compared_and_chosen_among() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let a = Tensor::from_slice(&device, &[true, false], 2).unwrap();
        let b = Tensor::from_slice(&device, &[true], 1).unwrap();
        assert_eq!(a.eq(&b).unwrap().to_vec::<bool>().unwrap(), [true, false]);
        assert_eq!(a.where_(&a, &b).unwrap().to_vec::<bool>().unwrap(), [true, true]);
    }

    #[test]
    fn a_comparison_of_leaves_requires_no_gradient() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let x = Tensor::ones(&device, 2).unwrap().requiring_grad().unwrap();
        assert!(!x.eq(&x).unwrap().requires_grad());
    }

    #[test]
    fn elements_are_compared_with_numbers() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let truths = |result: Result<Tensor>| result.unwrap().to_vec::<bool>().unwrap();
        let x = Tensor::from_slice(&device, &[0.25f32, 0.5, f32::NAN], 3).unwrap();
        assert_eq!(truths(x.gt(0.25)), [false, true, false]);
        assert_eq!(truths(x.ge(0.5f32)), [false, true, false]);
        assert_eq!(truths(x.lt(1)), [true, true, false]);
        assert_eq!(truths(x.ne(f64::NAN)), [true; 3]);
        // As in f32, the type of the elements.
        let tenth = Tensor::from_slice(&device, &[0.1f32], 1).unwrap();
        assert_eq!(truths(tenth.eq(0.1)), [true]);
        let labels = Tensor::from_slice(&device, &[0i64, 1, 2], 3).unwrap();
        assert_eq!(truths(labels.eq(1)), [false, true, false]);
        assert_eq!(truths(labels.le(1.0)), [true, true, false]);
        let flags = Tensor::from_slice(&device, &[true, false], 2).unwrap();
        assert_eq!(truths(flags.eq(false)), [false, true]);
        assert_eq!(
            labels.gt(0.5).unwrap_err().to_string(),
            "gt: scalar must be a whole number for a tensor of integers, got 0.5 for a tensor of i64"
        );
        let bytes = Tensor::from_slice(&device, &[7u8], 1).unwrap();
        assert!(bytes.lt(300).is_err());
    }

    #[test]
    fn a_comparison_with_a_number_is_one_op() {
        let runtime = Runtime::builder().threads(1).build().unwrap();
        let x = Tensor::ones(&runtime.cpu().unwrap(), 1000).unwrap();
        runtime.tracker().reset();
        let _mask = x.gt(0.5).unwrap();
        let totals = runtime.tracker().op_totals();
        let ops: Vec<_> = totals.iter().filter(|row| row.totals.calls > 0).map(|row| row.op).collect();
        assert_eq!(ops, ["gt"]);
    }
}
