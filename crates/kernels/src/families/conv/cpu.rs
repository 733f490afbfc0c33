//! Convolutions as products of filters and [patches] of the images, which are packed without an im2col matrix.
//!
//! | | rows | columns | depth |
//! |---|---|---|---|
//! | forward | output channels | places of the output | input channels × taps |
//! | gradient of the input | input channels | places of the input | taps × output channels |
//! | gradient of the weight | output channels | input channels × taps | places of the output |
//!
//! With a stride, the places of the input that see the same taps are a product of their own.
//!
//! 16-bit images and filters are read where they are stored, and 16-bit outputs are rounded tile by tile. Products of bf16 pairs
//! read [staged](stage) pairs of channels.
//!
//! Work is split into tasks by images and rows, and for the [gradient of the weight](weight_grad) by rows and columns. Depth is never split
//! between threads, so results do not depend on their number. Each task [stages](stage) a few images at a time.
//! [Depthwise](depthwise) convolutions use another algorithm, because their products have one row. Convolutions with
//! windows of 3 × 3 and many channels use [Winograd's](winograd), which multiplies less.

mod depthwise;
mod element;
mod output;
mod patches;
mod run;
mod stage;
mod tasks;
mod weight_grad;
mod winograd;

use half::{bf16, f16};

use self::depthwise::Depthwise;
use self::run::ConvolutionRun;
use self::stage::{Axis, Planes};
use self::winograd::Winograd;
use super::{Conv2d, Conv2dInputGrad, Conv2dWeightGrad};
use crate::cpu::dispatch::{by_type, contiguous, host_mut, scratch, unsupported};
use crate::cpu::gemm::{self, Pair};
use crate::cpu::parallel::Workers;
use crate::cpu::sums;
use crate::error::Result;
use crate::families::RunCpu;
use crate::families::fill::cpu::fill;
use crate::families::grid::product;
use crate::shape::{DType, Scalar};
use crate::storage::{View, ViewMut};
use crate::window::Convolution;

/// The largest number of tasks that run at a time. Each has its own part of the workspace.
const SLOTS: usize = 8;

/// The number of places from which packing the filters again for each task takes little time.
const PLACES: usize = 512;

/// The largest number of multiplications that one thread computes alone.
const SMALL: usize = 8 << 20;

/// The sizes of a convolution, from its checked shapes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) conv: Convolution,
    pub(crate) images: usize,
    pub(crate) groups: usize,
    /// Input channels of one group.
    pub(crate) inputs: usize,
    /// Output channels of one group.
    pub(crate) outputs: usize,
    /// Height and width of the input.
    pub(crate) from: [usize; 2],
    pub(crate) to: [usize; 2],
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

    pub(crate) fn taps(&self) -> usize {
        product(&self.conv.windows.map(|window| window.size))
    }

    /// Taps of all input channels of a group.
    fn depth(&self) -> usize {
        product(&[self.inputs, self.taps()])
    }

    /// The places of the output.
    pub(crate) fn places(&self) -> usize {
        product(&self.to)
    }

    pub(crate) fn image_in(&self) -> usize {
        product(&[self.groups, self.inputs, self.from[0], self.from[1]])
    }

    pub(crate) fn image_out(&self) -> usize {
        product(&[self.groups, self.outputs, self.places()])
    }

    pub(crate) fn weights(&self) -> usize {
        product(&[self.groups, self.outputs, self.depth()])
    }

    /// The number of images that are staged at a time.
    fn staged_images(&self) -> usize {
        PLACES.div_ceil(self.places().max(1)).min(self.images)
    }

    /// The number of tasks that run at a time.
    fn slots(&self) -> usize {
        let multiplications = product(&[self.images, self.groups, self.outputs, self.depth(), self.places()]);
        if multiplications <= SMALL { 1 } else { SLOTS }
    }

    /// Whether each group has one input and one output channel.
    pub(crate) const fn is_single(&self) -> bool {
        self.inputs == 1 && self.outputs == 1
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.images == 0 || self.weights() == 0 || self.places() == 0 || self.image_in() == 0
    }

    /// The part of an image that belongs to one group.
    pub(crate) fn group<'a, T>(&self, image: &'a [T], group: usize) -> &'a [T] {
        let len = image.len() / self.groups;
        &image[group * len..][..len]
    }

    pub(crate) fn group_mut<'a, T>(&self, image: &'a mut [T], group: usize) -> &'a mut [T] {
        let len = image.len() / self.groups;
        &mut image[group * len..][..len]
    }
}

