//! The products of the output and of the gradient of the input.

use super::element::FromSum;
use super::output::{self, Pixels};
use super::patches::{ByPlace, Patches, Places, Taps};
use super::stage::{Axis, FILTERS, Planes, StageAs, stage, staged_images};
use super::tasks::{Scratch, image_tasks};
use super::{Sizes, Slot};
use crate::cpu::gemm::{self, Block, Depth, Output, PackInto, Strided};
use crate::cpu::parallel::Workers;
use crate::shape::DType;

/// The number of elements of filters that a thread reorders at a time.
const COPIED: usize = 4096;

/// One run of a convolution. The methods name the element types of packed panels, staged images and stored images.
pub(super) struct ConvolutionRun<'a> {
    pub(super) workers: &'a Workers,
    pub(super) sizes: Sizes,
    /// The type of stored images.
    pub(super) dtype: DType,
}

impl ConvolutionRun<'_> {
    pub(super) fn forward<P, S, I>(&self, [input, weight]: [&[I]; 2], out: &mut [I], workspace: &mut [P::Sum])
    where
        P: Depth,
        S: PackInto<P> + bytemuck::Pod,
        I: PackInto<P> + StageAs<S> + FromSum<P::Sum>,
    {
        let sizes = &self.sizes;
        let axes = sizes.forward_axes();
        let slot = Slot::of_forward(sizes, &axes, self.dtype);
        let planes = Planes::new(sizes.from, axes.each_ref());
        let places = sizes.places();
        let direct = is_direct::<P, S>(sizes.outputs);
        let gap = if direct { planes.gap(sizes.outputs) } else { 0 };
        let (by_tap, workspace) = workspace.split_at_mut(sizes.forward_filters(self.dtype));
        let (filters, depth) = if I::CHANNELS == 1 {
            (weight, sizes.depth())
        } else {
            let depth = sizes.taps() * sizes.inputs.next_multiple_of(I::CHANNELS);
            let by_tap = &mut bytemuck::cast_slice_mut(by_tap)[..sizes.groups * sizes.outputs * depth];
            self.inputs_by_tap(weight, depth, by_tap);
            (&*by_tap, depth)
        };
        let tasks = image_tasks(sizes, self.workers, out, [sizes.outputs, places]);
        self.workers.share_with_scratch(
            tasks,
            sizes.slots(),
            workspace,
            slot.elements(),
            &|task, scratch| {
                let Scratch { staged, sums, panels, .. } = slot.split::<_, S, P>(scratch);
                let channels = task.group * sizes.inputs..(task.group + 1) * sizes.inputs;
                let images =
                    stage(input, sizes.groups * sizes.inputs, [task.images, channels], planes, staged);
                let mut patches = images.patches(axes.each_ref(), gap);
                if I::CHANNELS > 1 {
                    patches = patches.with_outer_taps();
                }
                if direct {
                    patches = patches.read_directly();
                }
                let data = sizes.group(filters, task.group);
                let filters = Strided { data, lanes: sizes.outputs, lane_stride: depth, depth_stride: 1 };
                let columns = patches.places.len();
                let mut out = Pixels {
                    images: task.out,
                    rows: task.rows.clone(),
                    plane: places,
                    pixels: Places::with_gaps([1, sizes.to[0], sizes.to[1]], [0, sizes.to[1], 1], gap),
                    first: 0,
                    sums: output::part_of::<P, I>(sums, [task.rows.len(), columns, depth]),
                };
                let ranges = [task.rows, 0..columns];
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
        out: &mut [I],
        workspace: &mut [P::Sum],
    ) where
        P: Depth,
        S: PackInto<P> + bytemuck::Pod,
        I: PackInto<P> + StageAs<S> + FromSum<P::Sum>,
    {
        let sizes = &self.sizes;
        let axes = sizes.input_grad_axes();
        // No tap reads some elements if the stride exceeds the window.
        if axes.iter().flatten().any(|axis| axis.taps.is_empty()) {
            out.fill(I::default());
        }
        let slot = Slot::of_input_grad(sizes, &axes, self.dtype);
        let (by_tap, workspace) = workspace.split_at_mut(sizes.input_grad_filters(self.dtype));
        let outputs = sizes.outputs.next_multiple_of(I::CHANNELS);
        let filters = sizes.groups * sizes.taps() * outputs * sizes.inputs;
        let filters: &mut [I] = &mut bytemuck::cast_slice_mut(by_tap)[..filters];
        self.filters_by_tap(weight, outputs, filters);
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
                let Scratch { staged, sums, panels, .. } = slot.split::<_, S, P>(scratch);
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
                        let filters = self.filters_of(filters, outputs, [row, column]);
                        let (places, depth) = (patches.places.len(), filters.taps.len());
                        let ranges = [task.rows.clone(), 0..places];
                        let mut out = Pixels {
                            images: task.out.iter_mut().map(|out| &mut **out).collect(),
                            rows: task.rows.clone(),
                            plane: height * width,
                            pixels: Places::with_gaps(
                                [1, row.places, column.places],
                                [0, down.saturating_mul(width), across],
                                gap,
                            ),
                            first: top * width + left,
                            sums: output::part_of::<P, I>(&mut *sums, [task.rows.len(), places, depth]),
                        };
                        let (lhs, rhs) = (ByPlace(&filters), ByPlace(&patches));
                        gemm::product(&lhs, &rhs, ranges, depth, panels, &mut out, Output::Overwrite);
                    }
                }
            },
        );
    }

    /// Copies filters of shape `[filters, inputs, taps]` to the order `[filters, taps, inputs]`. A filter has `len` elements
    /// there, with zeros behind the inputs.
    fn inputs_by_tap<I: Copy + Default + Send + Sync>(&self, weight: &[I], len: usize, by_tap: &mut [I]) {
        let (inputs, taps) = (self.sizes.inputs, self.sizes.taps());
        let filters = (COPIED / len).max(1);
        self.workers.chunks(by_tap, filters * len, &|start, part| {
            let weight = weight[start / len * inputs * taps..].chunks_exact(inputs * taps);
            for (filter, to) in weight.zip(part.chunks_exact_mut(len)) {
                for (tap, to) in to.chunks_exact_mut(len / taps).enumerate() {
                    let (to, rest) = to.split_at_mut(inputs);
                    to.iter_mut().zip(filter[tap..].iter().step_by(taps)).for_each(|(to, from)| *to = *from);
                    rest.fill(I::default());
                }
            }
        });
    }

    /// Copies filters of shape `[groups, outputs, inputs, taps]` to the order `[groups, taps, outputs, inputs]`, with zeros for
    /// further outputs up to the given number.
    fn filters_by_tap<I: Copy + Default + Send + Sync>(
        &self,
        weight: &[I],
        outputs: usize,
        filters: &mut [I],
    ) {
        let Self { workers, sizes, .. } = self;
        let (taps, channels) = (sizes.taps(), outputs * sizes.inputs);
        let blocks: Vec<_> = filters
            .chunks_mut(taps * channels)
            .enumerate()
            .flat_map(|(group, filters)| {
                Block::new(filters, channels).split([taps, COPIED]).map(move |it| (group, it))
            })
            .collect();
        workers.share(blocks.len(), 4, blocks.into_iter(), &|(group, mut block)| {
            let weight = sizes.group(weight, group);
            let columns = block.columns();
            for tap in block.rows() {
                let from = weight.get(columns.start * taps + tap..).unwrap_or_default().iter().step_by(taps);
                let to = block.row(tap, columns.clone());
                let (to, rest) = to.split_at_mut(from.len().min(columns.len()));
                to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                rest.fill(I::default());
            }
        });
    }

    /// The filters at the taps of two axes, with the input channels as places. There are this many output channels.
    fn filters_of<'f, S>(
        &self,
        filters: &'f [S],
        outputs: usize,
        [rows, columns]: [&Axis; 2],
    ) -> Patches<'f, S> {
        let inputs = self.sizes.inputs;
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
            last_row: 0,
        }
    }
}

/// Whether products read staged elements where they are stored.
fn is_direct<P: Depth, S: PackInto<P>>(filters: usize) -> bool {
    filters <= FILTERS && S::unchanged(&[]).is_some()
}
