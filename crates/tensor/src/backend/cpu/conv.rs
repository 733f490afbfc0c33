//! Convolutions as im2col and matrix product.
//!
//! [Depthwise](super::depthwise) convolutions use another algorithm, because their products have one row. Pointwise
//! convolutions multiply the image directly, which already is the matrix of columns.
//!
//! Batches are split into slots by the number of images. Each slot has its own columns in the workspace, and the weight
//! gradients of slots are added in order. So results do not depend on the number of threads.

use super::depthwise::Depthwise;
use super::dispatch::{contiguous, float, host_mut, scratch};
use super::im2col::{col2im, im2col};
use super::matmul::{Gemm, Matrix, Output, gemm};
use super::number::Number;
use super::parallel::Workers;
use crate::backend::grid::product;
use crate::backend::{Convolution, Window};
use crate::error::Result;
use crate::shape::DType;
use crate::storage::{View, ViewMut};

/// The largest number of slots of a batch, and so of threads that share it.
const SLOTS: usize = 8;

/// The sizes of a convolution, from its checked shapes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) conv: Convolution,
    images: usize,
    groups: usize,
    /// Input channels of one group.
    inputs: usize,
    outputs: usize,
    /// Height and width of the input.
    pub(super) from: [usize; 2],
    pub(super) to: [usize; 2],
}

impl Sizes {
    /// Reads the sizes from an input of `[n, channels, h, w]` and an output of `[n, out channels, oh, ow]`.
    fn new(conv: &Convolution, input: &[usize], out: &[usize]) -> Self {
        let size = |dims: &[usize], axis: usize| dims.get(axis).copied().unwrap_or(0);
        let groups = conv.groups.max(1);
        Self {
            conv: *conv,
            images: size(input, 0),
            groups,
            inputs: size(input, 1) / groups,
            outputs: size(out, 1) / groups,
            from: [size(input, 2), size(input, 3)],
            to: [size(out, 2), size(out, 3)],
        }
    }

    pub(super) fn taps(&self) -> usize {
        product(&self.conv.windows.map(|window| window.size))
    }

    /// The number of rows of the im2col matrix.
    fn depth(&self) -> usize {
        product(&[self.inputs, self.taps()])
    }

    /// The number of columns of the im2col matrix: the places of the output.
    fn places(&self) -> usize {
        product(&self.to)
    }

    fn image_in(&self) -> usize {
        product(&[self.groups, self.inputs, self.from[0], self.from[1]])
    }

    fn image_out(&self) -> usize {
        product(&[self.groups, self.outputs, self.places()])
    }

    fn weights(&self) -> usize {
        product(&[self.groups, self.outputs, self.depth()])
    }

    fn images_per_slot(&self) -> usize {
        self.images.div_ceil(SLOTS).max(1)
    }

    fn slots(&self) -> usize {
        self.images.div_ceil(self.images_per_slot())
    }

    /// The number of elements of the im2col matrix; 0 if none is needed.
    fn columns(&self) -> usize {
        if self.is_pointwise() { 0 } else { self.depth().saturating_mul(self.places()) }
    }

    /// Whether the convolution is pointwise, so that the channels of a group are the im2col matrix.
    fn is_pointwise(&self) -> bool {
        let sees_one = |window: &Window| window.size == 1 && window.stride == 1 && window.padding == 0;
        // The depthwise algorithm is faster for single channels.
        self.conv.windows.iter().all(sees_one) && !self.is_single()
    }

    /// Whether each group has one input and one output channel.
    pub(super) const fn is_single(&self) -> bool {
        self.inputs == 1 && self.outputs == 1
    }

    fn is_empty(&self) -> bool {
        self.images == 0 || self.weights() == 0 || self.places() == 0 || self.image_in() == 0
    }

