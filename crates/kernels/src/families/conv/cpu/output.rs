//! The pixels that a convolution computes, as the destination of a matrix product.
//!
//! Sums of 16-bit outputs stay in `f32` until they are complete. If a product adds to a tile more than once, the tile waits in
//! the memory of its task, so that no pass over the whole output rounds them.

use std::ops::Range;

use super::element::FromSum;
use super::patches::{PlaceRun, Places};
use crate::cpu::gemm::{self, COLUMNS, Depth, Destination, Output, ROWS, Tile};
use crate::cpu::number::Float;
use crate::cpu::short;
use crate::cpu::simd::{self, Loop};

/// Rows of the product are channels, and its columns are pixels of one image after another.
pub(super) struct Pixels<'a, T, O> {
    /// The planes of each image, starting with channel `first_row`.
    pub(super) images: Vec<&'a mut [O]>,
    /// The channels.
    pub(super) rows: Range<usize>,
    /// The elements of a plane.
    pub(super) plane: usize,
    /// The pixels of a plane that are computed, counted from pixel `first`. The columns of gaps are not stored.
    pub(super) pixels: Places,
    pub(super) first: usize,
    /// Memory for the sums `[tile of columns][row]` of an output that is [rounded](FromSum::IS_ROUNDED); empty if each tile is
    /// complete when it is put.
    pub(super) sums: &'a mut [T],
}

/// The number of sums of a product that is not complete at once.
pub(super) const fn sums(rows: usize, columns: usize) -> usize {
    match columns.checked_next_multiple_of(COLUMNS) {
        Some(columns) => rows.saturating_mul(columns),
        None => usize::MAX,
    }
}

/// The part of the memory for [`Pixels::sums`] that a product of these rows, columns and depth needs.
pub(super) fn part_of<P: Depth, O: FromSum<P::Sum>>(
    memory: &mut [P::Sum],
    [rows, columns, depth]: [usize; 3],
) -> &mut [P::Sum] {
    let is_needed = O::IS_ROUNDED && !gemm::is_summed_at_once::<P>(depth);
    &mut memory[..if is_needed { sums(rows, columns) } else { 0 }]
}

impl<T: Float, O: FromSum<T>> Pixels<'_, T, O> {
    /// The number of the first row of a tile's sums.
    fn tile(&self, rows: &Range<usize>, columns: &Range<usize>) -> usize {
        columns.start / COLUMNS * self.rows.len() + (rows.start - self.rows.start)
    }

    /// Calls `put_run` with the part of each run of pixels and its elements in the tile.
    fn store<E>(
        &mut self,
        rows: Range<usize>,
        columns: Range<usize>,
        tile: &[[E; COLUMNS]],
        put_run: impl Fn(&mut [O], &[E]),
    ) {
        let pixels = self.pixels.len();
        let mut column = columns.start;
        while column < columns.end {
            let (image, pixel) = (column / pixels, column % pixels);
            let end = columns.end.min((image + 1) * pixels);
            for PlaceRun { number, len, offset } in self.pixels.runs(pixel..pixel + (end - column)) {
                let from = column + number - columns.start;
                for (row, elements) in rows.clone().zip(tile) {
                    let first = (row - self.rows.start) * self.plane + self.first + offset;
                    put_run(&mut self.images[image][first..], &elements[from..from + len]);
                }
            }
            column = end;
        }
    }

    /// Rounds complete sums to the output.
    fn round(&mut self, rows: Range<usize>, columns: Range<usize>, sums: &[[T; COLUMNS]]) {
        let mut tile = [[O::from_sum(T::ZERO); COLUMNS]; ROWS];
        simd::run(Round { sums: &sums[..rows.len()], to: &mut tile });
        let step = self.pixels.column_step();
        self.store(rows, columns, &tile, |out, elements| match step {
            1 => short::copy(&mut out[..elements.len()], elements),
            _ => out.iter_mut().step_by(step).zip(elements).for_each(|(out, &element)| *out = element),
        });
    }
}

impl<T: Float, O: FromSum<T>> Destination<T> for Pixels<'_, T, O> {
    fn put(&mut self, rows: Range<usize>, columns: Range<usize>, tile: &Tile<T>, output: Output) {
        if !O::IS_ROUNDED {
            let step = self.pixels.column_step();
            self.store(rows, columns, &tile.0, |out, sums| {
                if let Some(out) = O::as_sums(out) {
                    put_run(out, step, sums, output);
                }
            });
        } else if self.sums.is_empty() {
            self.round(rows, columns, &tile.0);
        } else {
            let first = self.tile(&rows, &columns);
            let sums = &mut self.sums.as_chunks_mut::<COLUMNS>().0[first..first + rows.len()];
            match output {
                Output::Overwrite => sums.copy_from_slice(&tile.0[..rows.len()]),
                Output::Accumulate => {
                    let sums = sums.as_flattened_mut().iter_mut().zip(tile.0.as_flattened());
                    sums.for_each(|(sum, &more)| *sum += more);
                }
            }
        }
    }

    fn finish(&mut self, rows: Range<usize>, columns: Range<usize>) {
        if !self.sums.is_empty() {
            let (first, sums) = (self.tile(&rows, &columns), std::mem::take(&mut self.sums));
            self.round(rows, columns, &sums.as_chunks().0[first..]);
            self.sums = sums;
        }
    }
}

/// Rounds the sums of a tile.
struct Round<'a, T, O> {
    sums: &'a [[T; COLUMNS]],
    to: &'a mut [[O; COLUMNS]; ROWS],
}

impl<T: Float, O: FromSum<T>> Loop for Round<'_, T, O> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (to, sums) in self.to.iter_mut().zip(self.sums) {
            for (to, &sum) in to.iter_mut().zip(sums) {
                *to = O::from_sum(sum);
            }
        }
    }
}

/// Stores or adds sums `step` elements apart.
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
