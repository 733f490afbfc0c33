//! Ops: what a forward and a backward are, and how one is run.
//!
//! Every operation of this crate, and every one written outside it, is an [`Op`]. [`apply`] runs it: it finds the
//! device, opens the op's account with the tracker, lets the op allocate through its [`OpContext`] and compute, and
//! hangs the result into the graph of gradients if one of the inputs is in it.

mod context;
pub(crate) mod mode;
pub(crate) mod upcast;

use std::fmt;

pub use self::context::{Buffer, OpContext};
pub use self::mode::{is_recording, no_grad};
use self::mode::{pause, records};
use crate::autograd::{self, Saved};
use crate::device::{Device, PlacementReason};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// An operation on tensors.
///
/// ```
/// use highwater_tensor::{DType, Device, Error, Op, OpContext, Result, Saved, Tensor, apply};
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
/// # Ok::<(), highwater_tensor::Error>(())
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

/// Runs an op on at least one input.
///
/// # Errors
/// [`Error::DeviceMismatch`] for inputs on different devices; else the errors of the op's forward.
pub fn apply(op: impl Op, inputs: &[&Tensor]) -> Result<Tensor> {
    let (output, saved) = run(&op, inputs)?;
    Ok(match saved {
        None => output,
        Some(saved) => autograd::record(HeldOp::Custom(Box::new(op)), inputs, saved, output),
    })
}

/// Like [`apply`], for an op whose backward reuses buffers.
pub(crate) fn apply_builtin(op: impl BuiltinOp, inputs: &[&Tensor]) -> Result<Tensor> {
    let (output, saved) = run(&op, inputs)?;
    Ok(match saved {
        None => output,
        Some(saved) => autograd::record(HeldOp::Builtin(Box::new(op)), inputs, saved, output),
    })
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

/// The result, and the tensors that backward needs if the op is recorded. Not generic, so that it is compiled once.
fn run(op: &dyn Op, inputs: &[&Tensor]) -> Result<(Tensor, Option<Vec<Tensor>>)> {
    let name = op.name();
    let device = common_device(name, inputs)?;
    let recording = records(inputs.iter().any(|input| input.requires_grad()));
    device.placement().tell(name, device, PlacementReason::Inputs);
    let mut ctx = OpContext::forward(name, device, device.default_allocator()?, recording);
    let output = {
        let _paused = pause();
        op.forward(&ctx, inputs).map_err(|error| error.in_op(name))?
    };
    // An op may hand out one of its inputs, whose place in the graph is not the result's.
    let output = output.with_grad_edge(None);
    let recorded = recording && output.dtype().is_float();
    Ok((output, recorded.then(|| ctx.take_saved())))
}

fn common_device<'a>(op: &'static str, inputs: &[&'a Tensor]) -> Result<&'a Device> {
    let Some((first, rest)) = inputs.split_first() else {
        return Err(Error::BadArgument {
            op,
            argument: "inputs",
            expected: "at least one tensor",
            got: "none".to_owned(),
        });
    };
    match rest.iter().find(|other| other.device() != first.device()) {
        None => Ok(first.device()),
        Some(other) => Err(Error::DeviceMismatch {
            op,
            lhs: first.device().to_string(),
            rhs: other.device().to_string(),
        }),
    }
}
