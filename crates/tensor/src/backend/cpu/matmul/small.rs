//! Products of so few numbers that packing them, as `gemm` does, takes longer than to multiply them.

use pulp::{Simd, WithSimd};

use super::super::number::Float;
use super::super::simd;
use super::{Matrix, Target};

/// Multiplications of the largest such product. At 4 × 16 × 16 `gemm` takes about four times as many instructions.
const MOST: usize = 4096;

/// Elements of a right operand whose rows are not slices, and which is copied therefore.
const COPIED: usize = 512;

/// Whether a product is one of these. It follows from the shapes and strides alone.
pub(super) fn is_small<T>(lhs: &Matrix<'_, T>, rhs: &Matrix<'_, T>) -> bool {
    let (m, k, n) = (lhs.rows, rhs.rows, rhs.cols);
    m.saturating_mul(k).saturating_mul(n) <= MOST && (has_slices(rhs) || k.saturating_mul(n) <= COPIED)
}

/// Whether the rows are slices.
const fn has_slices<T>(matrix: &Matrix<'_, T>) -> bool {
    matrix.col_stride == 1 || matrix.cols == 1
}

/// `out`, row by row without gaps, becomes the product, or the product is added to it.
pub(super) fn product<T: Float>(lhs: Matrix<'_, T>, rhs: Matrix<'_, T>, out: &mut [T], target: Target) {
    if has_slices(&rhs) {
        simd::run(Rows { lhs, rhs, out, target });
        return;
    }
    let mut copy = [T::ZERO; COPIED];
    let copied = &mut copy[..rhs.rows * rhs.cols];
    for (row, to) in copied.chunks_exact_mut(rhs.cols).enumerate() {
        let from = &rhs.data[row * rhs.row_stride..];
        to.iter_mut().enumerate().for_each(|(column, to)| *to = from[column * rhs.col_stride]);
    }
    simd::run(Rows { lhs, rhs: Matrix::rows(copied, rhs.rows, rhs.cols), out, target });
}

/// Each row of the output is a sum of rows of the right operand. It is made in pieces that stay in registers.
struct Rows<'a, T> {
    lhs: Matrix<'a, T>,
    rhs: Matrix<'a, T>,
    out: &'a mut [T],
    target: Target,
}

impl<T: Float> WithSimd for Rows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { lhs, rhs, out, target } = self;
        for (row, sums) in out.chunks_exact_mut(rhs.cols).enumerate() {
            if target == Target::Replaced {
                sums.fill(T::ZERO);
            }
            let factors = &lhs.data[row * lhs.row_stride..];
            let (wide, rest) = sums.as_chunks_mut::<16>();
            let (narrow, single) = rest.as_chunks_mut::<8>();
            let mut from = 0;
            for sums in wide {
                add_columns(factors, lhs.col_stride, &rhs, from, sums);
                from += 16;
            }
            for sums in narrow {
                add_columns(factors, lhs.col_stride, &rhs, from, sums);
                from += 8;
            }
            for sum in single {
                add_columns(factors, lhs.col_stride, &rhs, from, std::array::from_mut(sum));
                from += 1;
            }
        }
    }
}

/// Adds a row's factors times the columns `from` on to their sums.
#[inline(always)]
fn add_columns<T: Float, const COLUMNS: usize>(
    factors: &[T],
    apart: usize,
    rhs: &Matrix<'_, T>,
    from: usize,
    sums: &mut [T; COLUMNS],
) {
    let mut totals = *sums;
    for inner in 0..rhs.rows {
        let factor = factors[inner * apart];
        let values = &rhs.data[inner * rhs.row_stride + from..][..COLUMNS];
        for (total, &value) in totals.iter_mut().zip(values) {
            *total += factor * value;
        }
    }
    *sums = totals;
}
