//! Layer normalization: normalizes each row to mean 0 and variance 1. A row may span several axes.

mod channels;
mod row;
mod sums;

use std::ops::Range;

use super::dispatch::{float, host, host_mut};
use super::fold::{Sum, fold_mapped, fold_slice};
use super::number::{Float, Number};
use super::operands::{Pair, Run, Source};
use super::parallel::{Workers, light_runs};
use super::simd;
use crate::backend::Normalized;
use crate::error::Result;
use crate::layout::Layout;
use crate::storage::{View, ViewMut};

use row::{Gradient, Normalize, repeated_row};
pub(super) use sums::{layer_norm_sums, workspace};

/// The mean μ of a row and its scale 1/√(σ² + ε).
type Statistics<T> = [T; 2];

/// See [`Kernel::LayerNorm`](crate::backend::Kernel::LayerNorm).
#[inline(never)]
pub(super) fn layer_norm(
    workers: &Workers,
    op: &'static str,
    (centered, epsilon): (bool, f64),
    input: View<'_>,
    [weight, bias]: [Option<View<'_>>; 2],
    [out, statistics]: [&mut ViewMut<'_>; 2],
) -> Result<()> {
    let width = width(&input, statistics.layout());
    float!(op, out.dtype(), T => {
        let source = Source::<T>::new(op, input)?;
        let rows_of_parameters = (repeated_row::<T>(op, weight, width)?, repeated_row::<T>(op, bias, width)?);
        let affine = Affine::<T>::new(op, weight, bias)?;
        let epsilon = T::from_f64(epsilon);
        let (out, statistics) = (host_mut::<T>(op, out)?, host_mut::<T>(op, statistics)?);
        let (rows, of_rows) = chunk_sizes(width);
        workers.zipped([out, statistics], [rows, of_rows], &|chunk, [out, statistics]| {
            let starts = (chunk * rows..).step_by(width);
            let rows = out.chunks_mut(width).zip(statistics.chunks_mut(2));
            starts.zip(rows).for_each(|(start, (out, statistics))| {
                if let ((Some(weight), Some(bias)), Some(x)) = (rows_of_parameters, source.slice(start..start + width)) {
                    let row = Normalize { x, affine: [weight, bias], out, centered, epsilon };
                    statistics.copy_from_slice(&simd::run(row));
                    return;
                }
                let [mean, scale] = if let Some(values) = source.slice(start..start + width) {
                    let [mean, scale] = statistics_of(values, centered, epsilon);
                    if let Some(parameters) = affine.runs(start..start + width) {
                        channels::normalize(values, [mean, scale], parameters, out);
                    } else {
                        simd::zip(out, values, move |out, x| *out = (x - mean) * scale);
                        affine.apply(start, out);
                    }
                    [mean, scale]
                } else {
                    source.load(start, out);
                    let [mean, scale] = statistics_of(out, centered, epsilon);
                    simd::each(out, move |x| *x = (*x - mean) * scale);
                    affine.apply(start, out);
                    [mean, scale]
                };
                statistics.copy_from_slice(&[mean, scale]);
            });
        });
        Ok(())
    })
}

/// Computes the mean, which is 0 unless the row is `centered`, and the scale.
fn statistics_of<T: Float>(row: &[T], centered: bool, epsilon: T) -> Statistics<T> {
    let count = T::from_f64(row.len() as f64);
    let mean = if centered { fold_slice::<T, Sum>(row) / count } else { T::ZERO };
    let squares = fold_mapped::<T, Sum>(row, |x| (x - mean) * (x - mean));
    [mean, T::ONE / (squares / count + epsilon).sqrt()]
}

/// The affine parameters of a normalization.
enum Affine<'a, T> {
    Neither,
    Weight(Source<'a, T>),
    Bias(Source<'a, T>),
    Both(Pair<'a, T, T>),
}

impl<'a, T: Float> Affine<'a, T> {
    fn new(op: &'static str, weight: Option<View<'a>>, bias: Option<View<'a>>) -> Result<Self> {
        Ok(match (weight, bias) {
            (None, None) => Self::Neither,
            (Some(weight), None) => Self::Weight(Source::new(op, weight)?),
            (None, Some(bias)) => Self::Bias(Source::new(op, bias)?),
            (Some(weight), Some(bias)) => Self::Both(Pair::new(op, weight, bias)?),
        })
    }

    /// Weight and bias as runs, if neighboring elements in `range` share them.
    fn runs(&self, range: Range<usize>) -> Option<impl Iterator<Item = Run<(T, T)>>> {
        let Self::Both(pair) = self else { return None };
        pair.runs(range)
    }

    /// Applies the parameters to elements, starting at number `start`.
    fn apply(&self, start: usize, out: &mut [T]) {
        match self {
            Self::Neither => {}
            Self::Weight(weight) => weight.each(start, out, |out, w| *out *= w),
            Self::Bias(bias) => bias.each(start, out, |out, b| *out += b),
            Self::Both(pair) => pair.each(start, out, |out, w, b| *out = *out * w + b),
        }
    }
}

/// See [`Kernel::LayerNormGrad`](crate::backend::Kernel::LayerNormGrad).
#[inline(never)]
pub(super) fn layer_norm_grad(
    workers: &Workers,
    op: &'static str,
    of: &Normalized<'_>,
    grad: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let width = width(&of.input, of.statistics.layout());
    float!(op, out.dtype(), T => {
        let source = Source::<T>::new(op, of.input)?;
        let weighted = of.weight.map(|weight| Pair::<T, T>::new(op, grad, weight)).transpose()?;
        let rows_of_parameters = repeated_row::<T>(op, of.weight, width)?;
        let weight = of.weight.map(|weight| Source::<T>::new(op, weight)).transpose()?;
        let grad = Source::<T>::new(op, grad)?;
        let statistics = &host::<T>(op, &of.statistics)?[of.statistics.layout().offset()..];
        let count = T::from_f64(width as f64);
        workers.chunks(host_mut::<T>(op, out)?, chunk_sizes(width).0, &|start, part| {
            for (row, out) in (start / width..).zip(part.chunks_mut(width)) {
                let first = row * width;
                let [mean, scale] = [statistics[2 * row], statistics[2 * row + 1]];
                let range = first..first + width;
                if let (Some(x), Some(grad)) = (source.slice(range.clone()), grad.slice(range.clone())) {
                    let (statistics, centered) = ([mean, scale], of.centered);
                    if let Some(weight) = rows_of_parameters {
                        simd::run(Gradient { x, grad, weight, out, statistics, centered });
                        continue;
                    }
                    if let Some(weights) = weight.as_ref().and_then(|weight| weight.runs(range)) {
                        channels::gradient([x, grad], (statistics, centered), weights, out);
                        continue;
                    }
                }
                // The gradient of the normalized row: g w.
                match &weighted {
                    Some(pair) => pair.each(first, out, |out, g, w| *out = g * w),
                    None => grad.load(first, out),
                }
                let along = source.sum_with(first, out, |x, g| (x - mean) * scale * g) / count;
                let shift = if of.centered { fold_slice::<T, Sum>(out) / count } else { T::ZERO };
                source.each(first, out, |out, x| *out = scale * (*out - shift - (x - mean) * scale * along));
            }
        });
        Ok(())
    })
}

/// The number of elements of a row; 1 for empty rows, which are not visited.
fn width(input: &View<'_>, statistics: &Layout) -> usize {
    let rows = statistics.shape().elements() / 2;
    input.layout().shape().elements().checked_div(rows).unwrap_or(1).max(1)
}

/// The chunk lengths of elements and of statistics, for a whole number of rows.
fn chunk_sizes(width: usize) -> (usize, usize) {
    let rows = light_runs(width.saturating_mul(4));
    (rows.saturating_mul(width), rows * 2)
}
