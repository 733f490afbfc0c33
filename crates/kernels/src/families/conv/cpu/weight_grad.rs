//! The product of the gradient of the weight.
//!
//! Its columns are input channels and taps, and its depth are places of the output. With few channels, each tap of each
//! channel is packed from the staged image ([`ByTap`]). With more channels, the staged image is first transposed, so that
//! [`LANES`] channels of a place are adjacent. Products then read the taps where they are stored, or pack whole registers
//! ([`ByChannel`]). The columns are in the order of blocks of channels, taps, and channels of the block. A last pass restores the
//! order of the weight.

use std::ops::Range;

use super::patches::{ByTap, Patches, PlaceRun, Places, Taps};
use super::run::ConvolutionRun;
use super::stage::{Axis, Planes, StageAs, stage};
use super::tasks::Scratch;
use super::{SLOTS, Sizes, Slot};
use crate::cpu::gemm::{self, Block, COLUMNS, Depth, Operand, Output, PackInto, Stored, Strided};
use crate::cpu::parallel::Workers;
use crate::cpu::simd::{self, Loop};
use crate::families::grid::product;
use crate::families::matmul::cpu::block_sizes;
use crate::shape::DType;

/// The channels of a block.
const LANES: usize = 16;

/// The fewest channels for which blocks are not mostly empty.
const CHANNELS: usize = LANES / 2;

/// The largest number of weights of an output channel that a thread reorders at a time.
const REORDERED: usize = 1 << 14;

impl Sizes {
    /// Blocks of channels of one group; 0 if columns are by tap. A row of a panel may hold pairs of places, so rows of places
    /// must have an even length.
    fn blocks(&self, planes: &Planes<'_>) -> usize {
        let are_pairs = planes.places(1, 0, 0).row().is_multiple_of(2);
        if self.inputs < CHANNELS || !are_pairs { 0 } else { self.inputs.div_ceil(LANES) }
    }

    /// The elements of the result in the order of channel blocks.
    pub(super) fn reordered_elements(&self) -> usize {
        let axes = self.forward_axes();
        let blocks = self.blocks(&Planes::new(self.from, axes.each_ref()));
        product(&[self.groups, self.outputs, blocks, LANES, self.taps()])
    }
}

impl Slot {
    pub(super) fn of_weight_grad(sizes: &Sizes, axes: &[Axis; 2], dtype: DType) -> Self {
        let planes = Planes::new(sizes.from, axes.each_ref());
        let (images, blocks) = (sizes.staged_images(), sizes.blocks(&planes));
        let places = images.saturating_mul(sizes.places());
        if blocks == 0 {
            let product_sizes = [sizes.outputs, sizes.depth(), places];
            return Self::new(planes, [images, sizes.inputs], (dtype, false), product_sizes);
        }
        let product_sizes = [sizes.outputs, product(&[blocks, LANES, sizes.taps()]), places];
        let slot = Self::new(planes, [1, sizes.inputs.min(LANES)], (dtype, false), product_sizes);
        Self { transposed: product(&[images, blocks, LANES, planes.size().next_multiple_of(2)]), ..slot }
    }
}

