//! Layer normalisation: every row brought to mean 0 and variance 1.

use super::dispatch::{float, host, host_mut};
use super::fold::{Sum, fold_mapped, fold_slice, fold_zipped, sum_of};
use super::number::{Float, Number};
use super::operands::{Pair, Source};
use super::parallel::{Workers, light_runs};
use super::simd;
use crate::backend::Normalised;
use crate::error::Result;
use crate::storage::{View, ViewMut};

/// The mean and 1/√(variance + ε) of a row.
type Statistics<T> = [T; 2];

/// See [`Kernel::LayerNorm`](crate::backend::Kernel::LayerNorm).
pub(super) fn layer_norm(
    workers: &Workers,
    op: &'static str,
    (centred, epsilon): (bool, f64),
    input: View<'_>,
    [weight, bias]: [Option<View<'_>>; 2],
    [out, statistics]: [ViewMut<'_>; 2],
) -> Result<()> {
    let width = width(out.layout().shape().dims());
    float!(op, out.dtype(), T => {
        let source = Source::<T>::new(op, input)?;
        let [weight, bias] = [optional::<T>(op, weight)?, optional::<T>(op, bias)?];
        let epsilon = T::from_f64(epsilon);
        let (out, statistics) = (host_mut::<T>(op, out)?, host_mut::<T>(op, statistics)?);
        let (rows, of_rows) = cut(width);
        workers.zipped([out, statistics], [rows, of_rows], &|chunk, [out, statistics]| {
            let first = chunk * rows;
            let rows = out.chunks_mut(width).zip(statistics.chunks_mut(2)).enumerate();
            rows.for_each(|(row, (out, statistics))| {
                let start = first + row * width;
                source.load(start, out);
                let [mean, scale] = centre(out, centred, epsilon);
                let whole = [&weight, &bias].map(|of| of.as_ref().and_then(|of| of.slice(start..start + width)));
                if let [Some(weight), Some(bias)] = whole {
                    // By far the most common, in one go.
                    simd::zip2(out, weight, bias, |out, w, b| *out = *out * scale * w + b);
                } else {
                    simd::each(out, |x| *x *= scale);
                    if let Some(weight) = &weight {
                        weight.each(start, out, |out, w| *out *= w);
                    }
                    if let Some(bias) = &bias {
                        bias.each(start, out, |out, b| *out += b);
                    }
                }
                statistics.copy_from_slice(&[mean, scale]);
            });
        });
        Ok(())
    })
}

/// x ← x - mean, where the mean is 0 unless the row is `centred`.
fn centre<T: Float>(row: &mut [T], centred: bool, epsilon: T) -> Statistics<T> {
    let count = T::from_f64(row.len() as f64);
    let mean = if centred { fold_slice::<T, Sum>(row) / count } else { T::ZERO };
    if centred {
        simd::each(row, |x| *x = *x - mean);
    }
    let squares = fold_mapped::<T, Sum>(row, |x| x * x);
    [mean, T::ONE / (squares / count + epsilon).sqrt()]
}

/// See [`Kernel::LayerNormGrad`](crate::backend::Kernel::LayerNormGrad).
pub(super) fn layer_norm_grad(
    workers: &Workers,
    op: &'static str,
    of: &Normalised<'_>,
    grad: View<'_>,
    out: ViewMut<'_>,
) -> Result<()> {
    let width = width(out.layout().shape().dims());
    float!(op, out.dtype(), T => {
        let (source, grad) = (Source::<T>::new(op, of.input)?, Source::<T>::new(op, grad)?);
        let weight = optional::<T>(op, of.weight)?;
        let statistics = host::<T>(op, &of.statistics)?;
        let count = T::from_f64(width as f64);
        workers.chunks(host_mut::<T>(op, out)?, cut(width).0, &|start, part| {
            for (row, out) in (start / width..).zip(part.chunks_mut(width)) {
                let first = row * width;
                let [mean, scale] = [statistics[2 * row], statistics[2 * row + 1]];
                // What reaches the normalised row: g w.
                grad.load(first, out);
                if let Some(weight) = &weight {
                    weight.each(first, out, |out, w| *out *= w);
                }
                let along = match source.slice(first..first + width) {
                    Some(row) => fold_zipped::<T, Sum>(row, out, |x, g| (x - mean) * scale * g),
                    None => sum_of(width, |i, block| {
                        source.each(first + i, block, |out, x| *out = (x - mean) * scale);
                        simd::zip(block, &out[i..][..block.len()], |product, g| *product *= g);
                    }),
                } / count;
                let shift = if of.centred { fold_slice::<T, Sum>(out) / count } else { T::ZERO };
                source.each(first, out, |out, x| *out = scale * (*out - shift - (x - mean) * scale * along));
            }
        });
        Ok(())
    })
}

/// See [`Kernel::LayerNormTerms`](crate::backend::Kernel::LayerNormTerms).
pub(super) fn layer_norm_terms(
    workers: &Workers,
    op: &'static str,
    of: &Normalised<'_>,
    grad: View<'_>,
    out: ViewMut<'_>,
) -> Result<()> {
    let width = width(out.layout().shape().dims());
    float!(op, out.dtype(), T => {
        let pair = Pair::<T, T>::new(op, of.input, grad)?;
        let statistics = host::<T>(op, &of.statistics)?;
        workers.chunks(host_mut::<T>(op, out)?, cut(width).0, &|start, part| {
            for (row, out) in (start / width..).zip(part.chunks_mut(width)) {
                let [mean, scale] = [statistics[2 * row], statistics[2 * row + 1]];
                pair.each(row * width, out, |out, x, g| *out = (x - mean) * scale * g);
            }
        });
        Ok(())
    })
}

fn optional<'a, T: Float>(op: &'static str, view: Option<View<'a>>) -> Result<Option<Source<'a, T>>> {
    view.map(|view| Source::new(op, view)).transpose()
}

/// The size of the last axis; rows of no elements are not gone through.
fn width(dims: &[usize]) -> usize {
    dims.last().copied().unwrap_or(1).max(1)
}

/// Elements per chunk, a whole number of rows, and elements of statistics that belong to them.
fn cut(width: usize) -> (usize, usize) {
    let rows = light_runs(width.saturating_mul(4));
    (rows.saturating_mul(width), rows * 2)
}
