//! Upcasts 16-bit floats to f32 before a kernel, and downcasts what the kernel wrote.
//!
//! Nearly all kernels run directly on 16-bit floats: those of a device that [supports
//! them](crate::backend::DeviceRules::supports_half), and most kernels of the CPU, which convert rows or tiles. For any
//! other kernel, one loop over its operands allocates f32 temporaries from the op's account and fills those that the
//! kernel reads. After the kernel, a second loop rounds the results once.
//!
//! The temporaries depend only on the kernel, so a dry run allocates the same memory. All memory is allocated
//! before an existing tensor changes.

use bfc_core::Category;

use super::{Buffer, OpContext};
use crate::backend::operands::{MAX_OPERANDS, Operand};
use crate::backend::{Distribution, Kernel, check, kernels};
use crate::error::Result;
use crate::layout::Layout;
use crate::shape::{DType, Shape};
use crate::storage::{View, ViewMut};

/// Returns whether the kernel computes with 16-bit floats, which not every backend supports.
pub(crate) fn applies_to(kernel: &mut Kernel<'_>) -> bool {
    let mut found = false;
    if !kernel.supports_half_everywhere() {
        let _ = kernel.operands(&mut |_, operand: Operand<'_, '_>| {
            found |= operand.dtype().is_half();
            Ok(())
        });
    }
    found
}

/// Runs a kernel that [computes with 16-bit floats](applies_to) and has passed the check.
///
/// # Errors
/// As [`check::run`]. [`Error::Allocation`](crate::Error::Allocation) if the allocation of a temporary fails;
/// no existing tensor has changed then.
pub(crate) fn run(ctx: &OpContext<'_>, mut kernel: Kernel<'_>) -> Result<()> {
    if let Kernel::Random(kernels::Random { distribution, out, .. }) = &mut kernel {
        *distribution = rounding_below(*distribution, out.dtype());
    }
    if !kernel.supports_half(ctx.backend().rules()) {
        return upcast_operands(ctx, kernel, |_| true);
    }
    match kernel {
        // The sums stay in f32 until they are complete. A kernel with a workspace keeps them there.
        Kernel::ScatterAdd(kernels::ScatterAdd { workspace: None, .. }) => {
            upcast_operands(ctx, kernel, |operand| matches!(operand, Operand::Write(_)))
        }
        kernel => run_checked(ctx, kernel),
    }
}

/// The f32 copy of an operand.
pub(super) struct Temporary {
    values: Buffer,
    /// The layout that repeats the values as the operand does.
    layout: Layout,
}

impl Temporary {
    /// Allocates the copy, and fills it if the kernel reads the operand.
    fn new(ctx: &OpContext<'_>, operand: &Operand<'_, '_>) -> Result<Self> {
        match operand {
            Operand::Read(view) | Operand::ReadContiguous(view) | Operand::ReadPart(view, _) => {
                Self::read(ctx, **view)
            }
            Operand::Write(view) | Operand::WritePart(view, _) | Operand::Scratch(view) => {
                Self::uninitialized(ctx, view.layout().shape())
            }
            Operand::Update(view) => Self::read(ctx, view.as_view()),
        }
    }

    /// Copies the values of a view. Elements that the view repeats are copied once.
    pub(super) fn read(ctx: &OpContext<'_>, view: View<'_>) -> Result<Self> {
        let once = view.layout().distinct();
        let mut copy = Self::uninitialized(ctx, once.shape())?;
        run_checked(ctx, kernels::Copy { input: view.with_layout(&once), out: copy.values.view_mut() })?;
        copy.layout = copy.layout.broadcast_to(ctx.op(), view.layout().shape())?;
        Ok(copy)
    }

    /// Allocates uninitialized values of a shape.
    fn uninitialized(ctx: &OpContext<'_>, shape: &Shape) -> Result<Self> {
        let values = allocate(ctx, shape)?;
        let layout = *values.view().layout();
        Ok(Self { values, layout })
    }

    pub(super) fn view(&self) -> View<'_> {
        self.values.view().with_layout(&self.layout)
    }
}

/// Runs a kernel with f32 copies of the 16-bit operands that `is_upcast` selects, and rounds the results.
fn upcast_operands(
    ctx: &OpContext<'_>,
    mut kernel: Kernel<'_>,
    is_upcast: impl Fn(&Operand<'_, '_>) -> bool,
) -> Result<()> {
    let mut temporaries = Vec::with_capacity(MAX_OPERANDS);
    {
        let mut operands = Vec::with_capacity(MAX_OPERANDS);
        kernel.operands(&mut |_, operand: Operand<'_, '_>| {
            operands.push(operand);
            Ok(())
        })?;
        for operand in operands {
            let replaced = operand.dtype().is_half() && is_upcast(&operand);
            temporaries.push(replaced.then(|| Temporary::new(ctx, &operand)).transpose()?);
        }
    }
    // The kernel with temporaries does not live as long as its original operands.
    let mut kernel: Kernel<'_> = kernel;
    let mut outputs: Vec<Option<ViewMut<'_>>> = Vec::with_capacity(MAX_OPERANDS);
    let mut copies = temporaries.iter_mut();
    kernel.operands(&mut |_, operand: Operand<'_, '_>| {
        outputs.push(match (copies.next().and_then(Option::as_mut), operand) {
            (None, _) => None,
            (
                Some(copy),
                Operand::Read(view) | Operand::ReadContiguous(view) | Operand::ReadPart(view, _),
            ) => {
                *view = copy.view();
                None
            }
            (
                Some(copy),
                Operand::Write(out)
                | Operand::WritePart(out, _)
                | Operand::Update(out)
                | Operand::Scratch(out),
            ) => Some(std::mem::replace(out, copy.values.view_mut())),
        });
        Ok(())
    })?;
    check::run(ctx.device().as_ref(), ctx.op(), &mut kernel)?;
    let mut outputs = outputs.into_iter();
    kernel.operands(&mut |_, operand: Operand<'_, '_>| match (outputs.next().flatten(), operand) {
        (Some(out), Operand::Write(result) | Operand::WritePart(result, _) | Operand::Update(result)) => {
            let copy = kernels::Copy { input: result.as_view(), out };
            check::run(ctx.device().as_ref(), ctx.op(), &mut copy.into())
        }
        _ => Ok(()),
    })?;
    Ok(())
}

/// Allocates f32 values of a shape.
fn allocate(ctx: &OpContext<'_>, shape: &Shape) -> Result<Buffer> {
    ctx.buffer(shape, DType::F32, Category::Workspace)
}

/// Runs a kernel that supports its operands.
pub(super) fn run_checked<'k>(ctx: &OpContext<'_>, kernel: impl Into<Kernel<'k>>) -> Result<()> {
    Ok(check::run(ctx.device().as_ref(), ctx.op(), &mut kernel.into())?)
}

/// Returns a distribution whose f32 samples stay in range after rounding to a 16-bit float. A uniform
/// distribution ends half a step early, because larger samples would round up to its end.
fn rounding_below(distribution: Distribution, dtype: DType) -> Distribution {
    let Distribution::Uniform { low, high } = distribution else { return distribution };
    // The significant bits of the type, and the exponent of its smallest value.
    let (digits, least) = if dtype == DType::F16 { (11, -24) } else { (8, -133) };
    let size = if high > 0.0 { high.next_down() } else { -high };
    // The logarithm of 0 is -∞, which becomes the least exponent.
    let exponent = (size.log2().floor() as i32).max(least + digits - 1);
    let step = 2f64.powi(exponent - digits + 1);
    Distribution::Uniform { low, high: (high - step / 2.0).max(low) }
}
