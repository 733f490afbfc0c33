//! The gradients of filters: Gᵀ m G of their summed products.

use super::super::transform::{self, Lanes};
use super::super::{POSITIONS, TAPS, Winograd};
use super::in_parts::Split;
use crate::cpu::gemm::{COLUMNS, ROWS};
use crate::cpu::number::Float;
use crate::cpu::simd::Loop;

/// The number of filters that are transformed at a time.
const WIDTH: usize = 16;

/// Computes the filters of some output channels and of a panel of input channels. Returns false if a value is not finite.
pub(super) struct AtOnce<'a, T> {
    pub(super) inputs: usize,
    /// `[panel of output channels][position]`
    pub(super) products: &'a [[[T; COLUMNS]; ROWS]],
    /// The panel of input channels.
    pub(super) panel: usize,
    pub(super) filters: &'a mut [[T; TAPS]],
}

impl<T: Float> Loop for AtOnce<'_, T> {
    type Element = T;
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let Self { inputs, products, panel, filters } = self;
        let first = panel * COLUMNS;
        let mut total = Lanes::ZERO;
        for (row, filters) in filters.chunks_exact_mut(inputs).enumerate() {
            let products = &products[row / ROWS * POSITIONS..];
            let filters = &mut filters[first..inputs.min(first + COLUMNS)];
            for (half, filters) in filters.chunks_mut(WIDTH).enumerate() {
                let mut columns = [[Lanes::ZERO; 4]; 4];
                for position in 0..POSITIONS {
                    let lanes = Lanes::load(&products[position][row % ROWS][half * WIDTH..]);
                    columns[position % 4][position / 4] = lanes;
                }
                total = total + store(columns, filters);
            }
        }
        total.is_finite()
    }
}

/// Computes the filters of one output channel from the sums of all tasks. Returns false if a value is not finite.
pub(super) struct InParts<'a, T> {
    pub(super) sizes: &'a Winograd,
    pub(super) split: Split,
    /// The sums of all tasks, and the elements of each.
    pub(super) sums: &'a [T],
    pub(super) sum: usize,
    /// The output channel.
    pub(super) row: usize,
    pub(super) filters: &'a mut [[T; TAPS]],
}

impl<T: Float> Loop for InParts<'_, T> {
    type Element = T;
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let Self { sizes, split, sums, sum, row, filters } = self;
        let mut all = Lanes::ZERO;
        for (number, filters) in filters.chunks_mut(WIDTH).enumerate() {
            let first = number * WIDTH;
            let (panel, lane) = (first / COLUMNS, first % COLUMNS);
            let mut columns = [[Lanes::ZERO; 4]; 4];
            for position in 0..POSITIONS {
                let mut total = Lanes::ZERO;
                for range in 0..split.ranges {
                    let task = range * split.parts + panel / split.panels;
                    let (sums, _) = sums[task * sum..][..sum].as_chunks::<COLUMNS>();
                    let tile = position * sizes.filter_panels() + row / ROWS;
                    let tile = tile * split.panels + panel % split.panels;
                    total = total + Lanes::load(&sums[tile * ROWS + row % ROWS][lane..]);
                }
                columns[position % 4][position / 4] = total;
            }
            all = all + store(columns, filters);
        }
        all.is_finite()
    }
}

/// Transforms and stores up to [`WIDTH`] filters. Returns their sums.
#[inline(always)]
fn store<T: Float>(columns: [[Lanes<T, WIDTH>; 4]; 4], filters: &mut [[T; TAPS]]) -> Lanes<T, WIDTH> {
    let taps = transform::weight(columns);
    for (lane, filter) in filters.iter_mut().enumerate() {
        for (tap, value) in filter.iter_mut().enumerate() {
            *value = taps[tap / 3][tap % 3].0[lane];
        }
    }
    let rows = taps.map(|[a, b, c]| a + b + c);
    rows[0] + rows[1] + rows[2]
}
