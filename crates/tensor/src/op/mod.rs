//! Ops: the trait [`Op`] with a forward and a backward, and the context that both run in.
//!
//! An op allocates all of its memory through its [`OpContext`], which opens the op's account with the tracker. [`upcast`] runs
//! kernels on 16-bit floats. [`apply`](crate::apply), a layer above, runs an op and adds its result to the graph.

mod context;
pub(crate) mod mode;
pub(crate) mod saved;
pub(crate) mod upcast;

use std::fmt;

pub use self::context::{Buffer, OpContext};
pub use self::mode::{is_recording, no_grad};
pub use self::saved::Saved;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// An operation on tensors.
///
/// ```
/// use highwater::{DType, Device, Error, Op, OpContext, Result, Saved, Tensor, apply};
///
/// /// y = 2x, written out on slices.
/// #[derive(Debug)]
/// struct Double;
///
/// impl Op for Double {
///     fn name(&self) -> &'static str {
///         "double"
///     }
///
///     fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
///         let dtype = inputs[0].dtype();
///         if dtype != DType::F32 {
///             return Err(Error::UnsupportedDType { op: ctx.op(), dtype });
///         }
///         let mut out = ctx.output(inputs[0].shape(), dtype)?;
///         let x = inputs[0].contiguous()?;
///         // On a dry device there are no values, and nothing is computed.
///         if let (Some(y), Some(x)) = (out.host_mut::<f32>(), x.view().host_contiguous::<f32>()) {
///             y.iter_mut().zip(x).for_each(|(y, x)| *y = 2.0 * x);
///         }
///         Ok(out.finish())
///     }
///
///     fn backward(&self, _: &OpContext<'_>, _: &Saved, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
///         Ok(vec![Some(grad.mul_scalar(2.0)?)])
///     }
/// }
///
/// let x = Tensor::from_slice(&Device::cpu()?, &[1.0f32, 3.0], [2])?;
/// assert_eq!(apply(Double, &[&x])?.to_vec::<f32>()?, [2.0, 6.0]);
/// # Ok::<(), highwater::Error>(())
/// ```
pub trait Op: fmt::Debug + Send + Sync + 'static {
    /// The op's name in errors, accounts and traces.
    fn name(&self) -> &'static str;

    /// Checks shapes and types, takes all memory from the context, computes. No gradients are recorded meanwhile.
    ///
    /// # Errors
    /// For inputs that do not fit and for lack of memory; nothing may have changed then.
    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor>;

    /// The gradient of each input from the gradient of the output, in the order of the inputs; `None` where there is
    /// none or where [`Saved::needs_grad`] says that nobody asks.
    ///
    /// # Errors
    /// [`Error::NotDifferentiable`] unless overridden.
    fn backward(&self, ctx: &OpContext<'_>, saved: &Saved, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let _ = (ctx, saved, grad);
        Err(Error::NotDifferentiable { op: self.name() })
    }
}

/// An op of this crate whose backward reuses buffers.
pub(crate) trait BuiltinOp: Op {
    /// Like [`backward`](Op::backward), but owns the gradient and the saved tensors: it may write into their buffers and
    /// free them early.
    ///
    /// # Errors
    /// As [`backward`](Op::backward).
    fn backward_owned(
        &self,
        ctx: &OpContext<'_>,
        saved: &mut Saved,
        grad: Tensor,
    ) -> Result<Vec<Option<Tensor>>>;

    /// Whether the gradient is zero except for a part of the op's only input, and
    /// [`backward_owned`](Self::backward_owned) adds that part to the gradient that the input already has
    /// ([`Saved::take_total`]). Otherwise a tensor cut into many parts would need as many gradients of its whole size.
    fn adds_to_gradient(&self) -> bool {
        false
    }
}

/// An op, kept for its backward.
#[derive(Debug)]
pub(crate) enum HeldOp {
    Custom(Box<dyn Op>),
    Builtin(Box<dyn BuiltinOp>),
}

impl HeldOp {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Custom(op) => op.name(),
            Self::Builtin(op) => op.name(),
        }
    }

    /// Whether the gradients that backward returns must be checked.
    pub(crate) const fn is_custom(&self) -> bool {
        matches!(self, Self::Custom(_))
    }

    /// See [`BuiltinOp::adds_to_gradient`].
    pub(crate) fn adds_to_gradient(&self) -> bool {
        matches!(self, Self::Builtin(op) if op.adds_to_gradient())
    }

    /// The gradient of each input.
    ///
    /// # Errors
    /// As [`Op::backward`].
    pub(crate) fn backward(
        &self,
        ctx: &OpContext<'_>,
        saved: &mut Saved,
        grad: Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        match self {
            Self::Custom(op) => op.backward(ctx, saved, &grad),
            Self::Builtin(op) => op.backward_owned(ctx, saved, grad),
        }
    }
}
