//! Transformed inputs: Bᵀ d B of the tiles of one panel of the micro-kernel.
//!
//! Tiles overlap and start at every other column. So each channel is first copied with its padding, and split into even and
//! odd columns. All loads of the transform are then contiguous.

use super::tiles::{Part, TileRun, parts};
use super::transform::{self, Lanes};
use super::{POSITIONS, Winograd};
use crate::cpu::gemm::{COLUMNS, Depth, PackInto};
use crate::cpu::number::Float;
use crate::cpu::simd::Loop;

/// The elements of the padded rows that the tiles of a panel read, of one channel, and of their even and odd columns.
pub(super) fn patch(sizes: &Winograd) -> usize {
    let [rows, columns] = sizes.tiles();
    // A panel may start and end inside an image, and inside a row of tiles.
    let images = COLUMNS.div_ceil(rows * columns) + 1;
    let rows = COLUMNS.div_ceil(columns) + 1;
    4 * (2 * rows + 2 * images) * (columns + 1)
}

/// Transforms the tiles of a panel, `[position][depth][lane]`.
pub(super) struct Input<'a, T> {
    pub(super) sizes: &'a Winograd,
    /// Copies the rows of a channel that the tiles of a part read, as [`Pad`]. One call of a pointer, so that the transform
    /// is not compiled for each type of images.
    pub(super) pad: &'a dyn Fn(&Part, usize, &mut [T]),
    /// The first tile, and the number of tiles.
    pub(super) block: [usize; 2],
    /// Memory of [`patch`] elements.
    pub(super) patch: &'a mut [T],
    pub(super) panel: &'a mut [T],
}

impl<T: Float> Loop for Input<'_, T> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { sizes, pad, block, patch, panel } = self;
        let parts = parts(sizes.tiles(), block);
        let (panel, _) = panel.as_chunks_mut::<COLUMNS>();
        let pitch = sizes.tiles()[1] + 1;
        let (padded, columns) = patch.split_at_mut(patch.len() / 2);
        let (even, odd) = columns.split_at_mut(columns.len() / 2);
        // The columns beside the images stay 0.
        padded.fill(T::ZERO);
        for channel in 0..sizes.inputs {
            let mut rows = 0;
            for part in parts.clone() {
                let [_, count] = part.rows();
                pad(&part, channel, &mut padded[2 * pitch * rows..]);
                rows += 2 * count + 2;
            }
            let (pairs, _) = padded[..2 * pitch * rows].as_chunks::<2>();
            for ((pair, even), odd) in pairs.iter().zip(even.iter_mut()).zip(odd.iter_mut()) {
                [*even, *odd] = *pair;
            }
            let mut first = 0;
            for part in parts.clone() {
                let [above, count] = part.rows();
                for run in part.runs() {
                    let at = (first + 2 * (run.row - above)) * pitch + run.column;
                    transform_run(sizes, channel, [&even[at..], &odd[at..]], run, panel);
                }
                first += 2 * count + 2;
            }
        }
    }
}

/// Copies the rows of a channel that the tiles of a part read, and converts their elements.
pub(super) struct Pad<'a, T, S> {
    pub(super) sizes: &'a Winograd,
    pub(super) images: &'a [S],
    pub(super) part: &'a Part,
    pub(super) channel: usize,
    pub(super) padded: &'a mut [T],
}

impl<T: Float + Depth, S: PackInto<T>> Loop for Pad<'_, T, S> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { sizes, images, part, channel, padded } = self;
        let ([height, width], [above, beside]) = (sizes.from, sizes.padding);
        let plane = &images[(part.image * sizes.inputs + channel) * height * width..][..height * width];
        let [first, count] = part.rows();
        let pitch = 2 * sizes.tiles()[1] + 2;
        for (row, padded) in padded.chunks_exact_mut(pitch).take(2 * count + 2).enumerate() {
            let padded = &mut padded[beside..beside + width];
            let at = (2 * first + row).checked_sub(above);
            match at.and_then(|row| plane.get(row * width..(row + 1) * width)) {
                Some(seen) => copy(seen, padded),
                None => padded.fill(T::ZERO),
            }
        }
    }
}

/// Converts a short row, without a call.
#[inline(always)]
fn copy<T: Depth, S: PackInto<T>>(from: &[S], to: &mut [T]) {
    let convert = |value: S| value.pack(S::default());
    let (wide, from) = from.as_chunks::<16>();
    let (wide_to, to) = to.as_chunks_mut::<16>();
    wide_to.iter_mut().zip(wide).for_each(|(to, from)| *to = from.map(convert));
    let (narrow, from) = from.as_chunks::<4>();
    let (narrow_to, to) = to.as_chunks_mut::<4>();
    narrow_to.iter_mut().zip(narrow).for_each(|(to, from)| *to = from.map(convert));
    to.iter_mut().zip(from).for_each(|(to, &from)| *to = convert(from));
}

/// Transforms the tiles of a run, whose even and odd columns are at the start of the slices.
#[inline(always)]
fn transform_run<T: Float>(
    sizes: &Winograd,
    channel: usize,
    [even, odd]: [&[T]; 2],
    run: TileRun,
    panel: &mut [[T; COLUMNS]],
) {
    let pitch = sizes.tiles()[1] + 1;
    let mut done = 0;
    macro_rules! lanes {
        ($($count:literal)+) => {$(
            while run.len - done >= $count {
                macro_rules! row {
                    ($row:literal) => {{
                        let at = $row * pitch + done;
                        let (even, odd) = (&even[at..at + $count + 1], &odd[at..at + $count + 1]);
                        [Lanes::load(even), Lanes::load(odd), Lanes::load(&even[1..]), Lanes::load(&odd[1..])]
                    }};
                }
                let columns: [[Lanes<T, $count>; 4]; 4] = transform::input([row!(0), row!(1), row!(2), row!(3)]);
                for position in 0..POSITIONS {
                    let lanes = &mut panel[position * sizes.pitch() + channel][run.lane + done..];
                    columns[position % 4][position / 4].store(lanes);
                }
                done += $count;
            }
        )+};
    }
    lanes!(8 4 1);
}