impl ConvolutionRun<'_> {
    pub(super) fn weight_grad<P, I>(
        &self,
        [input, grad]: [&[I]; 2],
        out: &mut [P::Sum],
        workspace: &mut [P::Sum],
    ) where
        P: Depth,
        I: PackInto<P> + StageAs<I> + bytemuck::Pod,
    {
        let Self { sizes, workers, .. } = self;
        let axes = sizes.forward_axes();
        let slot = Slot::of_weight_grad(sizes, &axes, self.dtype);
        let (reordered, workspace) = workspace.split_at_mut(sizes.reordered_elements());
        if reordered.is_empty() {
            self.by_tap::<P, I>([input, grad], &axes, slot, out, workspace);
        } else {
            self.by_channel::<P, I>([input, grad], &axes, slot, reordered, workspace);
            restore_order(sizes, workers, reordered, out);
        }
    }

    /// Computes the product, with channels and taps as columns.
    fn by_tap<P, I>(
        &self,
        [input, grad]: [&[I]; 2],
        axes: &[Axis; 2],
        slot: Slot,
        out: &mut [P::Sum],
        workspace: &mut [P::Sum],
    ) where
        P: Depth,
        I: PackInto<P> + StageAs<I> + bytemuck::Pod,
    {
        let Self { sizes, workers, .. } = self;
        let (planes, taps) = (Planes::new(sizes.from, axes.each_ref()), sizes.taps());
        let blocks = blocks(sizes, workers, out, sizes.depth());
        workers.share_with_scratch(blocks, sizes.slots(), workspace, slot.elements(), &|task, scratch| {
            let (group, mut block) = task;
            let Scratch { staged, panels, .. } = slot.split::<_, I, P>(scratch);
            // The input channels that the columns of the block belong to.
            let channels = block.columns().start / taps..block.columns().end.div_ceil(taps);
            let first = group * sizes.inputs;
            for (images, output) in self.batches() {
                let range = [images.clone(), first + channels.start..first + channels.end];
                let mut patches = stage(input, sizes.groups * sizes.inputs, range, planes, staged)
                    .patches(axes.each_ref(), 0);
                // Columns count from the first channel of the group.
                patches.taps.outer.splice(0..0, std::iter::repeat_n(0, channels.start));
                let grads = self.grads(grad, group, images);
                let (ranges, places) = ([block.rows(), block.columns()], grads.places.len());
                gemm::product(&ByTap(&grads), &ByTap(&patches), ranges, places, panels, &mut block, output);
            }
        });
    }

    /// Computes the product, with blocks of channels, taps and the channels of a block as columns.
    fn by_channel<P, I>(
        &self,
        [input, grad]: [&[I]; 2],
        axes: &[Axis; 2],
        slot: Slot,
        out: &mut [P::Sum],
        workspace: &mut [P::Sum],
    ) where
        P: Depth,
        I: PackInto<P> + StageAs<I> + bytemuck::Pod,
    {
        let Self { sizes, workers, .. } = self;
        let (planes, of_block) = (Planes::new(sizes.from, axes.each_ref()), sizes.taps() * LANES);
        let blocks = blocks(sizes, workers, out, out.len() / (sizes.groups * sizes.outputs));
        workers.share_with_scratch(blocks, sizes.slots(), workspace, slot.elements(), &|task, scratch| {
            let (group, mut block) = task;
            let Scratch { staged, transposed, panels, .. } = slot.split::<_, I, P>(scratch);
            // The input channels that the columns of the block belong to.
            let blocks = block.columns().start / of_block..block.columns().end.div_ceil(of_block);
            for (images, output) in self.batches() {
                let grads = self.grads(grad, group, images.clone());
                let source = Source { stored: input, group, images, blocks: blocks.clone() };
                let patches = ByChannel::transpose(sizes, &source, planes, staged, transposed);
                let (ranges, places) = ([block.rows(), block.columns()], grads.places.len());
                gemm::product(&ByTap(&grads), &patches, ranges, places, panels, &mut block, output);
            }
        });
    }

    /// The images that are staged together, and what becomes of their products.
    fn batches(&self) -> impl Iterator<Item = (Range<usize>, Output)> + use<> {
        let (images, batch) = (self.sizes.images, self.sizes.staged_images());
        (0..images).step_by(batch).map(move |start| {
            let output = if start == 0 { Output::Overwrite } else { Output::Accumulate };
            (start..images.min(start + batch), output)
        })
    }

    /// The gradients of the outputs of a group, with the output channels as taps.
    fn grads<'g, I>(&self, grad: &'g [I], group: usize, images: std::ops::Range<usize>) -> Patches<'g, I> {
        let sizes = &self.sizes;
        let (image, places) = (sizes.image_out(), sizes.places());
        let data = &grad[images.start * image + group * sizes.outputs * places..];
        let outer = (0..sizes.outputs).map(|output| output * places).collect();
        let places = Places::new([images.len(), 1, places], [image, places, 1]);
        Patches { data, taps: Taps { outer, inner: vec![0] }, places, rows: Vec::new(), last_row: 0 }
    }
}

