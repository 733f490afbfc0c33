//! Products of few elements, for which packing the operands, as `gemm` does, takes longer than multiplying them.

use super::super::number::Number;
use super::super::simd::{self, Loop};
use super::{Matrix, Target};

/// Multiplications of the largest such product. At 4 × 16 × 16 `gemm` takes about four times as many instructions.
const MOST: usize = 4096;

/// The largest right operand, in elements, that is copied because its rows are not slices.
const COPIED: usize = 512;

/// Whether a product is one of these. It follows from the shapes and strides alone.
pub(super) fn is_small<T>(lhs: &Matrix<'_, T>, rhs: &Matrix<'_, T>) -> bool {
    let (m, k, n) = (lhs.rows, rhs.rows, rhs.cols);
    m.saturating_mul(k).saturating_mul(n) <= MOST && accepts(rhs)
}

/// Whether [`product`] accepts a right operand, of whatever size: its rows are slices, or it is small enough to copy.
pub(super) const fn accepts<T>(rhs: &Matrix<'_, T>) -> bool {
    has_slices(rhs) || rhs.rows.saturating_mul(rhs.cols) <= COPIED
}

/// Whether the rows are slices.
const fn has_slices<T>(matrix: &Matrix<'_, T>) -> bool {
    matrix.col_stride == 1 || matrix.cols == 1
}

/// Stores the product in `out`, or adds it. `out` is contiguous.
#[inline(always)]
pub(super) fn product<T: Number>(lhs: Matrix<'_, T>, rhs: Matrix<'_, T>, out: &mut [T], target: Target) {
    if rhs.cols == 1 && lhs.row_stride == 1 {
        // The transposed product has slices as rows. One column of `out` lies in memory as one row does.
        simd::run(Rows { lhs: rhs.transposed(), rhs: lhs.transposed(), out, target });
    } else if has_slices(&rhs) {
        simd::run(Rows { lhs, rhs, out, target });
    } else {
        by_copy(lhs, rhs, out, target);
    }
}

/// As [`product`], with a copy of the right operand.
#[inline(never)]
fn by_copy<T: Number>(lhs: Matrix<'_, T>, rhs: Matrix<'_, T>, out: &mut [T], target: Target) {
    let mut copied = [T::ZERO; COPIED];
    let copied = &mut copied[..rhs.rows * rhs.cols];
    for (row, to) in copied.chunks_exact_mut(rhs.cols).enumerate() {
        let from = &rhs.data[row * rhs.row_stride..];
        to.iter_mut().enumerate().for_each(|(column, to)| *to = from[column * rhs.col_stride]);
    }
    simd::run(Rows { lhs, rhs: Matrix::rows(copied, rhs.rows, rhs.cols), out, target });
}

/// Computes each row of the output as a sum of rows of the right operand, a few rows and columns at a time, in registers.
struct Rows<'a, T> {
    lhs: Matrix<'a, T>,
    rhs: Matrix<'a, T>,
    out: &'a mut [T],
    target: Target,
}

/// Rows computed together, which share the loads of the right operand.
const TOGETHER: usize = 4;

impl<T: Number> Loop for Rows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<const WIDE: bool>(self) {
        let Self { lhs, rhs, out, target } = self;
        let (mut row, mut left) = (0, out);
        while let Some(rows) = left.split_off_mut(..TOGETHER * rhs.cols) {
            add_rows::<T, TOGETHER>(&lhs, row, &rhs, target, rows);
            row += TOGETHER;
        }
        for (row, sums) in (row..).zip(left.chunks_exact_mut(rhs.cols)) {
            add_rows::<T, 1>(&lhs, row, &rhs, target, sums);
        }
    }
}

/// Computes `ROWS` rows of sums, from the rows of `lhs` from `first` on.
#[inline(always)]
fn add_rows<T: Number, const ROWS: usize>(
    lhs: &Matrix<'_, T>,
    first: usize,
    rhs: &Matrix<'_, T>,
    target: Target,
    sums: &mut [T],
) {
    let data = &lhs.data[first * lhs.row_stride..];
    // With slices of known length, the compiler checks all bounds at once.
    if lhs.col_stride == 1 {
        let mut rows: [&[T]; ROWS] = [&[]; ROWS];
        for (row, values) in rows.iter_mut().enumerate() {
            *values = &data[row * lhs.row_stride..][..rhs.rows];
        }
        each_column(|inner| rows.map(|row| row[inner]), rhs, target, sums);
    } else if lhs.row_stride == 1 {
        let column = |inner: usize| {
            let values = &data[inner * lhs.col_stride..][..ROWS];
            let mut column = [T::ZERO; ROWS];
            column.copy_from_slice(values);
            column
        };
        each_column(column, rhs, target, sums);
    } else {
        let column = |inner: usize| {
            let mut column = [T::ZERO; ROWS];
            for (row, factor) in column.iter_mut().enumerate() {
                *factor = data[row * lhs.row_stride + inner * lhs.col_stride];
            }
            column
        };
        each_column(column, rhs, target, sums);
    }
}

/// Computes `ROWS` rows of sums. `factors` returns the elements of `lhs` in these rows and one column.
#[inline(always)]
fn each_column<T: Number, const ROWS: usize>(
    factors: impl Fn(usize) -> [T; ROWS] + Copy,
    rhs: &Matrix<'_, T>,
    target: Target,
    sums: &mut [T],
) {
    let mut column = 0;
    while column < rhs.cols {
        column += match rhs.cols - column {
            16.. => add_columns::<T, ROWS, 16>(factors, rhs, column, target, sums),
            8.. => add_columns::<T, ROWS, 8>(factors, rhs, column, target, sums),
            4.. => add_columns::<T, ROWS, 4>(factors, rhs, column, target, sums),
            _ => add_columns::<T, ROWS, 1>(factors, rhs, column, target, sums),
        };
    }
}

/// Computes the next `COLUMNS` columns of these rows, and returns their number.
#[inline(always)]
fn add_columns<T: Number, const ROWS: usize, const COLUMNS: usize>(
    factors: impl Fn(usize) -> [T; ROWS],
    rhs: &Matrix<'_, T>,
    first: usize,
    target: Target,
    sums: &mut [T],
) -> usize {
    // Constant sizes keep the totals in registers.
    let mut totals = [[T::ZERO; COLUMNS]; ROWS];
    if target == Target::AddedTo {
        for row in 0..ROWS {
            totals[row].copy_from_slice(&sums[row * rhs.cols + first..][..COLUMNS]);
        }
    }
    for inner in 0..rhs.rows {
        let values = &rhs.data[inner * rhs.row_stride + first..][..COLUMNS];
        let factors = factors(inner);
        for row in 0..ROWS {
            for column in 0..COLUMNS {
                totals[row][column] = factors[row].fused(values[column], totals[row][column]);
            }
        }
    }
    for row in 0..ROWS {
        sums[row * rhs.cols + first..][..COLUMNS].copy_from_slice(&totals[row]);
    }
    COLUMNS
}
