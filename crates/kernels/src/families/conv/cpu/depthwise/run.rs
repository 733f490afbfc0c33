//! Runs depthwise convolutions over all images and channels. Images are split into slots, each with its own workspace.

use super::super::Sizes;
use super::Depthwise;
use crate::cpu::dispatch::{contiguous, host_mut, scratch, unsupported};
use crate::cpu::number::Number;
use crate::cpu::parallel::Workers;
use crate::cpu::sums;
use crate::error::Result;
use crate::families::grid::product;
use crate::shape::DType;
use crate::storage::{View, ViewMut};

/// The largest number of slots of a batch, and so of threads that share it.
const SLOTS: usize = 8;

/// Evaluates an expression with the types of sums and of stored elements.
macro_rules! by_stored {
    ($op:expr, $dtype:expr, [$T:ident, $I:ident] => $body:expr) => {{
        macro_rules! with {
            ($sum:ty, $stored:ty) => {{
                type $T = $sum;
                type $I = $stored;
                $body
            }};
        }
        match $dtype {
            DType::F32 => with!(f32, f32),
            DType::F64 => with!(f64, f64),
            DType::BF16 => with!(f32, half::bf16),
            DType::F16 => with!(f32, half::f16),
            dtype => Err(unsupported($op, dtype)),
        }
    }};
}

/// The elements of the padded plane of a slot.
fn space(sizes: &Sizes) -> usize {
    product(&[sizes.taps(), sizes.places()])
}

fn images_per_slot(sizes: &Sizes) -> usize {
    sizes.images.div_ceil(SLOTS).max(1)
}

fn slots(sizes: &Sizes) -> usize {
    sizes.images.div_ceil(images_per_slot(sizes))
}

/// The number of elements in the workspace of the convolution and of its input gradient.
pub(crate) fn workspace(sizes: &Sizes) -> usize {
    product(&[slots(sizes), space(sizes)])
}

/// The number of elements in the workspace of the weight gradient, without the sums of a 16-bit gradient.
pub(crate) fn weight_grad_workspace(sizes: &Sizes, dtype: DType) -> usize {
    let elements = space(sizes).saturating_add(upcast(sizes, dtype)).saturating_add(sizes.weights());
    slots(sizes).saturating_mul(elements)
}

/// The elements of a slot for an upcast plane of the images.
fn upcast(sizes: &Sizes, dtype: DType) -> usize {
    if dtype.is_half() { product(&sizes.from) } else { 0 }
}

/// Convolves the channels of each image.
pub(crate) fn forward(
    workers: &Workers,
    op: &'static str,
    sizes: &Sizes,
    [input, weight]: [View<'_>; 2],
    workspace: &mut Option<ViewMut<'_>>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let Some(depthwise) = Depthwise::new(sizes) else { return Ok(()) };
    by_stored!(op, out.dtype(), [T, I] => {
        let out = host_mut::<I>(op, out)?;
        let (input, weight) = (contiguous::<I>(op, &input)?, contiguous::<I>(op, &weight)?);
        let spaces = scratch::<T>(op, workspace, slots(sizes) * space(sizes))?;
        let (per_slot, offsets) = (images_per_slot(sizes), depthwise.offsets());
        let parts = out.chunks_mut(per_slot * sizes.image_out()).zip(spaces.chunks_mut(space(sizes)));
        workers.share(slots(sizes), 2, parts.enumerate(), &|(slot, (out, space))| {
            depthwise.clear(space);
            let images = input[slot * per_slot * sizes.image_in()..].chunks(sizes.image_in());
            for (image, out) in images.zip(out.chunks_mut(sizes.image_out())) {
                for group in 0..sizes.groups {
                    let (channel, filter) = (sizes.group(image, group), sizes.group(weight, group));
                    depthwise.forward(channel, (filter, &offsets), space, sizes.group_mut(out, group));
                }
            }
        });
        Ok(())
    })
}

/// Computes the gradient of the images.
pub(crate) fn input_grad(
    workers: &Workers,
    op: &'static str,
    sizes: &Sizes,
    [weight, grad]: [View<'_>; 2],
    workspace: &mut Option<ViewMut<'_>>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let Some(depthwise) = Depthwise::new(sizes) else { return Ok(()) };
    by_stored!(op, out.dtype(), [T, I] => {
        let out = host_mut::<I>(op, out)?;
        let (weight, grad) = (contiguous::<I>(op, &weight)?, contiguous::<I>(op, &grad)?);
        let spaces = scratch::<T>(op, workspace, slots(sizes) * space(sizes))?;
        let (per_slot, offsets) = (images_per_slot(sizes), depthwise.offsets());
        let parts = out.chunks_mut(per_slot * sizes.image_in()).zip(spaces.chunks_mut(space(sizes)));
        workers.share(slots(sizes), 2, parts.enumerate(), &|(slot, (out, space))| {
            depthwise.clear(space);
            let grads = grad[slot * per_slot * sizes.image_out()..].chunks(sizes.image_out());
            for (grad, out) in grads.zip(out.chunks_mut(sizes.image_in())) {
                for group in 0..sizes.groups {
                    let (grad, filter) = (sizes.group(grad, group), sizes.group(weight, group));
                    depthwise.input_grad(grad, (filter, &offsets), space, sizes.group_mut(out, group));
                }
            }
        });
        Ok(())
    })
}

/// Computes the gradient of the filters. The sums of slots are added in order.
pub(crate) fn weight_grad(
    workers: &Workers,
    op: &'static str,
    sizes: &Sizes,
    [input, grad]: [View<'_>; 2],
    workspace: &mut Option<ViewMut<'_>>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let Some(depthwise) = Depthwise::new(sizes) else { return Ok(()) };
    let dtype = input.dtype();
    by_stored!(op, dtype, [T, I] => {
        let (input, grad) = (contiguous::<I>(op, &input)?, contiguous::<I>(op, &grad)?);
        let (slots, weights) = (slots(sizes), sizes.weights());
        let elements = weight_grad_workspace(sizes, dtype);
        sums::with_sums::<T>(workers, op, workspace, elements, out, |out, workspace| {
            let (sums, rest) = workspace.split_at_mut(slots * weights);
            let per_slot = images_per_slot(sizes);
            let of_slot = space(sizes) + upcast(sizes, dtype);
            workers.zipped([&mut *sums, rest], [weights, of_slot], &|slot, [sum, rest]| {
                sum.fill(T::ZERO);
                let (space, upcast) = rest.split_at_mut(space(sizes));
                let images = input[slot * per_slot * sizes.image_in()..].chunks(sizes.image_in());
                let grads = grad[slot * per_slot * sizes.image_out()..].chunks(sizes.image_out());
                for (image, grad) in images.zip(grads).take(per_slot) {
                    for group in 0..sizes.groups {
                        let (channel, grad) = (sizes.group(image, group), sizes.group(grad, group));
                        let spaces = [&mut *space, &mut *upcast];
                        depthwise.weight_grad(channel, grad, spaces, sizes.group_mut(sum, group));
                    }
                }
            });
            out.fill(T::ZERO);
            for sum in sums.chunks(weights) {
                out.iter_mut().zip(sum).for_each(|(out, &sum)| *out += sum);
            }
        })
    })
}
