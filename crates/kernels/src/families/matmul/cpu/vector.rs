//! Products with a vector. They read each element of the matrix once, so packing it would only take time.

use super::{Matrix, Output, scalar};
use crate::cpu::convert::Half;
use crate::cpu::fold::sum_products;
use crate::cpu::number::{Float, Number};
use crate::cpu::simd;

/// The length from which a loop over contiguous elements is faster than the general loops.
const LONG: usize = 32;

/// `out = lhs · rhs` or `out += lhs · rhs` for a contiguous `out`. No size may be 0.
pub(super) fn product<T: Float>(lhs: Matrix<'_, T>, rhs: Matrix<'_, T>, out: &mut [T], target: Output) {
    // The product of a row and a matrix is that of the transposed matrix and a column.
    let (matrix, column) = match (lhs.rows, rhs.cols) {
        (_, 1) => (lhs, rhs.transposed()),
        (1, _) => (rhs.transposed(), lhs),
        _ => return scalar::product(lhs, rhs, out, target),
    };
    if matrix.col_stride == 1 && column.col_stride == 1 && matrix.cols >= LONG {
        let vector = &column.data[..matrix.cols];
        for (row, out) in out.iter_mut().enumerate() {
            let elements = &matrix.data[row * matrix.row_stride..][..matrix.cols];
            let sum = sum_products(elements, vector, |a, b| a * b);
            *out = if target == Output::Accumulate { *out + sum } else { sum };
        }
    } else if matrix.row_stride == 1 && matrix.rows >= LONG {
        if target == Output::Overwrite {
            out.fill(T::ZERO);
        }
        for depth in 0..matrix.cols {
            let factor = column.data[depth * column.col_stride];
            let elements = &matrix.data[depth * matrix.col_stride..][..matrix.rows];
            simd::zip(out, elements, |out, element| *out = element.fused(factor, *out));
        }
    } else {
        scalar::product(lhs, rhs, out, target);
    }
}

/// The elements that are converted to f32 at a time: 4 KiB.
const BLOCK: usize = 1024;

/// The sums that share a converted part of the vector.
const TOGETHER: usize = 64;

/// [`product`] of 16-bit floats, which are converted to f32 on the stack. Each sum is rounded once.
pub(super) fn product_of_halves<H: Half>(
    lhs: Matrix<'_, H>,
    rhs: Matrix<'_, H>,
    out: &mut [H],
    target: Output,
) {
    let (matrix, column) = if rhs.cols == 1 { (lhs, rhs.transposed()) } else { (rhs.transposed(), lhs) };
    let is_by_column = matrix.row_stride == 1 && matrix.col_stride != 1 && matrix.rows >= LONG;
    let mut sums = [0.0; BLOCK];
    let together = if is_by_column { BLOCK } else { TOGETHER };
    for (number, out) in out.chunks_mut(together).enumerate() {
        let (start, sums) = (number * together, &mut sums[..out.len()]);
        match target {
            Output::Overwrite => sums.fill(0.0),
            Output::Accumulate => H::upcast(out, sums),
        }
        let matrix = Matrix { data: &matrix.data[start * matrix.row_stride..], rows: out.len(), ..matrix };
        if is_by_column {
            add_columns(matrix, column, sums);
        } else {
            add_dots(matrix, column, sums);
        }
        H::narrow(sums, out);
    }
}

/// Adds the products of the columns of a matrix, which are contiguous, and the elements of a vector.
fn add_columns<H: Half>(matrix: Matrix<'_, H>, column: Matrix<'_, H>, sums: &mut [f32]) {
    let (mut factors, mut elements) = ([0.0; BLOCK], [0.0; BLOCK]);
    let elements = &mut elements[..sums.len()];
    for start in (0..matrix.cols).step_by(BLOCK) {
        let factors = &mut factors[..BLOCK.min(matrix.cols - start)];
        upcast(&column.data[start * column.col_stride..], column.col_stride, factors);
        for (depth, &factor) in (start..).zip(&*factors) {
            H::upcast(&matrix.data[depth * matrix.col_stride..][..sums.len()], elements);
            simd::zip(sums, elements, |sum, element| *sum = element.fused(factor, *sum));
        }
    }
}

/// Adds the dot products of the rows of a matrix with a vector.
fn add_dots<H: Half>(matrix: Matrix<'_, H>, column: Matrix<'_, H>, sums: &mut [f32]) {
    let (mut vector, mut elements) = ([0.0; BLOCK], [0.0; BLOCK]);
    for start in (0..matrix.cols).step_by(BLOCK) {
        let count = BLOCK.min(matrix.cols - start);
        let (vector, elements) = (&mut vector[..count], &mut elements[..count]);
        upcast(&column.data[start * column.col_stride..], column.col_stride, vector);
        for (row, sum) in sums.iter_mut().enumerate() {
            let from = &matrix.data[row * matrix.row_stride + start * matrix.col_stride..];
            upcast(from, matrix.col_stride, elements);
            *sum += sum_products(elements, vector, |a, b| a * b);
        }
    }
}

/// Converts every `stride`-th element, at most [`BLOCK`].
fn upcast<H: Half>(from: &[H], stride: usize, to: &mut [f32]) {
    if stride == 1 {
        return H::upcast(&from[..to.len()], to);
    }
    let mut gathered = [H::default(); BLOCK];
    let gathered = &mut gathered[..to.len()];
    gathered.iter_mut().enumerate().for_each(|(at, to)| *to = from[at * stride]);
    H::upcast(gathered, to);
}
