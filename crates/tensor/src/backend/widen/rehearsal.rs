//! Many tensors of halves are changed in place, or none: a lack of memory to widen them shows before the first is.

use bfc_core::Category;

use super::temporary;
use crate::context::OpContext;
use crate::device::Device;
use crate::error::Result;
use crate::shape::Shape;
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
