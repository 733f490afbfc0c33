//! Boolean logic: elementwise with NumPy broadcasting, and reductions along axes.
//!
//! | op | y | of nothing |
//! |---|---|---|
//! | `logical_and`, `logical_or`, `logical_xor` | a and b, a or b, either and not both | |
//! | `logical_not` | not a | |
//! | `any`, `all` | whether one holds, whether each does | false, true |
//! | `count_nonzero` | how many hold | 0 |
//!
//! Elements of other types count as true if they differ from 0, as in NumPy; NaN counts as true. The conversion needs a
//! temporary. No gradient flows.

use super::axes::Axes;
use super::broadcast_pair;
use super::create::constant_like;
use super::reduce::{Target, fold, fold_wide};
use crate::autograd::apply;
use crate::backend::{Binary, Reduce, kernels};
use crate::error::Result;
use crate::op::{Op, OpContext};
use crate::shape::{DType, Scalar, Shape};
use crate::tensor::Tensor;

/// Elementwise logic on 0 and 1: the minimum is `and`, the maximum is `or`.
#[derive(Debug)]
enum Logic {
    And,
    Or,
}

impl Op for Logic {
    fn name(&self) -> &'static str {
        match self {
            Self::And => "logical_and",
            Self::Or => "logical_or",
        }
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        // Checks the shapes before the conversions allocate.
        Shape::broadcast(self.name(), inputs[0].shape(), inputs[1].shape())?;
        let (lhs, rhs) = (to_bool(inputs[0])?, to_bool(inputs[1])?);
        let f = match self {
            Self::And => Binary::Minimum,
            Self::Or => Binary::Maximum,
        };
        broadcast_pair(ctx, [&lhs, &rhs], DType::Bool, |[lhs, rhs], out| {
            kernels::Zip { f, lhs, rhs, out }.into()
        })
    }
}

/// A reduction of booleans.
#[derive(Clone, Copy, Debug)]
enum Fold {
    Any,
    All,
    Count,
}

impl Fold {
    const fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::All => "all",
            Self::Count => "count_nonzero",
        }
    }
}

/// Reduction along axes.
#[derive(Debug)]
struct Folded {
    fold: Fold,
    target: Target,
}

impl Op for Folded {
    fn name(&self) -> &'static str {
        self.fold.name()
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let (x, axes) = (to_bool(inputs[0])?, &self.target.axes);
        let (f, of_nothing) = match self.fold {
            Fold::Any => (Reduce::Max, false),
            Fold::All => (Reduce::Min, true),
            Fold::Count => {
                return self.target.finish(fold_wide(ctx, Reduce::Sum, &x, axes)?, x.shape());
            }
        };
        let mut out = ctx.output(&axes.folded_shape(x.shape()), DType::Bool)?;
        if x.elements() == 0 {
            ctx.compute(kernels::Fill { value: Scalar::Int(of_nothing.into()), out: out.view_mut() })?;
        } else {
            fold(ctx, f, x.view(), axes, &mut out)?;
        }
        self.target.finish(out.finish(), x.shape())
    }
}

/// Converts elements to booleans: true where they differ from 0.
fn to_bool(x: &Tensor) -> Result<Tensor> {
    x.detach().to_dtype(DType::Bool)
}

/// # Boolean logic
impl Tensor {
    /// Elementwise logical AND.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[-2.0f32, 0.5, 3.0], [3])?;
    /// let limit = |value| Tensor::scalar(x.device(), value);
    /// let inside = x.gt(&limit(0.0f32)?)?.logical_and(&x.lt(&limit(1.0)?)?)?;
    /// assert_eq!(inside.to_vec::<bool>()?, [false, true, false]);
    /// assert!(inside.any([0])?.item::<bool>()? && !inside.all([0])?.item::<bool>()?);
    /// assert_eq!(inside.logical_not()?.to_vec::<bool>()?, [true, false, true]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) if the shapes do not broadcast,
    /// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch), [`Error::Allocation`](crate::Error::Allocation) if there is no
    /// memory.
    pub fn logical_and(&self, rhs: &Self) -> Result<Self> {
        apply(Logic::And, &[self, rhs])
    }

    /// Elementwise logical OR.
    ///
    /// # Errors
    /// See [`Tensor::logical_and`].
    pub fn logical_or(&self, rhs: &Self) -> Result<Self> {
        apply(Logic::Or, &[self, rhs])
    }

    /// Elementwise logical XOR.
    ///
    /// # Errors
    /// See [`Tensor::logical_and`].
    pub fn logical_xor(&self, rhs: &Self) -> Result<Self> {
        to_bool(self)?.ne(&to_bool(rhs)?)
    }

    /// Elementwise logical NOT.
    ///
    /// # Errors
    /// [`Error::Allocation`](crate::Error::Allocation) if there is no memory.
    pub fn logical_not(&self) -> Result<Self> {
        self.detach().eq(&constant_like(self, 0)?)
    }

    /// Whether any element is true along axes, which vanish; false for no elements.
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange), and [`Error::BadArgument`](crate::Error::BadArgument)
    /// for a repeated axis; [`Error::Allocation`](crate::Error::Allocation) if there is no memory.
    pub fn any(&self, axes: impl Axes) -> Result<Self> {
        self.reduce_booleans(Fold::Any, axes, false)
    }

    /// Whether any element is true along axes, which stay with size 1.
    ///
    /// # Errors
    /// See [`Tensor::any`].
    pub fn any_keepdim(&self, axes: impl Axes) -> Result<Self> {
        self.reduce_booleans(Fold::Any, axes, true)
    }

    /// Whether all elements are true along axes, which vanish; true for no elements.
    ///
    /// # Errors
    /// See [`Tensor::any`].
    pub fn all(&self, axes: impl Axes) -> Result<Self> {
        self.reduce_booleans(Fold::All, axes, false)
    }

    /// Whether all elements are true along axes, which stay with size 1.
    ///
    /// # Errors
    /// See [`Tensor::any`].
    pub fn all_keepdim(&self, axes: impl Axes) -> Result<Self> {
        self.reduce_booleans(Fold::All, axes, true)
    }

    /// Counts the elements that differ from 0 along axes, which vanish, as i64. NaN differs from 0.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[0.0f32, 2.5, -1.0, 0.0, 0.0, 3.0], [2, 3])?;
    /// assert_eq!(x.count_nonzero(1)?.to_vec::<i64>()?, [2, 1]);
    /// assert_eq!(x.count_nonzero([0, 1])?.item::<i64>()?, 3);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::any`].
    pub fn count_nonzero(&self, axes: impl Axes) -> Result<Self> {
        self.reduce_booleans(Fold::Count, axes, false)
    }

    fn reduce_booleans(&self, fold: Fold, axes: impl Axes, keep: bool) -> Result<Self> {
        apply(Folded { fold, target: self.target(fold.name(), &axes, keep)? }, &[self])
    }
}
