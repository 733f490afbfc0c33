//! 2 × 2 pools with stride 2, the most common pools. Each element belongs to one window, so a row of windows is a loop
//! over the pairs of two rows, and the backward pass writes each element once.

use crate::cpu::number::Float;
use crate::cpu::simd::{self, Loop};
use crate::window::{PoolAxis, PoolReduction, PoolWindow, Window};

/// The 2 × 2 windows of a plane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool2x2 {
    from: [usize; 2],
    to: [usize; 2],
}

impl Pool2x2 {
    /// Returns `None` for other windows.
    pub(crate) fn new(axes: [PoolAxis; 2], from: [usize; 2], to: [usize; 2]) -> Option<Self> {
        let pairs = PoolAxis::Sliding(PoolWindow::new(Window { stride: 2, ..Window::new(2) }));
        (axes == [pairs; 2] && to[1] > 0).then_some(Self { from, to })
    }

    /// The windows of some rows of a plane.
    pub(crate) const fn of_rows(from: [usize; 2], to: [usize; 2]) -> Self {
        Self { from, to }
    }

    /// See [`Pool2d`](crate::families::Pool2d).
    pub(crate) fn forward<T: Float>(self, pool: PoolReduction, input: &[T], out: &mut [T]) {
        match pool {
            PoolReduction::Max => {
                let of = |[a, b, c, d]: [T; 4]| d.larger(c.larger(b.larger(a)));
                simd::run(Forward { pool2x2: self, input, out, of });
            }
            PoolReduction::Mean => {
                let four = T::from_f64(4.0);
                let of = |[a, b, c, d]: [T; 4]| (a + b + c + d) / four;
                simd::run(Forward { pool2x2: self, input, out, of });
            }
        }
    }

    /// Overwrites `out`. See [`Pool2dGrad`](crate::families::Pool2dGrad).
    pub(crate) fn backward<T: Float>(self, pool: PoolReduction, input: &[T], grad: &[T], out: &mut [T]) {
        match pool {
            PoolReduction::Max => {
                simd::run(Backward { pool2x2: self, input, grad, out, of: to_first_largest })
            }
            PoolReduction::Mean => simd::run(MeanBackward { pool2x2: self, grad, out }),
        }
    }
}

/// Passes the gradient to the first maximum; NaN is the maximum. Without branches, because they would be unpredictable.
#[inline(always)]
fn to_first_largest<T: Float>([a, b, c, d]: [T; 4], grad: T) -> [T; 4] {
    let best = d.larger(c.larger(b.larger(a)));
    let [a, b, c] = [a, b, c].map(|value| (value == best) | value.is_nan());
    [a, b & !a, c & !(a | b), !(a | b | c)].map(|wins| if wins { grad } else { T::ZERO })
}

/// The backward pass of a mean: each element receives a quarter of its window's gradient.
struct MeanBackward<'a, T> {
    pool2x2: Pool2x2,
    grad: &'a [T],
    out: &'a mut [T],
}

impl<T: Float> Loop for MeanBackward<'_, T> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (Pool2x2 { from: [_, width], to: [_, wide] }, four) = (self.pool2x2, T::from_f64(4.0));
        let mut rest = self.out;
        for grad in self.grad.chunks_exact(wide) {
            let Some(rows) = rest.split_off_mut(..2 * width) else { return };
            for row in rows.chunks_exact_mut(width) {
                let (pairs, right) = row.as_chunks_mut::<2>();
                pairs.iter_mut().zip(grad).for_each(|(pair, &grad)| *pair = [grad / four; 2]);
                right.fill(T::ZERO);
            }
        }
        // Elements outside of all windows.
        rest.fill(T::ZERO);
    }
}

struct Forward<'a, T, F> {
    pool2x2: Pool2x2,
    input: &'a [T],
    out: &'a mut [T],
    of: F,
}

impl<T: Float, F: Fn([T; 4]) -> T> Loop for Forward<'_, T, F> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Pool2x2 { from: [_, width], to: [_, wide] } = self.pool2x2;
        for (rows, out) in self.input.chunks_exact(2 * width).zip(self.out.chunks_exact_mut(wide)) {
            let (upper, lower) = rows.split_at(width);
            let (upper, lower) = (upper.as_chunks::<2>().0, lower.as_chunks::<2>().0);
            for ((out, &[a, b]), &[c, d]) in out.iter_mut().zip(upper).zip(lower) {
                *out = (self.of)([a, b, c, d]);
            }
        }
    }
}

struct Backward<'a, T, F> {
    pool2x2: Pool2x2,
    input: &'a [T],
    grad: &'a [T],
    out: &'a mut [T],
    of: F,
}

impl<T: Float, F: Fn([T; 4], T) -> [T; 4]> Loop for Backward<'_, T, F> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        match self.pool2x2.to[1] {
            8.. => self.in_tiles::<8>(),
            4..8 => self.in_tiles::<4>(),
            _ => self.in_tiles::<1>(),
        }
    }
}