    /// The part of an image that belongs to one group.
    fn group<'a, T>(&self, image: &'a [T], group: usize) -> &'a [T] {
        let len = image.len() / self.groups;
        &image[group * len..][..len]
    }

    fn group_mut<'a, T>(&self, image: &'a mut [T], group: usize) -> &'a mut [T] {
        let len = image.len() / self.groups;
        &mut image[group * len..][..len]
    }
}

/// See [`Workspace::Conv2d`](crate::backend::Workspace::Conv2d).
pub(super) fn workspace(conv: &Convolution, input: &[usize], out: &[usize], dtype: DType) -> usize {
    bytes(&Sizes::new(conv, input, out), Sizes::columns, dtype)
}

/// See [`Workspace::Conv2dWeightGrad`](crate::backend::Workspace::Conv2dWeightGrad).
pub(super) fn weight_grad_workspace(
    conv: &Convolution,
    input: &[usize],
    out: &[usize],
    dtype: DType,
) -> usize {
    bytes(&Sizes::new(conv, input, out), |sizes| sizes.columns().saturating_add(sizes.weights()), dtype)
}

/// The bytes of `per_slot` elements for each slot.
fn bytes(sizes: &Sizes, per_slot: impl FnOnce(&Sizes) -> usize, dtype: DType) -> usize {
    if sizes.is_empty() {
        return 0;
    }
    per_slot(sizes).saturating_mul(sizes.slots()).saturating_mul(dtype.size())
}

/// The im2col matrix of a group's channels, written to `columns` unless the convolution is pointwise.
fn im2col_matrix<'a, T: Gemm>(sizes: &Sizes, channels: &'a [T], columns: &'a mut [T]) -> Matrix<'a, T> {
    let columns: &[T] = if sizes.is_pointwise() {
        channels
    } else {
        im2col(sizes, channels, columns);
        columns
    };
    Matrix::rows(columns, sizes.depth(), sizes.places())
}

