//! The cross entropy of logits in 16 bits: computes in f32 and rounds once. Other operands may be f32.

use std::ops::Range;

use super::{CrossEntropy, CrossEntropyGrad, CrossEntropyInPlace};
use crate::cpu::fold::sum_products;
use crate::cpu::halves::{Floats, Load, Part, ROW, parts, pieces, sum};
use crate::cpu::number::Float;
use crate::cpu::operands::Source;
use crate::cpu::parallel::Workers;
use crate::cpu::simd;
use crate::error::Result;
use crate::families::softmax::cpu::halves::{exponentials, long_exponentials};
use crate::families::softmax::cpu::row::{LossGrad, LossInPlace};
use crate::families::softmax::cpu::{classes, heavy_rows};

/// See [`CrossEntropy`].
pub(super) fn losses(
    workers: &Workers,
    op: &'static str,
    of: &mut CrossEntropy<'_>,
    targets: &Source<'_, i64>,
) -> Result<()> {
    let classes = of.logits.layout().shape().dims().last().copied().unwrap_or(1);
    let logits = Floats::new(op, of.logits)?;
    let rows = heavy_rows(classes);
    parts(workers, op, [&mut of.losses], [rows], &|chunk, [mut losses]| {
        let mut loaded = [0.0; ROW];
        for number in 0..losses.len() {
            let row = chunk * rows + number;
            let start = row * classes;
            let [largest, sum] = exponentials(&logits, start..start + classes, &mut loaded);
            let of_target = logits.get(start + targets.get(row) as usize);
            // ln Σ eˣ - x[target]
            losses.store(number, &[Float::ln(sum) - (of_target - largest)]);
        }
    })
}

/// See [`CrossEntropyGrad`].
pub(super) fn gradient(
    workers: &Workers,
    op: &'static str,
    of: &mut CrossEntropyGrad<'_>,
    targets: &Source<'_, i64>,
) -> Result<()> {
    let classes = classes(&of.out);
    let (logits, grad) = (Floats::new(op, of.logits)?, Floats::new(op, of.grad)?);
    let rows = heavy_rows(classes);
    parts(workers, op, [&mut of.out], [rows.saturating_mul(classes)], &|chunk, [mut out]| {
        let (mut loaded, mut results) = ([0.0; ROW], [0.0; ROW]);
        for number in 0..out.len() / classes {
            let (row, place) = (chunk * rows + number, number * classes);
            let (factor, target) = (grad.get(row), targets.get(row) as usize);
            if factor == 0.0 {
                out.clear(place, classes);
                continue;
            }
            let start = row * classes;
            if classes <= ROW {
                let (x, results) = (&mut loaded[..classes], &mut results[..classes]);
                logits.load(start, x);
                simd::run(LossGrad { x, out: results, target, factor });
                out.store(place, results);
                continue;
            }
            let [largest, sum] = long_exponentials(&logits, start..start + classes);
            let scale = 1.0 / sum;
            pieces([Some(&logits)], start..start + classes, |range, [x]| {
                simd::each(x, |x| *x = (*x - largest).exp_of_negative() * scale * factor);
                if range.contains(&target) {
                    let of_target = (logits.get(start + target) - largest).exp_of_negative() * scale;
                    x[target - range.start] = (of_target - 1.0) * factor;
                }
                out.store(place + range.start, x);
            });
        }
    })
}

/// See [`CrossEntropyInPlace`].
pub(super) fn in_place(
    workers: &Workers,
    op: &'static str,
    of: &mut CrossEntropyInPlace<'_>,
    targets: &Source<'_, i64>,
) -> Result<()> {
    let CrossEntropyInPlace { smoothing, factors, ref mut losses, ref mut logits, .. } = *of;
    let classes = classes(logits);
    let factors = Floats::new(op, factors)?;
    let (rows, smoothing) = (heavy_rows(classes), smoothing as f32);
    let chunks = [rows.saturating_mul(classes), rows];
    parts(workers, op, [logits, losses], chunks, &|chunk, [mut logits, mut losses]| {
        let mut loaded = [0.0; ROW];
        for number in 0..losses.len() {
            let (row, start) = (chunk * rows + number, number * classes);
            let (factor, target) = (factors.get(row), targets.get(row) as usize);
            if factor == 0.0 {
                logits.clear(start, classes);
                losses.clear(number, 1);
            } else if classes <= ROW {
                let x = &mut loaded[..classes];
                logits.load(start, x);
                let loss = simd::run(LossInPlace { x, target, factor, smoothing });
                logits.store(start, x);
                losses.store(number, &[loss]);
            } else {
                let loss = long_in_place(&mut logits, start..start + classes, target, factor, smoothing);
                losses.store(number, &[loss]);
            }
        }
    })
}

/// [`LossInPlace`] for a row that does not fit the stack.
fn long_in_place(
    logits: &mut Part<'_>,
    row: Range<usize>,
    target: usize,
    factor: f32,
    smoothing: f32,
) -> f32 {
    let [largest, sum_of_exp] = long_exponentials(logits, row.clone());
    let mut of_target = [0.0];
    logits.load(row.start + target, &mut of_target);
    let of_target = of_target[0] - largest;
    let (each, sharp, scale) = (smoothing / row.len() as f32, 1.0 - smoothing, 1.0 / sum_of_exp);
    // Without smoothing, infinite logits of other classes must not become NaN.
    let mean = if smoothing == 0.0 {
        0.0
    } else {
        each * sum([Some(&*logits)], row.clone(), &|[x]| sum_products(x, x, |x, _| x - largest))
    };
    let mut x = [0.0; ROW];
    for start in row.clone().step_by(ROW) {
        let x = &mut x[..ROW.min(row.end - start)];
        logits.load(start, x);
        simd::each(x, |x| *x = ((*x - largest).exp_of_negative() * scale - each) * factor);
        if let Some(at_target) = (row.start + target).checked_sub(start).and_then(|place| x.get_mut(place)) {
            *at_target = (of_target.exp_of_negative() * scale - sharp - each) * factor;
        }
        logits.store(start, x);
    }
    if smoothing == 0.0 {
        Float::ln(sum_of_exp) - of_target
    } else {
        Float::ln(sum_of_exp) - sharp * of_target - mean
    }
}
