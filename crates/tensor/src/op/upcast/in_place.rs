//! In-place changes of 16-bit tensors. Either all tensors of a call change or none: a lack of memory for the f32
//! temporaries shows before the first change.

use bfc_core::Category;

use super::allocate;
use crate::device::Device;
use crate::error::Result;
use crate::op::OpContext;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Checks that there is memory for the f32 temporaries of kernels that will run one after another on these operands. On each
/// device, allocates the largest temporaries and frees them.
///
/// # Errors
/// [`Error::Allocation`](crate::Error::Allocation) if there is not enough memory.
pub(crate) fn reserve<const N: usize>(
    op: &'static str,
    kernels: impl IntoIterator<Item = [Tensor; N]>,
) -> Result<()> {
    // The largest first operand and the largest second one may belong to different kernels: memory for both suffices for all.
    let mut largest: Vec<(Device, [Option<Shape>; N])> = Vec::new();
    for operands in kernels {
        let is_upcast =
            |operand: &Tensor| operand.dtype().is_half() && !operand.device().backend().supports_half();
        for (place, operand) in operands.iter().enumerate().filter(|(_, operand)| is_upcast(operand)) {
            let known = largest.iter().position(|(device, _)| device == operand.device());
            let known = known.unwrap_or_else(|| {
                largest.push((operand.device().clone(), [None; N]));
                largest.len() - 1
            });
            let (shape, most) = (*operand.layout().distinct().shape(), &mut largest[known].1[place]);
            if most.is_none_or(|most| most.elements() < shape.elements()) {
                *most = Some(shape);
            }
        }
    }
    for (device, shapes) in &largest {
        let ctx = OpContext::create(op, device, device.default_allocator()?, Category::Workspace);
        shapes.iter().flatten().map(|shape| allocate(&ctx, shape)).collect::<Result<Vec<_>>>()?;
    }
    Ok(())
}