/// See [`Conv2dWorkspace`](crate::families::Conv2dWorkspace).
pub(crate) fn workspace(conv: &Convolution, [input, out]: [&[usize]; 2], dtype: DType) -> usize {
    let sizes = Sizes::new(conv, input, out);
    sizes.workspace(dtype, depthwise::workspace, |sizes| sizes.forward_elements(dtype))
}

/// See [`Conv2dInputGradWorkspace`](crate::families::Conv2dInputGradWorkspace).
pub(crate) fn input_grad_workspace(conv: &Convolution, [input, out]: [&[usize]; 2], dtype: DType) -> usize {
    let sizes = Sizes::new(conv, input, out);
    sizes.workspace(dtype, depthwise::workspace, |sizes| sizes.input_grad_elements(dtype))
}

/// See [`Conv2dWeightGradWorkspace`](crate::families::Conv2dWeightGradWorkspace).
pub(crate) fn weight_grad_workspace(
    conv: &Convolution,
    [input, out]: [&[usize]; 2],
    [dtype, weight]: [DType; 2],
) -> usize {
    let sizes = Sizes::new(conv, input, out);
    let with_sums = |elements: usize| elements.saturating_add(sums::elements(weight, sizes.weights()));
    sizes.workspace(
        dtype,
        |sizes| with_sums(depthwise::weight_grad_workspace(sizes, dtype)),
        |sizes| with_sums(sizes.weight_grad_elements(dtype)),
    )
}

/// The workspace of the algorithm that is used: the larger one, if the instruction set selects one of two.
fn either(dtype: DType, winograd: Option<usize>, direct: impl FnOnce() -> usize) -> usize {
    match winograd {
        Some(winograd) if dtype == DType::BF16 => winograd.max(direct()),
        Some(winograd) if dtype != DType::F64 => winograd,
        _ => direct(),
    }
}

impl Sizes {
    /// The bytes of a workspace: for a depthwise convolution, or for a product.
    fn workspace(
        &self,
        dtype: DType,
        depthwise: impl FnOnce(&Self) -> usize,
        of_product: impl FnOnce(&Self) -> usize,
    ) -> usize {
        if self.is_empty() {
            return 0;
        }
        let elements = if Depthwise::new(self).is_some() { depthwise(self) } else { of_product(self) };
        elements.saturating_mul(dtype.computed_as().size())
    }

    fn forward_axes(&self) -> [Axis; 2] {
        [0, 1].map(|axis| Axis::of_convolution(&self.conv.windows[axis], self.from[axis], self.to[axis]))
    }

    fn input_grad_axes(&self) -> [Vec<Axis>; 2] {
        [0, 1].map(|axis| Axis::of_input_grad(&self.conv.windows[axis], self.from[axis], self.to[axis]))
    }

    /// The elements of the workspace that the forward product needs: also a copy of the filters if channels are paired.
    fn forward_elements(&self, dtype: DType) -> usize {
        let sums = sums::elements(dtype, product(&[self.images, self.image_out()]));
        let winograd = Winograd::forward(self).map(|winograd| winograd.workspace().saturating_add(sums));
        either(dtype, winograd, || {
            let slot = Slot::of_forward(self, &self.forward_axes(), dtype).elements();
            slot.saturating_mul(self.slots()).saturating_add(self.forward_filters(dtype))
        })
    }

    /// Those of the input gradient: also a copy of the filters.
    fn input_grad_elements(&self, dtype: DType) -> usize {
        let sums = sums::elements(dtype, product(&[self.images, self.image_in()]));
        let winograd = Winograd::input_grad(self).map(|winograd| winograd.workspace().saturating_add(sums));
        either(dtype, winograd, || {
            let slot = Slot::of_input_grad(self, &self.input_grad_axes(), dtype).elements();
            slot.saturating_mul(self.slots()).saturating_add(self.input_grad_filters(dtype))
        })
    }

