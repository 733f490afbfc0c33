//! Products with a vector. They read each element of the matrix once, so packing it would only take time.

use super::{Matrix, Output, scalar};
use crate::cpu::fold::sum_products;
use crate::cpu::number::Float;
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
