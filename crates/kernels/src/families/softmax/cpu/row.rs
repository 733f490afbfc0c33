//! Softmax kernels over one contiguous row, each a single function for the widest instruction set.
//!
//! If an element is NaN, all results are NaN, whichever maximum is subtracted.

use crate::cpu::fold::{FastMax, Sum, fold};
use crate::cpu::number::Float;
use crate::cpu::simd::Loop;

/// `out = exp(x - max)`. Returns 1 / Σ of the results.
#[inline(always)]
fn exponentials<T: Float>(x: &[T], out: &mut [T]) -> T {
    let largest = fold::<T, FastMax, 1>([x], |[x]| x);
    out.iter_mut().zip(x).for_each(|(out, &x)| *out = (x - largest).exp_of_negative());
    T::ONE / fold::<T, Sum, 1>([out], |[x]| x)
}

/// `out = eˣ / Σ eˣ`.
pub(crate) struct Softmax<'a, T> {
    pub(crate) x: &'a [T],
    pub(crate) out: &'a mut [T],
}

impl<T: Float> Loop for Softmax<'_, T> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let scale = exponentials(self.x, self.out);
        self.out.iter_mut().for_each(|x| *x *= scale);
    }
}

/// The largest number of rows that are processed together, so that the latencies of their reductions overlap.
const ROWS: usize = 16;

/// The number of elements of those rows that stay in the L1 cache.
const CACHED: usize = 4096;

/// The number of rows to process together.
pub(crate) fn rows_together(classes: usize) -> usize {
    (CACHED / classes.max(1)).clamp(1, ROWS)
}

/// `out = x - ln Σ eˣ` for each row.
pub(crate) struct LogSoftmax<'a, T> {
    pub(crate) x: &'a [T],
    pub(crate) out: &'a mut [T],
    pub(crate) classes: usize,
}

impl<T: Float> Loop for LogSoftmax<'_, T> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { x, out, classes } = self;
        let elements = rows_together(classes) * classes;
        for (x, out) in x.chunks(elements).zip(out.chunks_mut(elements)) {
            let (mut largest, mut log_sums) = ([T::ZERO; ROWS], [T::ONE; ROWS]);
            for (largest, x) in largest.iter_mut().zip(x.chunks(classes)) {
                *largest = fold::<T, FastMax, 1>([x], |[x]| x);
            }
            for ((sum, &largest), x) in log_sums.iter_mut().zip(&largest).zip(x.chunks(classes)) {
                *sum = fold::<T, Sum, 1>([x], |[x]| (x - largest).exp_of_negative());
            }
            log_sums.iter_mut().for_each(|sum| *sum = sum.ln());
            let rows = x.chunks(classes).zip(out.chunks_mut(classes));
            for ((x, out), (&largest, &log_sum)) in rows.zip(largest.iter().zip(&log_sums)) {
                out.iter_mut().zip(x).for_each(|(out, &x)| *out = x - largest - log_sum);
            }
        }
    }
}

/// Computes the maximum of the row and Σ exp(x - max), without storing the exponentials.
pub(crate) struct Exponentials<'a, T>(pub(crate) &'a [T]);

impl<T: Float> Loop for Exponentials<'_, T> {
    type Element = T;
    type Output = [T; 2];

    #[inline(always)]
    fn run(self) -> [T; 2] {
        let largest = fold::<T, FastMax, 1>([self.0], |[x]| x);
        [largest, fold::<T, Sum, 1>([self.0], |[x]| (x - largest).exp_of_negative())]
    }
}

/// `out[i] = factor · (softmax(x)[i] - (i == target))`: the gradient of cross entropy.
pub(crate) struct LossGrad<'a, T> {
    pub(crate) x: &'a [T],
    pub(crate) out: &'a mut [T],
    pub(crate) target: usize,
    pub(crate) factor: T,
}

impl<T: Float> Loop for LossGrad<'_, T> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { x, out, target, factor } = self;
        let scale = exponentials(x, out);
        let of_target = (out[target] * scale - T::ONE) * factor;
        out.iter_mut().for_each(|x| *x = *x * scale * factor);
        out[target] = of_target;
    }
}

/// The loss of a row with label smoothing ε. Its gradient times the factor replaces the logits.
pub(crate) struct LossInPlace<'a, T> {
    pub(crate) x: &'a mut [T],
    pub(crate) target: usize,
    pub(crate) factor: T,
    pub(crate) smoothing: T,
}

impl<T: Float> Loop for LossInPlace<'_, T> {
    type Element = T;
    type Output = T;

    #[inline(always)]
    fn run(self) -> T {
        let Self { x, target, factor, smoothing } = self;
        let largest = fold::<T, FastMax, 1>([x], |[x]| x);
        let of_target = x[target] - largest;
        let each = smoothing / T::from_f64(x.len() as f64);
        // Without smoothing, infinite logits of other classes must not become NaN.
        let mean =
            if smoothing == T::ZERO { T::ZERO } else { each * fold::<T, Sum, 1>([x], |[x]| x - largest) };
        x.iter_mut().for_each(|x| *x = (*x - largest).exp_of_negative());
        let sum = fold::<T, Sum, 1>([x], |[x]| x);
        let (scale, sharp) = (T::ONE / sum, T::ONE - smoothing);
        let at_target = (x[target] * scale - sharp - each) * factor;
        x.iter_mut().for_each(|x| *x = (*x * scale - each) * factor);
        x[target] = at_target;
        if smoothing == T::ZERO { sum.ln() - of_target } else { sum.ln() - sharp * of_target - mean }
    }
}

/// The gradient of a softmax: `out[i] = s[i] · (g[i] - Σ s g)`, or `out[i] = g[i] - exp(s[i]) · Σ g` for its logarithm.
pub(crate) struct Gradient<'a, T> {
    pub(crate) output: &'a [T],
    pub(crate) grad: &'a [T],
    pub(crate) out: &'a mut [T],
    pub(crate) log: bool,
}

impl<T: Float> Loop for Gradient<'_, T> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { output, grad, out, log } = self;
        let elements = out.iter_mut().zip(grad.iter().zip(output));
        if log {
            let sum = fold::<T, Sum, 1>([grad], |[g]| g);
            // Not `s.exp()`, which would call the standard library.
            elements.for_each(|(out, (&g, &s))| *out = g - Float::exp_of_negative(s) * sum);
        } else {
            let sum = fold::<T, Sum, 2>([output, grad], |[s, g]| s * g);
            elements.for_each(|(out, (&g, &s))| *out = s * (g - sum));
        }
    }
}
