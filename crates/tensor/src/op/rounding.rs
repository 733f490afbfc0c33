//! Rounds the operands of products to bf16, for backends whose kernels do not.
//!
//! Each f32 operand of a product or convolution is replaced with a copy whose values bf16 represents. The kernel then
//! multiplies in f32, which is exact for such values. The copies depend only on the kernel, so a dry run allocates the
//! same memory.

use bfc_core::Category;

use super::upcast::{Temporary, run_checked};
use super::{Buffer, OpContext};
use crate::backend::{Kernel, Precision, check};
use crate::error::Result;
use crate::layout::Layout;
use crate::shape::DType;
use crate::storage::View;

/// Returns whether the operands of a kernel must be rounded before it runs.
pub(crate) fn applies_to(ctx: &OpContext<'_>, kernel: &Kernel<'_>) -> bool {
    kernel.precision() == Precision::BF16 && !ctx.backend().rounds_operands()
}

/// Runs a product or convolution with rounded copies of its operands.
///
/// # Errors
/// As [`check::run`]. [`Error::Allocation`](crate::Error::Allocation) if the allocation of a copy fails.
pub(crate) fn run(ctx: &OpContext<'_>, mut kernel: Kernel<'_>) -> Result<()> {
    let Some(factors) = kernel.factors_mut() else { return Ok(()) };
    let [first, second] = factors.each_ref().map(|factor| **factor);
    let (first, second) = (rounded(ctx, first)?, rounded(ctx, second)?);
    // The kernel with copies does not live as long as its original operands.
    let mut kernel: Kernel<'_> = kernel;
    if let Some([lhs, rhs]) = kernel.factors_mut() {
        (*lhs, *rhs) = (first.view(), second.view());
    }
    check::run(ctx.device().as_ref(), ctx.op(), &mut kernel)
}

/// Copies a view to f32 values that bf16 represents.
fn rounded(ctx: &OpContext<'_>, view: View<'_>) -> Result<Temporary> {
    let once: Layout = view.layout().distinct();
    let mut narrow: Buffer = ctx.buffer(once.shape(), DType::BF16, Category::Workspace)?;
    run_checked(ctx, Kernel::Copy { input: view.with_layout(&once), out: narrow.view_mut() })?;
    let repeated = narrow.view().layout().broadcast_to(ctx.op(), view.layout().shape())?;
    Temporary::read(ctx, narrow.view().with_layout(&repeated))
}
