//! Max and mean pools over the planes of a view.

mod halves;
mod pool2x2;
mod sliding;

use std::ops::Range;

use half::{bf16, f16};

use self::pool2x2::Pool2x2;
use self::sliding::{Sliding, WindowMax};
use super::{Pool2d, Pool2dGrad};
use crate::cpu::dispatch::{contiguous, float, host_mut};
use crate::cpu::fold::{Sum, fold_rows};
use crate::cpu::number::{Float, Number};
use crate::cpu::parallel::{Workers, light_runs};
use crate::error::Result;
use crate::families::RunCpu;
use crate::layout::Layout;
use crate::shape::DType;
use crate::window::{PoolAxis, PoolReduction};

/// The height and width of a plane.
fn plane(dims: &[usize]) -> [usize; 2] {
    let size = |back: usize| dims.len().checked_sub(back).map_or(1, |axis| dims[axis]);
    [size(2), size(1)]
}

/// A pool from planes to smaller ones.
struct Planes {
    pool: PoolReduction,
    axes: [PoolAxis; 2],
    from: [usize; 2],
    to: [usize; 2],
    path: Path,
}

impl Planes {
    fn new(pool: PoolReduction, axes: [PoolAxis; 2], large: &Layout, small: &Layout) -> Self {
        let [from, to] = [large, small].map(|layout| plane(layout.shape().dims()));
        Self { pool, axes, from, to, path: Path::new(pool, axes, from, to) }
    }

    /// The elements of a plane of the input, and of one of the output.
    const fn sizes(&self) -> [usize; 2] {
        [self.from[0] * self.from[1], self.to[0] * self.to[1]]
    }

    /// The rows of the input that the windows of a row of outputs contain.
    fn rows(&self, row: usize) -> Range<usize> {
        let mut rows = self.axes[0].window_elements(row, self.from[0]).0;
        let (count, first) = (rows.clone().count(), rows.next().unwrap_or(0));
        first..first + count
    }

    /// Computes a row of outputs from the rows of the input that its windows contain, which start at row `first`.
    fn forward_row<T: Float>(&self, row: usize, (input, first): (&[T], usize), out: &mut [T]) {
        if let Path::Sliding(sliding) = &self.path {
            return sliding.forward_row(self.pool, row, (input, first * self.from[1]), out);
        }
        for (column, out) in out.iter_mut().enumerate() {
            *out = match self.pool {
                PoolReduction::Max => self.largest((input, first), [row, column]).1,
                PoolReduction::Mean => self.mean((input, first), [row, column]),
            };
        }
    }

    /// Adds the gradients of a row of outputs to the rows of the input that its windows contain, which start at row `first`.
    fn backward_row<T: Float>(
        &self,
        row: usize,
        (input, first): (&[T], usize),
        grad: &[T],
        out: &mut [T],
        best: &mut WindowMax<T>,
    ) {
        if let Path::Sliding(sliding) = &self.path {
            let start = first * self.from[1];
            return sliding.backward_row(self.pool, row, (input, start), grad, out, best);
        }
        for (column, &grad) in grad.iter().enumerate() {
            match self.pool {
                PoolReduction::Max => out[self.largest((input, first), [row, column]).0] += grad,
                PoolReduction::Mean => self.add_mean_grad((out, first), [row, column], grad),
            }
        }
    }

    /// The index and value of the first maximum of a window; NaN is the maximum.
    fn largest<T: Float>(&self, (input, first): (&[T], usize), at: [usize; 2]) -> (usize, T) {
        let (columns, _) = self.axes[1].window_elements(at[1], self.from[1]);
        let mut best = None;
        for y in self.axes[0].window_elements(at[0], self.from[0]).0 {
            for x in columns.clone() {
                let place = (y - first) * self.from[1] + x;
                let value = input[place];
                // A NaN stays the maximum.
                if best.is_none_or(|(_, best): (usize, T)| value > best || value.is_nan() && !best.is_nan()) {
                    best = Some((place, value));
                }
            }
        }
        best.unwrap_or((0, T::LOWEST))
    }

