//! Running sums (`cumsum`), in place.

use super::dispatch::{host_mut, number};
use super::number::Number;
use super::parallel::{Workers, light_runs};
use crate::error::Result;
use crate::storage::ViewMut;

/// See [`Kernel::RunningSum`](crate::backend::Kernel::RunningSum).
///
/// Adds whole rows along the axis, so that memory is read in order. Threads share only the axes before it.
#[inline(never)]
pub(super) fn running_sum(
    workers: &Workers,
    op: &'static str,
    axis: usize,
    reverse: bool,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let shape = out.layout().shape();
    if shape.elements() == 0 {
        return Ok(());
    }
    let row: usize = shape.dims().iter().skip(axis + 1).product();
    let block = row * shape.dims().get(axis).copied().unwrap_or(1);
    number!(op, out.dtype(), T => {
        workers.chunks(host_mut::<T>(op, out)?, light_runs(block) * block, &|_, part| {
            part.chunks_mut(block).for_each(|block| run(block, row, reverse));
        });
        Ok(())
    })
}

/// Sums the rows of a block.
fn run<T: Number>(block: &mut [T], row: usize, reverse: bool) {
    if row == 1 {
        let mut sum = T::ZERO;
        let add = |value: &mut T| {
            sum = sum.plus(*value);
            *value = sum;
        };
        return if reverse { block.iter_mut().rev().for_each(add) } else { block.iter_mut().for_each(add) };
    }
    let add = |sum: &[T], to: &mut [T]| to.iter_mut().zip(sum).for_each(|(to, &sum)| *to = sum.plus(*to));
    let rows = block.len() / row;
    for step in 1..rows {
        if reverse {
            let (to, sum) = block[(rows - 1 - step) * row..].split_at_mut(row);
            add(&sum[..row], to);
        } else {
            let (sum, to) = block[(step - 1) * row..].split_at_mut(row);
            add(sum, &mut to[..row]);
        }
    }
}
