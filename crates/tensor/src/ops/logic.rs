//! Boolean logic: elementwise with NumPy broadcasting, and reductions along axes.
//!
//! | op | y | of nothing |
//! |---|---|---|
//! | `logical_and`, `logical_or`, `logical_xor` | a and b, a or b, either and not both | |
//! | `logical_not` | not a | |
//! | `any`, `all` | whether one holds, whether each does | false, true |
//!
//! Elements of other types count as true if they differ from 0, as in NumPy; NaN counts as true. The conversion needs a
//! temporary. No gradient flows.

use super::axes::Axes;
use super::broadcast_pair;
use super::create::constant_like;
use super::reduce::{Target, fold};
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

/// Reduction along axes.
#[derive(Debug)]
struct Folded {
    /// Whether all elements must be true, instead of any.
    all: bool,
    target: Target,
}

const ANY: &str = "any";
const ALL: &str = "all";

impl Op for Folded {
    fn name(&self) -> &'static str {
        if self.all { ALL } else { ANY }
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let (x, axes) = (to_bool(inputs[0])?, &self.target.axes);
        let mut out = ctx.output(&axes.folded_shape(x.shape()), DType::Bool)?;
        if x.elements() == 0 {
            ctx.compute(kernels::Fill { value: Scalar::Int(self.all.into()), out: out.view_mut() })?;
        } else {
            let f = if self.all { Reduce::Min } else { Reduce::Max };
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
        apply(Folded { all: false, target: self.target(ANY, &axes, false)? }, &[self])
    }

    /// Whether any element is true along axes, which stay with size 1.
    ///
    /// # Errors
    /// See [`Tensor::any`].
    pub fn any_keepdim(&self, axes: impl Axes) -> Result<Self> {
        apply(Folded { all: false, target: self.target(ANY, &axes, true)? }, &[self])
    }

    /// Whether all elements are true along axes, which vanish; true for no elements.
    ///
    /// # Errors
    /// See [`Tensor::any`].
    pub fn all(&self, axes: impl Axes) -> Result<Self> {
        apply(Folded { all: true, target: self.target(ALL, &axes, false)? }, &[self])
    }

    /// Whether all elements are true along axes, which stay with size 1.
    ///
    /// # Errors
    /// See [`Tensor::any`].
    pub fn all_keepdim(&self, axes: impl Axes) -> Result<Self> {
        apply(Folded { all: true, target: self.target(ALL, &axes, true)? }, &[self])
    }
}
