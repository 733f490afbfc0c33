//! Ops: the trait [`Op`] with a forward and a backward pass, and the context for both.
//!
//! An op allocates all of its memory through its [`OpContext`], which opens the op's account with the
//! tracker. [`upcast`] runs kernels on 16-bit floats. [`apply`](crate::apply), in the layer above, runs an op
//! and adds its result to the gradient graph.

mod context;
pub(crate) mod mixed;
pub(crate) mod mode;
pub(crate) mod saved;
pub(crate) mod upcast;

use std::fmt;

pub(crate) use self::context::Destination;
pub use self::context::{Buffer, OpContext};
pub use self::mode::{RecordingGuard, is_recording, no_grad, no_grad_guard};
pub use self::saved::Saved;
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// An operation on tensors.
///
/// ```
/// use highwater::{DType, Device, Error, Op, OpContext, Result, Saved, Tensor, apply};
///
/// /// y = 2x, computed on slices.
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
///         // A dry device has no values, so nothing is computed.
///         if let (Some(y), Some(x)) = (out.host_mut::<f32>(), x.view().host_contiguous::<f32>()) {
///             y.iter_mut().zip(x).for_each(|(y, x)| *y = 2.0 * x);
///         }
///         Ok(out.finish())
///     }
///
///     fn backward(&self, _: &OpContext<'_>, _: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
///         Ok(vec![Some(grad.mul_scalar(2.0)?)])
///     }
/// }
///
/// let x = Tensor::from_slice(&Device::cpu()?, &[1.0f32, 3.0], [2])?;
/// assert_eq!(apply(Double, &[&x])?.to_vec::<f32>()?, [2.0, 6.0]);
/// # Ok::<(), highwater::Error>(())
/// ```
pub trait Op: fmt::Debug + Send + Sync + 'static {
    /// Returns the op's name for errors, reports and traces.
    fn name(&self) -> &'static str;

    /// Computes the output. Checks shapes and types, allocates all memory from the context, then runs
    /// kernels. Ops called within it record no gradients.
    ///
    /// # Errors
    /// For invalid inputs and failed allocations. An op that fails must not have changed anything.
    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor>;

    /// Computes the gradient of each input from the gradient of the output, in the order of the inputs.
    /// Returns `None` for inputs without a gradient, and where [`Saved::needs_grad`] is false.
    ///
    /// The op owns the gradient and the saved tensors. It may return the gradient, and the methods that take a tensor by
    /// value write into its buffer if no other handle shares it: `grad * 2.0` allocates nothing. [`Saved::take_last`]
    /// takes a saved tensor for the same purpose, or to free it early. [`OpContext::gradient`] allocates the gradient of an
    /// input.
    ///
    /// Each gradient is checked: it must match its input in shape, element type and device.
    ///
    /// # Errors
    /// [`Error::NotDifferentiable`] by default.
    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let _ = (ctx, saved, grad);
        Err(Error::NotDifferentiable { op: self.name() })
    }

    /// Returns whether the gradient is zero outside of a part of the op's only input. Then [`backward`](Self::backward) may
    /// add that part to the input's existing gradient ([`Saved::take_total`]) and return the sum. Otherwise each of many slices
    /// of a tensor would require a gradient of the tensor's full size. The default is `false`.
    fn adds_to_gradient(&self) -> bool {
        false
    }

    /// Returns whether the op passes on the gradient of its output in the element type that it has, as views do. If the input is
    /// a 16-bit copy of an f32 parameter, ops that read the output may then compute its gradient in f32: see
    /// [`Saved::gradient_dtype`].
    fn passes_gradient(&self) -> bool {
        false
    }

    /// Returns how the op adds up elements of inputs with these shapes. A search for a plan reads from it whether a loss is a
    /// mean. The default is another function.
    fn summation(&self, inputs: &[Shape]) -> Summation {
        let _ = inputs;
        Summation::Other
    }

    /// Returns the number of rows of [`Summation::MeanOfKept`] that are not ignored. Reads values of the device. Allocates no
    /// memory of the device, because a dry run does not call it.
    ///
    /// # Errors
    /// [`Error::BadArgument`] by default, [`Error::Device`] if a transfer fails.
    fn kept_rows(&self, saved: &Saved) -> Result<usize> {
        let _ = saved;
        let expected = "an op whose mean is over the rows that are not ignored";
        Err(Error::BadArgument { op: self.name(), argument: "op", expected, got: "another op".to_owned() })
    }
}

/// How an op adds up elements. See [`Op::summation`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Summation {
    /// Another function.
    #[default]
    Other,
    /// Each element of the inputs is in one sum of the output, with this factor.
    Elements {
        /// The factor.
        factor: f64,
    },
    /// Each element of the output is the sum of one element of each input, with this factor. Smaller inputs broadcast.
    Elementwise {
        /// The factor.
        factor: f64,
    },
    /// The product of two inputs.
    Product,
    /// A function of all elements, such as the statistics of a batch, although the output has the shape of the input.
    OfAll,
    /// The mean of functions of those rows that are not ignored. Their number is a value: see [`Op::kept_rows`].
    MeanOfKept {
        /// The number of all rows.
        rows: usize,
    },
    /// The sum of functions of separate rows or elements of the inputs, with this factor.
    Functions {
        /// The number of functions.
        terms: usize,
        /// The factor.
        factor: f64,
    },
}

impl Summation {
    /// Each element in one sum.
    pub(crate) const ONCE: Self = Self::Elements { factor: 1.0 };

    /// The same elements, in another order or type, repeated, or added to others.
    pub(crate) const ELEMENTWISE: Self = Self::Elementwise { factor: 1.0 };
}
