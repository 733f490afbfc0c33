//! Products of so few numbers that packing them, as `gemm` does, takes longer than to multiply them.

use super::super::number::Float;
use super::super::simd::{self, Loop};
use super::{Matrix, Target};

/// What the sums of a product start with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start<'a, T> {
    Zero,
    /// What is in the output.
    Output,
    /// This in every row.
    Row(&'a [T]),
}

impl<T> From<Target> for Start<'_, T> {
    fn from(target: Target) -> Self {
        match target {
            Target::Replaced => Self::Zero,
            Target::AddedTo => Self::Output,
        }
    }
}

/// Multiplications of the largest such product. At 4 × 16 × 16 `gemm` takes about four times as many instructions.
pub(super) const MOST: usize = 4096;

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

/// `out`, row by row without gaps, becomes the product, added to what it starts with.
pub(super) fn product<T: Float>(lhs: Matrix<'_, T>, rhs: Matrix<'_, T>, out: &mut [T], start: Start<'_, T>) {
    if has_slices(&rhs) {
        simd::run(Rows { lhs, rhs, out, start });
        return;
    }
    let mut copy = [T::ZERO; COPIED];
    let copied = &mut copy[..rhs.rows * rhs.cols];
    if rhs.row_stride == 1 && rhs.rows.is_multiple_of(SQUARE) && rhs.cols.is_multiple_of(SQUARE) {
        simd::run(Turn { rhs, out: copied });
    } else {
        for (row, to) in copied.chunks_exact_mut(rhs.cols).enumerate() {
            let from = &rhs.data[row * rhs.row_stride..];
            to.iter_mut().enumerate().for_each(|(column, to)| *to = from[column * rhs.col_stride]);
        }
    }
    simd::run(Rows { lhs, rhs: Matrix::rows(copied, rhs.rows, rhs.cols), out, start });
}

/// Rows and columns of the squares in which a transposed operand is turned: as many numbers as all registers hold.
const SQUARE: usize = 4;

/// Copies the rows of a matrix whose columns are slices.
struct Turn<'a, T> {
    rhs: Matrix<'a, T>,
    out: &'a mut [T],
}

impl<T: Float> Loop for Turn<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<const WIDE: bool>(self) {
        let Self { rhs, out } = self;
        for first_column in (0..rhs.cols).step_by(SQUARE) {
            let columns: [&[T]; SQUARE] = std::array::from_fn(|column| {
                &rhs.data[(first_column + column) * rhs.col_stride..][..rhs.rows]
            });
            for first_row in (0..rhs.rows).step_by(SQUARE) {
                let mut square = [[T::ZERO; SQUARE]; SQUARE];
                for column in 0..SQUARE {
                    square[column].copy_from_slice(&columns[column][first_row..][..SQUARE]);
                }
                for row in 0..SQUARE {
                    let to = &mut out[(first_row + row) * rhs.cols + first_column..][..SQUARE];
                    for column in 0..SQUARE {
                        to[column] = square[column][row];
                    }
                }
            }
        }
    }
}

/// Each row of the output is a sum of rows of the right operand. It is made in pieces that stay in registers, those of a few
/// rows at a time.
struct Rows<'a, T> {
    lhs: Matrix<'a, T>,
    rhs: Matrix<'a, T>,
    out: &'a mut [T],
    start: Start<'a, T>,
}

/// Rows that read what they have in common together.
const TOGETHER: usize = 4;

impl<T: Float> Loop for Rows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<const WIDE: bool>(self) {
        let Self { lhs, rhs, out, start } = self;
        let (mut row, mut left) = (0, out);
        while let Some(rows) = left.split_off_mut(..TOGETHER * rhs.cols) {
            add_rows::<T, TOGETHER>(&lhs, row, &rhs, start, rows);
            row += TOGETHER;
        }
        for (row, sums) in (row..).zip(left.chunks_exact_mut(rhs.cols)) {
            add_rows::<T, 1>(&lhs, row, &rhs, start, sums);
        }
    }
}

/// Makes `ROWS` rows of sums the product of the rows from `first` on, added to what they start with.
#[inline(always)]
fn add_rows<T: Float, const ROWS: usize>(
    lhs: &Matrix<'_, T>,
    first: usize,
    rhs: &Matrix<'_, T>,
    start: Start<'_, T>,
    sums: &mut [T],
) {
    // Slices of one length, so that a place in all of them is checked once.
    let extent = lhs.cols.checked_sub(1).map_or(0, |last| last * lhs.col_stride + 1);
    let mut factors: [&[T]; ROWS] = [&[]; ROWS];
    for (row, factors) in (first..).zip(&mut factors) {
        *factors = &lhs.data[row * lhs.row_stride..][..extent];
    }
    let mut column = 0;
    while column < rhs.cols {
        column += match rhs.cols - column {
            16.. => add_columns::<T, ROWS, 16>(factors, lhs.col_stride, rhs, column, start, sums),
            8.. => add_columns::<T, ROWS, 8>(factors, lhs.col_stride, rhs, column, start, sums),
            _ => add_columns::<T, ROWS, 1>(factors, lhs.col_stride, rhs, column, start, sums),
        };
    }
}

/// Makes the columns from `first` on of these rows; how many columns those were.
#[inline(always)]
fn add_columns<T: Float, const ROWS: usize, const COLUMNS: usize>(
    factors: [&[T]; ROWS],
    apart: usize,
    rhs: &Matrix<'_, T>,
    first: usize,
    start: Start<'_, T>,
    sums: &mut [T],
) -> usize {
    // Counted by constants alone, so that the totals stay in registers.
    let mut totals = [[T::ZERO; COLUMNS]; ROWS];
    match start {
        Start::Zero => {}
        Start::Output => {
            for row in 0..ROWS {
                totals[row].copy_from_slice(&sums[row * rhs.cols + first..][..COLUMNS]);
            }
        }
        Start::Row(values) => {
            let values = &values[first..][..COLUMNS];
            totals.iter_mut().for_each(|totals| totals.copy_from_slice(values));
        }
    }
    for inner in 0..rhs.rows {
        let values = &rhs.data[inner * rhs.row_stride + first..][..COLUMNS];
        for row in 0..ROWS {
            let factor = factors[row][inner * apart];
            for column in 0..COLUMNS {
                totals[row][column] += factor * values[column];
            }
        }
    }
    for row in 0..ROWS {
        sums[row * rhs.cols + first..][..COLUMNS].copy_from_slice(&totals[row]);
    }
    COLUMNS
}
