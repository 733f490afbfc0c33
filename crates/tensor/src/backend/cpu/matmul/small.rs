//! Products of so few numbers that packing them, as `gemm` does, takes longer than to multiply them.

use super::super::dispatch::host;
use super::super::number::Number;
use super::super::simd::{self, Loop};
use super::{Matrix, Target};
use crate::backend::not_host;
use crate::error::Result;
use crate::storage::{View, ViewMut};

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

/// The same of one for which little room has to be made ready.
const FEW: usize = 256;

/// Whether a product is one of these. It follows from the shapes and strides alone.
pub(super) fn is_small<T>(lhs: &Matrix<'_, T>, rhs: &Matrix<'_, T>) -> bool {
    let (m, k, n) = (lhs.rows, rhs.rows, rhs.cols);
    m.saturating_mul(k).saturating_mul(n) <= MOST && takes(rhs)
}

/// Whether [`product`] can go along the rows of a right operand, of whatever size: they are slices, or there is room to copy them.
pub(super) const fn takes<T>(rhs: &Matrix<'_, T>) -> bool {
    has_slices(rhs) || rhs.rows.saturating_mul(rhs.cols) <= COPIED
}

/// Whether the rows are slices.
const fn has_slices<T>(matrix: &Matrix<'_, T>) -> bool {
    matrix.col_stride == 1 || matrix.cols == 1
}

/// Makes `out` the product, with the bias in each row: `None` unless it is one of these, and of operands that fit each other and the
/// output. Looked at before anything that large ones need.
// In one piece: what is handed from function to function in memory takes longer than such a product.
#[inline(never)]
pub(super) fn multiply<T: Number>(
    op: &'static str,
    bias: Option<&View<'_>>,
    [lhs, rhs]: [&View<'_>; 2],
    out: &mut ViewMut<'_>,
) -> Option<Result<()>> {
    let ([m, k], left) = lhs.layout().as_matrix()?;
    let ([rows, n], right) = rhs.layout().as_matrix()?;
    if k != rows || out.layout().shape().as_matrix()? != [m, n] {
        return None;
    }
    // Along an axis of size 1 no step is ever taken, and its stride may be anything.
    let stride = |size: usize, stride: usize| if size == 1 { 1 } else { stride };
    let (left, right) =
        ([stride(m, left[0]), stride(k, left[1])], [stride(k, right[0]), stride(n, right[1])]);
    let readable = right[1] == 1 || k.saturating_mul(n) <= COPIED;
    if !readable || !(1..=MOST).contains(&m.saturating_mul(k).saturating_mul(n)) {
        return None;
    }
    let row = match bias.map(|bias| (bias, bias.layout().shape().dims(), bias.layout().strides())) {
        None => None,
        Some((bias, &[size], &[stride])) if size == n && (stride == 1 || n == 1) => Some(bias),
        Some(_) => return None,
    };
    Some(compute::<T>(op, row, (lhs, left), (rhs, right), [m, k, n], out))
}

/// The same, of operands that were looked at, with their strides.
#[inline(always)]
fn compute<T: Number>(
    op: &'static str,
    row: Option<&View<'_>>,
    (lhs, left): (&View<'_>, [usize; 2]),
    (rhs, right): (&View<'_>, [usize; 2]),
    [m, k, n]: [usize; 3],
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let lhs = matrix::<T>(op, lhs, [m, k], left)?;
    let rhs = matrix::<T>(op, rhs, [k, n], right)?;
    let start = match row {
        Some(row) => Start::Row(&from_first::<T>(op, row)?[..n]),
        None => Start::Zero,
    };
    let out = out.host_buffer::<T>().and_then(|out| out.get_mut(..m * n)).ok_or_else(|| not_host(op))?;
    product(lhs, rhs, out, start);
    Ok(())
}

/// What is in a view's buffer from its first element on.
#[inline(always)]
fn from_first<'a, T: Number>(op: &'static str, view: &View<'a>) -> Result<&'a [T]> {
    Ok(&host::<T>(op, view)?[view.layout().offset()..])
}

#[inline(always)]
fn matrix<'a, T: Number>(
    op: &'static str,
    view: &View<'a>,
    [rows, cols]: [usize; 2],
    [row_stride, col_stride]: [usize; 2],
) -> Result<Matrix<'a, T>> {
    Ok(Matrix { data: from_first(op, view)?, rows, cols, row_stride, col_stride })
}

/// `out`, row by row without gaps, becomes the product, added to what it starts with.
#[inline(always)]
pub(super) fn product<T: Number>(lhs: Matrix<'_, T>, rhs: Matrix<'_, T>, out: &mut [T], start: Start<'_, T>) {
    if rhs.cols == 1 && lhs.row_stride == 1 && !matches!(start, Start::Row(_)) {
        // One column lies in memory as one row does, and the other way round the rows are slices.
        simd::run(Rows { lhs: rhs.transposed(), rhs: lhs.transposed(), out, start });
    } else if has_slices(&rhs) {
        simd::run(Rows { lhs, rhs, out, start });
    } else {
        by_copy(lhs, rhs, out, start);
    }
}

/// The same, of a right operand that there is room to copy.
#[inline(never)]
fn by_copy<T: Number>(lhs: Matrix<'_, T>, rhs: Matrix<'_, T>, out: &mut [T], start: Start<'_, T>) {
    if rhs.rows * rhs.cols <= FEW {
        by_copy_to(lhs, rhs, out, start, &mut [T::ZERO; FEW]);
    } else {
        by_copy_to(lhs, rhs, out, start, &mut [T::ZERO; COPIED]);
    }
}

/// The same, by a copy in this room.
fn by_copy_to<T: Number>(
    lhs: Matrix<'_, T>,
    rhs: Matrix<'_, T>,
    out: &mut [T],
    start: Start<'_, T>,
    room: &mut [T],
) {
    let copied = &mut room[..rhs.rows * rhs.cols];
    if rhs.row_stride == 1 {
        simd::run(Turn { rhs, out: copied });
    } else {
        for (row, to) in copied.chunks_exact_mut(rhs.cols).enumerate() {
            let from = &rhs.data[row * rhs.row_stride..];
            to.iter_mut().enumerate().for_each(|(column, to)| *to = from[column * rhs.col_stride]);
        }
    }
    simd::run(Rows { lhs, rhs: Matrix::rows(copied, rhs.rows, rhs.cols), out, start });
}

/// Copies the rows of a matrix whose columns are slices.
struct Turn<'a, T> {
    rhs: Matrix<'a, T>,
    out: &'a mut [T],
}

