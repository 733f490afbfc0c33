//! Running sums and products (`cumsum`, `cumprod`), in place.

use half::{bf16, f16};

use super::{Scan, ScanFunction};
use crate::cpu::dispatch::{host_mut, number};
use crate::cpu::number::{Number, Summed};
use crate::cpu::parallel::{Workers, light_runs};
use crate::cpu::simd;
use crate::error::Result;
use crate::families::RunCpu;
use crate::shape::DType;

/// The number of neighboring lines that are computed together. Their results fit the L1 cache.
const COLUMNS: usize = 512;

impl RunCpu for Scan<'_> {
    /// Joins whole rows along the axis, so that memory is read in order. Threads share only the axes before it.
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { f, axis, reverse, ref mut out } = *self;
        let shape = out.layout().shape();
        if shape.elements() == 0 {
            return Ok(());
        }
        let row: usize = shape.dims().iter().skip(axis + 1).product();
        let block = row * shape.dims().get(axis).copied().unwrap_or(1);
        match out.dtype() {
            DType::F16 => run_all::<f16>(workers, host_mut(op, out)?, [block, row], f, reverse),
            DType::BF16 => run_all::<bf16>(workers, host_mut(op, out)?, [block, row], f, reverse),
            dtype => {
                return number!(op, dtype, T => {
                    run_all::<T>(workers, host_mut(op, out)?, [block, row], f, reverse);
                    Ok(())
                });
            }
        }
        Ok(())
    }
}

/// Joins the rows of all blocks.
fn run_all<T: Summed>(
    workers: &Workers,
    out: &mut [T],
    [block, row]: [usize; 2],
    f: ScanFunction,
    reverse: bool,
) {
    workers.chunks(out, light_runs(block) * block, &|_, part| {
        part.chunks_mut(block).for_each(|block| match f {
            ScanFunction::Sum => run(block, row, reverse, Number::ZERO, Number::plus),
            ScanFunction::Product => run(block, row, reverse, Number::ONE, Number::times),
        });
    });
}

/// Joins the rows of a block one after the other.
#[inline(always)]
fn run<T: Summed>(
    block: &mut [T],
    row: usize,
    reverse: bool,
    identity: T::Sum,
    join: impl Fn(T::Sum, T::Sum) -> T::Sum + Copy,
) {
    if row == 1 {
        let mut total = identity;
        let add = |value: &mut T| {
            total = join(total, value.widen());
            *value = T::round(total);
        };
        return if reverse { block.iter_mut().rev().for_each(add) } else { block.iter_mut().for_each(add) };
    }
    for first in (0..row).step_by(COLUMNS) {
        let mut totals = [identity; COLUMNS];
        let totals = &mut totals[..COLUMNS.min(row - first)];
        let add = |row: &mut [T]| {
            let values = &mut row[first..first + totals.len()];
            simd::zip(totals, values, |total, value| *total = join(*total, value.widen()));
            simd::zip(values, totals, |value, total| *value = T::round(total));
        };
        let rows = block.chunks_exact_mut(row);
        if reverse { rows.rev().for_each(add) } else { rows.for_each(add) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums in `f64`, for blocks of several rows in both directions.
    #[test]
    fn sums_of_many_elements_are_those_in_f64() {
        for (row, reverse) in [(1, false), (1, true), (3, false), (COLUMNS + 1, true)] {
            let rows = 60_000 / row + 2;
            let mut block = vec![0.1f32; rows * row];
            run(&mut block, row, reverse, 0.0, f64::plus);
            for (number, values) in block.chunks(row).enumerate() {
                let count = if reverse { rows - number } else { number + 1 };
                let exact = (f64::from(0.1f32) * count as f64) as f32;
                assert!(values.iter().all(|&value| value == exact), "{count} elements in rows of {row}");
            }
        }
    }
}
