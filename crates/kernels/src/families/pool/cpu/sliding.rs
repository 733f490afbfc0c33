//! Pools with sliding windows, one row of outputs at a time. The elements that one tap reads have a constant stride, so the
//! innermost loop runs along the row, once for each tap.

use std::ops::Range;

use crate::cpu::number::Float;
use crate::cpu::simd::{self, Loop};
use crate::window::{PoolAxis, PoolReduction, Window};

/// The most elements of a window that are summed one after another.
const SUMMED: usize = 1024;

/// Sliding windows over a plane.
#[derive(Debug)]
pub(crate) struct Sliding {
    vertical: Window,
    from: [usize; 2],
    to: [usize; 2],
    /// For each tap of a row: the outputs for which it reads an element, and the column of the first such element.
    taps: Vec<(Range<usize>, usize)>,
    step: usize,
    /// The number of elements of a window.
    count: f64,
}

/// The running maximum of each window in a row.
#[derive(Debug)]
pub(crate) struct WindowMax<T> {
    values: Vec<T>,
    /// The index of each maximum in its input; [`NO_POSITION`] before the first element.
    places: Vec<u32>,
    /// The elements that the current tap reads.
    seen: Vec<T>,
}

impl<T> Default for WindowMax<T> {
    fn default() -> Self {
        Self { values: Vec::new(), places: Vec::new(), seen: Vec::new() }
    }
}

const NO_POSITION: u32 = u32::MAX;

impl Sliding {
    /// Returns `None` if the windows do not slide, if means divide by different numbers, if they are of too many elements
    /// for one running sum, or if indices into the plane exceed 32 bits.
    pub(crate) fn new(
        pool: PoolReduction,
        axes: [PoolAxis; 2],
        from: [usize; 2],
        to: [usize; 2],
    ) -> Option<Self> {
        let [PoolAxis::Sliding(down), PoolAxis::Sliding(across)] = axes else { return None };
        if pool == PoolReduction::Mean && !(down.counts_all_places() && across.counts_all_places()) {
            return None;
        }
        let (vertical, horizontal) = (down.window, across.window);
        if pool == PoolReduction::Mean && vertical.size.saturating_mul(horizontal.size) > SUMMED {
            return None;
        }
        let elements = from[0].checked_mul(from[1])?;
        u32::try_from(elements).ok().filter(|&elements| elements < NO_POSITION)?;
        let tap = |tap| {
            let outputs = horizontal.inside(tap, from[1], to[1]);
            let first = horizontal.at(outputs.start, tap, from[1]).unwrap_or(0);
            (outputs, first)
        };
        // Other taps read only padding, even for the first and the last output.
        let last = to[1].checked_sub(1)?;
        let seeing = horizontal.taps_inside(last, from[1]).start..horizontal.taps_inside(0, from[1]).end;
        let taps = seeing.map(tap).filter(|(outputs, _)| !outputs.is_empty()).collect();
        let count = vertical.size as f64 * horizontal.size as f64;
        Some(Self { vertical, from, to, taps, step: horizontal.stride, count })
    }

    /// Calls `visit` for each tap, in order, with the outputs of a row for which it reads an element, and the index of
    /// the first such element.
    fn taps(&self, row: usize, mut visit: impl FnMut(Range<usize>, usize)) {
        for tap in self.vertical.taps_inside(row, self.from[0]) {
            let Some(y) = self.vertical.at(row, tap, self.from[0]) else { continue };
            for (outputs, first) in &self.taps {
                visit(outputs.clone(), y * self.from[1] + first);
            }
        }
    }

    /// See [`Pool2d`](crate::families::Pool2d).
    pub(crate) fn forward<T: Float>(&self, pool: PoolReduction, input: &[T], out: &mut [T]) {
        for (row, out) in out.chunks_mut(self.to[1]).enumerate() {
            self.forward_row(pool, row, (input, 0), out);
        }
    }

