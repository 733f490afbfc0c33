//! The product of a few rows with a matrix that is packed once and used in every step of a sequence.
//!
//! ```text
//! rows     [depth / 16][rows][16]      blocks of 16 columns, so that steps write 16 elements at a time
//! matrix   [columns / 16][depth][16]   panels of 16 columns
//! product  [rows][columns]
//! ```
//!
//! Depth and columns are multiples of 16: the packing adds zeros. Each element of the product is one sum in the order
//! of the depth, so the tiles do not affect the result.

use crate::backend::cpu::number::{Float, Number};
use crate::backend::cpu::parallel::Workers;
use crate::backend::cpu::simd::Loop;

/// The number of columns of a block and of a panel.
pub(super) const LANES: usize = 16;

/// A matrix with any strides that starts at the start of `data`.
#[derive(Clone, Copy)]
pub(super) struct Strided<'a, T> {
    pub(super) data: &'a [T],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) strides: [usize; 2],
}

impl<T> Strided<'_, T> {
    /// The transposed matrix.
    pub(super) const fn transposed(self) -> Self {
        let [down, across] = self.strides;
        Self { rows: self.columns, columns: self.rows, strides: [across, down], ..self }
    }
}

/// Packs a matrix into panels.
pub(super) fn pack<T: Number>(workers: &Workers, matrix: Strided<'_, T>, packed: &mut [T]) {
    let depth = matrix.rows.next_multiple_of(LANES);
    if depth == 0 {
        return;
    }
    workers.chunks(packed, depth * LANES, &|start, panel| {
        let first = start / depth;
        let columns = LANES.min(matrix.columns - first);
        if columns < LANES || matrix.rows < depth {
            panel.fill(T::ZERO);
        }
        let [down, across] = matrix.strides;
        let rows = panel.as_chunks_mut::<LANES>().0.iter_mut().take(matrix.rows);
        for (row, lanes) in rows.enumerate() {
            let from = &matrix.data[row * down + first * across..];
            match across {
                1 => lanes[..columns].copy_from_slice(&from[..columns]),
                _ => {
                    lanes[..columns].iter_mut().zip(from.iter().step_by(across)).for_each(|(to, &x)| *to = x)
                }
            }
        }
    });
}

/// Writes one row into blocks.
pub(super) fn store_row<T: Copy>(values: &[T], (row, rows): (usize, usize), blocks: &mut [T]) {
    for (values, block) in values.chunks(LANES).zip(blocks.chunks_mut(rows * LANES)) {
        block[row * LANES..][..values.len()].copy_from_slice(values);
    }
}

/// The product of rows in blocks and a packed matrix.
pub(super) struct Product<'a, T> {
    /// The number of rows.
    pub(super) rows: usize,
    /// The blocks of the rows.
    pub(super) lhs: &'a [T],
    /// The panels of the matrix.
    pub(super) rhs: &'a [T],
    /// The product.
    pub(super) out: &'a mut [T],
    /// Whether there are [32 vector registers](crate::backend::cpu::simd::has_avx512).
    pub(super) has_avx512: bool,
}

impl<T: Float> Loop for Product<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        let depth = self.lhs.len() / self.rows;
        for (number, panel) in self.rhs.chunks_exact(depth * LANES).enumerate() {
            let mut row = 0;
            while row < self.rows {
                let to = (row, number * LANES);
                row += match self.rows - row {
                    16.. if self.has_avx512 => self.tile::<10, 6>(panel, to),
                    8.. if self.has_avx512 => self.tile::<4, 4>(panel, to),
                    6.. => self.tile::<4, 2>(panel, to),
                    4.. => self.tile::<2, 2>(panel, to),
                    2.. => self.tile::<1, 1>(panel, to),
                    _ => self.tile::<1, 0>(panel, to),
                };
            }
        }
    }
}

