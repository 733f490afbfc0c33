//! Transformed tiles and gradients, with the channels of a panel side by side.
//!
//! [Staged](Strided) pixels have the same order. So the transforms of all channels of a panel are equal, and loads are
//! contiguous.

use super::super::tiles::{Part, parts};
use super::super::transform::{self, Lanes};
use super::super::{Element, POSITIONS, Winograd};
use crate::cpu::gemm::{COLUMNS, Operand, PackInto, ROWS, Strided};
use crate::cpu::number::Float;
use crate::cpu::simd::{self, Loop};

/// A block of tiles whose transforms are panels `[position][tile][channel]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transforms<'a> {
    pub(super) sizes: &'a Winograd,
    /// The first tile, and the number of tiles.
    pub(super) block: [usize; 2],
    /// The distance between the positions of a panel, in rows.
    pub(super) pitch: usize,
}

/// The elements of the staged pixels of `count` tiles: of inputs, and of gradients.
pub(super) fn staged(sizes: &Winograd, count: usize) -> [usize; 2] {
    let pixels = |[height, width]: [usize; 2]| height.min(2 * count + 4) * width;
    [pixels(sizes.from) * COLUMNS, pixels(sizes.to) * ROWS]
}

impl Transforms<'_> {
    /// Transforms the tiles of input channels from `channel` on. `staged` has [`staged`] elements.
    pub(super) fn tiles<T: Element, S: PackInto<T>>(
        &self,
        images: &[S],
        channel: usize,
        panel: &mut [T],
        staged: &mut [T],
    ) {
        let Winograd { inputs, from, padding, .. } = *self.sizes;
        let (panel, _) = panel.as_chunks_mut();
        for part in parts(self.sizes.tiles(), self.block) {
            let [above, count] = part.rows();
            let rows = [2 * above, 2 * (above + count) + 2].map(|row| row.saturating_sub(padding[0]));
            let image = &images[part.image * inputs * from[0] * from[1]..];
            let pixels = stage::<T, S, COLUMNS>(image, [channel, inputs], from, rows, staged);
            simd::run(Tiles { of: self, part, pixels, panel });
        }
    }

    /// Transforms the gradients of output channels from `channel` on.
    pub(super) fn grads<T: Element, S: PackInto<T>>(
        &self,
        grads: &[S],
        channel: usize,
        panel: &mut [T],
        staged: &mut [T],
    ) {
        let Winograd { outputs, to, .. } = *self.sizes;
        let (panel, _) = panel.as_chunks_mut();
        for part in parts(self.sizes.tiles(), self.block) {
            let [above, count] = part.rows();
            let grad = &grads[part.image * outputs * to[0] * to[1]..];
            let rows = [2 * above, 2 * (above + count)];
            let pixels = stage::<T, S, ROWS>(grad, [channel, outputs], to, rows, staged);
            simd::run(Grads { of: self, part, pixels, panel });
        }
    }
}

/// Pixels of some rows of a plane, for all channels of a panel.
struct Pixels<'a, T, const W: usize> {
    pixels: &'a [[T; W]],
    /// The first row.
    first: usize,
    size: [usize; 2],
}

/// Stages the rows of an image that are in a range.
fn stage<'a, T: Element, S: PackInto<T>, const W: usize>(
    image: &[S],
    [channel, channels]: [usize; 2],
    [height, width]: [usize; 2],
    [first, end]: [usize; 2],
    staged: &'a mut [T],
) -> Pixels<'a, T, W> {
    let (first, end) = (first.min(height), end.min(height));
    let (staged, _) = staged.as_chunks_mut::<W>();
    let staged = &mut staged[..(end - first) * width];
    let planes = Strided { data: image, lanes: channels, lane_stride: height * width, depth_stride: 1 };
    planes.pack(channel, first * width..end * width, W, staged.as_flattened_mut());
    Pixels { pixels: staged, first, size: [height, width] }
}

impl<T: Float, const W: usize> Pixels<'_, T, W> {
    /// The pixel of a row and column, in `N` lanes from `lane` on; 0 outside.
    #[inline(always)]
    fn at<const N: usize>(&self, row: Option<usize>, column: Option<usize>, lane: usize) -> Lanes<T, N> {
        let [height, width] = self.size;
        match (row, column) {
            (Some(row), Some(column)) if row < height && column < width => {
                Lanes::load(&self.pixels[(row - self.first) * width + column][lane..])
            }
            _ => Lanes::ZERO,
        }
    }
}

/// Transforms the tiles of a part.
struct Tiles<'a, T> {
    of: &'a Transforms<'a>,
    part: Part,
    pixels: Pixels<'a, T, COLUMNS>,
    panel: &'a mut [[T; COLUMNS]],
}

impl<T: Float> Loop for Tiles<'_, T> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { of, part, pixels, panel } = self;
        let [above, beside] = of.sizes.padding;
        for run in part.runs() {
            for index in 0..run.len {
                let (top, left) = (2 * run.row, 2 * (run.column + index));
                for lane in (0..COLUMNS).step_by(16) {
                    macro_rules! row {
                        ($row:literal) => {{
                            let row = (top + $row).checked_sub(above);
                            [
                                pixels.at(row, left.checked_sub(beside), lane),
                                pixels.at(row, (left + 1).checked_sub(beside), lane),
                                pixels.at(row, (left + 2).checked_sub(beside), lane),
                                pixels.at(row, (left + 3).checked_sub(beside), lane),
                            ]
                        }};
                    }
                    let columns: [[Lanes<T, 16>; 4]; 4] =
                        transform::input([row!(0), row!(1), row!(2), row!(3)]);
                    for position in 0..POSITIONS {
                        let lanes = &mut panel[position * of.pitch + run.lane + index][lane..];
                        columns[position % 4][position / 4].store(lanes);
                    }
                }
            }
        }
    }
}

/// Transforms the gradients of a part.
struct Grads<'a, T> {
    of: &'a Transforms<'a>,
    part: Part,
    pixels: Pixels<'a, T, ROWS>,
    panel: &'a mut [[T; ROWS]],
}

impl<T: Float> Loop for Grads<'_, T> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { of, part, pixels, panel } = self;
        for run in part.runs() {
            for index in 0..run.len {
                let (top, left) = (2 * run.row, 2 * (run.column + index));
                let [top, below, left, right] = [Some(top), Some(top + 1), Some(left), Some(left + 1)];
                let pixels = [
                    [pixels.at(top, left, 0), pixels.at(top, right, 0)],
                    [pixels.at(below, left, 0), pixels.at(below, right, 0)],
                ];
                let columns: [[Lanes<T, ROWS>; 4]; 4] = transform::grad(pixels);
                for position in 0..POSITIONS {
                    let lanes = &mut panel[position * of.pitch + run.lane + index];
                    columns[position % 4][position / 4].store(lanes);
                }
            }
        }
    }
}
