//! Normalization of one contiguous row, as a single function for the widest instruction set.
//!
//! Rows have up to [`SHORT`](crate::backend::cpu::fold::SHORT) elements. The parent module processes longer and strided rows
//! step by step, with equal results.

use super::Statistics;
use crate::backend::cpu::dispatch::host;
use crate::backend::cpu::fold::{SHORT, Sum, short};
use crate::backend::cpu::number::Float;
use crate::backend::cpu::simd::Loop;
use crate::error::Result;
use crate::storage::View;

/// The elements of a parameter, if rows are short and share it; empty without a parameter; `None` otherwise.
pub(super) fn repeated_row<'a, T: Float>(
    op: &'static str,
    parameter: Option<View<'a>>,
    width: usize,
) -> Result<Option<&'a [T]>> {
    if width > SHORT {
        return Ok(None);
    }
    let Some(parameter) = parameter else { return Ok(Some(&[])) };
    let layout = parameter.layout();
    let (dims, strides) = (layout.shape().dims(), layout.strides());
    let ([outer @ .., size], [steps @ .., 1]) = (dims, strides) else { return Ok(None) };
    let repeated = outer.iter().zip(steps).all(|(&size, &step)| size == 1 || step == 0);
    if !repeated || *size != width {
        return Ok(None);
    }
    Ok(host::<T>(op, &parameter)?.get(layout.offset()..layout.offset() + width))
}

/// `out = x̂ · weight + bias`; weight and bias may be empty. Returns the statistics of the row.
pub(super) struct Normalize<'a, T> {
    pub(super) x: &'a [T],
    pub(super) affine: [&'a [T]; 2],
    pub(super) out: &'a mut [T],
    pub(super) centered: bool,
    pub(super) epsilon: T,
}

impl<T: Float> Loop for Normalize<'_, T> {
    type Output = Statistics<T>;

    #[inline(always)]
    fn run<const WIDE: bool>(self) -> Statistics<T> {
        let Self { x, affine: [weight, bias], out, centered, epsilon } = self;
        let count = T::from_f64(x.len() as f64);
        let mean = if centered { short::<T, Sum, 1, WIDE>([x], |[x]| x) / count } else { T::ZERO };
        let squares = short::<T, Sum, 1, WIDE>([x], |[x]| (x - mean) * (x - mean));
        let scale = T::ONE / (squares / count + epsilon).sqrt();
        let normal = |x: T| (x - mean) * scale;
        let out = out.iter_mut().zip(x);
        match (weight, bias) {
            ([], []) => out.for_each(|(out, &x)| *out = normal(x)),
            (weight, []) => out.zip(weight).for_each(|((out, &x), &w)| *out = normal(x) * w),
            ([], bias) => out.zip(bias).for_each(|((out, &x), &b)| *out = normal(x) + b),
            (weight, bias) => {
                out.zip(weight.iter().zip(bias)).for_each(|((out, &x), (&w, &b))| *out = normal(x) * w + b);
            }
        }
        [mean, scale]
    }
}

/// `out` = s · (h - mean(h) - x̂ · mean(h x̂)) with h = grad · weight; the weight may be empty.
pub(super) struct Gradient<'a, T> {
    pub(super) x: &'a [T],
    pub(super) grad: &'a [T],
    pub(super) weight: &'a [T],
    pub(super) out: &'a mut [T],
    pub(super) statistics: Statistics<T>,
    pub(super) centered: bool,
}

impl<T: Float> Loop for Gradient<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<const WIDE: bool>(self) {
        let Self { x, grad, weight, out, statistics: [mean, scale], centered } = self;
        let count = T::from_f64(x.len() as f64);
        if weight.is_empty() {
            out.copy_from_slice(grad);
        } else {
            out.iter_mut().zip(grad.iter().zip(weight)).for_each(|(out, (&g, &w))| *out = g * w);
        }
        let along = short::<T, Sum, 2, WIDE>([x, out], |[x, h]| (x - mean) * scale * h) / count;
        let shift = if centered { short::<T, Sum, 1, WIDE>([out], |[h]| h) / count } else { T::ZERO };
        out.iter_mut()
            .zip(x)
            .for_each(|(out, &x)| *out = scale * (*out - shift - (x - mean) * scale * along));
    }
}
