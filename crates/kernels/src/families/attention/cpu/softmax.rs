//! The softmax of a tile of scores and its gradient.
//!
//! A row of a tile is so short that a function call per row would be expensive. So each function here processes all
//! rows, compiled for the widest instruction set. It computes a whole number of [`LANES`] per row, and then sets the
//! weights of masked keys to 0.

use super::elements::Attended;
use crate::cpu::number::Number;
use crate::cpu::simd::{self, Loop};
use crate::families::matmul::cpu::Gemm;

/// The number of vector lanes of a reduction.
const LANES: usize = 16;

/// `scores = exp(scores - max)`, in place, with the new running maximum of each row. Rescales the running sums to it.
pub(super) fn softmax_tile<T: Gemm>(
    rows: Rows<'_, T, impl Fn(usize) -> usize>,
    running: RunningSoftmax<'_, T>,
) {
    simd::run(SoftmaxTile { rows, running });
}

/// Recomputes the weights `p = exp(scores - log_sum)` in place, and converts the gradients g of the weights to those of the
/// scores: `p (g - Σ p g) · scale`.
pub(super) fn softmax_grad_tile<T: Gemm>(
    rows: Rows<'_, T, impl Fn(usize) -> usize>,
    gradients: &mut [T],
    [log_sums, along]: [&[T]; 2],
    scale: T,
) {
    simd::run(SoftmaxGradTile { rows, gradients, log_sums, along, scale });
}

/// The dot product of each pair of rows of `width` elements.
pub(super) fn row_products<T: Attended>(products: &mut [T::Sum], [a, b]: [&[T]; 2], width: usize) {
    simd::run(RowProducts { products, a, b, width });
}

/// A tile of scores.
pub(super) struct Rows<'a, T, S> {
    pub(super) scores: &'a mut [T],
    pub(super) columns: usize,
    /// Returns the number of leading columns that a row attends to. A mask tensor may set some of them to -∞.
    pub(super) visible: S,
}

/// The running softmax of the forward pass (online softmax): one entry or row per query.
pub(super) struct RunningSoftmax<'a, T> {
    /// The running maximum; -∞ before the first score.
    pub(super) largest: &'a mut [T],
    /// Σ exp(score - max).
    pub(super) sums: &'a mut [T],
    /// Rows of `values` elements: Σ exp(score - max) · value. Arbitrary before the first key.
    pub(super) out: &'a mut [T],
    pub(super) values: usize,
}

/// How many of `columns` are worked on where `visible` are visible.
fn padded_columns(visible: usize, columns: usize) -> usize {
    visible.next_multiple_of(LANES).min(columns)
}

struct SoftmaxTile<'a, T, S> {
    rows: Rows<'a, T, S>,
    running: RunningSoftmax<'a, T>,
}

impl<T: Gemm, S: Fn(usize) -> usize> Loop for SoftmaxTile<'_, T, S> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Rows { scores, columns, visible } = self.rows;
        let RunningSoftmax { largest, sums, out, values } = self.running;
        let known = largest.iter_mut().zip(sums).zip(out.chunks_mut(values));
        for (row, (scores, ((largest, sum), out))) in scores.chunks_mut(columns).zip(known).enumerate() {
            let visible = visible(row);
            let (scores, behind) = scores.split_at_mut(padded_columns(visible, columns));
            behind.fill(T::ZERO);
            scores[visible..].fill(T::LOWEST);
            let best = fold(scores, *largest, T::larger);
            if best == T::LOWEST {
                // The row attends to no key yet.
                scores.fill(T::ZERO);
                continue;
            }
            for score in &mut *scores {
                *score = (*score - best).exp();
            }
            let shrink = (*largest - best).exp();
            *sum = *sum * shrink + fold(scores, T::ZERO, T::plus);
            // Before the first visible key there is nothing to rescale.
            if *largest != best && *largest != T::LOWEST {
                for out in out {
                    *out *= shrink;
                }
            }
            *largest = best;
        }
    }
}

struct SoftmaxGradTile<'a, T, S> {
    rows: Rows<'a, T, S>,
    gradients: &'a mut [T],
    log_sums: &'a [T],
    along: &'a [T],
    scale: T,
}

impl<T: Gemm, S: Fn(usize) -> usize> Loop for SoftmaxGradTile<'_, T, S> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { rows: Rows { scores, columns, visible }, gradients, log_sums, along, scale } = self;
        let known = log_sums.iter().zip(along);
        let rows = scores.chunks_mut(columns).zip(gradients.chunks_mut(columns)).zip(known);
        for (row, ((weights, gradients), (&log_sum, &along))) in rows.enumerate() {
            let visible = if log_sum == T::LOWEST { 0 } else { visible(row) };
            let end = padded_columns(visible, columns);
            for (weight, gradient) in weights[..end].iter_mut().zip(&mut gradients[..end]) {
                *weight = (*weight - log_sum).exp();
                *gradient = *weight * (*gradient - along) * scale;
            }
            weights[visible..].fill(T::ZERO);
            gradients[visible..].fill(T::ZERO);
        }
    }
}

