//! The pixels that a convolution computes, as the destination of a matrix product.

use std::ops::Range;

use super::patches::{PlaceRun, Places};
use crate::cpu::gemm::{Destination, Output, Tile};
use crate::cpu::number::Float;
use crate::cpu::short;

/// Rows of the product are channels, and its columns are pixels of one image after another.
pub(super) struct Pixels<'a, T> {
    /// The planes of each image, starting with channel `first_row`.
    pub(super) images: Vec<&'a mut [T]>,
    pub(super) first_row: usize,
    /// The elements of a plane.
    pub(super) plane: usize,
    /// The pixels of a plane that are computed, counted from pixel `first`. The columns of gaps are not stored.
    pub(super) pixels: Places,
    pub(super) first: usize,
}

impl<T: Float> Destination<T> for Pixels<'_, T> {
    fn put(&mut self, rows: Range<usize>, columns: Range<usize>, tile: &Tile<T>, output: Output) {
        let (pixels, step) = (self.pixels.len(), self.pixels.column_step());
        let mut column = columns.start;
        while column < columns.end {
            let (image, pixel) = (column / pixels, column % pixels);
            let end = columns.end.min((image + 1) * pixels);
            for PlaceRun { number, len, offset } in self.pixels.runs(pixel..pixel + (end - column)) {
                let from = column + number - columns.start;
                for (row, sums) in rows.clone().zip(&tile.0) {
                    let first = (row - self.first_row) * self.plane + self.first + offset;
                    put_run(&mut self.images[image][first..], step, &sums[from..from + len], output);
                }
            }
            column = end;
        }
    }
}

/// Stores sums `step` elements apart.
#[inline]
fn put_run<T: Float>(out: &mut [T], step: usize, sums: &[T], output: Output) {
    if step == 1 {
        let out = &mut out[..sums.len()];
        match output {
            Output::Overwrite => short::copy(out, sums),
            Output::Accumulate => out.iter_mut().zip(sums).for_each(|(out, &sum)| *out += sum),
        }
        return;
    }
    for (out, &sum) in out.iter_mut().step_by(step).zip(sums) {
        match output {
            Output::Overwrite => *out = sum,
            Output::Accumulate => *out += sum,
        }
    }
}
