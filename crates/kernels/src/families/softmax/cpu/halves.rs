//! Softmax of 16-bit floats: computes in f32 and rounds once. Operands may also be f32.

use std::ops::Range;

use super::row::{Exponentials, Gradient, LogSoftmax, Softmax, rows_together};
use super::{SoftmaxRows, SoftmaxRowsGrad, classes, heavy_rows};
use crate::cpu::fold::{FastMax, Sum, fold_slice, sum_products};
use crate::cpu::halves::{Floats, Load, ROW, parts, pieces, sum};
use crate::cpu::number::Float;
use crate::cpu::parallel::Workers;
use crate::cpu::simd;
use crate::error::Result;

/// The number of rows that are loaded together: as many as fit the stack, at most `most`.
fn together(classes: usize, most: usize) -> usize {
    most.min(ROW / classes).max(1)
}

/// See [`SoftmaxRows`].
pub(super) fn softmax(workers: &Workers, op: &'static str, of: &mut SoftmaxRows<'_>) -> Result<()> {
    let SoftmaxRows { log, input, ref mut out } = *of;
    let classes = classes(out);
    let x = Floats::new(op, input)?;
    let together = together(classes, rows_together(classes).max(x.rows_per_tile()));
    let chunk = heavy_rows(classes).next_multiple_of(together).saturating_mul(classes);
    parts(workers, op, [out], [chunk], &|number, [mut out]| {
        let (mut loaded, mut results) = ([0.0; ROW], [0.0; ROW]);
        for place in (0..out.len()).step_by(together * classes) {
            let start = number * chunk + place;
            if classes > ROW {
                long_softmax(&x, start..start + classes, log, &mut |range, values| {
                    out.store(place + range.start, values);
                });
                continue;
            }
            let len = (together * classes).min(out.len() - place);
            let (rows, results) = (&mut loaded[..len], &mut results[..len]);
            x.load(start, rows);
            if log {
                simd::run(LogSoftmax { x: rows, out: results, classes });
            } else {
                for (x, out) in rows.chunks(classes).zip(results.chunks_mut(classes)) {
                    simd::run(Softmax { x, out });
                }
            }
            out.store(place, results);
        }
    })
}

/// Computes the softmax of a row that does not fit the stack. Calls `store` with its pieces.
fn long_softmax(x: &Floats<'_>, row: Range<usize>, log: bool, store: &mut dyn FnMut(Range<usize>, &[f32])) {
    let [largest, sum] = long_exponentials(x, row.clone());
    let (scale, log_sum) = (1.0 / sum, Float::ln(sum));
    pieces([Some(x)], row, |range, [x]| {
        if log {
            simd::each(x, |x| *x = *x - largest - log_sum);
        } else {
            simd::each(x, |x| *x = (*x - largest).exp_of_negative() * scale);
        }
        store(range, x);
    });
}

/// The maximum of a row, and Σ exp(x - max). Uses the memory `loaded` if the row fits it.
pub(crate) fn exponentials(x: &dyn Load, row: Range<usize>, loaded: &mut [f32; ROW]) -> [f32; 2] {
    if row.len() > ROW {
        return long_exponentials(x, row);
    }
    let loaded = &mut loaded[..row.len()];
    x.load(row.start, loaded);
    simd::run(Exponentials(loaded))
}

/// Like [`exponentials`], for rows that do not fit the stack.
pub(crate) fn long_exponentials(x: &dyn Load, row: Range<usize>) -> [f32; 2] {
    let mut largest = f32::NEG_INFINITY;
    pieces([Some(x)], row.clone(), |_, [x]| {
        let of_piece = fold_slice::<f32, FastMax>(x);
        largest = if of_piece > largest { of_piece } else { largest };
    });
    [largest, sum([Some(x)], row, &|[x]| sum_products(x, x, |x, _| (x - largest).exp_of_negative()))]
}

/// See [`SoftmaxRowsGrad`].
pub(super) fn gradient(workers: &Workers, op: &'static str, of: &mut SoftmaxRowsGrad<'_>) -> Result<()> {
    let SoftmaxRowsGrad { log, output, grad, ref mut out } = *of;
    let classes = classes(out);
    let (output, grad) = (Floats::new(op, output)?, Floats::new(op, grad)?);
    let together =
        together(classes, rows_together(classes).max(output.rows_per_tile()).max(grad.rows_per_tile()));
    let chunk = heavy_rows(classes).next_multiple_of(together).saturating_mul(classes);
    parts(workers, op, [out], [chunk], &|number, [mut out]| {
        let mut loaded = [[0.0; ROW]; 3];
        for place in (0..out.len()).step_by(together * classes) {
            let start = number * chunk + place;
            if classes > ROW {
                long_gradient([&output, &grad], start..start + classes, log, &mut |range, values| {
                    out.store(place + range.start, values);
                });
                continue;
            }
            let len = (together * classes).min(out.len() - place);
            let [s, g, results] = loaded.each_mut().map(|rows| &mut rows[..len]);
            output.load(start, s);
            grad.load(start, g);
            let rows = s.chunks(classes).zip(g.chunks(classes));
            for ((output, grad), out) in rows.zip(results.chunks_mut(classes)) {
                simd::run(Gradient { output, grad, out, log });
            }
            out.store(place, results);
        }
    })
}

/// Computes the gradient of a row that does not fit the stack. Calls `store` with its pieces.
fn long_gradient(
    [output, grad]: [&Floats<'_>; 2],
    row: Range<usize>,
    log: bool,
    store: &mut dyn FnMut(Range<usize>, &[f32]),
) {
    let sources = [Some(output as &dyn Load), Some(grad)];
    let of_row = sum(sources, row.clone(), &|[s, g]| {
        if log { fold_slice::<f32, Sum>(g) } else { sum_products(s, g, |s, g| s * g) }
    });
    pieces(sources, row, |range, [s, g]| {
        if log {
            simd::zip(g, s, |g, s| *g -= s.exp_of_negative() * of_row);
        } else {
            simd::zip(g, s, |g, s| *g = s * (*g - of_row));
        }
        store(range, g);
    });
}
