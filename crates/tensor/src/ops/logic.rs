//! Logic of truth values: of two tensors, which broadcast as in NumPy, and along axes.
//!
//! | op | y | of nothing |
//! |---|---|---|
//! | `logical_and`, `logical_or`, `logical_xor` | a and b, a or b, either and not both | |
//! | `logical_not` | not a | |
//! | `any`, `all` | whether one holds, whether each does | false, true |
//!
//! What is no truth value stands for whether it differs from 0, as in NumPy; that takes a temporary. NaN does. No gradient flows.

use super::axes::Axes;
use super::broadcast_pair;
use super::create::constant_like;
use super::reduce::{Target, fold};
use crate::autograd::apply;
use crate::backend::{Binary, Kernel, Reduce};
use crate::error::Result;
use crate::op::{Op, OpContext};
use crate::shape::{DType, Scalar, Shape};
use crate::tensor::Tensor;

/// Of two truth values, which are 0 and 1: the smaller is true where both are, the larger where one is.
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
        // The shapes are compared before the conversions allocate.
        Shape::broadcast(self.name(), inputs[0].shape(), inputs[1].shape())?;
        let (lhs, rhs) = (truth(inputs[0])?, truth(inputs[1])?);
        let f = match self {
            Self::And => Binary::Minimum,
            Self::Or => Binary::Maximum,
        };
        broadcast_pair(ctx, [&lhs, &rhs], DType::Bool, |[lhs, rhs], out| Kernel::Binary { f, lhs, rhs, out })
    }
}

/// Of many.
#[derive(Debug)]
struct Folded {
    /// Whether each has to hold, and not just one.
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
        let (x, axes) = (truth(inputs[0])?, &self.target.axes);
        let mut out = ctx.output(&axes.folded_shape(x.shape()), DType::Bool)?;
        if x.elements() == 0 {
            ctx.compute(Kernel::Fill { value: Scalar::Int(self.all.into()), out: out.view_mut() })?;
        } else {
            let f = if self.all { Reduce::Min } else { Reduce::Max };
            fold(ctx, f, x.view(), axes, &mut out)?;
        }
        self.target.finish(out.finish(), x.shape())
    }
}

/// Whether elements differ from 0.
fn truth(x: &Tensor) -> Result<Tensor> {
    x.detach().to_dtype(DType::Bool)
}

impl Tensor {
    /// Where both hold.
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

    /// Where one holds, or both do.
    ///
    /// # Errors
    /// As [`Tensor::logical_and`].
    pub fn logical_or(&self, rhs: &Self) -> Result<Self> {
        apply(Logic::Or, &[self, rhs])
    }

    /// Where one holds, and not both do.
    ///
    /// # Errors
    /// As [`Tensor::logical_and`].
    pub fn logical_xor(&self, rhs: &Self) -> Result<Self> {
        truth(self)?.ne(&truth(rhs)?)
    }

    /// Where it does not hold.
    ///
    /// # Errors
    /// [`Error::Allocation`](crate::Error::Allocation) if there is no memory.
    pub fn logical_not(&self) -> Result<Self> {
        self.detach().eq(&constant_like(self, 0)?)
    }

    /// Whether one holds along axes, which vanish; false of nothing.
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange), and [`Error::BadArgument`](crate::Error::BadArgument) for an axis
    /// named twice; [`Error::Allocation`](crate::Error::Allocation) if there is no memory.
    pub fn any(&self, axes: impl Axes) -> Result<Self> {
        apply(Folded { all: false, target: self.target(ANY, &axes, false)? }, &[self])
    }

    /// Whether one holds along axes, which stay with size 1.
    ///
    /// # Errors
    /// As [`Tensor::any`].
    pub fn any_keepdim(&self, axes: impl Axes) -> Result<Self> {
        apply(Folded { all: false, target: self.target(ANY, &axes, true)? }, &[self])
    }

    /// Whether each holds along axes, which vanish; true of nothing.
    ///
    /// # Errors
    /// As [`Tensor::any`].
    pub fn all(&self, axes: impl Axes) -> Result<Self> {
        apply(Folded { all: true, target: self.target(ALL, &axes, false)? }, &[self])
    }

    /// Whether each holds along axes, which stay with size 1.
    ///
    /// # Errors
    /// As [`Tensor::any`].
    pub fn all_keepdim(&self, axes: impl Axes) -> Result<Self> {
        apply(Folded { all: true, target: self.target(ALL, &axes, true)? }, &[self])
    }
}
