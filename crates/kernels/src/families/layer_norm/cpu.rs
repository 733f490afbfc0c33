//! Layer normalization: normalizes each row to mean 0 and variance 1. A row may span several axes.

mod halves;
mod parameters;
mod row;
mod sums;

use super::{NormalizeRows, NormalizeRowsGrad, NormalizeRowsSums};
use crate::cpu::dispatch::{float, host, host_mut};
use crate::cpu::halves::any_of;
use crate::cpu::number::Number;
use crate::cpu::operands::Source;
use crate::cpu::parallel::{Workers, light_runs};
use crate::cpu::simd;
use crate::error::Result;
use crate::families::RunCpu;
use crate::layout::Layout;
use crate::storage::View;

use parameters::Parameters;
use row::{Gradient, Normalize};
pub(crate) use sums::{layer_norm_sums, workspace};

/// The mean μ of a row and its scale 1/√(σ² + ε).
type Statistics<T> = [T; 2];

impl RunCpu for NormalizeRows<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        if any_of([self.input.dtype(), self.out.dtype()]) {
            return halves::normalize(workers, op, self);
        }
        let Self { centered, epsilon, input, ref mut out, ref mut statistics, .. } = *self;
        let affine = [self.weight, self.bias];
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
}

impl RunCpu for NormalizeRowsGrad<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        if any_of([self.of.input.dtype(), self.grad.dtype(), self.out.dtype()]) {
            return halves::gradient(workers, op, self);
        }
        let Self { ref of, grad, ref mut out } = *self;
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

/// Whether the last axes are `width` contiguous elements, and all other axes repeat them.
pub(super) fn repeats_one_row(layout: &Layout, width: usize) -> bool {
    let mut elements = 1;
    for (&size, &stride) in layout.shape().dims().iter().zip(layout.strides()).rev() {
        let expected = if elements < width { elements } else { 0 };
        if size != 1 && stride != expected {
            return false;
        }
        elements = if elements < width { elements * size } else { elements };
    }
    elements == width
}

impl RunCpu for NormalizeRowsSums<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let (grad, outputs) = ((self.grad, self.places), (&mut self.weight, &mut self.bias));
        layer_norm_sums(workers, op, &self.of, grad, &mut self.workspace, outputs)
    }
}

#[cfg(test)]
mod tests;
