//! The parts of fast checks of the most common kernels, inlined into their callers.
//!
//! A kernel that passes its fast check also passes the full [check](crate::backend::check). A kernel that fails it may still pass
//! the full check. Small models would spend a noticeable share of each step in the full check.

use crate::families::Computation;
use crate::operands::Operand;
use crate::shape::DType;
use crate::storage::{View, ViewMut};

/// Returns the element type if all operands are on the device and have one element type and one shape of at most two axes.
#[inline(always)]
pub(crate) fn equal_operands<'a>(kernel: &mut impl Computation<'a>, device: u32) -> Option<DType> {
    let (mut first, mut alike) = (None, true);
    let _ = kernel.operands(&mut |_, operand: Operand<'_, 'a>| {
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
pub(crate) fn is_written(out: &ViewMut<'_>, device: u32) -> bool {
    out.storage().device() == device
}

/// Whether an input is on the device and has the output's element type.
#[inline(always)]
pub(crate) fn is_read(input: &View<'_>, out: &ViewMut<'_>, device: u32) -> bool {
    input.storage().device() == device && input.dtype() as u8 == out.dtype() as u8
}