    fn mean<T: Float>(&self, (input, first): (&[T], usize), at: [usize; 2]) -> T {
        let [(rows, high), (columns, wide)] = self.windows(at);
        let mut sum = T::ZERO;
        // By rows, so that large windows lose no small elements.
        for y in rows {
            let row = &input[(y - first) * self.from[1]..][..self.from[1]];
            sum += columns.clone().fold(T::ZERO, |sum, x| sum + row[x]);
        }
        sum / T::from_f64(high as f64 * wide as f64)
    }

    /// Adds the gradient of a mean to the elements of its window.
    fn add_mean_grad<T: Float>(&self, (out, first): (&mut [T], usize), at: [usize; 2], grad: T) {
        let [(rows, high), (columns, wide)] = self.windows(at);
        let share = grad / T::from_f64(high as f64 * wide as f64);
        for y in rows {
            for x in columns.clone() {
                out[(y - first) * self.from[1] + x] += share;
            }
        }
    }

    /// The rows and the columns of a window, with the divisors of a mean.
    fn windows(&self, at: [usize; 2]) -> [(impl Iterator<Item = usize> + Clone, usize); 2] {
        [0, 1].map(|axis| self.axes[axis].window_elements(at[axis], self.from[axis]))
    }
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
        let planes = Planes::new(pool, axes, input.layout(), out.layout());
        let [of_in, of_out] = planes.sizes();
        match out.dtype() {
            DType::F16 => return halves::forward::<f16>(workers, op, &planes, &input, out),
            DType::BF16 => return halves::forward::<bf16>(workers, op, &planes, &input, out),
            _ => {}
        }
        float!(op, out.dtype(), T => {
            let input = contiguous::<T>(op, &input)?;
            let out = host_mut::<T>(op, out)?;
            workers.chunks(out, light_runs(of_in * 2) * of_out, &|start, part| {
                if let Path::GlobalMean = planes.path {
                    fold_rows::<T, Sum>(part, &input[start * of_in..], of_in, of_in);
                    let count = T::from_f64(of_in as f64);
                    return part.iter_mut().for_each(|out| *out = out.over(count));
                }
                let inputs = input[start / of_out * of_in..].chunks(of_in);
                for (input, out) in inputs.zip(part.chunks_mut(of_out)) {
                    match &planes.path {
                        Path::Pool2x2(pool2x2) => pool2x2.forward(pool, input, out),
                        Path::Sliding(sliding) => sliding.forward(pool, input, out),
                        Path::GlobalMean | Path::Generic => {
                            for (row, out) in out.chunks_mut(planes.to[1]).enumerate() {
                                planes.forward_row(row, (input, 0), out);
                            }
                        }
                    }
                }
            });
            Ok(())
        })
    }
}

impl RunCpu for Pool2dGrad<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { pool, axes, input, grad, ref mut out } = *self;
        if out.layout().shape().elements() == 0 {
            // As in `Pool2d::run_cpu`.
            return Ok(());
        }
        let planes = Planes::new(pool, axes, out.layout(), grad.layout());
        let [of_in, of_out] = planes.sizes();
        match out.dtype() {
            DType::F16 => return halves::backward::<f16>(workers, op, &planes, (input.as_ref(), &grad), out),
            DType::BF16 => {
                return halves::backward::<bf16>(workers, op, &planes, (input.as_ref(), &grad), out);
            }
            _ => {}
        }
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
                    match &planes.path {
                        Path::Pool2x2(pool2x2) => pool2x2.backward(pool, input, grad, out),
                        Path::Sliding(sliding) => sliding.backward(pool, input, grad, out, &mut best),
                        Path::GlobalMean => out.fill(grad[0] / T::from_f64(of_in as f64)),
                        Path::Generic => {
                            out.fill(T::ZERO);
                            for (row, grad) in grad.chunks(planes.to[1]).enumerate() {
                                planes.backward_row(row, (input, 0), grad, out, &mut best);
                            }
                        }
                    }
                }
            });
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