struct RowProducts<'a, T: Attended> {
    products: &'a mut [T::Sum],
    a: &'a [T],
    b: &'a [T],
    width: usize,
}

impl<T: Attended> Loop for RowProducts<'_, T> {
    type Element = T::Sum;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let rows = self.a.chunks(self.width).zip(self.b.chunks(self.width));
        for (product, (a, b)) in self.products.iter_mut().zip(rows) {
            let mut lanes = [T::Sum::ZERO; LANES];
            for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
                for (lane, (&a, &b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
                    *lane += a.widen() * b.widen();
                }
            }
            *product = fold(&lanes, T::Sum::ZERO, T::Sum::plus);
        }
    }
}

/// Reduces values in lanes and then across lanes, in an order that depends only on their number.
#[inline(always)]
fn fold<T: Number>(values: &[T], start: T, f: impl Fn(T, T) -> T) -> T {
    let mut lanes = [start; LANES];
    let (whole, rest) = values.as_chunks::<LANES>();
    for values in whole {
        for (lane, &value) in lanes.iter_mut().zip(values) {
            *lane = f(*lane, value);
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(rest) {
        *lane = f(*lane, value);
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        let (low, high) = lanes.split_at_mut(width);
        for (low, &high) in low.iter_mut().zip(&*high) {
            *low = f(*low, high);
        }
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Deterministic scores of `rows` by `columns`.
    fn scores(rows: usize, columns: usize) -> Vec<f64> {
        (0..rows * columns).map(|i| ((i * 37 % 101) as f64 - 50.0) / 10.0).collect()
    }

    #[test]
    fn weights_of_masked_keys_are_0() {
        for columns in [1, 15, 16, 17, 40, 64] {
            let before = scores(columns, columns);
            let mut weights = before.clone();
            let (mut largest, mut sums) = (vec![f64::NEG_INFINITY; columns], vec![0.0; columns]);
            let mut out = vec![f64::NAN; columns * 2];
            // Causal: row i sees i + 1 columns.
            let rows = Rows { scores: &mut weights, columns, visible: |row| row + 1 };
            softmax_tile(
                rows,
                RunningSoftmax { largest: &mut largest, sums: &mut sums, out: &mut out, values: 2 },
            );
            for row in 0..columns {
                let visible = &before[row * columns..][..row + 1];
                let best = visible.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                assert_eq!(largest[row], best);
                let expected: Vec<f64> = visible.iter().map(|score| (score - best).exp()).collect();
                assert_eq!(weights[row * columns..][..row + 1], expected);
                assert!(weights[row * columns..][row + 1..columns].iter().all(|&weight| weight == 0.0));
                assert!((sums[row] - expected.iter().sum::<f64>()).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn a_larger_score_rescales_the_running_sums() {
        let mut scores = [2.0_f64, f64::NEG_INFINITY, 0.0, f64::NEG_INFINITY];
        let (mut largest, mut sums) = ([1.0, f64::NEG_INFINITY], [3.0, 0.0]);
        let mut out = [10.0, 7.0];
        let rows = Rows { scores: &mut scores, columns: 2, visible: |row| 2 - 2 * row };
        softmax_tile(
            rows,
            RunningSoftmax { largest: &mut largest, sums: &mut sums, out: &mut out, values: 1 },
        );
        let shrink = (-1.0_f64).exp();
        assert_eq!(scores, [1.0, 0.0, 0.0, 0.0]);
        assert_eq!((largest, sums), ([2.0, f64::NEG_INFINITY], [3.0 * shrink + 1.0, 0.0]));
        assert_eq!(out, [10.0 * shrink, 7.0]);
    }

    #[test]
    fn gradients_of_masked_keys_are_0() {
        for columns in [3, 16, 50] {
            let (before, upstream) = (scores(2, columns), scores(2, columns + 1));
            let (mut weights, mut gradients) = (before.clone(), upstream[..2 * columns].to_vec());
            let (log_sums, along) = ([3.0, f64::NEG_INFINITY], [0.25, 0.5]);
            let rows = Rows { scores: &mut weights, columns, visible: |_| columns - 1 };
            softmax_grad_tile(rows, &mut gradients, [&log_sums, &along], 2.0);
            for column in 0..columns - 1 {
                let weight = (before[column] - 3.0).exp();
                assert_eq!(weights[column], weight);
                assert_eq!(gradients[column], weight * (upstream[column] - 0.25) * 2.0);
            }
            // The last column is masked, and the second row attends to no key.
            assert!(weights[columns - 1..].iter().chain(&gradients[columns - 1..]).all(|&x| x == 0.0));
        }
    }

    #[test]
    fn dot_products_of_rows_at_every_width() {
        for width in 1..40 {
            let (a, b) = (scores(3, width), scores(width, 3));
            let mut products = [0.0; 3];
            row_products(&mut products, [&a, &b], width);
            let rows = a.chunks(width).zip(b.chunks(width));
            for (product, (a, b)) in products.into_iter().zip(rows) {
                let expected: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
                assert!((product - expected).abs() < 1e-9, "{width}");
            }
        }
    }
}
