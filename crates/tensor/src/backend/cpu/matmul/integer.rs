//! Products of integers, which wrap: by plain loops, as the `gemm` crates are for floats.

use super::super::dispatch::{host, host_mut, integer};
use super::super::number::Number;
use super::super::simd::{self, Loop};
use super::{Matrix, Target, small};
use crate::dtype::DType;
use crate::error::Result;
use crate::storage::{View, ViewMut};

/// The product of few integers. A function of its own, beside that of floats, which is the one that has to be quick.
#[cold]
pub(super) fn small(
    op: &'static str,
    dtype: DType,
    product: small::Product,
    bias: Option<View<'_>>,
    [lhs, rhs]: [View<'_>; 2],
    out: ViewMut<'_>,
) -> Result<()> {
    integer!(op, dtype, T => {
        let (left, right) = (host::<T>(op, &lhs)?, host::<T>(op, &rhs)?);
        product.compute(left, right, bias.as_ref(), host_mut::<T>(op, out)?);
        Ok(())
    })
}

/// `out`, row by row without gaps, becomes the product, or the product is added to it. No size may be 0.
pub(super) fn product<T: Number>(lhs: Matrix<'_, T>, rhs: Matrix<'_, T>, out: &mut [T], target: Target) {
    if small::takes(&rhs) {
        small::product(lhs, rhs, out, target.into());
    } else {
        simd::run(Dots { lhs, rhs, out, target });
    }
}

/// Each element of the output by itself: for a right operand whose columns are slices rather than its rows, as a transpose. The
/// order in which integers are summed is no matter.
struct Dots<'a, T> {
    lhs: Matrix<'a, T>,
    rhs: Matrix<'a, T>,
    out: &'a mut [T],
    target: Target,
}

impl<T: Number> Loop for Dots<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<const WIDE: bool>(self) {
        let Self { lhs, rhs, out, target } = self;
        let slices = lhs.col_stride == 1 && rhs.row_stride == 1;
        for (row, sums) in out.chunks_exact_mut(rhs.cols).enumerate() {
            let left = &lhs.data[row * lhs.row_stride..];
            for (column, sum) in sums.iter_mut().enumerate() {
                let right = &rhs.data[column * rhs.col_stride..];
                let start = if target == Target::AddedTo { *sum } else { T::ZERO };
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
