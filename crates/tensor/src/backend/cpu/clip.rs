//! Scaling and clipping, in place.

use super::dispatch::{float, host_mut};
use super::number::Number;
use super::parallel::{LIGHT, Workers};
use super::simd;
use crate::error::Result;
use crate::storage::ViewMut;

/// See [`Kernel::Scale`](crate::backend::Kernel::Scale).
#[inline(never)]
pub(super) fn scale(
    workers: &Workers,
    op: &'static str,
    factor: f64,
    values: &mut ViewMut<'_>,
) -> Result<()> {
    float!(op, values.dtype(), T => {
        let factor = T::from_f64(factor);
        workers.chunks(host_mut::<T>(op, values)?, LIGHT, &|_, part| simd::each(part, |x| *x *= factor));
        Ok(())
    })
}

/// See [`Kernel::Clip`](crate::backend::Kernel::Clip).
#[inline(never)]
pub(super) fn clip(
    workers: &Workers,
    op: &'static str,
    [low, high]: [f64; 2],
    values: &mut ViewMut<'_>,
) -> Result<()> {
    float!(op, values.dtype(), T => {
        let (low, high) = (T::from_f64(low), T::from_f64(high));
        workers.chunks(host_mut::<T>(op, values)?, LIGHT, &|_, part| {
            // For NaN both comparisons are false, so NaN stays.
            simd::each(part, |x| *x = if *x < low { low } else if *x > high { high } else { *x });
        });
        Ok(())
    })
}
