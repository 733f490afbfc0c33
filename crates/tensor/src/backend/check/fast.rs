//! A fast check of the most common kernels, inlined into their callers.
//!
//! A kernel that passes it also passes the full [`check`](super::check). A kernel that fails it may still pass the full
//! check. Small models would spend a noticeable share of each step in the full check.

use crate::backend::{Kernel, Precision, Reduce};
use crate::shape::{DType, Shape};
use crate::storage::{View, ViewMut};

/// Returns the type of all operands if the kernel is a common one with simple operands that fit.
#[inline(always)]
pub(super) fn fits(device: u32, kernel: &mut Kernel<'_>) -> Option<DType> {
    match kernel {
        Kernel::Fill { .. }
        | Kernel::Random { .. }
        | Kernel::Scale { .. }
        | Kernel::Unary { .. }
        | Kernel::UnaryGrad { .. }
        | Kernel::Binary { .. }
        | Kernel::Accumulate { .. } => type_of_equal_operands(device, kernel),
        Kernel::Sgd { step, momentum: None, .. } if step.momentum == 0.0 => {
            type_of_equal_operands(device, kernel)
        }
        Kernel::Reduce { f: Reduce::Sum | Reduce::SumSquares, input, axes, workspace: None, out, .. } => {
            let fits = is_written(out, device)
                && is_read(input, out, device)
                && input.dtype().is_float()
                && is_kept(input.layout().shape(), axes, out.layout().shape());
            fits.then(|| out.dtype())
        }
        Kernel::MatMul { precision: Precision::Full, bias, lhs, rhs, activation, workspace: None, out } => {
            let arguments = activation.as_ref().and_then(|activated| activated.arguments.as_ref());
            let fits = arguments.is_none()
                && is_written(out, device)
                && is_read(lhs, out, device)
                && is_read(rhs, out, device)
                && is_product([lhs, rhs], bias.as_ref(), out, device);
            fits.then(|| out.dtype())
        }
        _ => None,
    }
}

/// Returns the element type if all operands are on the device and have one element type and one shape of at most two axes.
#[inline(always)]
fn type_of_equal_operands(device: u32, kernel: &mut Kernel<'_>) -> Option<DType> {
    let (mut first, mut alike) = (None, true);
    let _ = kernel.operands(|_, operand| {
        let (dtype, shape) = (operand.dtype(), operand.layout().shape());
        let (other, other_shape) = *first.get_or_insert((dtype, shape));
        let same_type = dtype as u8 == other as u8;
        alike &= operand.storage().device() == device && same_type && shape.is_same_matrix(other_shape);
        Ok(())
    });
    first.filter(|_| alike).map(|(dtype, _)| dtype)
}

/// Whether an output is on the device. Outputs are contiguous from the start of their buffers.
#[inline(always)]
fn is_written(out: &ViewMut<'_>, device: u32) -> bool {
    out.storage().device() == device
}

/// Whether an input is on the device and has the output's element type.
#[inline(always)]
fn is_read(input: &View<'_>, out: &ViewMut<'_>, device: u32) -> bool {
    input.storage().device() == device && input.dtype() as u8 == out.dtype() as u8
}

/// Whether `out` is the scalar or vector that the reduction of a matrix returns.
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

/// Whether `out` has the shape of the product of two matrices, and the bias that of its rows.
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
