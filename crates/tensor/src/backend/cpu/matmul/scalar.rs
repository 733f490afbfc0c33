//! Matrix products with simple loops: for integers, which wrap, for very small matrices, and for floats if the `gemm`
//! crates cannot run.

use super::super::number::Number;
use super::super::simd::{self, Loop};
use super::{Matrix, Output};

/// `out = lhs · rhs` or `out += lhs · rhs` for a contiguous `out`. No size may be 0.
pub(super) fn product<T: Number>(lhs: Matrix<'_, T>, rhs: Matrix<'_, T>, out: &mut [T], target: Output) {
    simd::run(Product { lhs, rhs, out, target });
}

struct Product<'a, T> {
    lhs: Matrix<'a, T>,
    rhs: Matrix<'a, T>,
    out: &'a mut [T],
    target: Output,
}

impl<T: Number> Loop for Product<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { lhs, rhs, out, target } = self;
        for (row, sums) in out.chunks_exact_mut(rhs.cols).enumerate() {
            if target == Output::Overwrite {
                sums.fill(T::ZERO);
            }
            let left = &lhs.data[row * lhs.row_stride..];
            if rhs.col_stride == 1 {
                // A sum of rows of the right operand, which are slices.
                for inner in 0..rhs.rows {
                    let (factor, values) =
                        (left[inner * lhs.col_stride], &rhs.data[inner * rhs.row_stride..][..rhs.cols]);
                    sums.iter_mut().zip(values).for_each(|(sum, &value)| *sum = factor.fused(value, *sum));
                }
                continue;
            }
            for (column, sum) in sums.iter_mut().enumerate() {
                let right = &rhs.data[column * rhs.col_stride..];
                for inner in 0..rhs.rows {
                    *sum = left[inner * lhs.col_stride].fused(right[inner * rhs.row_stride], *sum);
                }
            }
        }
    }
}
