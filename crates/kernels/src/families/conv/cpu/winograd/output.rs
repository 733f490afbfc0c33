//! The outputs of a block of tiles: Aᵀ m A of their products.

use super::tiles::{TileRun, parts};
use super::transform::{self, Lanes};
use super::{POSITIONS, Winograd};
use crate::cpu::gemm::{Block, COLUMNS, ROWS};
use crate::cpu::number::Float;
use crate::cpu::simd::Loop;

/// Computes outputs from products `[panel of filters][position][row][lane]`. Returns whether their sum is finite, which
/// means that all outputs are.
pub(super) struct Outputs<'a, 'b, T> {
    pub(super) sizes: &'a Winograd,
    pub(super) products: &'a [T],
    /// The first tile, and the number of tiles.
    pub(super) block: [usize; 2],
    /// The first channel, and the number of channels.
    pub(super) channels: [usize; 2],
    /// Rows are images; columns are channels and places.
    pub(super) out: &'a mut Block<'b, T>,
}

impl<T: Float> Loop for Outputs<'_, '_, T> {
    type Element = T;
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let Self { sizes, products, block, channels: [first, channels], out } = self;
        let plane = sizes.to[0] * sizes.to[1];
        let parts = parts(sizes.tiles(), block);
        let (products, _) = products.as_chunks::<COLUMNS>();
        let mut total = Lanes::<T, 8>::ZERO;
        for channel in 0..channels {
            for part in parts.clone() {
                let start = (first + channel) * plane;
                let plane = out.row(part.image, start..start + plane);
                let products = &products[channel / ROWS * POSITIONS * ROWS + channel % ROWS..];
                for run in part.runs() {
                    total = store_run(sizes, products, run, plane, total);
                }
            }
        }
        total.is_finite()
    }
}

/// Writes the outputs of a run, and adds them to `total`.
#[inline(always)]
fn store_run<T: Float>(
    sizes: &Winograd,
    products: &[[T; COLUMNS]],
    run: TileRun,
    plane: &mut [T],
    mut total: Lanes<T, 8>,
) -> Lanes<T, 8> {
    let [height, width] = sizes.to;
    let mut done = 0;
    macro_rules! lanes {
        ($($count:literal)+) => {$(
            while run.len - done >= $count {
                macro_rules! column {
                    ($column:literal) => {[
                        Lanes::load(&products[$column * ROWS][run.lane + done..]),
                        Lanes::load(&products[($column + 4) * ROWS][run.lane + done..]),
                        Lanes::load(&products[($column + 8) * ROWS][run.lane + done..]),
                        Lanes::load(&products[($column + 12) * ROWS][run.lane + done..]),
                    ]};
                }
                let rows: [[Lanes<T, $count>; 2]; 2] =
                    transform::output([column!(0), column!(1), column!(2), column!(3)]);
                let sums = (rows[0][0] + rows[0][1]) + (rows[1][0] + rows[1][1]);
                total.0.iter_mut().zip(sums.0).for_each(|(total, sum)| *total += sum);
                let left = 2 * (run.column + done);
                for (row, [even, odd]) in rows.iter().enumerate() {
                    let row = 2 * run.row + row;
                    if row < height {
                        let to = &mut plane[row * width + left..(row + 1) * width];
                        interleave(even, odd, to);
                    }
                }
                done += $count;
            }
        )+};
    }
    lanes!(8 4 1);
    total
}

/// Writes even and odd columns to a row, which may end one column earlier.
#[inline(always)]
fn interleave<T: Float, const N: usize>(even: &Lanes<T, N>, odd: &Lanes<T, N>, row: &mut [T]) {
    let (pairs, last) = row.as_chunks_mut::<2>();
    if let Some(pairs) = pairs.first_chunk_mut::<N>() {
        for (lane, pair) in pairs.iter_mut().enumerate() {
            *pair = [even.0[lane], odd.0[lane]];
        }
        return;
    }
    for (lane, pair) in pairs.iter_mut().enumerate() {
        *pair = [even.0[lane], odd.0[lane]];
    }
    last.iter_mut().for_each(|last| *last = even.0[N - 1]);
}
