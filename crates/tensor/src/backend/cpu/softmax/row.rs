//! Softmax kernels over one contiguous row, each a single function for the widest instruction set.
//!
//! Rows have up to [`SHORT`](crate::backend::cpu::fold::SHORT) elements. The parent module processes longer rows step
//! by step, with equal results. If an element is NaN, all results are NaN, whichever maximum is subtracted.

use crate::backend::cpu::fold::{FastMax, Sum, short};
use crate::backend::cpu::number::Float;
use crate::backend::cpu::simd::Loop;

/// `x = exp(x - max)`, in place. Returns 1 / Σ of the results.
#[inline(always)]
fn exponentials<T: Float, const WIDE: bool>(row: &mut [T]) -> T {
    let largest = short::<T, FastMax, 1, WIDE>([row], |[x]| x);
    row.iter_mut().for_each(|x| *x = (*x - largest).exp());
    T::ONE / short::<T, Sum, 1, WIDE>([row], |[x]| x)
}

/// `x = eˣ / Σ eˣ`, in place.
pub(super) struct Softmax<'a, T>(pub(super) &'a mut [T]);

impl<T: Float> Loop for Softmax<'_, T> {
    const WIDEST: bool = T::EXP_VECTORIZES;
    type Output = ();

    #[inline(always)]
    fn run<const WIDE: bool>(self) {
        let scale = exponentials::<T, WIDE>(self.0);
        self.0.iter_mut().for_each(|x| *x *= scale);
    }
}

/// `x = x - ln Σ eˣ`, in place.
pub(super) struct LogSoftmax<'a, T>(pub(super) &'a mut [T]);

impl<T: Float> Loop for LogSoftmax<'_, T> {
    const WIDEST: bool = T::EXP_VECTORIZES;
    type Output = ();

    #[inline(always)]
    fn run<const WIDE: bool>(self) {
        let [largest, sum] = Exponentials(self.0).run::<WIDE>();
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
    fn run<const WIDE: bool>(self) -> [T; 2] {
        let largest = short::<T, FastMax, 1, WIDE>([self.0], |[x]| x);
        [largest, short::<T, Sum, 1, WIDE>([self.0], |[x]| (x - largest).exp())]
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
    fn run<const WIDE: bool>(self) {
        let Self { row, target, factor } = self;
        let scale = exponentials::<T, WIDE>(row);
        let of_target = (row[target] * scale - T::ONE) * factor;
        row.iter_mut().for_each(|x| *x = *x * scale * factor);
        row[target] = of_target;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::simd::{run, run_baseline};

    #[test]
    fn softmax_does_not_depend_on_the_instruction_set() {
        for len in 1..100_usize {
            let row: Vec<f32> = (0..len).map(|i| (i * 37 % 101) as f32 / 10.0 - 5.0).collect();
            let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let (mut wide, mut narrow) = (row.clone(), row.clone());
            run(Softmax(&mut wide));
            run_baseline(Softmax(&mut narrow));
            assert_eq!(bits(&wide), bits(&narrow), "softmax of {len}");
            let (mut wide, mut narrow) = (row.clone(), row);
            run(LogSoftmax(&mut wide));
            run_baseline(LogSoftmax(&mut narrow));
            assert_eq!(bits(&wide), bits(&narrow), "log_softmax of {len}");
        }
    }
}
