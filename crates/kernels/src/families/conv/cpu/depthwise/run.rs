//! Runs depthwise convolutions over all images and channels. Images are split into slots, each with its own workspace.

use super::super::Sizes;
use super::Depthwise;
use crate::cpu::dispatch::{contiguous, float, host_mut, scratch};
use crate::cpu::number::Number;
use crate::cpu::parallel::Workers;
use crate::error::Result;
use crate::families::grid::product;
use crate::storage::{View, ViewMut};

/// The largest number of slots of a batch, and so of threads that share it.
const SLOTS: usize = 8;

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

/// The number of elements in the workspace of the weight gradient.
pub(crate) fn weight_grad_workspace(sizes: &Sizes) -> usize {
    slots(sizes).saturating_mul(space(sizes).saturating_add(sizes.weights()))
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
    float!(op, out.dtype(), T => {
        let out = host_mut::<T>(op, out)?;
        let (input, weight) = (contiguous::<T>(op, &input)?, contiguous::<T>(op, &weight)?);
        let spaces = scratch::<T>(op, workspace, slots(sizes) * space(sizes))?;
        let (per_slot, offsets) = (images_per_slot(sizes), depthwise.offsets());
        let chunks = [per_slot * sizes.image_out(), space(sizes)];
        workers.zipped([out, spaces], chunks, &|slot, [out, space]| {
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
    float!(op, out.dtype(), T => {
        let out = host_mut::<T>(op, out)?;
        let (weight, grad) = (contiguous::<T>(op, &weight)?, contiguous::<T>(op, &grad)?);
        let spaces = scratch::<T>(op, workspace, slots(sizes) * space(sizes))?;
        let (per_slot, offsets) = (images_per_slot(sizes), depthwise.offsets());
        let chunks = [per_slot * sizes.image_in(), space(sizes)];
        workers.zipped([out, spaces], chunks, &|slot, [out, space]| {
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
    float!(op, out.dtype(), T => {
        let out = host_mut::<T>(op, out)?;
        out.fill(T::ZERO);
        let (input, grad) = (contiguous::<T>(op, &input)?, contiguous::<T>(op, &grad)?);
        let (slots, weights) = (slots(sizes), sizes.weights());
        let both = scratch::<T>(op, workspace, slots * (space(sizes) + weights))?;
        let (spaces, sums) = both.split_at_mut(slots * space(sizes));
        let per_slot = images_per_slot(sizes);
        workers.zipped([&mut *sums, spaces], [weights, space(sizes)], &|slot, [sum, space]| {
            sum.fill(T::ZERO);
            let images = input[slot * per_slot * sizes.image_in()..].chunks(sizes.image_in());
            let grads = grad[slot * per_slot * sizes.image_out()..].chunks(sizes.image_out());
            for (image, grad) in images.zip(grads).take(per_slot) {
                for group in 0..sizes.groups {
                    let (channel, grad) = (sizes.group(image, group), sizes.group(grad, group));
                    depthwise.weight_grad(channel, grad, space, sizes.group_mut(sum, group));
                }
            }
        });
        for sum in sums.chunks(weights) {
            out.iter_mut().zip(sum).for_each(|(out, &sum)| *out += sum);
        }
        Ok(())
    })
}