/// Splits the output, whose rows have this many columns, into blocks for tasks.
fn blocks<'a, T>(
    sizes: &Sizes,
    workers: &Workers,
    out: &'a mut [T],
    columns: usize,
) -> Vec<(usize, Block<'a, T>)> {
    let threads = workers.threads().min(sizes.slots());
    let parts = if threads == 1 { 1 } else { SLOTS.min((2 * threads).div_ceil(sizes.groups)) };
    let size = [sizes.outputs, columns];
    let size = if parts == 1 { size } else { block_sizes(size, parts) };
    let groups = out.chunks_mut(sizes.outputs * columns).enumerate();
    groups
        .flat_map(|(group, filters)| Block::new(filters, columns).split(size).map(move |it| (group, it)))
        .collect()
}

/// Copies the result from `[output channels, blocks, taps, LANES]` to `[output channels, input channels, taps]`.
fn restore_order<T: Copy + Send + Sync>(sizes: &Sizes, workers: &Workers, from: &[T], out: &mut [T]) {
    let taps = sizes.taps();
    let [row, row_from] = [sizes.depth(), from.len() / (sizes.groups * sizes.outputs)];
    let rows = (REORDERED / row).max(1);
    workers.chunks(out, rows * row, &|start, out| {
        let from = from[start / row * row_from..].chunks(row_from);
        for (row, from) in out.chunks_mut(row).zip(from) {
            let blocks = from.as_chunks::<LANES>().0.chunks(taps);
            for (block, from) in row.chunks_mut(LANES * taps).zip(blocks) {
                for (channel, weights) in block.chunks_mut(taps).enumerate() {
                    weights.iter_mut().zip(from).for_each(|(to, from)| *to = from[channel]);
                }
            }
        }
    });
}

/// The part of stored images that a task transposes.
struct Source<'a, I> {
    stored: &'a [I],
    group: usize,
    images: Range<usize>,
    /// Blocks of channels.
    blocks: Range<usize>,
}

/// Transposed staged images, with taps and channels as lanes and places as depth.
///
/// The element of a place and a tap is at the sum of their offsets, with the next ones along the depth for packed elements
/// that hold several. So there are [`PER_ROW`](Depth::PER_ROW) copies, each of which starts one element later.
struct ByChannel<'a, P> {
    /// `[PER_ROW, images, blocks, elements of a plane / PER_ROW]`.
    data: &'a [[P; LANES]],
    /// The number of the first block, and the number of blocks.
    first: usize,
    blocks: usize,
    /// The elements of a plane.
    plane: usize,
    /// The offsets of taps in a plane.
    taps: Vec<usize>,
    places: Places,
    /// The offsets of the places of each packed element, if products read the taps where they are stored.
    rows: Vec<usize>,
}

impl<'a, P: Depth> ByChannel<'a, P> {
    /// Stages and transposes one block of channels of one image after another.
    fn transpose<I: PackInto<P> + StageAs<I>>(
        sizes: &Sizes,
        source: &Source<'_, I>,
        planes: Planes<'_>,
        staged: &mut [I],
        space: &'a mut [P],
    ) -> Self {
        let Source { stored, group, ref images, ref blocks } = *source;
        let size = planes.size();
        let plane = size.next_multiple_of(P::PER_ROW);
        let rows = plane / P::PER_ROW;
        let (space, _) = space.as_chunks_mut::<LANES>();
        let copy = images.len() * blocks.len() * rows;
        let (data, _) = space.split_at_mut(P::PER_ROW * copy);
        for (image_number, image) in images.clone().enumerate() {
            for (number, block) in blocks.clone().enumerate() {
                let channels = block * LANES..sizes.inputs.min((block + 1) * LANES);
                let lanes = channels.len();
                let first = group * sizes.inputs;
                let range = [image..image + 1, first + channels.start..first + channels.end];
                let images = stage(stored, sizes.groups * sizes.inputs, range, planes, &mut *staged);
                let lanes = Strided { data: images.data(), lanes, lane_stride: size, depth_stride: 1 };
                let at = (image_number * blocks.len() + number) * rows;
                let (panel, later) = data.split_at_mut(copy);
                let panel = &mut panel[at..][..P::rows(size)];
                Operand::<P>::pack(&lanes, 0, 0..size, LANES, panel.as_flattened_mut());
                if P::PER_ROW > 1 {
                    simd::run(StartLater { panel, later: &mut later[at..][..P::rows(size - 1)] });
                }
            }
        }
        let places = planes.places(images.len(), blocks.len() * plane, 0);
        let (first, blocks, taps) = (blocks.start, blocks.len(), planes.taps());
        let mut by_channel = Self { data, first, blocks, plane, taps, places, rows: Vec::new() };
        by_channel.read_directly();
        by_channel
    }

