//! Scaling and clipping, in place.

use super::{Clip, Scale};
use crate::cpu::dispatch::{float, host_mut};
use crate::cpu::number::{Float, Number};
use crate::cpu::parallel::{LIGHT, Workers};
use crate::cpu::{halves, simd};
use crate::error::Result;
use crate::families::RunCpu;

impl RunCpu for Scale<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { factor, ref mut values } = *self;
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
}

impl RunCpu for Clip<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { low, high, ref mut values } = *self;
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
