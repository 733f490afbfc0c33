//! Ops: what a forward and a backward are, and how one is run.
//!
//! Every operation of this crate, and every one written outside it, is an [`Op`]. [`apply`] runs it: it finds the
//! device, opens the op's account with the tracker, lets the op allocate through its [`OpContext`] and compute, and
//! hangs the result into the graph of gradients if one of the inputs is in it.

mod context;
pub(crate) mod mode;
pub(crate) mod upcast;

use std::fmt;
use std::ops::Deref;

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

    /// [`backward`](Self::backward) for whoever has no more use for the gradient, nor for what was saved: buffers may be taken over, or
    /// given back on the way. For ops of this crate.
    ///
    /// # Errors
    /// As [`backward`](Self::backward).
    #[doc(hidden)]
    fn backward_taking(
        &self,
        ctx: &OpContext<'_>,
        saved: &mut Saved,
        grad: Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        self.backward(ctx, saved, &grad)
    }

    /// Whether [`backward_of_one`](Self::backward_of_one) is there: for losses, which passes begin at.
    #[doc(hidden)]
    fn takes_one(&self) -> bool {
        false
    }

    /// [`backward_taking`](Self::backward_taking) where the gradient is the number one, without a tensor for it. For ops of this
    /// crate that say so by [`takes_one`](Self::takes_one).
    ///
    /// # Errors
    /// As [`backward`](Self::backward).
    #[doc(hidden)]
    fn backward_of_one(&self, ctx: &OpContext<'_>, saved: &mut Saved) -> Result<Vec<Option<Tensor>>> {
        let _ = (ctx, saved);
        Err(Error::NotDifferentiable { op: self.name() })
    }

    /// Whether the gradient of the only input is 0 but for a part, which [`backward_taking`](Self::backward_taking) adds to what others
    /// have found for that input: a tensor cut into many parts would else have as many gradients of its whole size. For ops of this crate.
    #[doc(hidden)]
    fn is_part(&self) -> bool {
        false
    }
}

/// Runs an op on at least one input.
///
/// # Errors
/// [`Error::DeviceMismatch`] for inputs on different devices; else what the op's forward says.
pub fn apply(op: impl Op, inputs: &[&Tensor]) -> Result<Tensor> {
    let (output, saved) = run(op.name(), &op, inputs)?;
    Ok(match saved {
        None => output,
        Some(saved) => autograd::record(HeldOp::Boxed(Box::new(op)), inputs, saved, output),
    })
}

/// The same of an op that is always there, for which no memory is needed.
pub(crate) fn apply_static(op: &'static dyn Op, inputs: &[&Tensor]) -> Result<Tensor> {
    let (output, saved) = run(op.name(), op, inputs)?;
    Ok(match saved {
        None => output,
        Some(saved) => autograd::record(HeldOp::Static(op), inputs, saved, output),
    })
}

/// An op, kept for its backward.
#[derive(Debug)]
pub(crate) enum HeldOp {
    Static(&'static dyn Op),
    Boxed(Box<dyn Op>),
}

impl HeldOp {
    /// Whether it is always there, as ops without options of this crate are.
    pub(crate) const fn is_static(&self) -> bool {
        matches!(self, Self::Static(_))
    }
}

impl Deref for HeldOp {
    type Target = dyn Op;

    fn deref(&self) -> &dyn Op {
        match self {
            Self::Static(op) => *op,
            Self::Boxed(op) => &**op,
        }
    }
}

/// The result, and what backward needs if the op is to be recorded. Not for each op's type, or it would be compiled for each.
fn run(name: &'static str, op: &dyn Op, inputs: &[&Tensor]) -> Result<(Tensor, Option<Vec<Tensor>>)> {
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
