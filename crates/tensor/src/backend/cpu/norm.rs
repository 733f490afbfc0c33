//! Layer normalization: normalizes each row to mean 0 and variance 1. A row may span several axes.

mod parameters;
mod row;
mod sums;

use super::dispatch::{float, host, host_mut};
use super::number::Number;
use super::operands::Source;
use super::parallel::{Workers, light_runs};
use super::simd;
use crate::backend::kernels;
use crate::error::Result;
use crate::layout::Layout;
use crate::storage::{View, ViewMut};

use parameters::Parameters;
use row::{Gradient, Normalize};
pub(crate) use sums::{layer_norm_sums, workspace};

/// The mean μ of a row and its scale 1/√(σ² + ε).
type Statistics<T> = [T; 2];

/// See [`LayerNorm`](crate::backend::kernels::LayerNorm).
#[inline(never)]
pub(crate) fn layer_norm(
    workers: &Workers,
    op: &'static str,
    (centered, epsilon): (bool, f64),
    input: View<'_>,
    affine: [Option<View<'_>>; 2],
    [out, statistics]: [&mut ViewMut<'_>; 2],
) -> Result<()> {
    let width = width(&input, statistics.layout());
    float!(op, out.dtype(), T => {
        let source = Source::<T>::new(op, input)?;
        let parameters = Parameters::<T, 2>::new(op, affine, width)?;
        let epsilon = T::from_f64(epsilon);
        let (out, statistics) = (host_mut::<T>(op, out)?, host_mut::<T>(op, statistics)?);
        let (elements, of_rows) = chunk_sizes(width);
        workers.zipped([out, statistics], [elements, of_rows], &|chunk, [out, statistics]| {
            let mut copied = Vec::new();
            let rows = out.chunks_mut(width).zip(statistics.chunks_mut(2));
            for (start, (out, statistics)) in (chunk * elements..).step_by(width).zip(rows) {
                let row = start..start + width;
                let affine = parameters.of_row(&row);
                let x = source.part(row, &mut copied);
                let places = parameters.places();
                let row = Normalize { x, affine, places, out, centered, epsilon };
                statistics.copy_from_slice(&simd::run(row));
            }
        });
        Ok(())
    })
}

/// See [`LayerNormGrad`](crate::backend::kernels::LayerNormGrad).
#[inline(never)]
pub(crate) fn layer_norm_grad(
    workers: &Workers,
    op: &'static str,
    of: &kernels::Normalized<'_>,
    grad: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let width = width(&of.input, of.statistics.layout());
    float!(op, out.dtype(), T => {
        let source = Source::<T>::new(op, of.input)?;
        let parameters = Parameters::<T, 1>::new(op, [of.weight], width)?;
        let grad = Source::<T>::new(op, grad)?;
        let statistics = &host::<T>(op, &of.statistics)?[of.statistics.layout().offset()..];
        let (centered, places) = (of.centered, parameters.places());
        workers.chunks(host_mut::<T>(op, out)?, chunk_sizes(width).0, &|start, part| {
            let (mut copied, mut copied_grad) = (Vec::new(), Vec::new());
            for (number, out) in (start / width..).zip(part.chunks_mut(width)) {
                let row = number * width..(number + 1) * width;
                let [weight] = parameters.of_row(&row);
                let x = source.part(row.clone(), &mut copied);
                let grad = grad.part(row, &mut copied_grad);
                let statistics = [statistics[2 * number], statistics[2 * number + 1]];
                simd::run(Gradient { x, grad, weight, places, out, statistics, centered });
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
