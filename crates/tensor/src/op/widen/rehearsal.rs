//! Tensors of halves that are changed in place. Many are changed, or none: a lack of memory to widen them shows before the first
//! change. A parameter is widened before it is locked.

use bfc_core::Category;

use super::{Read, temporary};
use crate::autograd::Parameter;
use crate::backend::{Kernel, check};
use crate::device::Device;
use crate::error::Result;
use crate::op::OpContext;
use crate::shape::Shape;
use crate::storage::{View, ViewMut};
use crate::tensor::Tensor;

/// Takes the f32 temporaries of kernels that are to run one after another on these operands, on each device those of the
/// largest, and gives them back. On devices that take halves as they are there are none.
///
/// # Errors
/// [`Error::Allocation`](crate::Error::Allocation) if there is no memory for them.
pub(crate) fn rehearse<const N: usize>(
    op: &'static str,
    kernels: impl IntoIterator<Item = [Tensor; N]>,
) -> Result<()> {
    // The first operand of one kernel and the second of another may be the largest: who has room for both has it for all.
    let mut largest: Vec<(Device, [Option<Shape>; N])> = Vec::new();
    for operands in kernels {
        let is_widened =
            |operand: &Tensor| operand.dtype().is_half() && !operand.device().backend().takes_halves();
        for (place, operand) in operands.iter().enumerate().filter(|(_, operand)| is_widened(operand)) {
            let known = largest.iter().position(|(device, _)| device == operand.device());
            let known = known.unwrap_or_else(|| {
                largest.push((operand.device().clone(), [None; N]));
                largest.len() - 1
            });
            let (shape, widest) = (*operand.layout().distinct().shape(), &mut largest[known].1[place]);
            if widest.is_none_or(|widest| widest.elements() < shape.elements()) {
                *widest = Some(shape);
            }
        }
    }
    for (device, shapes) in &largest {
        let ctx = OpContext::create(op, device, device.default_allocator()?, Category::Workspace);
        shapes.iter().flatten().map(|shape| temporary(&ctx, shape)).collect::<Result<Vec<_>>>()?;
    }
    Ok(())
}

/// Changes a parameter along a gradient, as [`Parameter::update`] does, where the backend computes with halves in f32. Takes the
/// temporaries before the parameter is locked, as allocators call back, for instance to save all parameters.
///
/// # Errors
/// [`Error::Allocation`](crate::Error::Allocation) if there is no memory, and nothing has changed then; otherwise the error of
/// `change`.
pub(crate) fn update(
    ctx: &OpContext<'_>,
    parameter: &Parameter,
    grad: View<'_>,
    change: impl FnOnce(View<'_>, ViewMut<'_>) -> Result<()>,
) -> Result<()> {
    if ctx.backend().takes_halves() {
        return parameter.update(|values| change(grad, values));
    }
    let (dtype, shape) = {
        let value = parameter.value();
        (value.dtype(), *value.shape())
    };
    let grad = Read::new(ctx, grad)?;
    let mut wide = dtype.is_half().then(|| temporary(ctx, &shape)).transpose()?;
    let run = |kernel: Kernel<'_>| check::run(ctx.device().as_ref(), ctx.op(), kernel);
    parameter.update(|values| match &mut wide {
        None => change(grad.view(), values),
        Some(wide) => {
            run(Kernel::Copy { input: values.as_view(), out: wide.view_mut() })?;
            change(grad.view(), wide.view_mut())?;
            run(Kernel::Copy { input: wide.view(), out: values })
        }
    })
}