impl<T: Float, F: Fn([T; 4], T) -> [T; 4]> Backward<'_, T, F> {
    /// Processes rows of at least `N` windows, `N` at a time. Planes are often narrower than the vector length that the
    /// compiler would choose.
    #[inline(always)]
    fn in_tiles<const N: usize>(self) {
        let Pool2x2 { from: [_, width], to: [_, wide] } = self.pool2x2;
        let mut rest = self.out;
        for (rows, grad) in self.input.chunks_exact(2 * width).zip(self.grad.chunks_exact(wide)) {
            let Some(now) = rest.split_off_mut(..2 * width) else { return };
            let ((upper, lower), (up, low)) = (rows.split_at(width), now.split_at_mut(width));
            let (upper, lower) = (upper.as_chunks::<2>().0, lower.as_chunks::<2>().0);
            let ((up, right), (low, below)) = (up.as_chunks_mut::<2>(), low.as_chunks_mut::<2>());
            // Elements outside of all windows.
            right.fill(T::ZERO);
            below.fill(T::ZERO);
            for start in (0..wide).step_by(N) {
                // The last tile overlaps the tile before it.
                let start = start.min(wide.saturating_sub(N));
                let seen = upper[start..].first_chunk::<N>().zip(lower[start..].first_chunk::<N>());
                let out = up[start..].first_chunk_mut::<N>().zip(low[start..].first_chunk_mut::<N>());
                let (Some(seen), Some((up, low)), Some(grad)) = (seen, out, grad[start..].first_chunk::<N>())
                else {
                    return;
                };
                (*up, *low) = tile(seen, grad, &self.of);
            }
        }
        rest.fill(T::ZERO);
    }
}

/// The gradients of the elements of two rows, by value, so that the compiler knows that nothing aliases.
#[inline(always)]
fn tile<T: Float, const N: usize>(
    (upper, lower): (&[[T; 2]; N], &[[T; 2]; N]),
    grad: &[T; N],
    of: impl Fn([T; 4], T) -> [T; 4],
) -> ([[T; 2]; N], [[T; 2]; N]) {
    let (mut up, mut low) = ([[T::ZERO; 2]; N], [[T::ZERO; 2]; N]);
    for i in 0..N {
        let ([a, b], [c, d]) = (upper[i], lower[i]);
        let [a, b, c, d] = of([a, b, c, d], grad[i]);
        (up[i], low[i]) = ([a, b], [c, d]);
    }
    (up, low)
}

#[cfg(test)]
mod tests {
    use super::super::sliding::{Sliding, WindowMax};
    use super::*;

    #[test]
    fn two_by_two_pools_match_sliding_windows() {
        let axes = [PoolAxis::Sliding(PoolWindow::new(Window { stride: 2, ..Window::new(2) })); 2];
        for height in 2..6 {
            for width in 2..40 {
                let (from, to) = ([height, width], [height / 2, width / 2]);
                let input: Vec<f32> = (0..height * width)
                    .map(|i| if i % 37 == 5 { f32::NAN } else { (i * 7919 % 11) as f32 - 5.0 })
                    .collect();
                let grad: Vec<f32> = (1..=to[0] * to[1]).map(|i| i as f32).collect();
                let pool2x2 = Pool2x2::new(axes, from, to).unwrap();
                let sliding = Sliding::new(PoolReduction::Mean, axes, from, to).unwrap();
                for pool in [PoolReduction::Max, PoolReduction::Mean] {
                    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    let (mut out, mut right) = (vec![9.0; grad.len()], vec![9.0; grad.len()]);
                    pool2x2.forward(pool, &input, &mut out);
                    sliding.forward(pool, &input, &mut right);
                    assert_eq!(bits(&out), bits(&right), "{pool:?} of {height} by {width}");
                    let (mut out, mut right) = (vec![9.0; input.len()], vec![9.0; input.len()]);
                    pool2x2.backward(pool, &input, &grad, &mut out);
                    sliding.backward(pool, &input, &grad, &mut right, &mut WindowMax::default());
                    assert_eq!(bits(&out), bits(&right), "the gradient of {pool:?} of {height} by {width}");
                }
            }
        }
    }

    #[test]
    fn other_windows_are_not_two_by_two_pools() {
        let two = Window { stride: 2, ..Window::new(2) };
        for other in [Window::new(2), Window { padding: 1, ..two }, Window { size: 3, ..two }] {
            let axes = [two, other].map(|window| PoolAxis::Sliding(PoolWindow::new(window)));
            assert!(Pool2x2::new(axes, [4, 4], [2, 2]).is_none());
        }
        assert!(Pool2x2::new([PoolAxis::Adaptive { outputs: 2 }; 2], [4, 4], [2, 2]).is_none());
    }
}
