//! Softmax kernels over one contiguous row, each a single function for the widest instruction set.
//!
//! If an element is NaN, all results are NaN, whichever maximum is subtracted.

use crate::backend::cpu::fold::{FastMax, Sum, fold};
use crate::backend::cpu::number::Float;
use crate::backend::cpu::simd::Loop;

/// `x = exp(x - max)`, in place. Returns 1 / Σ of the results.
#[inline(always)]
fn exponentials<T: Float>(row: &mut [T]) -> T {
    let largest = fold::<T, FastMax, 1>([row], |[x]| x);
    row.iter_mut().for_each(|x| *x = (*x - largest).exp());
    T::ONE / fold::<T, Sum, 1>([row], |[x]| x)
}

/// `x = eˣ / Σ eˣ`, in place.
pub(super) struct Softmax<'a, T>(pub(super) &'a mut [T]);

impl<T: Float> Loop for Softmax<'_, T> {
    const WIDEST: bool = T::EXP_VECTORIZES;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let scale = exponentials(self.0);
        self.0.iter_mut().for_each(|x| *x *= scale);
    }
}

/// `x = x - ln Σ eˣ`, in place.
pub(super) struct LogSoftmax<'a, T>(pub(super) &'a mut [T]);

impl<T: Float> Loop for LogSoftmax<'_, T> {
    const WIDEST: bool = T::EXP_VECTORIZES;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let [largest, sum] = Exponentials(self.0).run();
        let log_sum = sum.ln();
        self.0.iter_mut().for_each(|x| *x = *x - largest - log_sum);
    }
}

/// Computes the maximum of the row and Σ exp(x - max), without storing the exponentials.
pub(super) struct Exponentials<'a, T>(pub(super) &'a [T]);

impl<T: Float> Loop for Exponentials<'_, T> {
    const WIDEST: bool = T::EXP_VECTORIZES;
    type Output = [T; 2];

    #[inline(always)]
    fn run(self) -> [T; 2] {
        let largest = fold::<T, FastMax, 1>([self.0], |[x]| x);
        [largest, fold::<T, Sum, 1>([self.0], |[x]| (x - largest).exp())]
    }
}

/// `x[i] = factor · (softmax(x)[i] - (i == target))`, in place: the gradient of cross entropy.
pub(super) struct LossGrad<'a, T> {
    pub(super) row: &'a mut [T],
    pub(super) target: usize,
    pub(super) factor: T,
}

impl<T: Float> Loop for LossGrad<'_, T> {
    const WIDEST: bool = T::EXP_VECTORIZES;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { row, target, factor } = self;
        let scale = exponentials(row);
        let of_target = (row[target] * scale - T::ONE) * factor;
        row.iter_mut().for_each(|x| *x = *x * scale * factor);
        row[target] = of_target;
    }
}

/// The gradient of a softmax, in place: `g[i] = s[i] · (g[i] - Σ s g)`, or `g[i] = g[i] - exp(s[i]) · Σ g` for its logarithm.
pub(super) struct Gradient<'a, T> {
    pub(super) output: &'a [T],
    pub(super) grad: &'a mut [T],
    pub(super) log: bool,
}

impl<T: Float> Loop for Gradient<'_, T> {
    const WIDEST: bool = T::EXP_VECTORIZES;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { output, grad, log } = self;
        if log {
            let sum = fold::<T, Sum, 1>([grad], |[g]| g);
            // `s.exp()` would call the standard library.
            grad.iter_mut().zip(output).for_each(|(g, &s)| *g -= Float::exp(s) * sum);
        } else {
            let sum = fold::<T, Sum, 2>([output, grad], |[s, g]| s * g);
            grad.iter_mut().zip(output).for_each(|(g, &s)| *g = s * (*g - sum));
        }
    }
}
