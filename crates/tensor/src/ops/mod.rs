//! The ops, one family per file: public methods, shape rules, allocation, forward, backward and tests.
//!
//! Every op first allocates its memory (outputs, temporaries, workspaces), then computes. It saves only the tensors
//! that its backward reads. An op that runs inside another op's forward or backward counts as part of the outer op. Ops
//! that only change the layout share the buffer.

// In the order of the sections on the documentation page of `Tensor`.

// Creation and conversion
mod cast;
pub(crate) mod create;
mod random;
mod range;
mod transfer;

// Elements
mod batch_norm;
mod binary;
mod broadcast;
mod compare;
mod logic;
mod masked;
mod operators;
mod unary;

// Reductions
mod axes;
mod cumulative;
mod logsumexp;
mod product;
mod reduce;
mod variance;
mod vector_norm;

// Shape and indexing
mod axis_index;
mod categorical;
mod concat;
mod diagonal;
mod flip;
mod index;
mod multinomial;
mod pad;
mod repeat;
mod scatter;
mod shape;
mod slice;
mod sort;
mod split;
mod triangle;
mod unfold;

// Products
mod einsum;
mod linear;
mod matmul;
pub(crate) mod quantized;

// Neural networks
mod attention;
mod conv;
mod cosine;
mod dropout;
mod interpolate;
mod loss;
mod norm;
mod pixel_shuffle;
mod pool;
mod prelu;
mod recurrent;
mod self_attention;
mod softmax;

pub use attention::AttentionOptions;
pub use axes::Axes;
pub use axis_index::{AxisIndex, IntoAxisIndex, IntoAxisIndices};
pub use batch_norm::{BatchStatistics, RunningStatistics};
pub use compare::TensorOrScalar;
pub use conv::{Conv1dOptions, Conv2dOptions, Padding};
pub use create::TensorOptions;
pub use interpolate::{Interpolation, OutputSize};
pub use loss::{CrossEntropyOptions, LinearCrossEntropyOptions, Projection, Reduction};
pub use pad::PadMode;
pub use pool::{Pool1dOptions, Pool2dOptions};
pub use quantized::QuantizedMatrix;
pub use recurrent::RecurrentWeights;
pub use sort::SortOrder;
pub use vector_norm::Norm;

use crate::autograd::apply;
use crate::backend::Kernel;
use crate::error::{Error, Result};
use crate::op::Saved;
use crate::op::mixed::{mixed_dtype, promote, promote_factors};
use crate::op::{Op, OpContext};
use crate::shape::{DType, Shape};
use crate::storage::{View, ViewMut};
use crate::tensor::Tensor;

/// The documentation of the error for element types outside of a domain of functions.
macro_rules! unsupported_types {
    (Floats) => {
        "[`Error::UnsupportedDType`](crate::Error::UnsupportedDType) unless the elements are floats,"
    };
    ($domain:ident) => {
        "[`Error::UnsupportedDType`](crate::Error::UnsupportedDType) for booleans,"
    };
}

use unsupported_types;

/// Fails with [`Error::DTypeMismatch`] if two operands have different element types.
fn same_dtype(op: &'static str, lhs: &Tensor, rhs: &Tensor) -> Result<()> {
    if lhs.dtype() == rhs.dtype() {
        return Ok(());
    }
    Err(Error::DTypeMismatch {
        op,
        lhs: lhs.dtype(),
        rhs: rhs.dtype(),
        lhs_shape: *lhs.shape(),
        rhs_shape: *rhs.shape(),
    })
}

/// Applies an op to two tensors, [promoted](DType::promote) to one element type.
fn apply_promoted(op: impl Op, lhs: &Tensor, rhs: &Tensor) -> Result<Tensor> {
    if lhs.dtype() == rhs.dtype() {
        return apply(op, &[lhs, rhs]);
    }
    let [lhs, rhs] = promoted(lhs, rhs)?;
    apply(op, &[&lhs, &rhs])
}

/// [Promotes](promote) two tensors to one element type. Gradients return in each tensor's own type.
#[cold]
fn promoted(lhs: &Tensor, rhs: &Tensor) -> Result<[Tensor; 2]> {
    let dtype = promote(lhs.dtype(), rhs.dtype());
    Ok([lhs.to_dtype(dtype)?, rhs.to_dtype(dtype)?])
}

