//! Products of small matrices, for which packing operands takes longer than multiplying them.

use super::{Matrix, Output};
use crate::cpu::dispatch::host;
use crate::cpu::number::Float;
use crate::cpu::simd::{self, Loop};
use crate::error::{Result, not_host};
use crate::storage::{View, ViewMut};

/// The initial values of the sums.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start<'a, T> {
    Zero,
    /// The values in the output.
    Output,
    /// One row, broadcast to every row.
    Row(&'a [T]),
}

impl<T> From<Output> for Start<'_, T> {
    fn from(target: Output) -> Self {
        match target {
            Output::Overwrite => Self::Zero,
            Output::Accumulate => Self::Output,
        }
    }
}

/// The largest number of multiplications. For 4 × 16 × 16, packing needs several times as many instructions.
const MAX_MULTIPLICATIONS: usize = 4096;

/// The largest right operand, in elements, that is copied because its rows are not slices.
const COPIED: usize = 512;

/// Whether simple loops are faster than packing for this number of multiplications.
pub(super) const fn has_few(multiplications: usize) -> bool {
    multiplications <= MAX_MULTIPLICATIONS
}

/// Whether [`product`] supports a right operand of any size: its rows are slices, or it is small enough to copy.
pub(super) const fn accepts<T>(rhs: &Matrix<'_, T>) -> bool {
    has_slices(rhs) || rhs.rows.saturating_mul(rhs.cols) <= COPIED
}

/// Whether the rows are slices.
pub(super) const fn has_slices<T>(matrix: &Matrix<'_, T>) -> bool {
    matrix.col_stride == 1 || matrix.cols == 1
}

/// Computes a product with a bias, if it is small and its operands fit; returns `None` otherwise.
// A single function, because passing views in memory takes longer than the product.
#[inline(never)]
pub(super) fn multiply<T: Float>(
    op: &'static str,
    bias: Option<View<'_>>,
    [lhs, rhs]: [View<'_>; 2],
    out: &mut ViewMut<'_>,
) -> Option<Result<()>> {
    let ([m, k], left) = lhs.layout().as_matrix()?;
    let ([rows, n], right) = rhs.layout().as_matrix()?;
    if k != rows || out.layout().shape().as_matrix()? != [m, n] {
        return None;
    }
    // The stride of an axis of size 1 is arbitrary.
    let stride = |size: usize, stride: usize| if size == 1 { 1 } else { stride };
    let (left, right) =
        ([stride(m, left[0]), stride(k, left[1])], [stride(k, right[0]), stride(n, right[1])]);
    let readable = right[1] == 1 || k.saturating_mul(n) <= COPIED;
    if !readable || !(1..=MAX_MULTIPLICATIONS).contains(&m.saturating_mul(k).saturating_mul(n)) {
        return None;
    }
    let row = match bias.map(|bias| (bias, bias.layout().shape().dims(), bias.layout().strides())) {
        None => None,
        Some((bias, &[size], &[stride])) if size == n && (stride == 1 || n == 1) => Some(bias),
        Some(_) => return None,
    };
    Some(compute::<T>(op, row, (lhs, left), (rhs, right), [m, k, n], out))
}

/// Computes the product of operands that fit.
#[inline(always)]
fn compute<T: Float>(
    op: &'static str,
    row: Option<View<'_>>,
    (lhs, left): (View<'_>, [usize; 2]),
    (rhs, right): (View<'_>, [usize; 2]),
    [m, k, n]: [usize; 3],
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let lhs = matrix::<T>(op, &lhs, [m, k], left)?;
    let rhs = matrix::<T>(op, &rhs, [k, n], right)?;
    let start = match row {
        Some(row) => Start::Row(&from_first::<T>(op, &row)?[..n]),
        None => Start::Zero,
    };
    let out = out.host_buffer::<T>().and_then(|out| out.get_mut(..m * n)).ok_or_else(|| not_host(op))?;
    product(lhs, rhs, out, start);
    Ok(())
}

/// The buffer of a view, starting at its first element.
#[inline(always)]
fn from_first<'a, T: Float>(op: &'static str, view: &View<'a>) -> Result<&'a [T]> {
    Ok(&host::<T>(op, view)?[view.layout().offset()..])
}

#[inline(always)]
fn matrix<'a, T: Float>(
    op: &'static str,
    view: &View<'a>,
    [rows, cols]: [usize; 2],
    [row_stride, col_stride]: [usize; 2],
) -> Result<Matrix<'a, T>> {
    Ok(Matrix { data: from_first(op, view)?, rows, cols, row_stride, col_stride })
}

/// Stores the product in `out`, added to the initial values. `out` is contiguous.
#[inline(always)]
pub(super) fn product<T: Float>(lhs: Matrix<'_, T>, rhs: Matrix<'_, T>, out: &mut [T], start: Start<'_, T>) {
    if rhs.cols == 1 && lhs.row_stride == 1 && !matches!(start, Start::Row(_)) {
        // The rows of the transposed product are slices. One column of `out` has the same layout as one row.
        simd::run(Rows { lhs: rhs.transposed(), rhs: lhs.transposed(), out, start });
    } else if has_slices(&rhs) {
        simd::run(Rows { lhs, rhs, out, start });
    } else {
        by_copy(lhs, rhs, out, start);
    }
}

/// Like [`product`], with a contiguous copy of the right operand.
#[inline(never)]
fn by_copy<T: Float>(lhs: Matrix<'_, T>, rhs: Matrix<'_, T>, out: &mut [T], start: Start<'_, T>) {
    let mut copied = [T::ZERO; COPIED];
    let copied = &mut copied[..rhs.rows * rhs.cols];
    for (row, to) in copied.chunks_exact_mut(rhs.cols).enumerate() {
        let from = &rhs.data[row * rhs.row_stride..];
        match rhs.col_stride {
            0 => to.fill(from[0]),
            stride => simd::zip_step(to, from, stride, |to, value| *to = value),
        }
    }
    simd::run(Rows { lhs, rhs: Matrix::rows(copied, rhs.rows, rhs.cols), out, start });
}

/// Computes each row of the output as a sum of rows of the right operand, a few rows and columns at a time, in registers.
struct Rows<'a, T> {
    lhs: Matrix<'a, T>,
    rhs: Matrix<'a, T>,
    out: &'a mut [T],
    start: Start<'a, T>,
}

