//! Softmax on the CPU. The maximum of each row is subtracted before exp, so that nothing overflows.

pub(crate) mod halves;
pub(crate) mod row;

use self::row::{Gradient, LogSoftmax, rows_together};
use super::{SoftmaxRows, SoftmaxRowsGrad};
use crate::cpu::dispatch::{float, host_mut};
use crate::cpu::halves::any_of;
use crate::cpu::number::Float;
use crate::cpu::operands::Source;
use crate::cpu::parallel::{HEAVY, Workers};
use crate::cpu::simd;
use crate::error::Result;
use crate::families::RunCpu;
use crate::storage::ViewMut;

impl RunCpu for SoftmaxRows<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        if any_of([self.input.dtype(), self.out.dtype()]) {
            return halves::softmax(workers, op, self);
        }
        let Self { log, input, ref mut out } = *self;
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
                    simd::run(row::Softmax { x, out });
                }
            });
            Ok(())
        })
    }
}

impl RunCpu for SoftmaxRowsGrad<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        if any_of([self.output.dtype(), self.grad.dtype(), self.out.dtype()]) {
            return halves::gradient(workers, op, self);
        }
        let Self { log, output, grad, ref mut out } = *self;
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
}

/// The size of the last axis; 1 for empty rows, which are not visited.
pub(crate) fn classes(out: &ViewMut<'_>) -> usize {
    out.layout().shape().dims().last().copied().unwrap_or(1).max(1)
}

/// The number of rows in a chunk.
pub(crate) fn heavy_rows(classes: usize) -> usize {
    (HEAVY / classes.max(1)).max(1)
}

/// Calls `work` with each group of `together` rows of `out` and the index of its first element. The last group may have
/// fewer rows.
pub(crate) fn rows<T: Float>(
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