/// See [`Kernel::Conv2d`](crate::backend::Kernel::Conv2d).
#[inline(never)]
pub(super) fn forward(
    workers: &Workers,
    op: &'static str,
    conv: &Convolution,
    [input, weight]: [View<'_>; 2],
    workspace: &mut Option<ViewMut<'_>>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let sizes = Sizes::new(conv, input.layout().shape().dims(), out.layout().shape().dims());
    float!(op, out.dtype(), T => {
        let out = host_mut::<T>(op, out)?;
        if sizes.is_empty() {
            out.fill(T::ZERO);
            return Ok(());
        }
        let (input, weight) = (contiguous::<T>(op, &input)?, contiguous::<T>(op, &weight)?);
        let depthwise = Depthwise::new(&sizes);
        let columns = scratch::<T>(op, workspace, sizes.slots() * sizes.columns())?;
        let per_slot = sizes.images_per_slot();
        let chunks = [per_slot * sizes.image_out(), sizes.columns()];
        workers.zipped([out, columns], chunks, &|slot, [out, columns]| {
            let images = input[slot * per_slot * sizes.image_in()..].chunks(sizes.image_in());
            for (image, out) in images.zip(out.chunks_mut(sizes.image_out())) {
                for group in 0..sizes.groups {
                    let (channels, filters) = (sizes.group(image, group), sizes.group(weight, group));
                    let out = sizes.group_mut(out, group);
                    if let Some(depthwise) = depthwise {
                        depthwise.forward(channels, filters, columns, out);
                        continue;
                    }
                    let filters = Matrix::rows(filters, sizes.outputs, sizes.depth());
                    gemm(filters, im2col_matrix(&sizes, channels, columns), out, Output::Overwrite);
                }
            }
        });
        Ok(())
    })
}

/// See [`Kernel::Conv2dInputGrad`](crate::backend::Kernel::Conv2dInputGrad).
#[inline(never)]
pub(super) fn input_grad(
    workers: &Workers,
    op: &'static str,
    conv: &Convolution,
    [weight, grad]: [View<'_>; 2],
    workspace: &mut Option<ViewMut<'_>>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let sizes = Sizes::new(conv, out.layout().shape().dims(), grad.layout().shape().dims());
    float!(op, out.dtype(), T => {
        let out = host_mut::<T>(op, out)?;
        out.fill(T::ZERO);
        if sizes.is_empty() {
            return Ok(());
        }
        let (weight, grad) = (contiguous::<T>(op, &weight)?, contiguous::<T>(op, &grad)?);
        let depthwise = Depthwise::new(&sizes);
        let columns = scratch::<T>(op, workspace, sizes.slots() * sizes.columns())?;
        let per_slot = sizes.images_per_slot();
        let chunks = [per_slot * sizes.image_in(), sizes.columns()];
        workers.zipped([out, columns], chunks, &|slot, [out, columns]| {
            let grads = grad[slot * per_slot * sizes.image_out()..].chunks(sizes.image_out());
            for (grad, out) in grads.zip(out.chunks_mut(sizes.image_in())) {
                for group in 0..sizes.groups {
                    let (grad, filters) = (sizes.group(grad, group), sizes.group(weight, group));
                    let out = sizes.group_mut(out, group);
                    if let Some(depthwise) = depthwise {
                        depthwise.input_grad(grad, filters, columns, out);
                        continue;
                    }
                    let filters = Matrix::rows(filters, sizes.outputs, sizes.depth());
                    let grad = Matrix::rows(grad, sizes.outputs, sizes.places());
                    if sizes.is_pointwise() {
                        gemm(filters.transposed(), grad, out, Output::Overwrite);
                        continue;
                    }
                    gemm(filters.transposed(), grad, columns, Output::Overwrite);
                    col2im(&sizes, columns, out);
                }
            }
        });
        Ok(())
    })
}

/// See [`Kernel::Conv2dWeightGrad`](crate::backend::Kernel::Conv2dWeightGrad).
#[inline(never)]
pub(super) fn weight_grad(
    workers: &Workers,
    op: &'static str,
    conv: &Convolution,
    [input, grad]: [View<'_>; 2],
    workspace: &mut Option<ViewMut<'_>>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let sizes = Sizes::new(conv, input.layout().shape().dims(), grad.layout().shape().dims());
    float!(op, out.dtype(), T => {
        let out = host_mut::<T>(op, out)?;
        out.fill(T::ZERO);
        if sizes.is_empty() {
            return Ok(());
        }
        let (input, grad) = (contiguous::<T>(op, &input)?, contiguous::<T>(op, &grad)?);
        let depthwise = Depthwise::new(&sizes);
        let (slots, weights) = (sizes.slots(), sizes.weights());
        let both = scratch::<T>(op, workspace, slots * (sizes.columns() + weights))?;
        let (columns, sums) = both.split_at_mut(slots * sizes.columns());
        let per_slot = sizes.images_per_slot();
        workers.zipped([&mut *sums, columns], [weights, sizes.columns()], &|slot, [sum, columns]| {
            sum.fill(T::ZERO);
            let images = input[slot * per_slot * sizes.image_in()..].chunks(sizes.image_in());
            let grads = grad[slot * per_slot * sizes.image_out()..].chunks(sizes.image_out());
            for (image, grad) in images.zip(grads).take(per_slot) {
                for group in 0..sizes.groups {
                    let (channels, grad) = (sizes.group(image, group), sizes.group(grad, group));
                    let sum = sizes.group_mut(sum, group);
                    if let Some(depthwise) = depthwise {
                        depthwise.weight_grad(channels, grad, columns, sum);
                        continue;
                    }
                    let grad = Matrix::rows(grad, sizes.outputs, sizes.places());
                    gemm(grad, im2col_matrix(&sizes, channels, columns).transposed(), sum, Output::Accumulate);
                }
            }
        });
        for sum in sums.chunks(weights) {
            out.iter_mut().zip(sum).for_each(|(out, &sum)| *out += sum);
        }
        Ok(())
    })
}
