//! Max and mean pools over the planes of a view.

mod pool2x2;
mod sliding;

use self::pool2x2::Pool2x2;
use self::sliding::{Sliding, WindowMax};
use super::{Pool2d, Pool2dGrad};
use crate::cpu::dispatch::{contiguous, float, host_mut};
use crate::cpu::fold::{Sum, fold_rows};
use crate::cpu::number::{Float, Number};
use crate::cpu::parallel::{Workers, light_runs};
use crate::error::Result;
use crate::families::RunCpu;
use crate::window::{PoolAxis, PoolReduction};

/// The height and width of a plane.
fn plane(dims: &[usize]) -> [usize; 2] {
    let size = |back: usize| dims.len().checked_sub(back).map_or(1, |axis| dims[axis]);
    [size(2), size(1)]
}

/// The algorithm of a pool.
enum Path {
    Pool2x2(Pool2x2),
    Sliding(Sliding),
    /// The mean of each plane.
    GlobalMean,
    /// One window at a time, for adaptive pools, and for means of windows with different numbers of places.
    Generic,
}

impl Path {
    fn new(pool: PoolReduction, axes: [PoolAxis; 2], from: [usize; 2], to: [usize; 2]) -> Self {
        if pool == PoolReduction::Mean && axes == [PoolAxis::Adaptive { outputs: 1 }; 2] {
            return Self::GlobalMean;
        }
        let pool2x2 = || Pool2x2::new(axes, from, to).map(Self::Pool2x2);
        let sliding = || Sliding::new(pool, axes, from, to).map(Self::Sliding);
        pool2x2().or_else(sliding).unwrap_or(Self::Generic)
    }
}

impl RunCpu for Pool2d<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { pool, axes, input, ref mut out } = *self;
        if out.layout().shape().elements() == 0 {
            // Without images, the number of elements of a plane may overflow.
            return Ok(());
        }
        let (from, to) = (plane(input.layout().shape().dims()), plane(out.layout().shape().dims()));
        let (of_in, of_out) = (from[0] * from[1], to[0] * to[1]);
        let path = Path::new(pool, axes, from, to);
        float!(op, out.dtype(), T => {
            let input = contiguous::<T>(op, &input)?;
            let out = host_mut::<T>(op, out)?;
            workers.chunks(out, light_runs(of_in * 2) * of_out, &|start, part| {
                if let Path::GlobalMean = path {
                    fold_rows::<T, Sum>(part, &input[start * of_in..], of_in, of_in);
                    let count = T::from_f64(of_in as f64);
                    return part.iter_mut().for_each(|out| *out = out.over(count));
                }
                let planes = input[start / of_out * of_in..].chunks(of_in);
                for (input, out) in planes.zip(part.chunks_mut(of_out)) {
                    match &path {
                        Path::Pool2x2(pool2x2) => pool2x2.forward(pool, input, out),
                        Path::Sliding(sliding) => sliding.forward(pool, input, out),
                        Path::GlobalMean | Path::Generic => {
                            for (place, out) in out.iter_mut().enumerate() {
                                let at = [place / to[1], place % to[1]];
                                *out = match pool {
                                    PoolReduction::Max => largest(input, from, axes, at).1,
                                    PoolReduction::Mean => mean(input, from, axes, at),
                                };
                            }
                        }
                    }
                }
            });
            Ok(())
        })
    }
}

/// The index and value of the first maximum of a window; NaN is the maximum.
fn largest<T: Float>(input: &[T], from: [usize; 2], axes: [PoolAxis; 2], at: [usize; 2]) -> (usize, T) {
    let (columns, _) = axes[1].window_elements(at[1], from[1]);
    let mut best = None;
    for y in axes[0].window_elements(at[0], from[0]).0 {
        for x in columns.clone() {
            let (place, value) = (y * from[1] + x, input[y * from[1] + x]);
            // A NaN stays the maximum.
            if best.is_none_or(|(_, best): (usize, T)| value > best || value.is_nan() && !best.is_nan()) {
                best = Some((place, value));
            }
        }
    }
    best.unwrap_or((0, T::LOWEST))
}

fn mean<T: Float>(input: &[T], from: [usize; 2], axes: [PoolAxis; 2], at: [usize; 2]) -> T {
    let ((rows, high), (columns, wide)) =
        (axes[0].window_elements(at[0], from[0]), axes[1].window_elements(at[1], from[1]));
    let mut sum = T::ZERO;
    // By rows, so that large windows lose no small elements.
    for y in rows {
        let row = &input[y * from[1]..][..from[1]];
        sum += columns.clone().fold(T::ZERO, |sum, x| sum + row[x]);
    }
    sum / T::from_f64(high as f64 * wide as f64)
}

impl RunCpu for Pool2dGrad<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { pool, axes, input, grad, ref mut out } = *self;
        if out.layout().shape().elements() == 0 {
            // As in `Pool2d::run_cpu`.
            return Ok(());
        }
        let (from, to) = (plane(out.layout().shape().dims()), plane(grad.layout().shape().dims()));
        let (of_in, of_out) = (from[0] * from[1], to[0] * to[1]);
        let path = Path::new(pool, axes, from, to);
        float!(op, out.dtype(), T => {
            let input = match input {
                Some(input) => contiguous::<T>(op, &input)?,
                None => &[],
            };
            let grad = contiguous::<T>(op, &grad)?;
            let out = host_mut::<T>(op, out)?;
            workers.chunks(out, light_runs(of_in * 2) * of_in, &|start, part| {
                let first = start / of_in;
                let mut best = WindowMax::default();
                for (number, out) in (first..).zip(part.chunks_mut(of_in)) {
                    // The input of a mean is empty.
                    let input = input.get(number * of_in..(number + 1) * of_in).unwrap_or_default();
                    let grad = &grad[number * of_out..][..of_out];
                    match &path {
                        Path::Pool2x2(pool2x2) => pool2x2.backward(pool, input, grad, out),
                        Path::Sliding(sliding) => sliding.backward(pool, input, grad, out, &mut best),
                        Path::GlobalMean => out.fill(grad[0] / T::from_f64(of_in as f64)),
                        Path::Generic => {
                            out.fill(T::ZERO);
                            for (place, &grad) in grad.iter().enumerate() {
                                let at = [place / to[1], place % to[1]];
                                match pool {
                                    PoolReduction::Max => out[largest(input, from, axes, at).0] += grad,
                                    PoolReduction::Mean => add_mean_grad(out, from, axes, at, grad),
                                }
                            }
                        }
                    }
                }
            });
            Ok(())
        })
    }
}

/// Adds the gradient of a mean to the elements of its window.
fn add_mean_grad<T: Float>(out: &mut [T], from: [usize; 2], axes: [PoolAxis; 2], at: [usize; 2], grad: T) {
    let ((rows, high), (columns, wide)) =
        (axes[0].window_elements(at[0], from[0]), axes[1].window_elements(at[1], from[1]));
    let share = grad / T::from_f64(high as f64 * wide as f64);
    for y in rows {
        for x in columns.clone() {
            out[y * from[1] + x] += share;
        }
    }
}
