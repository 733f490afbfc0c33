//! Clipping: values scaled and kept between two limits, where they lie.

use super::dispatch::{float, host_mut};
use super::number::Float;
use super::parallel::{LIGHT, Workers};
use crate::error::Result;
use crate::storage::ViewMut;

/// See [`Kernel::Clip`](crate::backend::Kernel::Clip).
#[inline(never)]
pub(super) fn clip(
    workers: &Workers,
    op: &'static str,
    scale: f64,
    [low, high]: [f64; 2],
    values: ViewMut<'_>,
) -> Result<()> {
    float!(op, values.dtype(), T => {
        let values = host_mut::<T>(op, values)?;
        clip_values(workers, values, scale, [low, high]);
        Ok(())
    })
}

fn clip_values<T: Float>(workers: &Workers, values: &mut [T], scale: f64, limits: [f64; 2]) {
    let (scale, [low, high]) = (T::from_f64(scale), limits.map(T::from_f64));
    workers.chunks(values, LIGHT, &|_, part| {
        for value in part {
            let x = *value * scale;
            // Two comparisons that a NaN fails, so that it stays one.
            *value = if x < low {
                low
            } else if x > high {
                high
            } else {
                x
            };
        }
    });
}
