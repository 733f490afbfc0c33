//! In-place changes of 16-bit tensors. All tensors of a call change, or none: a failed allocation of f32
//! temporaries precedes the first change.

use bfc_core::Category;

use super::allocate;
use crate::device::Device;
use crate::error::Result;
use crate::op::OpContext;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Checks that the memory suffices for the f32 temporaries of kernels that will run one after another on
/// these operands. On each device, allocates the largest temporaries and frees them.
///
/// # Errors
/// [`Error::Allocation`](crate::Error::Allocation) if there is not enough memory.
pub(crate) fn reserve<const N: usize>(
    op: &'static str,
    kernels: impl IntoIterator<Item = [Tensor; N]>,
) -> Result<()> {
    // The largest first and second operands may belong to different kernels. Memory for both suffices for
    // every kernel.
    let mut largest: Vec<(Device, [Option<Shape>; N])> = Vec::new();
    for operands in kernels {
        let is_upcast =
            |operand: &Tensor| operand.dtype().is_half() && !operand.device().backend().supports_half();
        for (place, operand) in operands.iter().enumerate().filter(|(_, operand)| is_upcast(operand)) {
            let index = largest.iter().position(|(device, _)| device == operand.device());
            let index = index.unwrap_or_else(|| {
                largest.push((operand.device().clone(), [None; N]));
                largest.len() - 1
            });
            let (shape, most) = (*operand.layout().distinct().shape(), &mut largest[index].1[place]);
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
