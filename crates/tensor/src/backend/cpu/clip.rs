//! Scaling and clipping, in place.

use super::dispatch::{float, host_mut};
use super::halves;
use super::number::{Float, Number};
use super::parallel::{LIGHT, Workers};
use super::simd;
use crate::error::Result;
use crate::storage::ViewMut;

/// See [`Scale`](crate::backend::kernels::Scale).
#[inline(never)]
pub(crate) fn scale(
    workers: &Workers,
    op: &'static str,
    factor: f64,
    values: &mut ViewMut<'_>,
) -> Result<()> {
    if values.dtype().is_half() {
        let factor = factor as f32;
        return halves::update(workers, op, LIGHT, [], [values], &|[], [values]| {
            simd::each(values, |x| *x *= factor);
        });
    }
    float!(op, values.dtype(), T => {
        let factor = T::from_f64(factor);
        workers.chunks(host_mut::<T>(op, values)?, LIGHT, &|_, part| simd::each(part, |x| *x *= factor));
        Ok(())
    })
}

/// See [`Clip`](crate::backend::kernels::Clip).
#[inline(never)]
pub(crate) fn clip(
    workers: &Workers,
    op: &'static str,
    [low, high]: [f64; 2],
    values: &mut ViewMut<'_>,
) -> Result<()> {
    if values.dtype().is_half() {
        return halves::update(workers, op, LIGHT, [], [values], &|[], [values]| {
            clip_values(values, [low as f32, high as f32]);
        });
    }
    float!(op, values.dtype(), T => {
        let limits = [low, high].map(T::from_f64);
        workers.chunks(host_mut::<T>(op, values)?, LIGHT, &|_, part| clip_values(part, limits));
        Ok(())
    })
}

fn clip_values<T: Float>(values: &mut [T], [low, high]: [T; 2]) {
    // For NaN both comparisons are false, so NaN stays.
    simd::each(values, |x| {
        *x = if *x < low {
            low
        } else if *x > high {
            high
        } else {
            *x
        }
    });
}