    /// Those of the weight gradient, without the sums of 16-bit gradients.
    fn weight_grad_elements(&self, dtype: DType) -> usize {
        let winograd = Winograd::forward(self).map(|winograd| winograd.weight_grad_workspace());
        either(dtype, winograd, || {
            let slot = Slot::of_weight_grad(self, &self.forward_axes(), dtype).elements();
            slot.saturating_mul(self.slots()).saturating_add(self.reordered_elements())
        })
    }

    /// Whether products of bf16 pairs read staged pairs of this many channels. With a single tap, packing pairs the channels.
    pub(crate) fn has_channel_pairs(&self, dtype: DType, channels: usize) -> bool {
        dtype == DType::BF16 && channels > 1 && self.taps() > 1
    }

    /// The elements of the filters in the order of taps, with room for pairs of input channels.
    fn forward_filters(&self, dtype: DType) -> usize {
        let inputs = self.inputs.checked_next_multiple_of(2).unwrap_or(usize::MAX);
        let elements = product(&[self.groups, self.outputs, self.taps(), inputs]);
        if self.has_channel_pairs(dtype, self.inputs) { sum_elements(dtype, elements) } else { 0 }
    }

    /// The elements of the filters in the order of taps, with room for pairs of output channels.
    fn input_grad_filters(&self, dtype: DType) -> usize {
        let outputs = self.outputs.checked_next_multiple_of(2).unwrap_or(usize::MAX);
        let outputs = if self.has_channel_pairs(dtype, self.outputs) { outputs } else { self.outputs };
        sum_elements(dtype, product(&[self.groups, outputs, self.taps(), self.inputs]))
    }

    /// Whether a convolution that [`Winograd`] supports uses the direct algorithm: for pairs of bf16 elements, which it
    /// multiplies faster, and for `f64`, whose sums it rounds less.
    fn is_direct(dtype: DType) -> bool {
        dtype == DType::F64 || dtype == DType::BF16 && Pair::is_supported()
    }
}

/// The number of sums that take as much memory as stored elements.
const fn sum_elements(dtype: DType, elements: usize) -> usize {
    elements.div_ceil(dtype.computed_as().size() / dtype.size())
}

/// The elements that a task needs in the workspace.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Staged planes of a few images.
    staged: usize,
    /// These planes with the channels last.
    transposed: usize,
    /// Sums of 16-bit outputs.
    sums: usize,
    /// Packed panels.
    panels: usize,
}

impl Slot {
    fn of_forward(sizes: &Sizes, axes: &[Axis; 2], dtype: DType) -> Self {
        let planes = Planes::new(sizes.from, axes.each_ref());
        let images = sizes.staged_images();
        let places = planes.places(images, 0, planes.gap(sizes.outputs)).len();
        let are_pairs = sizes.has_channel_pairs(dtype, sizes.inputs);
        Self::new(planes, [images, sizes.inputs], (dtype, are_pairs), [sizes.outputs, places, sizes.depth()])
            .with_sums(dtype, [sizes.outputs, places, sizes.depth()])
    }

    fn of_input_grad(sizes: &Sizes, axes: &[Vec<Axis>; 2], dtype: DType) -> Self {
        let ([rows, columns], images) = (axes, sizes.staged_images());
        let pairs = rows.iter().flat_map(|row| columns.iter().map(move |column| [row, column]));
        let planes = pairs.map(|axes| Planes::new(sizes.to, axes));
        let places = planes.clone().map(|planes| planes.places(images, 0, planes.gap(sizes.inputs)).len());
        let (places, Some(planes)) = (places.max().unwrap_or(0), planes.max_by_key(Planes::size)) else {
            return Self { staged: 0, transposed: 0, sums: 0, panels: 0 };
        };
        let taps = |axes: &[Axis]| axes.iter().map(|axis| axis.taps.len()).max().unwrap_or(0);
        let depth = product(&[taps(rows), taps(columns), sizes.outputs]);
        let are_pairs = sizes.has_channel_pairs(dtype, sizes.outputs);
        Self::new(planes, [images, sizes.outputs], (dtype, are_pairs), [sizes.inputs, places, depth])
            .with_sums(dtype, [sizes.inputs, places, depth])
    }