impl<T: Float> Product<'_, T> {
    /// Computes one panel's columns of `UPPER + LOWER` rows. Returns their number.
    // The sums are in two arrays, because the compiler does not keep a single array of a power of two in registers.
    #[inline(always)]
    fn tile<const UPPER: usize, const LOWER: usize>(
        &mut self,
        panel: &[T],
        (row, column): (usize, usize),
    ) -> usize {
        let mut upper = [[T::ZERO; LANES]; UPPER];
        let mut lower = [[T::ZERO; LANES]; LOWER];
        let blocks = self.lhs.chunks_exact(self.rows * LANES);
        for (block, panel) in blocks.zip(panel.as_chunks::<{ LANES * LANES }>().0) {
            let rows = &block.as_chunks::<LANES>().0[row..];
            let Some((above, rows)) = rows.split_first_chunk::<UPPER>() else { break };
            let Some((below, _)) = rows.split_first_chunk::<LOWER>() else { break };
            for (k, lanes) in panel.as_chunks::<LANES>().0.iter().enumerate() {
                upper.iter_mut().zip(above).for_each(|(sums, row)| add(row[k], lanes, sums));
                lower.iter_mut().zip(below).for_each(|(sums, row)| add(row[k], lanes, sums));
            }
        }
        let width = self.out.len() / self.rows;
        let rows = self.out[row * width..].chunks_exact_mut(width);
        for (out, sums) in rows.zip(upper.iter().chain(&lower)) {
            out[column..column + LANES].copy_from_slice(sums);
        }
        UPPER + LOWER
    }
}

/// `sums += factor · lanes`
#[inline(always)]
fn add<T: Float>(factor: T, lanes: &[T; LANES], sums: &mut [T; LANES]) {
    for (sum, &lane) in sums.iter_mut().zip(lanes) {
        *sum = factor.fused(lane, *sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::simd;

    /// A matrix of small integers, whose products are exact.
    fn matrix(rows: usize, columns: usize, seed: usize) -> Vec<f32> {
        (0..rows * columns).map(|i| ((i * 7 + seed) % 11) as f32 - 5.0).collect()
    }

    #[test]
    fn products_of_all_tile_sizes_equal_plain_loops() {
        let workers = Workers::new(2).unwrap();
        for (depth, columns) in [(1, 1), (16, 16), (5, 33), (40, 7)] {
            let data = matrix(columns, depth, 3);
            let rhs = Strided { data: &data, rows: columns, columns: depth, strides: [depth, 1] };
            let [deep, wide] = [depth, columns].map(|size| size.next_multiple_of(LANES));
            let (mut packed, mut other) = (vec![f32::NAN; deep * wide], vec![f32::NAN; deep * wide]);
            pack(&workers, rhs.transposed(), &mut packed);
            // The same matrix, in the other order.
            let turned: Vec<f32> = (0..depth)
                .flat_map(|k| (0..columns).map(move |j| (j, k)))
                .map(|(j, k)| data[j * depth + k])
                .collect();
            pack(
                &workers,
                Strided { data: &turned, rows: depth, columns, strides: [columns, 1] },
                &mut other,
            );
            assert_eq!(packed, other);
            for rows in 1..=17 {
                let lhs = matrix(rows, depth, rows);
                let mut blocks = vec![0.0; rows * deep];
                for (row, values) in lhs.chunks(depth).enumerate() {
                    store_row(values, (row, rows), &mut blocks);
                }
                let product = |has_avx512: bool| {
                    let mut out = vec![f32::NAN; rows * wide];
                    simd::run(Product { rows, lhs: &blocks, rhs: &packed, out: &mut out, has_avx512 });
                    out
                };
                let out = product(false);
                assert_eq!(out, product(true), "{rows}");
                for (row, out) in out.chunks(wide).enumerate() {
                    let expected = (0..wide).map(|column| match column < columns {
                        true => (0..depth).map(|k| lhs[row * depth + k] * data[column * depth + k]).sum(),
                        false => 0.0,
                    });
                    assert!(out.iter().copied().eq(expected), "{rows} rows, {depth} by {columns}");
                }
            }
        }
    }
}
