//! Softmax and cross entropy. The maximum of each row is subtracted before exp, so that nothing overflows.

mod row;

use self::row::{Exponentials, LogSoftmax, LossGrad, Softmax};
use super::dispatch::{float, host_mut};
use super::fold::{BLOCK, BlockReducer, FastMax, SHORT, Sum, fold_mapped_long, fold_slice, sum_of};
use super::index;
use super::number::{Float, Number};
use super::operands::Source;
use super::parallel::{HEAVY, Workers};
use super::simd;
use crate::error::Result;
use crate::storage::{View, ViewMut};

/// See [`Kernel::Softmax`](crate::backend::Kernel::Softmax).
#[inline(never)]
pub(super) fn softmax(
    workers: &Workers,
    op: &'static str,
    log: bool,
    input: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let classes = classes(out);
    float!(op, out.dtype(), T => {
        let source = Source::<T>::new(op, input)?;
        let row = if log { log_softmax_row } else { softmax_row };
        rows(workers, host_mut::<T>(op, out)?, classes, source.rows_per_tile(), &|start, part| {
            source.load(start, part);
            part.chunks_mut(classes).for_each(row);
        });
        Ok(())
    })
}

/// `x = eˣ / Σ eˣ`, in place.
fn softmax_row<T: Float>(row: &mut [T]) {
    if row.len() <= SHORT {
        return simd::run(Softmax(row));
    }
    let largest = fold_slice::<T, FastMax>(row);
    simd::each(row, move |x| *x = (*x - largest).exp());
    let scale = T::ONE / fold_slice::<T, Sum>(row);
    simd::each(row, |x| *x *= scale);
}

/// `x = x - ln Σ eˣ`, in place.
fn log_softmax_row<T: Float>(row: &mut [T]) {
    if row.len() <= SHORT {
        return simd::run(LogSoftmax(row));
    }
    let [largest, sum] = exponentials_of_long(row);
    let log_sum = sum.ln();
    simd::each(row, |x| *x = *x - largest - log_sum);
}

/// Like [`Exponentials`], for a row of more than [`SHORT`] elements.
fn exponentials_of_long<T: Float>(row: &[T]) -> [T; 2] {
    let largest = fold_slice::<T, FastMax>(row);
    [largest, fold_mapped_long::<T, Sum>(row, |x| (x - largest).exp())]
}

/// See [`Kernel::SoftmaxGrad`](crate::backend::Kernel::SoftmaxGrad).
#[inline(never)]
pub(super) fn softmax_grad(
    workers: &Workers,
    op: &'static str,
    log: bool,
    output: View<'_>,
    grad: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let classes = classes(out);
    float!(op, out.dtype(), T => {
        let (output, grad) = (Source::<T>::new(op, output)?, Source::<T>::new(op, grad)?);
        let together = output.rows_per_tile().max(grad.rows_per_tile());
        rows(workers, host_mut::<T>(op, out)?, classes, together, &|start, part| {
            grad.load(start, part);
            for (first, row) in (start..).step_by(classes).zip(part.chunks_mut(classes)) {
                if log {
                    let sum = fold_slice::<T, Sum>(row);
                    // `s.exp()` would call the standard library.
                    output.each(first, row, |out, s| *out -= Float::exp(s) * sum);
                } else {
                    let sum = output.sum_with(first, row, |s, g| s * g);
                    output.each(first, row, move |out, s| *out = s * (*out - sum));
                }
            }
        });
        Ok(())
    })
}

/// See [`Kernel::CrossEntropy`](crate::backend::Kernel::CrossEntropy).
#[inline(never)]
pub(super) fn cross_entropy(
    workers: &Workers,
    op: &'static str,
    logits: View<'_>,
    targets: View<'_>,
    losses: &mut ViewMut<'_>,
) -> Result<()> {
    let classes = logits.layout().shape().dims().last().copied().unwrap_or(1);
    index::check(op, targets, classes)?;
    let targets = Source::<i64>::new(op, targets)?;
    float!(op, losses.dtype(), T => {
        let logits = Source::<T>::new(op, logits)?;
        workers.chunks(host_mut::<T>(op, losses)?, heavy_rows(classes), &|first, part| {
            for (row, loss) in (first..).zip(part) {
                *loss = row_loss(&logits, row * classes, classes, targets.get(row) as usize);
            }
        });
        Ok(())
    })
}

/// `ln Σ eˣ - x[target]` of the row that starts at element `first`.
fn row_loss<T: Float>(logits: &Source<'_, T>, first: usize, classes: usize, target: usize) -> T {
    let row = first..first + classes;
    let [largest, sum] = if let Some(row) = logits.slice(row.clone()) {
        if row.len() <= SHORT { simd::run(Exponentials(row)) } else { exponentials_of_long(row) }
    } else {
        let mut folder = BlockReducer::new::<FastMax>();
        logits.blocks::<BLOCK>(row, |_, block| folder.push::<FastMax>(block));
        let largest = folder.finish::<FastMax>();
        let exp = |i, block: &mut [T]| logits.each(first + i, block, |out, x| *out = (x - largest).exp());
        [largest, sum_of(classes, exp)]
    };
    sum.ln() - (logits.get(first + target) - largest)
}

/// See [`Kernel::CrossEntropyGrad`](crate::backend::Kernel::CrossEntropyGrad).
#[inline(never)]
pub(super) fn cross_entropy_grad(
    workers: &Workers,
    op: &'static str,
    logits: View<'_>,
    targets: View<'_>,
    grad: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let classes = classes(out);
    index::check(op, targets, classes)?;
    let targets = Source::<i64>::new(op, targets)?;
    float!(op, out.dtype(), T => {
        let (logits, grad) = (Source::<T>::new(op, logits)?, Source::<T>::new(op, grad)?);
        rows(workers, host_mut::<T>(op, out)?, classes, logits.rows_per_tile(), &|start, part| {
            logits.load(start, part);
            for (number, row) in (start / classes..).zip(part.chunks_mut(classes)) {
                let scale = grad.get(number);
                if scale == T::ZERO {
                    row.fill(T::ZERO);
                    continue;
                }
                loss_grad_row(row, targets.get(number) as usize, scale);
            }
        });
        Ok(())
    })
}

/// `x[i] = factor · (softmax(x)[i] - (i == target))`, in place.
fn loss_grad_row<T: Float>(row: &mut [T], target: usize, factor: T) {
    if row.len() <= SHORT {
        return simd::run(LossGrad { row, target, factor });
    }
    softmax_row(row);
    row[target] -= T::ONE;
    simd::each(row, |x| *x *= factor);
}

/// The size of the last axis; 1 for empty rows, which are not visited.
fn classes(out: &ViewMut<'_>) -> usize {
    out.layout().shape().dims().last().copied().unwrap_or(1).max(1)
}

/// The number of rows in a chunk.
fn heavy_rows(classes: usize) -> usize {
    (HEAVY / classes.max(1)).max(1)
}

/// Calls `work` with each group of `together` rows of `out` and the index of its first element. The last group may have
/// fewer rows.
fn rows<T: Float>(
    workers: &Workers,
    out: &mut [T],
    classes: usize,
    together: usize,
    work: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    let part = together.saturating_mul(classes);
    let chunk = heavy_rows(classes).next_multiple_of(together).saturating_mul(classes);
    workers.chunks(out, chunk, &|start, chunk| {
        (start..).step_by(part).zip(chunk.chunks_mut(part)).for_each(|(start, part)| work(start, part));
    });
}

#[cfg(test)]
mod tests;
