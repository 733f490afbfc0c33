//! Pools of 16-bit floats. The rows of a window are f32 while they are pooled, and results are rounded once.
//!
//! ```text
//!   input   ▒▒▒▒▒▒▒▒▒▒   of 16 bits
//!           ▓▓▓▓▓▓▓▓▓▓ ┐ the rows that the windows of one row of outputs contain: f32
//!           ▓▓▓▓▓▓▓▓▓▓ ┘
//!           ░░░░░░░░░░
//! ```
//!
//! In the backward pass, a row of the input is complete when no later window contains it.

use super::pool2x2::Pool2x2;
use super::sliding::WindowMax;
use super::{Path, Planes};
use crate::cpu::convert::Half;
use crate::cpu::dispatch::{contiguous, host_mut};
use crate::cpu::fold::{Sum, fold_slice};
use crate::cpu::parallel::{Workers, light_runs};
use crate::error::Result;
use crate::storage::{View, ViewMut};

/// The number of elements that are converted at a time where windows do not overlap.
const TILE: usize = 2048;

/// See [`Pool2d`](crate::families::Pool2d).
pub(super) fn forward<H: Half>(
    workers: &Workers,
    op: &'static str,
    planes: &Planes,
    input: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let (input, out) = (contiguous::<H>(op, input)?, host_mut::<H>(op, out)?);
    let [of_in, of_out] = planes.sizes();
    workers.chunks(out, light_runs(of_in * 2) * of_out, &|start, part| {
        let inputs = input[start / of_out * of_in..].chunks(of_in);
        let mut rows = Rows::default();
        for (input, out) in inputs.zip(part.chunks_mut(of_out)) {
            match &planes.path {
                Path::GlobalMean => H::narrow(&[mean(input)], out),
                Path::Pool2x2(_) => in_bands(planes, &mut rows, (input, out)),
                Path::Sliding(_) | Path::Generic => by_rows(planes, &mut rows, (input, out)),
            }
        }
    });
    Ok(())
}

/// The rows of f32 of a chunk of planes, with capacity for the tallest windows.
#[derive(Default)]
struct Rows {
    input: Vec<f32>,
    grad: Vec<f32>,
    out: Vec<f32>,
    best: WindowMax<f32>,
}

/// Converts elements to f32.
fn upcast<'s, H: Half>(from: &[H], space: &'s mut Vec<f32>) -> &'s [f32] {
    let space = resized(space, from.len());
    H::upcast(from, space);
    space
}

/// The first `len` elements, whose values are undefined.
fn resized(space: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if space.len() < len {
        space.resize(len, 0.0);
    }
    &mut space[..len]
}

fn mean<H: Half>(values: &[H]) -> f32 {
    let (mut sum, mut tile) = (0.0, [0.0; TILE]);
    for part in values.chunks(TILE) {
        let tile = &mut tile[..part.len()];
        H::upcast(part, tile);
        sum += fold_slice::<f32, Sum>(tile);
    }
    sum / values.len() as f32
}

/// The pairs of rows of 2 × 2 windows that are converted at a time.
fn pairs(width: usize) -> usize {
    (TILE / (2 * width).max(1)).max(1)
}

fn in_bands<H: Half>(planes: &Planes, rows: &mut Rows, (input, out): (&[H], &mut [H])) {
    let ([_, width], [_, wide]) = (planes.from, planes.to);
    let pairs = pairs(width);
    for (input, out) in input.chunks(pairs * 2 * width).zip(out.chunks_mut(pairs * wide)) {
        let high = out.len() / wide;
        let band = Pool2x2::of_rows([2 * high, width], [high, wide]);
        let pooled = resized(&mut rows.out, out.len());
        band.forward(planes.pool, upcast(&input[..2 * high * width], &mut rows.input), pooled);
        H::narrow(pooled, out);
    }
}

fn by_rows<H: Half>(planes: &Planes, rows: &mut Rows, (input, out): (&[H], &mut [H])) {
    let width = planes.from[1];
    for (row, out) in out.chunks_mut(planes.to[1]).enumerate() {
        let of_windows = planes.rows(row);
        let from = upcast(&input[of_windows.start * width..of_windows.end * width], &mut rows.input);
        let pooled = resized(&mut rows.out, out.len());
        planes.forward_row(row, (from, of_windows.start), pooled);
        H::narrow(pooled, out);
    }
}