impl<T: Number> Loop for Turn<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<const WIDE: bool>(self) {
        let Self { rhs, out } = self;
        let column = |column: usize| &rhs.data[column * rhs.col_stride..][..rhs.rows];
        let mut first = 0;
        // A few columns at a time, whose numbers in a row are written together.
        while first + 4 <= rhs.cols {
            let [a, b, c, d] = [0, 1, 2, 3].map(|number| column(first + number));
            let numbers = a.iter().zip(b).zip(c).zip(d);
            for (to, (((a, b), c), d)) in out.chunks_exact_mut(rhs.cols).zip(numbers) {
                to[first..][..4].copy_from_slice(&[*a, *b, *c, *d]);
            }
            first += 4;
        }
        for first in first..rhs.cols {
            for (to, number) in out.chunks_exact_mut(rhs.cols).zip(column(first)) {
                to[first] = *number;
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

impl<T: Number> Loop for Rows<'_, T> {
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
fn add_rows<T: Number, const ROWS: usize>(
    lhs: &Matrix<'_, T>,
    first: usize,
    rhs: &Matrix<'_, T>,
    start: Start<'_, T>,
    sums: &mut [T],
) {
    let data = &lhs.data[first * lhs.row_stride..];
    // Where the compiler can see which factors are read, it checks the places of all of them at once.
    if lhs.col_stride == 1 {
        let mut rows: [&[T]; ROWS] = [&[]; ROWS];
        for (row, values) in rows.iter_mut().enumerate() {
            *values = &data[row * lhs.row_stride..][..rhs.rows];
        }
        each_column(|inner| rows.map(|row| row[inner]), rhs, start, sums);
    } else if lhs.row_stride == 1 {
        let column = |inner: usize| {
            let values = &data[inner * lhs.col_stride..][..ROWS];
            let mut column = [T::ZERO; ROWS];
            column.copy_from_slice(values);
            column
        };
        each_column(column, rhs, start, sums);
    } else {
        let column = |inner: usize| {
            let mut column = [T::ZERO; ROWS];
            for (row, factor) in column.iter_mut().enumerate() {
                *factor = data[row * lhs.row_stride + inner * lhs.col_stride];
            }
            column
        };
        each_column(column, rhs, start, sums);
    }
}

/// The same, of rows whose factors at a place are told by `factors`.
#[inline(always)]
fn each_column<T: Number, const ROWS: usize>(
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

/// Makes the columns from `first` on of these rows; how many columns those were.
#[inline(always)]
fn add_columns<T: Number, const ROWS: usize, const COLUMNS: usize>(
    factors: impl Fn(usize) -> [T; ROWS],
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
