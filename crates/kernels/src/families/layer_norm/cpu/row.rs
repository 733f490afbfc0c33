//! Normalization of one row, as a single function for the widest instruction set.

use super::Statistics;
use crate::cpu::fold::{Sum, fold};
use crate::cpu::number::Float;
use crate::cpu::simd::Loop;

/// `out = x̂ · weight + bias`; weight and bias may be empty. Returns the statistics of the row.
pub(super) struct Normalize<'a, T> {
    pub(super) x: &'a [T],
    pub(super) affine: [&'a [T]; 2],
    /// The number of neighboring elements that share parameters.
    pub(super) places: usize,
    pub(super) out: &'a mut [T],
    /// Whether the mean is subtracted; otherwise it counts as 0.
    pub(super) centered: bool,
    pub(super) epsilon: T,
}

impl<T: Float> Loop for Normalize<'_, T> {
    type Element = T;
    type Output = Statistics<T>;

    #[inline(always)]
    fn run(self) -> Statistics<T> {
        let Self { x, affine, places, out, centered, epsilon } = self;
        let count = T::from_f64(x.len() as f64);
        let mean = match x {
            // The differences from an element are small, and so is their rounding error, however large the mean is.
            &[first, ..] if centered => first + fold::<T, Sum, 1>([x], |[x]| x - first) / count,
            _ => T::ZERO,
        };
        let squares = fold::<T, Sum, 1>([x], |[x]| (x - mean) * (x - mean));
        let statistics = [mean, T::ONE / (squares / count + epsilon).sqrt()];
        Scaled { x, affine, places, out, statistics }.run();
        statistics
    }
}

/// `out = x̂ · weight + bias` for known statistics.
pub(super) struct Scaled<'a, T> {
    pub(super) x: &'a [T],
    pub(super) affine: [&'a [T]; 2],
    pub(super) places: usize,
    pub(super) out: &'a mut [T],
    pub(super) statistics: Statistics<T>,
}

impl<T: Float> Loop for Scaled<'_, T> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { x, affine: [weight, bias], places, out, statistics: [mean, scale] } = self;
        let normal = |x: T| (x - mean) * scale;
        match (weight, bias) {
            ([], []) => out.iter_mut().zip(x).for_each(|(out, &x)| *out = normal(x)),
            (weight, []) if places == 1 => {
                out.iter_mut().zip(x.iter().zip(weight)).for_each(|(out, (&x, &w))| *out = normal(x) * w);
            }
            (weight, bias) if places == 1 && !weight.is_empty() => {
                let affine = weight.iter().zip(bias);
                out.iter_mut()
                    .zip(x.iter().zip(affine))
                    .for_each(|(out, (&x, (&w, &b)))| *out = normal(x) * w + b);
            }
            (weight, bias) => {
                for (number, (out, x)) in out.chunks_mut(places).zip(x.chunks(places)).enumerate() {
                    let w = weight.get(number).copied().unwrap_or(T::ONE);
                    let b = bias.get(number).copied().unwrap_or(T::ZERO);
                    out.iter_mut().zip(x).for_each(|(out, &x)| *out = normal(x) * w + b);
                }
            }
        }
    }
}

/// `out` = s · (h - mean(h) - x̂ · mean(h x̂)) with h = grad · weight; the weight may be empty.
pub(super) struct Gradient<'a, T> {
    pub(super) x: &'a [T],
    pub(super) grad: &'a [T],
    pub(super) weight: &'a [T],
    /// The number of neighboring elements that share a weight.
    pub(super) places: usize,
    pub(super) out: &'a mut [T],
    pub(super) statistics: Statistics<T>,
    pub(super) centered: bool,
}

impl<T: Float> Loop for Gradient<'_, T> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { x, grad, weight, places, out, statistics: [mean, scale], centered } = self;
        let count = T::from_f64(x.len() as f64);
        if weight.is_empty() {
            out.copy_from_slice(grad);
        } else if places == 1 {
            out.iter_mut().zip(grad.iter().zip(weight)).for_each(|(out, (&g, &w))| *out = g * w);
        } else {
            for ((out, grad), &w) in out.chunks_mut(places).zip(grad.chunks(places)).zip(weight) {
                out.iter_mut().zip(grad).for_each(|(out, &g)| *out = g * w);
            }
        }
        let along = fold::<T, Sum, 2>([x, out], |[x, h]| (x - mean) * scale * h) / count;
        let shift = if centered { fold::<T, Sum, 1>([out], |[h]| h) / count } else { T::ZERO };
        out.iter_mut()
            .zip(x)
            .for_each(|(out, &x)| *out = scale * (*out - shift - (x - mean) * scale * along));
    }
}