    /// Lets products read the taps where they are stored, if each packed element starts at a multiple of its places.
    fn read_directly(&mut self) {
        let mut rows = Vec::with_capacity(P::rows(self.places.len()));
        for PlaceRun { len, offset, .. } in self.places.runs(0..self.places.len()) {
            if !offset.is_multiple_of(P::PER_ROW) || !len.is_multiple_of(P::PER_ROW) {
                return;
            }
            rows.extend((0..len / P::PER_ROW).map(|row| (offset / P::PER_ROW + row) * LANES));
        }
        self.rows = rows;
    }

    /// The number of the row that starts with the element at an offset.
    fn row(&self, offset: usize) -> usize {
        offset % P::PER_ROW * (self.data.len() / P::PER_ROW) + offset / P::PER_ROW
    }

    /// The offset of a tap and of a block, by the number of the lanes that they fill.
    fn offset(&self, number: usize) -> usize {
        let (block, tap) = (number / self.taps.len(), number % self.taps.len());
        block * self.plane + self.taps[tap]
    }
}

/// Fills rows of packed elements that start one element later than those of a panel.
struct StartLater<'a, P> {
    panel: &'a [[P; LANES]],
    later: &'a mut [[P; LANES]],
}

impl<P: Depth> Loop for StartLater<'_, P> {
    type Element = P;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let zeros = [P::zeroed(); LANES];
        for (number, later) in self.later.iter_mut().enumerate() {
            let (row, next) = (&self.panel[number], self.panel.get(number + 1).unwrap_or(&zeros));
            for ((later, &element), &next) in later.iter_mut().zip(row).zip(next) {
                *later = element.one_later(next);
            }
        }
    }
}

impl<P: Depth> Operand<P> for ByChannel<'_, P> {
    fn stored(&self, lane: usize, depth: Range<usize>) -> Option<Stored<'_, P>> {
        let rows = self.rows.get(depth.start / P::PER_ROW..P::rows(depth.end))?;
        let first = lane / LANES - self.first * self.taps.len();
        let half = |number: usize| self.row(self.offset(number)) * LANES;
        // No result depends on a half behind the last block.
        let second = if first + 1 < self.blocks * self.taps.len() { first + 1 } else { first };
        let stored = Stored { data: self.data.as_flattened(), rows, halves: [half(first), half(second)] };
        (!rows.is_empty()).then_some(stored)
    }

    fn pack(&self, lane: usize, depth: Range<usize>, width: usize, panel: &mut [P]) {
        debug_assert_eq!(width, COLUMNS, "taps are columns");
        let (panel, _) = panel.as_chunks_mut::<COLUMNS>();
        let (mut filled, first) = (0, lane / LANES - self.first * self.taps.len());
        for PlaceRun { len, offset, .. } in self.places.runs(depth) {
            let rows = len.div_ceil(P::PER_ROW);
            let (panel, filled_to) = (&mut panel[filled..filled + rows], filled + rows);
            for (number, lanes) in (first..).zip((0..COLUMNS).step_by(LANES)) {
                let start = self.row(offset + self.offset(number));
                let from = self.data.get(start..start + rows).unwrap_or_default();
                simd::run(CopyLanes { from, panel: &mut *panel, lanes });
            }
            filled = filled_to;
        }
    }
}

/// Copies rows to [`LANES`] lanes of a panel.
struct CopyLanes<'a, P> {
    from: &'a [[P; LANES]],
    panel: &'a mut [[P; COLUMNS]],
    /// The first lane.
    lanes: usize,
}

impl<P: Copy> Loop for CopyLanes<'_, P> {
    type Element = P;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (row, from) in self.panel.iter_mut().zip(self.from) {
            row[self.lanes..self.lanes + LANES].copy_from_slice(from);
        }
    }
}