    /// Computes a row of outputs from the rows of the input that its windows contain. `start` is the index of the first of
    /// these elements in the plane.
    pub(crate) fn forward_row<T: Float>(
        &self,
        pool: PoolReduction,
        row: usize,
        (input, start): (&[T], usize),
        out: &mut [T],
    ) {
        let count = T::from_f64(self.count);
        match pool {
            PoolReduction::Max => {
                out.fill(T::LOWEST);
                self.taps(row, |outputs, first| {
                    simd::zip_step(&mut out[outputs], &input[first - start..], self.step, |best, value| {
                        *best = value.larger(*best);
                    });
                });
            }
            PoolReduction::Mean => {
                out.fill(T::ZERO);
                self.taps(row, |outputs, first| {
                    simd::zip_step(&mut out[outputs], &input[first - start..], self.step, |sum, value| {
                        *sum += value
                    });
                });
                simd::each(out, |sum| *sum = *sum / count);
            }
        }
    }

    /// Overwrites `out`. See [`Pool2dGrad`](crate::families::Pool2dGrad).
    pub(crate) fn backward<T: Float>(
        &self,
        pool: PoolReduction,
        input: &[T],
        grad: &[T],
        out: &mut [T],
        best: &mut WindowMax<T>,
    ) {
        out.fill(T::ZERO);
        for (row, grad) in grad.chunks(self.to[1]).enumerate() {
            self.backward_row(pool, row, (input, 0), grad, out, best);
        }
    }

    /// Adds the gradients of a row of outputs to those of the rows of the input that its windows contain; see
    /// [`forward_row`](Self::forward_row).
    pub(crate) fn backward_row<T: Float>(
        &self,
        pool: PoolReduction,
        row: usize,
        (input, start): (&[T], usize),
        grad: &[T],
        out: &mut [T],
        best: &mut WindowMax<T>,
    ) {
        let count = T::from_f64(self.count);
        match pool {
            PoolReduction::Max => {
                self.find_max(row, (input, start), best);
                for (&place, &grad) in best.places.iter().zip(grad) {
                    out[place as usize] += grad;
                }
            }
            PoolReduction::Mean => self.taps(row, |outputs, first| {
                let seen = out[first - start..].iter_mut().step_by(self.step);
                seen.zip(&grad[outputs]).for_each(|(out, &grad)| *out += grad / count);
            }),
        }
    }

    /// Finds the first maximum of each window of a row; NaN is the maximum. Places count from `start`.
    fn find_max<T: Float>(&self, row: usize, (input, start): (&[T], usize), best: &mut WindowMax<T>) {
        best.values.clear();
        best.values.resize(self.to[1], T::LOWEST);
        best.places.clear();
        best.places.resize(self.to[1], NO_POSITION);
        best.seen.resize(self.to[1], T::ZERO);
        self.taps(row, |outputs, first| {
            let (seen, first) = (&mut best.seen[outputs.clone()], first - start);
            simd::zip_step(seen, &input[first..], self.step, |seen, value| *seen = value);
            let (values, places) = (&mut best.values[outputs.clone()], &mut best.places[outputs]);
            simd::run(UpdateMax { values, places, seen, first: first as u32, step: self.step as u32 });
        });
    }
}

/// Updates the running maxima with the elements that one tap reads.
struct UpdateMax<'a, T> {
    values: &'a mut [T],
    places: &'a mut [u32],
    seen: &'a [T],
    first: u32,
    step: u32,
}

impl<T: Float> Loop for UpdateMax<'_, T> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let best = self.values.iter_mut().zip(self.places).zip(self.seen);
        for (i, ((value, place), &seen)) in (0u32..).zip(best) {
            // A NaN stays the maximum. Without branches, because they would be unpredictable.
            let wins = (seen > *value) | (seen.is_nan() & !value.is_nan()) | (*place == NO_POSITION);
            let at = self.first.wrapping_add(i.wrapping_mul(self.step));
            *value = if wins { seen } else { *value };
            *place = if wins { at } else { *place };
        }
    }
}
