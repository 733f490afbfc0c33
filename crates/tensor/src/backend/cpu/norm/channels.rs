//! Normalization of rows in which neighboring elements share parameters, such as the channels of group normalization.
//! Processes one channel at a time, with its parameters in registers.

use std::ops::Range;

use super::Statistics;
use crate::backend::cpu::fold::{Sum, fold_slice, fold_zipped};
use crate::backend::cpu::number::Float;
use crate::backend::cpu::operands::Run;
use crate::backend::cpu::simd;

/// `out` = x̂ · weight + bias.
pub(super) fn normalize<T: Float>(
    x: &[T],
    [mean, scale]: Statistics<T>,
    parameters: impl Iterator<Item = Run<(T, T)>>,
    out: &mut [T],
) {
    for (channel, (weight, bias)) in channels(parameters) {
        let (x, out) = (&x[channel.clone()], &mut out[channel]);
        simd::zip(out, x, |out, x| *out = (x - mean) * scale * weight + bias);
    }
}

/// `out` = s · (h - mean(h) - x̂ · mean(h x̂)) with h = grad · weight.
pub(super) fn gradient<T: Float>(
    [x, grad]: [&[T]; 2],
    ([mean, scale], centered): (Statistics<T>, bool),
    weights: impl Iterator<Item = Run<T>> + Clone,
    out: &mut [T],
) {
    let count = T::from_f64(x.len() as f64);
    let (mut along, mut shift) = (T::ZERO, T::ZERO);
    for (channel, weight) in channels(weights.clone()) {
        let (x, grad) = (&x[channel.clone()], &grad[channel]);
        along += weight * fold_zipped::<T, Sum>(x, grad, |x, grad| (x - mean) * scale * grad);
        if centered {
            shift += weight * fold_slice::<T, Sum>(grad);
        }
    }
    let (along, shift) = (along / count, shift / count);
    for (channel, weight) in channels(weights) {
        let (x, grad, out) = (&x[channel.clone()], &grad[channel.clone()], &mut out[channel]);
        simd::zip2(out, x, grad, |out, x, grad| {
            *out = scale * (grad * weight - shift - (x - mean) * scale * along);
        });
    }
}

/// Converts runs to ranges of the row.
fn channels<V>(runs: impl Iterator<Item = Run<V>>) -> impl Iterator<Item = (Range<usize>, V)> {
    runs.scan(0, |end, Run { len, value }| {
        let start = *end;
        *end += len;
        Some((start..*end, value))
    })
}