    /// The memory for `[images, channels]` staged planes, possibly pairs of them, and the panels of a product.
    fn new(
        planes: Planes<'_>,
        [images, channels]: [usize; 2],
        (dtype, are_pairs): (DType, bool),
        product_sizes: [usize; 3],
    ) -> Self {
        let staged = |channels| product(&[planes.size(), channels, images]);
        let single = if planes.are_equal() { 0 } else { sum_elements(dtype, staged(channels)) };
        let pairs = if are_pairs { staged(channels.div_ceil(2)) } else { 0 };
        let panels = gemm::scratch_elements(product_sizes);
        Self { staged: single.max(pairs), transposed: 0, sums: 0, panels }
    }

    /// Adds memory for the sums of a product that is rounded after several parts of its depth.
    fn with_sums(self, dtype: DType, [rows, columns, depth]: [usize; 3]) -> Self {
        let is_needed = dtype.is_half() && !gemm::is_summed_at_once::<f32>(depth);
        Self { sums: if is_needed { output::sums(rows, columns) } else { 0 }, ..self }
    }

    const fn elements(&self) -> usize {
        self.staged.saturating_add(self.transposed).saturating_add(self.sums).saturating_add(self.panels)
    }
}

/// Calls a method with the element types of a convolution: in panels, staged and stored. `are_pairs` tells whether channels of
/// bf16 are staged in pairs.
macro_rules! by_elements {
    ($op:expr, $dtype:expr, $are_pairs:expr, [$P:ident, $S:ident, $I:ident] => $body:expr) => {{
        macro_rules! with {
            ($panel:ty, $staged:ty, $stored:ty) => {{
                type $P = $panel;
                type $S = $staged;
                type $I = $stored;
                $body
            }};
        }
        match $dtype {
            DType::F32 => with!(f32, f32, f32),
            DType::F64 => with!(f64, f64, f64),
            DType::BF16 if Pair::is_supported() && $are_pairs => with!(Pair, Pair, bf16),
            DType::BF16 if Pair::is_supported() => with!(Pair, bf16, bf16),
            DType::BF16 => with!(f32, bf16, bf16),
            DType::F16 => with!(f32, f16, f16),
            dtype => Err(unsupported($op, dtype)),
        }
    }};
}

/// Calls a method with the type of the stored elements of Winograd's algorithm.
macro_rules! by_inputs {
    ($op:expr, $dtype:expr, $I:ident => $body:expr) => {
        by_type!($dtype, $I => $body, [F32: f32, BF16: bf16, F16: f16], dtype => Err(unsupported($op, dtype)))
    };
}

