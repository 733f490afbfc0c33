//! The products of the output and of the gradient of the input.

use super::output::Pixels;
use super::patches::{ByPlace, Patches, Places, Taps};
use super::stage::{Axis, FILTERS, Planes, StageAs, stage, staged_images};
use super::tasks::{Scratch, image_tasks};
use super::{Sizes, Slot};
use crate::cpu::gemm::{self, Block, Depth, Output, PackInto, Strided};
use crate::cpu::number::Number;
use crate::cpu::parallel::Workers;
use crate::precision::Precision;

/// One run of a convolution. The methods name the element types of packed panels, staged images and stored images.
pub(super) struct ConvolutionRun<'a> {
    pub(super) workers: &'a Workers,
    pub(super) sizes: Sizes,
    pub(super) precision: Precision,
}

impl ConvolutionRun<'_> {
    pub(super) fn forward<P, S, I>(
        &self,
        [input, weight]: [&[I]; 2],
        out: &mut [P::Sum],
        workspace: &mut [P::Sum],
    ) where
        P: Depth,
        S: PackInto<P> + StageAs<S> + bytemuck::Pod,
        I: PackInto<P> + StageAs<S>,
    {
        let sizes = &self.sizes;
        let axes = sizes.forward_axes();
        let slot = Slot::of_forward(sizes, &axes, self.precision);
        let planes = Planes::new(sizes.from, axes.each_ref());
        let (depth, places) = (sizes.depth(), sizes.places());
        let direct = is_direct::<P, S>(sizes.outputs);
        let gap = if direct { planes.gap(sizes.outputs) } else { 0 };
        let tasks = image_tasks(sizes, self.workers, out, [sizes.outputs, places]);
        self.workers.share_with_scratch(
            tasks,
            sizes.slots(),
            workspace,
            slot.elements(),
            &|task, scratch| {
                let Scratch { staged, panels, .. } = slot.split::<_, S, P>(scratch);
                let channels = task.group * sizes.inputs..(task.group + 1) * sizes.inputs;
                let images =
                    stage(input, sizes.groups * sizes.inputs, [task.images, channels], planes, staged);
                let mut patches = images.patches(axes.each_ref(), gap);
                if direct {
                    patches = patches.read_directly();
                }
                let data = sizes.group(weight, task.group);
                let filters = Strided { data, lanes: sizes.outputs, lane_stride: depth, depth_stride: 1 };
                let ranges = [task.rows.clone(), 0..patches.places.len()];
                let pixels = Places::with_gaps([1, sizes.to[0], sizes.to[1]], [0, sizes.to[1], 1], gap);
                let mut out =
                    Pixels { images: task.out, first_row: task.rows.start, plane: places, pixels, first: 0 };
                gemm::product(
                    &filters,
                    &ByPlace(&patches),
                    ranges,
                    depth,
                    panels,
                    &mut out,
                    Output::Overwrite,
                );
            },
        );
    }

    pub(super) fn input_grad<P, S, I>(
        &self,
        [weight, grad]: [&[I]; 2],
        out: &mut [P::Sum],
        workspace: &mut [P::Sum],
    ) where
        P: Depth,
        S: PackInto<P> + StageAs<S> + bytemuck::Pod,
        I: PackInto<P> + StageAs<S>,
    {
        let sizes = &self.sizes;
        let axes = sizes.input_grad_axes();
        // No tap reads some elements if the stride exceeds the window.
        if axes.iter().flatten().any(|axis| axis.taps.is_empty()) {
            out.fill(P::Sum::ZERO);
        }
        let slot = Slot::of_input_grad(sizes, &axes, self.precision);
        let (filters, workspace) = workspace.split_at_mut(sizes.weights());
        let filters: &mut [S] = &mut bytemuck::cast_slice_mut(filters)[..sizes.weights()];
        self.filters_by_tap(weight, filters);
        let filters = &*filters;
        let [rows, columns] = &axes;
        let ([height, width], [down, across]) = (sizes.from, sizes.conv.windows.map(|window| window.stride));
        let direct = is_direct::<P, S>(sizes.inputs);
        let tasks = image_tasks(sizes, self.workers, out, [sizes.inputs, height * width]);
        self.workers.share_with_scratch(
            tasks,
            sizes.slots(),
            workspace,
            slot.elements(),
            &|mut task, scratch| {
                let Scratch { staged, panels, .. } = slot.split::<_, S, P>(scratch);
                let channels = task.group * sizes.outputs..(task.group + 1) * sizes.outputs;
                let filters = sizes.group(filters, task.group);
                let mut last: Option<Planes<'_>> = None;
                for (top, row) in rows.iter().enumerate() {
                    for (left, column) in columns.iter().enumerate() {
                        let planes = Planes::new(sizes.to, [row, column]);
                        let range = [task.images.clone(), channels.clone()];
                        let images = match last.replace(planes) {
                            Some(last) if planes.are_staged_like(&last) => {
                                staged_images(grad, sizes.groups * sizes.outputs, range, planes, staged)
                            }
                            _ => stage(grad, sizes.groups * sizes.outputs, range, planes, &mut *staged),
                        };
                        let gap = if direct { planes.gap(sizes.inputs) } else { 0 };
                        let mut patches = images.patches([row, column], gap).with_outer_taps();
                        if direct {
                            patches = patches.read_directly();
                        }
                        let filters = self.filters_of(filters, [row, column]);
                        let depth = patches.taps.len();
                        let ranges = [task.rows.clone(), 0..patches.places.len()];
                        let mut out = Pixels {
                            images: task.out.iter_mut().map(|out| &mut **out).collect(),
                            first_row: task.rows.start,
                            plane: height * width,
                            pixels: Places::with_gaps(
                                [1, row.places, column.places],
                                [0, down.saturating_mul(width), across],
                                gap,
                            ),
                            first: top * width + left,
                        };
                        let (lhs, rhs) = (ByPlace(&filters), ByPlace(&patches));
                        gemm::product(&lhs, &rhs, ranges, depth, panels, &mut out, Output::Overwrite);
                    }
                }
            },
        );
    }

    /// Copies filters of shape `[groups, outputs, inputs, taps]` to the order `[groups, taps, outputs, inputs]`.
    fn filters_by_tap<I: StageAs<S>, S: Copy + Send>(&self, weight: &[I], filters: &mut [S]) {
        let Self { workers, sizes, .. } = self;
        let (taps, channels) = (sizes.taps(), sizes.outputs * sizes.inputs);
        let blocks: Vec<_> = filters
            .chunks_mut(taps * channels)
            .enumerate()
            .flat_map(|(group, filters)| {
                Block::new(filters, channels).split([taps, 4096]).map(move |it| (group, it))
            })
            .collect();
        workers.share(blocks.len(), 4, blocks.into_iter(), &|(group, mut block)| {
            let weight = sizes.group(weight, group);
            let columns = block.columns();
            for tap in block.rows() {
                let from = weight[columns.start * taps + tap..].iter().step_by(taps);
                let to = block.row(tap, columns.clone());
                to.iter_mut().zip(from).for_each(|(to, from)| *to = from.staged());
            }
        });
    }

    /// The filters at the taps of two axes, with the input channels as places.
    fn filters_of<'f, S>(&self, filters: &'f [S], [rows, columns]: [&Axis; 2]) -> Patches<'f, S> {
        let Sizes { inputs, outputs, .. } = self.sizes;
        let across = self.sizes.conv.windows[1].size;
        let taps = rows
            .taps
            .iter()
            .flat_map(|(row, _)| columns.taps.iter().map(move |(column, _)| row * across + column));
        let outer = taps.map(|tap| tap * outputs * inputs).collect();
        let inner = (0..outputs).map(|output| output * inputs).collect();
        Patches {
            data: filters,
            taps: Taps { outer, inner },
            places: Places::new([1, 1, inputs], [0, inputs, 1]),
            rows: Vec::new(),
        }
    }
}

/// Whether products read staged elements where they are stored.
fn is_direct<P: Depth, S: PackInto<P>>(filters: usize) -> bool {
    filters <= FILTERS && S::unchanged(&[]).is_some()
}