/// See [`Pool2dGrad`](crate::families::Pool2dGrad).
pub(super) fn backward<H: Half>(
    workers: &Workers,
    op: &'static str,
    planes: &Planes,
    (input, grad): (Option<&View<'_>>, &View<'_>),
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let input = input.map_or(Ok(Default::default()), |input| contiguous::<H>(op, input))?;
    let (grad, out) = (contiguous::<H>(op, grad)?, host_mut::<H>(op, out)?);
    let [of_in, of_out] = planes.sizes();
    workers.chunks(out, light_runs(of_in * 2) * of_in, &|start, part| {
        let mut rows = Rows::default();
        for (number, out) in (start / of_in..).zip(part.chunks_mut(of_in)) {
            // The input of a mean is empty.
            let input = input.get(number * of_in..(number + 1) * of_in).unwrap_or_default();
            let grad = &grad[number * of_out..][..of_out];
            match &planes.path {
                Path::GlobalMean => {
                    let mut share = [0.0];
                    H::upcast(grad, &mut share);
                    let mut rounded = [grad[0]];
                    H::narrow(&[share[0] / of_in as f32], &mut rounded);
                    out.fill(rounded[0]);
                }
                Path::Pool2x2(_) => in_bands_back(planes, &mut rows, (input, grad, out)),
                Path::Sliding(_) | Path::Generic => by_rows_back(planes, &mut rows, (input, grad, out)),
            }
        }
    });
    Ok(())
}

fn in_bands_back<H: Half>(planes: &Planes, rows: &mut Rows, (input, grad, out): (&[H], &[H], &mut [H])) {
    let ([height, width], [tall, wide]) = (planes.from, planes.to);
    let pairs = pairs(width);
    for first in (0..tall).step_by(pairs) {
        let high = pairs.min(tall - first);
        // The last band also has the row outside of all windows.
        let end = if first + high == tall { height } else { 2 * (first + high) };
        let of_band = 2 * first * width..end * width;
        let band = Pool2x2::of_rows([end - 2 * first, width], [high, wide]);
        let input = upcast(input.get(of_band.clone()).unwrap_or_default(), &mut rows.input);
        let grad = upcast(&grad[first * wide..(first + high) * wide], &mut rows.grad);
        let sums = resized(&mut rows.out, of_band.len());
        band.backward(planes.pool, input, grad, sums);
        H::narrow(sums, &mut out[of_band]);
    }
}

fn by_rows_back<H: Half>(planes: &Planes, rows: &mut Rows, (input, grad, out): (&[H], &[H], &mut [H])) {
    let width = planes.from[1];
    // The sums of the rows from `first` on. Those before are complete.
    let (mut first, mut kept) = (0, 0);
    for (row, grad) in grad.chunks(planes.to[1]).enumerate() {
        let of_windows = planes.rows(row);
        if of_windows.is_empty() {
            continue;
        }
        let complete = of_windows.start - first;
        let written = complete.min(kept);
        H::narrow(&rows.out[..written * width], &mut out[first * width..(first + written) * width]);
        // Rows between windows.
        H::narrow(
            resized_zeros(&mut rows.grad, (complete - written) * width),
            &mut out[(first + written) * width..of_windows.start * width],
        );
        rows.out.copy_within(written * width..kept * width, 0);
        kept -= written;
        first = of_windows.start;
        let needed = of_windows.len().max(kept);
        resized(&mut rows.out, needed * width)[kept * width..].fill(0.0);
        kept = needed;
        let range = first * width..of_windows.end * width;
        let from = upcast(input.get(range).unwrap_or_default(), &mut rows.input);
        let grad = upcast(grad, &mut rows.grad);
        planes.backward_row(row, (from, first), grad, &mut rows.out[..kept * width], &mut rows.best);
    }
    let (sums, rest) = (&rows.out[..kept * width], &mut out[first * width..]);
    H::narrow(sums, &mut rest[..sums.len()]);
    let rest = &mut rest[sums.len()..];
    H::narrow(resized_zeros(&mut rows.grad, rest.len()), rest);
}

fn resized_zeros(space: &mut Vec<f32>, len: usize) -> &[f32] {
    let zeros = resized(space, len);
    zeros.fill(0.0);
    zeros
}