/// See [`Conv2d`](crate::families::Conv2d).
#[inline(never)]
pub(crate) fn forward(
    workers: &Workers,
    op: &'static str,
    conv: &Convolution,
    [input, weight]: [View<'_>; 2],
    workspace: &mut Option<ViewMut<'_>>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let sizes = Sizes::new(conv, input.layout().shape().dims(), out.layout().shape().dims());
    if sizes.is_empty() {
        return fill(workers, op, Scalar::Int(0), out);
    }
    if Depthwise::new(&sizes).is_some() {
        return depthwise::forward(workers, op, &sizes, [input, weight], workspace, out);
    }
    let dtype = out.dtype();
    if let Some(winograd) = Winograd::forward(&sizes).filter(|_| !Sizes::is_direct(dtype)) {
        return by_inputs!(op, dtype, I => {
            let factors = [contiguous::<I>(op, &input)?, contiguous::<I>(op, &weight)?];
            let elements = winograd.workspace();
            sums::with_sums::<f32>(workers, op, workspace, elements, out, |out, workspace| {
                winograd.convolve(workers, factors, workspace, out);
            })
        });
    }
    let (run, elements) = (ConvolutionRun { workers, sizes, dtype }, sizes.forward_elements(dtype));
    by_elements!(op, dtype, sizes.has_channel_pairs(dtype, sizes.inputs), [P, S, I] => {
        let factors = [contiguous::<I>(op, &input)?, contiguous::<I>(op, &weight)?];
        run.forward::<P, S, I>(factors, host_mut(op, out)?, scratch(op, workspace, elements)?);
        Ok(())
    })
}

/// See [`Conv2dInputGrad`](crate::families::Conv2dInputGrad).
#[inline(never)]
pub(crate) fn input_grad(
    workers: &Workers,
    op: &'static str,
    conv: &Convolution,
    [weight, grad]: [View<'_>; 2],
    workspace: &mut Option<ViewMut<'_>>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let sizes = Sizes::new(conv, out.layout().shape().dims(), grad.layout().shape().dims());
    if sizes.is_empty() {
        return fill(workers, op, Scalar::Int(0), out);
    }
    if Depthwise::new(&sizes).is_some() {
        return depthwise::input_grad(workers, op, &sizes, [weight, grad], workspace, out);
    }
    let dtype = out.dtype();
    if let Some(winograd) = Winograd::input_grad(&sizes).filter(|_| !Sizes::is_direct(dtype)) {
        return by_inputs!(op, dtype, I => {
            let factors = [contiguous::<I>(op, &grad)?, contiguous::<I>(op, &weight)?];
            let elements = winograd.workspace();
            sums::with_sums::<f32>(workers, op, workspace, elements, out, |out, workspace| {
                winograd.convolve(workers, factors, workspace, out);
            })
        });
    }
    let (run, elements) = (ConvolutionRun { workers, sizes, dtype }, sizes.input_grad_elements(dtype));
    by_elements!(op, dtype, sizes.has_channel_pairs(dtype, sizes.outputs), [P, S, I] => {
        let factors = [contiguous::<I>(op, &weight)?, contiguous::<I>(op, &grad)?];
        run.input_grad::<P, S, I>(factors, host_mut(op, out)?, scratch(op, workspace, elements)?);
        Ok(())
    })
}

/// See [`Conv2dWeightGrad`](crate::families::Conv2dWeightGrad).
#[inline(never)]
pub(crate) fn weight_grad(
    workers: &Workers,
    op: &'static str,
    conv: &Convolution,
    [input, grad]: [View<'_>; 2],
    workspace: &mut Option<ViewMut<'_>>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let sizes = Sizes::new(conv, input.layout().shape().dims(), grad.layout().shape().dims());
    if sizes.is_empty() {
        return fill(workers, op, Scalar::Int(0), out);
    }
    if Depthwise::new(&sizes).is_some() {
        return depthwise::weight_grad(workers, op, &sizes, [input, grad], workspace, out);
    }
    let dtype = input.dtype();
    let elements = sizes.weight_grad_elements(dtype);
    if let Some(winograd) = Winograd::forward(&sizes).filter(|_| !Sizes::is_direct(dtype)) {
        return by_inputs!(op, dtype, I => {
            let factors = [contiguous::<I>(op, &input)?, contiguous::<I>(op, &grad)?];
            sums::with_sums::<f32>(workers, op, workspace, elements, out, |out, workspace| {
                winograd.weight_grad(workers, factors, workspace, out);
            })
        });
    }
    let run = ConvolutionRun { workers, sizes, dtype };
    by_elements!(op, dtype, false, [P, _S, I] => {
        let factors = [contiguous::<I>(op, &input)?, contiguous::<I>(op, &grad)?];
        sums::with_sums(workers, op, workspace, elements, out, |out, workspace| {
            run.weight_grad::<P, I>(factors, out, workspace);
        })
    })
}

impl RunCpu for Conv2d<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let factors = [self.input, self.weight];
        forward(workers, op, &self.conv, factors, &mut self.workspace, &mut self.out)
    }
}

impl RunCpu for Conv2dInputGrad<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let factors = [self.weight, self.grad];
        input_grad(workers, op, &self.conv, factors, &mut self.workspace, &mut self.out)
    }
}

impl RunCpu for Conv2dWeightGrad<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let factors = [self.input, self.grad];
        weight_grad(workers, op, &self.conv, factors, &mut self.workspace, &mut self.out)
    }
}

#[cfg(test)]
mod tests;
