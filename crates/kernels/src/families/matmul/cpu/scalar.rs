//! Matrix products with simple loops: for integers, which wrap, and for few floats.

use super::{Matrix, Output, small};
use crate::cpu::number::{Float, Integer, Number};
use crate::cpu::simd::{self, Loop};

/// `out = lhs · rhs` or `out += lhs · rhs` for a contiguous `out`. No size may be 0.
pub(super) fn product<T: Float>(lhs: Matrix<'_, T>, rhs: Matrix<'_, T>, out: &mut [T], target: Output) {
    if small::accepts(&rhs) {
        small::product(lhs, rhs, out, target.into());
    } else {
        simd::run(Dots { lhs, rhs, out, target });
    }
}

/// [`product`] of integers, which programs rarely multiply: one row after another, in a loop that is compiled once for each type.
pub(super) fn product_of_integers<T: Integer>(
    lhs: Matrix<'_, T>,
    rhs: Matrix<'_, T>,
    out: &mut [T],
    target: Output,
) {
    if !small::has_slices(&rhs) {
        return simd::run(Dots { lhs, rhs, out, target });
    }
    if target == Output::Overwrite {
        out.fill(T::ZERO);
    }
    for (row, sums) in out.chunks_exact_mut(rhs.cols).enumerate() {
        for inner in 0..lhs.cols {
            let factor = lhs.data[row * lhs.row_stride + inner * lhs.col_stride];
            let values = &rhs.data[inner * rhs.row_stride..][..rhs.cols];
            simd::zip(sums, values, |sum, value| *sum = value.fused(factor, *sum));
        }
    }
}

/// Computes each element as a dot product. For a right operand with contiguous columns, such as a transpose.
struct Dots<'a, T> {
    lhs: Matrix<'a, T>,
    rhs: Matrix<'a, T>,
    out: &'a mut [T],
    target: Output,
}

impl<T: Number> Loop for Dots<'_, T> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { lhs, rhs, out, target } = self;
        let slices = lhs.col_stride == 1 && rhs.row_stride == 1;
        for (row, sums) in out.chunks_exact_mut(rhs.cols).enumerate() {
            let left = &lhs.data[row * lhs.row_stride..];
            for (column, sum) in sums.iter_mut().enumerate() {
                let right = &rhs.data[column * rhs.col_stride..];
                let start = if target == Output::Accumulate { *sum } else { T::ZERO };
                *sum = if slices {
                    let factors = left[..lhs.cols].iter().zip(&right[..lhs.cols]);
                    factors.fold(start, |sum, (a, b)| a.fused(*b, sum))
                } else {
                    let factor = |at: usize| (left[at * lhs.col_stride], right[at * rhs.row_stride]);
                    (0..lhs.cols).map(factor).fold(start, |sum, (a, b)| a.fused(b, sum))
                };
            }
        }
    }
}
