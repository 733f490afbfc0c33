//! The most common kernels of small models, found to fit by a few comparisons that are inlined into their callers.
//!
//! A kernel that fits here also passes the whole check, which all other kernels go through. A step of a small model consists
//! mostly of such calls, so that the whole check would be a noticeable share of it.

use crate::backend::{Kernel, Reduce};
use crate::shape::Shape;
use crate::storage::{View, ViewMut};

/// Whether a kernel is one of these, and its operands are seen to fit. False says nothing.
#[inline(always)]
pub(super) fn fits(device: u32, kernel: &Kernel<'_>) -> bool {
    match kernel {
        Kernel::Fill { out, .. } | Kernel::Random { out, .. } | Kernel::Clip { values: out, .. } => {
            is_written(out, device)
        }
        Kernel::Unary { input, out, .. } => is_written(out, device) && is_like(input, out, device),
        Kernel::UnaryGrad { saved, grad, out, .. } => {
            is_written(out, device)
                && is_like(saved, out, device)
                && grad.as_ref().is_none_or(|grad| is_like(grad, out, device))
        }
        Kernel::Binary { lhs, rhs, out, .. } => {
            is_written(out, device) && is_like(lhs, out, device) && is_like(rhs, out, device)
        }
        Kernel::Accumulate { input, acc, .. } => is_written(acc, device) && is_like(input, acc, device),
        Kernel::Sgd { step, grad, momentum: None, param } => {
            step.momentum == 0.0 && is_written(param, device) && is_like(grad, param, device)
        }
        Kernel::Reduce { f: Reduce::Sum | Reduce::SumSquares, input, axes, workspace: None, out, .. } => {
            is_written(out, device)
                && is_read(input, out, device)
                && input.dtype().is_float()
                && is_kept(input.layout().shape(), axes, out.layout().shape())
        }
        Kernel::MatMul { bias, lhs, rhs, activation, workspace: None, out } => {
            let arguments = activation.as_ref().and_then(|activated| activated.arguments.as_ref());
            arguments.is_none()
                && is_written(out, device)
                && is_read(lhs, out, device)
                && is_read(rhs, out, device)
                && is_product([lhs, rhs], bias.as_ref(), out, device)
        }
        _ => false,
    }
}

/// An output of the device. It is contiguous from the start of its buffer, as the outputs of all kernels here are.
#[inline(always)]
fn is_written(out: &ViewMut<'_>, device: u32) -> bool {
    out.storage().device() == device
}

/// An input of the device, of the output's element type.
#[inline(always)]
fn is_read(input: &View<'_>, out: &ViewMut<'_>, device: u32) -> bool {
    input.storage().device() == device && input.dtype() as u8 == out.dtype() as u8
}

/// The same, of the output's shape too.
#[inline(always)]
fn is_like(input: &View<'_>, out: &ViewMut<'_>, device: u32) -> bool {
    is_read(input, out, device) && input.layout().shape().is_same_matrix(out.layout().shape())
}

/// Whether a fold of a matrix gives as many elements as a scalar or vector has.
#[inline(always)]
fn is_kept(shape: &Shape, axes: &[bool], out: &Shape) -> bool {
    let (Some([rows, columns]), &[down, across]) = (shape.as_matrix(), axes) else { return false };
    let kept = match (down, across) {
        (true, true) => 1,
        (true, false) => columns,
        (false, true) => rows,
        (false, false) => return false,
    };
    out.is_row_of(kept) || (kept == 1 && out.rank() == 0)
}

/// Whether the product of two matrices, with a bias for each column, has this shape.
#[inline(always)]
fn is_product([lhs, rhs]: [&View<'_>; 2], bias: Option<&View<'_>>, out: &ViewMut<'_>, device: u32) -> bool {
    let [lhs, rhs] = [lhs, rhs].map(|factor| factor.layout().shape().as_matrix());
    let (Some([rows, depth]), Some([inner, columns]), Some(product)) =
        (lhs, rhs, out.layout().shape().as_matrix())
    else {
        return false;
    };
    let is_row = |bias: &View<'_>| is_read(bias, out, device) && bias.layout().shape().is_row_of(columns);
    depth == inner && product == [rows, columns] && bias.is_none_or(is_row)
}
