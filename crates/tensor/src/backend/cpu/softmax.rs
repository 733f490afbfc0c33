//! Softmax and cross entropy. The maximum of each row is subtracted before exp, so that nothing overflows.

mod row;

use self::row::{Exponentials, Gradient, LogSoftmax, LossGrad, Softmax, rows_together};
use super::dispatch::{float, host_mut};
use super::index;
use super::number::{Float, Number};
use super::operands::Source;
use super::parallel::{HEAVY, Workers};
use super::simd;
use crate::error::Result;
use crate::storage::{View, ViewMut};

/// See [`Softmax`](crate::backend::kernels::Softmax).
#[inline(never)]
pub(crate) fn softmax(
    workers: &Workers,
    op: &'static str,
    log: bool,
    input: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let classes = classes(out);
    float!(op, out.dtype(), T => {
        let source = Source::<T>::new(op, input)?;
        let together = source.rows_per_tile().max(rows_together(classes));
        rows(workers, host_mut::<T>(op, out)?, classes, together, &|start, part| {
            let mut copied = Vec::new();
            let x = source.part(start..start + part.len(), &mut copied);
            if log {
                return simd::run(LogSoftmax { x, out: part, classes });
            }
            for (x, out) in x.chunks(classes).zip(part.chunks_mut(classes)) {
                simd::run(Softmax { x, out });
            }
        });
        Ok(())
    })
}

/// See [`SoftmaxGrad`](crate::backend::kernels::SoftmaxGrad).
#[inline(never)]
pub(crate) fn softmax_grad(
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
            let (mut copied, mut copied_grad) = (Vec::new(), Vec::new());
            let range = start..start + part.len();
            let (output, grad) = (output.part(range.clone(), &mut copied), grad.part(range, &mut copied_grad));
            let inputs = output.chunks(classes).zip(grad.chunks(classes));
            for ((output, grad), out) in inputs.zip(part.chunks_mut(classes)) {
                simd::run(Gradient { output, grad, out, log });
            }
        });
        Ok(())
    })
}

/// See [`CrossEntropy`](crate::backend::kernels::CrossEntropy).
#[inline(never)]
pub(crate) fn cross_entropy(
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
            let mut copied = Vec::new();
            for (number, loss) in (first..).zip(part) {
                let row = logits.part(number * classes..(number + 1) * classes, &mut copied);
                let [largest, sum] = simd::run(Exponentials(row));
                // ln Σ eˣ - x[target]
                *loss = sum.ln() - (row[targets.get(number) as usize] - largest);
            }
        });
        Ok(())
    })
}

/// See [`CrossEntropyGrad`](crate::backend::kernels::CrossEntropyGrad).
#[inline(never)]
pub(crate) fn cross_entropy_grad(
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
            let mut copied = Vec::new();
            let x = logits.part(start..start + part.len(), &mut copied);
            let rows = x.chunks(classes).zip(part.chunks_mut(classes));
            for (number, (x, out)) in (start / classes..).zip(rows) {
                let factor = grad.get(number);
                if factor == T::ZERO {
                    out.fill(T::ZERO);
                    continue;
                }
                simd::run(LossGrad { x, out, target: targets.get(number) as usize, factor });
            }
        });
        Ok(())
    })
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
