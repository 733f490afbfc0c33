//! Elementwise comparisons, and the selection between two tensors by a condition.
//!
//! - `eq`, `ne`, `lt`, `le`, `gt`, `ge`: operands broadcast as in NumPy and are promoted to one element type. The
//!   result is boolean. No gradient flows.
//! - `where_`: y = condition ? a : b. ∂y/∂a is 1 where the condition holds, ∂y/∂b where it does not; saves the condition.

use bfc_core::Category;

use super::{apply_promoted, broadcast_pair, expect_dtype, if_needed, same_dtype};
use crate::autograd::apply;
use crate::backend::{Compare, Kernel};
use crate::error::Result;
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::shape::{DType, Shape};
use crate::tensor::Tensor;

#[derive(Debug)]
struct CompareOp(Compare);

impl Op for CompareOp {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let (op, [lhs, rhs]) = (self.name(), [inputs[0], inputs[1]]);
        same_dtype(op, lhs, rhs)?;
        broadcast_pair(ctx, [lhs, rhs], DType::Bool, |[lhs, rhs], out| Kernel::Compare {
            f: self.0,
            lhs,
            rhs,
            out,
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
        expect_dtype(op, "condition", condition, DType::Bool, lhs)?;
        same_dtype(op, lhs, rhs)?;
        let operands = Shape::broadcast(op, lhs.shape(), rhs.shape())?;
        let shape = Shape::broadcast(op, condition.shape(), &operands)?;
        let mut out = ctx.output(&shape, lhs.dtype())?;
        let spread = |tensor: &Tensor| tensor.layout().broadcast_to(op, &shape);
        let (choice, left, right) = (spread(condition)?, spread(lhs)?, spread(rhs)?);
        ctx.compute(Kernel::Select {
            condition: condition.view().with_layout(&choice),
            lhs: lhs.view().with_layout(&left),
            rhs: rhs.view().with_layout(&right),
            out: out.view_mut(),
        })?;
        ctx.save(condition);
        Ok(out.finish())
    }

    fn backward(&self, _: &OpContext<'_>, saved: &Saved, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let condition = saved.tensor(0)?;
        let zero = || Tensor::full_for(grad.device(), Shape::SCALAR, 0.0, grad.dtype(), Category::Temporary);
        let lhs = if_needed(saved, 1, || condition.where_(grad, &zero()?)?.sum_to(saved.input_shape(1)))?;
        let rhs = if_needed(saved, 2, || condition.where_(&zero()?, grad)?.sum_to(saved.input_shape(2)))?;
        Ok(vec![None, lhs, rhs])
    }
}

macro_rules! compare_methods {
    ($($(#[$doc:meta])* $name:ident = $f:ident;)*) => {
        /// # Comparisons
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) if the shapes do not broadcast,
            /// [`Error::Allocation`](crate::Error::Allocation) if there is no memory.
            pub fn $name(&self, rhs: &Self) -> Result<Self> {
                apply_promoted(CompareOp(Compare::$f), self, rhs)
            }
        )*}
    };
}

compare_methods! {
    /// Elementwise a = b, as booleans. NaN equals nothing.
    #[doc(alias("equal"))]
    eq = Eq;
    /// Elementwise a ≠ b, as booleans. NaN differs from everything.
    #[doc(alias("not_equal"))]
    ne = Ne;
    /// Elementwise a < b, as booleans.
    #[doc(alias("less"))]
    lt = Lt;
    /// Elementwise a ≤ b, as booleans.
    #[doc(alias("less_equal"))]
    le = Le;
    /// Elementwise a > b, as booleans.
    #[doc(alias("greater"))]
    gt = Gt;
    /// Elementwise a ≥ b, as booleans.
    #[doc(alias("greater_equal"))]
    ge = Ge;
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
    /// let zero = Tensor::scalar(&device, 0.0f32)?;
    /// let clipped = x.gt(&zero)?.where_(&x, &zero)?;
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
        let dtype = lhs.dtype().promote(rhs.dtype());
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
}
