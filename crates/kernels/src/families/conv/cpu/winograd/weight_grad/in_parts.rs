//! The weight gradient of many tiles: tasks sum the products of blocks of tiles.
//!
//! A task has some images and some input channels. The sums of different images are added in order.

use super::super::{Element, POSITIONS, SLOTS, TAPS, Winograd, add, direct};
use super::channels::{Transforms, staged};
use super::weights::InParts;
use crate::cpu::gemm::{COLUMNS, PackInto, ROWS, Tile};
use crate::cpu::parallel::Workers;
use crate::cpu::simd;

/// The number of tiles that are transformed before they are multiplied.
const BLOCK: usize = 64;

/// The distance between the positions of a panel, in rows. One more than the number of tiles, so that the positions of a
/// tile use different sets of the cache.
const PITCH: usize = BLOCK + 1;

/// The fewest tiles for which a task has sums of its own.
const LEAST: usize = 256;

/// The most elements of the sums of all tasks, if the tasks have different images.
const SUMS: usize = 4 << 20;

/// How the gradient of a weight is split into tasks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    /// The number of images of a task.
    images: usize,
    /// The number of ranges of images.
    pub(super) ranges: usize,
    /// The number of panels of input channels of a task.
    pub(super) panels: usize,
    /// The number of tasks for the same images.
    pub(super) parts: usize,
}

impl Split {
    fn new(sizes: &Winograd) -> Self {
        let columns = sizes.inputs.div_ceil(COLUMNS);
        let sums = POSITIONS * sizes.filter_panels() * ROWS * columns * COLUMNS;
        let ranges = (sizes.tile_count() / LEAST).min(SUMS / sums).clamp(1, SLOTS).min(sizes.images);
        let images = sizes.images.div_ceil(ranges);
        let ranges = sizes.images.div_ceil(images);
        let panels = columns.div_ceil(SLOTS / ranges);
        Self { images, ranges, panels, parts: columns.div_ceil(panels) }
    }

    /// The elements of a task's sums, of its transformed tiles, of its transformed gradients, and of its staged pixels.
    fn elements(&self, sizes: &Winograd) -> [usize; 4] {
        let (panels, rows) = (self.panels, sizes.filter_panels());
        let [inputs, grads] = staged(sizes, BLOCK);
        [
            POSITIONS * panels * rows * ROWS * COLUMNS,
            panels * POSITIONS * PITCH * COLUMNS,
            rows * POSITIONS * PITCH * ROWS,
            inputs.max(grads),
        ]
    }
}

/// The number of elements in the workspace.
pub(super) fn workspace(sizes: &Winograd) -> usize {
    let split = Split::new(sizes);
    let task = split.elements(sizes).into_iter().fold(0, usize::saturating_add);
    task.saturating_mul(split.ranges * split.parts)
}

/// Computes the gradient of the weight.
pub(super) fn run<T: Element, S: PackInto<T>>(
    sizes: &Winograd,
    workers: &Workers,
    [images, grads]: [&[S]; 2],
    workspace: &mut [T],
    out: &mut [T],
) {
    let split = Split::new(sizes);
    let [sum, tiles, grad, staged] = split.elements(sizes);
    let (sums, spaces) = workspace.split_at_mut(split.ranges * split.parts * sum);
    workers.zipped([&mut *sums, spaces], [sum, tiles + grad + staged], &|number, [sum, space]| {
        let (tiles, space) = space.split_at_mut(tiles);
        let (grad, staged) = space.split_at_mut(grad);
        let [range, part] = [number / split.parts, number % split.parts];
        let task = Task { sizes, images, grads, part, split };
        let first = range * split.images;
        let end = sizes.images.min(first + split.images) * sizes.tiles_per_image();
        let first = first * sizes.tiles_per_image();
        for start in (first..end).step_by(BLOCK) {
            let block = [start, BLOCK.min(end - start)];
            task.transform(block, [&mut *tiles, &mut *grad, &mut *staged]);
            task.multiply([tiles, grad], block[1], sum, start == first);
        }
    });
    let sums = &*sums;
    workers.chunks(out, sizes.inputs * TAPS, &|start, filters| {
        let (filters, _) = filters.as_chunks_mut::<TAPS>();
        let row = start / (sizes.inputs * TAPS);
        if !simd::run(InParts { sizes, split, sums, sum, row, filters }) {
            simd::run(direct::Filters { sizes, images, grads, channel: row, filters });
        }
    });
}

/// A task: some images and some input channels.
struct Task<'a, S> {
    sizes: &'a Winograd,
    images: &'a [S],
    grads: &'a [S],
    /// The number of the task among those for the same images.
    part: usize,
    split: Split,
}

impl<S: Copy + Default + Send + Sync> Task<'_, S> {
    /// The first input channel, and the number of input channels.
    fn channels(&self) -> [usize; 2] {
        let first = self.part * self.split.panels * COLUMNS;
        [first, (self.split.panels * COLUMNS).min(self.sizes.inputs - first)]
    }

    /// Transforms a block of tiles and of gradients.
    fn transform<T: Element>(&self, block: [usize; 2], [tiles, grads, staged]: [&mut [T]; 3])
    where
        S: PackInto<T>,
    {
        let transforms = Transforms { sizes: self.sizes, block, pitch: PITCH };
        let [first, channels] = self.channels();
        let columns = (first..first + channels).step_by(COLUMNS);
        for (panel, channel) in tiles.chunks_mut(POSITIONS * PITCH * COLUMNS).zip(columns) {
            transforms.tiles(self.images, channel, panel, staged);
        }
        let rows = (0..self.sizes.outputs).step_by(ROWS);
        for (panel, channel) in grads.chunks_mut(POSITIONS * PITCH * ROWS).zip(rows) {
            transforms.grads(self.grads, channel, panel, staged);
        }
    }

    /// Multiplies a block of `len` tiles, and adds the products to `sums`, `[position][panel of rows][panel of columns]`.
    fn multiply<T: Element>(&self, [tiles, grads]: [&[T]; 2], len: usize, sums: &mut [T], is_first: bool) {
        let (tiles, _) = tiles.as_chunks::<COLUMNS>();
        let (grads, _) = grads.as_chunks::<ROWS>();
        let (sums, _) = sums.as_chunks_mut::<COLUMNS>();
        let (sums, _) = sums.as_chunks_mut::<ROWS>();
        let mut tile = Tile::<T>::ZERO;
        let [_, channels] = self.channels();
        let rows = self.sizes.filter_panels();
        for (position, sums) in sums.chunks_mut(rows * self.split.panels).enumerate() {
            for (row, sums) in sums.chunks_mut(self.split.panels).enumerate() {
                let lhs = &grads[(row * POSITIONS + position) * PITCH..][..len];
                for (column, sum) in sums.iter_mut().enumerate().take(channels.div_ceil(COLUMNS)) {
                    let rhs = &tiles[(column * POSITIONS + position) * PITCH..][..len];
                    T::multiply(lhs, rhs, ROWS, &mut tile);
                    match is_first {
                        true => *sum = tile.0,
                        false => add(sum, &tile),
                    }
                }
            }
        }
    }
}