/// Rows computed together, which share the loads of the right operand.
const TOGETHER: usize = 4;

impl<T: Float> Loop for Rows<'_, T> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { lhs, rhs, out, start } = self;
        let (mut row, mut left) = (0, out);
        let is_dense = lhs.col_stride == 1 || lhs.row_stride == 1;
        while is_dense && let Some(rows) = left.split_off_mut(..TOGETHER * rhs.cols) {
            add_rows::<T, TOGETHER>(&lhs, row, &rhs, start, rows);
            row += TOGETHER;
        }
        for (row, sums) in (row..).zip(left.chunks_exact_mut(rhs.cols)) {
            add_rows::<T, 1>(&lhs, row, &rhs, start, sums);
        }
    }
}

/// Computes `ROWS` rows of sums, starting at row `first` of `lhs`, one of whose strides is 1 if there are several.
#[inline(always)]
fn add_rows<T: Float, const ROWS: usize>(
    lhs: &Matrix<'_, T>,
    first: usize,
    rhs: &Matrix<'_, T>,
    start: Start<'_, T>,
    sums: &mut [T],
) {
    let data = &lhs.data[first * lhs.row_stride..];
    // With slices of known length, the compiler checks all bounds at once.
    if lhs.col_stride == 1 {
        let mut rows: [&[T]; ROWS] = [&[]; ROWS];
        for (row, values) in rows.iter_mut().enumerate() {
            *values = &data[row * lhs.row_stride..][..rhs.rows];
        }
        each_column(|inner| rows.map(|row| row[inner]), rhs, start, sums);
    } else if ROWS > 1 {
        let column = |inner: usize| {
            let values = &data[inner * lhs.col_stride..][..ROWS];
            let mut column = [T::ZERO; ROWS];
            column.copy_from_slice(values);
            column
        };
        each_column(column, rhs, start, sums);
    } else {
        each_column(|inner| [data[inner * lhs.col_stride]; ROWS], rhs, start, sums);
    }
}

/// Computes `ROWS` rows of sums. `factors` returns the elements of `lhs` in these rows and one column.
#[inline(always)]
fn each_column<T: Float, const ROWS: usize>(
    factors: impl Fn(usize) -> [T; ROWS] + Copy,
    rhs: &Matrix<'_, T>,
    start: Start<'_, T>,
    sums: &mut [T],
) {
    let mut column = 0;
    while column < rhs.cols {
        column += match rhs.cols - column {
            16.. => add_columns::<T, ROWS, 16>(factors, rhs, column, start, sums),
            8.. => add_columns::<T, ROWS, 8>(factors, rhs, column, start, sums),
            4.. => add_columns::<T, ROWS, 4>(factors, rhs, column, start, sums),
            _ => add_columns::<T, ROWS, 1>(factors, rhs, column, start, sums),
        };
    }
}

/// Computes the next `COLUMNS` columns of these rows, and returns their number.
#[inline(always)]
fn add_columns<T: Float, const ROWS: usize, const COLUMNS: usize>(
    factors: impl Fn(usize) -> [T; ROWS],
    rhs: &Matrix<'_, T>,
    first: usize,
    start: Start<'_, T>,
    sums: &mut [T],
) -> usize {
    // Constant sizes keep the totals in registers.
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