/// Applies a product to two tensors, promoted to [one type](promote_factors).
fn apply_to_factors(op: impl Op, lhs: &Tensor, rhs: &Tensor) -> Result<Tensor> {
    match promoted_factors(lhs, rhs)? {
        Some([lhs, rhs]) => apply(op, &[&lhs, &rhs]),
        None => apply(op, &[lhs, rhs]),
    }
}

/// Returns the factors of a product in [one type](promote_factors); `None` if they have it.
fn promoted_factors(lhs: &Tensor, rhs: &Tensor) -> Result<Option<[Tensor; 2]>> {
    let dtype = promote_factors(lhs.dtype(), rhs.dtype());
    let is_typed = lhs.dtype() == dtype && rhs.dtype() == dtype;
    if is_typed { Ok(None) } else { Ok(Some([lhs.to_dtype(dtype)?, rhs.to_dtype(dtype)?])) }
}

/// Converts the f32 tensors among the operands of an op to the 16-bit type of mixed precision, if another one has it. `None`
/// if there is nothing to convert.
fn mixed_operands<const N: usize>(operands: [&Tensor; N]) -> Result<Option<[Tensor; N]>> {
    let Some(half) = mixed_dtype() else { return Ok(None) };
    let has = |dtype: DType| operands.iter().any(|operand| operand.dtype() == dtype);
    if !has(half) || !has(DType::F32) {
        return Ok(None);
    }
    let mut converted = operands.map(Tensor::clone);
    for operand in converted.iter_mut().filter(|operand| operand.dtype() == DType::F32) {
        *operand = operand.to_dtype(half)?;
    }
    Ok(Some(converted))
}

/// Runs an elementwise kernel on two broadcast tensors. The result has the given element type.
fn broadcast_pair(
    ctx: &OpContext<'_>,
    [lhs, rhs]: [&Tensor; 2],
    dtype: DType,
    kernel: impl for<'a> FnOnce([View<'a>; 2], ViewMut<'a>) -> Kernel<'a>,
) -> Result<Tensor> {
    let shape = Shape::broadcast(ctx.op(), lhs.shape(), rhs.shape())?;
    let mut out = ctx.output(&shape, dtype)?;
    let left = lhs.layout().broadcast_to(ctx.op(), &shape)?;
    let right = rhs.layout().broadcast_to(ctx.op(), &shape)?;
    ctx.compute(kernel([lhs.view().with_layout(&left), rhs.view().with_layout(&right)], out.view_mut()))?;
    Ok(out.finish())
}

/// Fails unless `takes` accepts the element type.
fn supported(op: &'static str, dtype: DType, takes: impl FnOnce(DType) -> bool) -> Result<()> {
    if takes(dtype) { Ok(()) } else { Err(Error::UnsupportedDType { op, dtype }) }
}

/// Whether an element type supports arithmetic: all types except booleans.
const fn is_numeric(dtype: DType) -> bool {
    !matches!(dtype, DType::Bool)
}

/// Fails unless a mask is boolean.
fn expect_mask(op: &'static str, argument: &'static str, mask: &Tensor, of: &Tensor) -> Result<()> {
    if mask.dtype() == DType::Bool { Ok(()) } else { Err(bad_dtype(op, argument, "of type bool", mask, of)) }
}

/// The error for an argument of the wrong element type, next to the tensor that the op computes with.
fn bad_dtype(
    op: &'static str,
    argument: &'static str,
    expected: &'static str,
    given: &Tensor,
    of: &Tensor,
) -> Error {
    let got = format!("{} of shape {} for a tensor of shape {}", given.dtype(), given.shape(), of.shape());
    Error::BadArgument { op, argument, expected, got }
}

/// Computes the gradient of the `index`-th input only if it is required.
#[inline]
fn if_needed(
    saved: &Saved,
    index: usize,
    gradient: impl FnOnce() -> Result<Tensor>,
) -> Result<Option<Tensor>> {
    if saved.needs_grad(index) { gradient().map(Some) } else { Ok(None) }
}
