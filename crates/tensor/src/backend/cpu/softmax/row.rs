//! A row whose elements lie side by side: all that is done with it as one function, compiled for the widest instructions.
//!
//! For rows of up to [`SHORT`](crate::backend::cpu::fold::SHORT) elements. Longer ones are gone through step by step, with the same
//! results. Where there is a NaN everything becomes NaN, whichever element counts as the largest.

use crate::backend::cpu::fold::{LargestNumber, Sum, short};
use crate::backend::cpu::number::Float;
use crate::backend::cpu::simd::Loop;

/// x ← exp (x - largest); 1 / Σ of these.
#[inline(always)]
fn exponentials<T: Float, const WIDE: bool>(row: &mut [T]) -> T {
    let largest = short::<T, LargestNumber, 1, WIDE>([row], |[x]| x);
    row.iter_mut().for_each(|x| *x = (*x - largest).exp());
    T::ONE / short::<T, Sum, 1, WIDE>([row], |[x]| x)
}

/// x ← eˣ / Σ eˣ
pub(super) struct Softmax<'a, T>(pub(super) &'a mut [T]);

impl<T: Float> Loop for Softmax<'_, T> {
    const WIDEST: bool = T::EXP_VECTORISES;
    type Output = ();

    #[inline(always)]
    fn run<const WIDE: bool>(self) {
        let scale = exponentials::<T, WIDE>(self.0);
        self.0.iter_mut().for_each(|x| *x *= scale);
    }
}

/// x ← x - ln Σ eˣ
pub(super) struct LogSoftmax<'a, T>(pub(super) &'a mut [T]);

impl<T: Float> Loop for LogSoftmax<'_, T> {
    const WIDEST: bool = T::EXP_VECTORISES;
    type Output = ();

    #[inline(always)]
    fn run<const WIDE: bool>(self) {
        let [largest, sum] = Exponentials(self.0).run::<WIDE>();
        let log_sum = sum.ln();
        self.0.iter_mut().for_each(|x| *x = *x - largest - log_sum);
    }
}

/// The largest of the row, and Σ exp (x - largest), of which nothing is kept.
pub(super) struct Exponentials<'a, T>(pub(super) &'a [T]);

impl<T: Float> Loop for Exponentials<'_, T> {
    const WIDEST: bool = T::EXP_VECTORISES;
    type Output = [T; 2];

    #[inline(always)]
    fn run<const WIDE: bool>(self) -> [T; 2] {
        let largest = short::<T, LargestNumber, 1, WIDE>([self.0], |[x]| x);
        [largest, short::<T, Sum, 1, WIDE>([self.0], |[x]| (x - largest).exp())]
    }
}

/// x ← factor · (eˣ / Σ eˣ - 1 at the target): the gradient of a row's loss.
pub(super) struct LossGrad<'a, T> {
    pub(super) row: &'a mut [T],
    pub(super) target: usize,
    pub(super) factor: T,
}

impl<T: Float> Loop for LossGrad<'_, T> {
    const WIDEST: bool = T::EXP_VECTORISES;
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
    use crate::backend::cpu::simd::{least, run};

    #[test]
    fn softmax_does_not_depend_on_the_instruction_set() {
        for len in 1..100_usize {
            let row: Vec<f32> = (0..len).map(|i| (i * 37 % 101) as f32 / 10.0 - 5.0).collect();
            let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let (mut wide, mut narrow) = (row.clone(), row.clone());
            run(Softmax(&mut wide));
            least(Softmax(&mut narrow));
            assert_eq!(bits(&wide), bits(&narrow), "softmax of {len}");
            let (mut wide, mut narrow) = (row.clone(), row);
            run(LogSoftmax(&mut wide));
            least(LogSoftmax(&mut narrow));
            assert_eq!(bits(&wide), bits(&narrow), "log_softmax of {len}");
        }
    }
}
