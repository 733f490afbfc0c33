//! The cross entropy on the CPU, with the rows of softmax.

mod halves;

use super::{CrossEntropy, CrossEntropyGrad, CrossEntropyInPlace};
use crate::cpu::dispatch::{float, host_mut};
use crate::cpu::halves::any_of;
use crate::cpu::number::Number;
use crate::cpu::operands::Source;
use crate::cpu::parallel::Workers;
use crate::cpu::simd;
use crate::error::Result;
use crate::families::RunCpu;
use crate::families::index::cpu as index;
use crate::families::softmax::cpu::row::{Exponentials, LossGrad, LossInPlace};
use crate::families::softmax::cpu::{classes, heavy_rows, rows};

impl RunCpu for CrossEntropy<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { logits, targets, ref mut losses } = *self;
        let classes = logits.layout().shape().dims().last().copied().unwrap_or(1);
        index::check(op, targets, classes)?;
        let targets = Source::<i64>::new(op, targets)?;
        if any_of([logits.dtype(), losses.dtype()]) {
            return halves::losses(workers, op, self, &targets);
        }
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
}

impl RunCpu for CrossEntropyGrad<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { logits, targets, grad, ref mut out } = *self;
        let classes = classes(out);
        index::check(op, targets, classes)?;
        let targets = Source::<i64>::new(op, targets)?;
        if any_of([logits.dtype(), grad.dtype(), out.dtype()]) {
            return halves::gradient(workers, op, self, &targets);
        }
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
}

impl RunCpu for CrossEntropyInPlace<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { smoothing, targets, factors, ref mut losses, ref mut logits } = *self;
        let classes = classes(logits);
        index::check(op, targets, classes)?;
        let targets = Source::<i64>::new(op, targets)?;
        if any_of([logits.dtype(), factors.dtype(), losses.dtype()]) {
            return halves::in_place(workers, op, self, &targets);
        }
        float!(op, logits.dtype(), T => {
            let factors = Source::<T>::new(op, factors)?;
            let outputs = [host_mut::<T>(op, logits)?, host_mut::<T>(op, losses)?];
            let (rows, smoothing) = (heavy_rows(classes), T::from_f64(smoothing));
            workers.zipped(outputs, [rows.saturating_mul(classes), rows], &|chunk, [logits, losses]| {
                let rows_of_chunk = logits.chunks_mut(classes).zip(losses);
                for (number, (x, loss)) in (chunk * rows..).zip(rows_of_chunk) {
                    let factor = factors.get(number);
                    if factor == T::ZERO {
                        x.fill(T::ZERO);
                        *loss = T::ZERO;
                        continue;
                    }
                    let target = targets.get(number) as usize;
                    *loss = simd::run(LossInPlace { x, target, factor, smoothing });
                }
            });
            Ok(())
        })
    }
}
