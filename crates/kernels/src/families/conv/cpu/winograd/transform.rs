//! The transforms of Winograd's F(2×2, 3×3), along one axis and for several tiles side by side.
//!
//! A tile has two outputs `y` per axis. They are correlations of four inputs `d` and a filter `g` of three taps, and are
//! computed from four products: y = Aᵀ((G g) ⊙ (Bᵀ d)). The gradients use the same matrices, transposed.

use std::ops::{Add, Mul, Sub};

use super::direct::is_finite;
use crate::cpu::number::Float;

/// The values of `N` tiles at one position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Lanes<T, const N: usize>(pub(super) [T; N]);

impl<T: Float, const N: usize> Lanes<T, N> {
    pub(super) const ZERO: Self = Self([T::ZERO; N]);

    #[inline(always)]
    pub(super) fn load(from: &[T]) -> Self {
        let mut lanes = Self::ZERO;
        for (lane, from) in lanes.0.iter_mut().zip(&from[..N]) {
            *lane = *from;
        }
        lanes
    }

    #[inline(always)]
    pub(super) fn store(self, to: &mut [T]) {
        for (lane, to) in self.0.iter().zip(&mut to[..N]) {
            *to = *lane;
        }
    }

    /// Whether the sum of all lanes is finite. If so, all lanes are.
    #[inline(always)]
    pub(super) fn is_finite(self) -> bool {
        is_finite(self.0.into_iter().fold(T::ZERO, |sum, lane| sum + lane))
    }
}

impl<T: Float, const N: usize> Add for Lanes<T, N> {
    type Output = Self;

    #[inline(always)]
    fn add(self, rhs: Self) -> Self {
        let mut lanes = self;
        for (lane, rhs) in lanes.0.iter_mut().zip(&rhs.0) {
            *lane += *rhs;
        }
        lanes
    }
}

impl<T: Float, const N: usize> Sub for Lanes<T, N> {
    type Output = Self;

    #[inline(always)]
    fn sub(self, rhs: Self) -> Self {
        let mut lanes = self;
        for (lane, rhs) in lanes.0.iter_mut().zip(&rhs.0) {
            *lane -= *rhs;
        }
        lanes
    }
}

impl<T: Float, const N: usize> Mul<T> for Lanes<T, N> {
    type Output = Self;

    #[inline(always)]
    fn mul(self, rhs: T) -> Self {
        let mut lanes = self;
        for lane in &mut lanes.0 {
            *lane *= rhs;
        }
        lanes
    }
}

#[inline(always)]
fn input_axis<T: Float, const N: usize>([a, b, c, d]: [Lanes<T, N>; 4]) -> [Lanes<T, N>; 4] {
    [a - c, b + c, c - b, b - d]
}

#[inline(always)]
fn output_axis<T: Float, const N: usize>([a, b, c, d]: [Lanes<T, N>; 4]) -> [Lanes<T, N>; 2] {
    [a + (b + c), (b - c) - d]
}

#[inline(always)]
fn filter_axis<T: Float, const N: usize>([a, b, c]: [Lanes<T, N>; 3]) -> [Lanes<T, N>; 4] {
    let half = T::ONE / (T::ONE + T::ONE);
    let (ends, middle) = ((a + c) * half, b * half);
    [a, ends + middle, ends - middle, c]
}

/// Bᵀ d B: transforms the inputs of tiles. Returns the transposed result.
#[inline(always)]
pub(super) fn input<T: Float, const N: usize>([a, b, c, d]: [[Lanes<T, N>; 4]; 4]) -> [[Lanes<T, N>; 4]; 4] {
    let [a, b, c, d] = [input_axis(a), input_axis(b), input_axis(c), input_axis(d)];
    [
        input_axis([a[0], b[0], c[0], d[0]]),
        input_axis([a[1], b[1], c[1], d[1]]),
        input_axis([a[2], b[2], c[2], d[2]]),
        input_axis([a[3], b[3], c[3], d[3]]),
    ]
}

/// Aᵀ m A: the outputs of tiles from their products, which are transposed.
#[inline(always)]
pub(super) fn output<T: Float, const N: usize>([a, b, c, d]: [[Lanes<T, N>; 4]; 4]) -> [[Lanes<T, N>; 2]; 2] {
    let [a, b, c, d] = [output_axis(a), output_axis(b), output_axis(c), output_axis(d)];
    [output_axis([a[0], b[0], c[0], d[0]]), output_axis([a[1], b[1], c[1], d[1]])]
}

/// G g Gᵀ: transforms filters. Returns the transposed result.
#[inline(always)]
pub(super) fn filter<T: Float, const N: usize>([a, b, c]: [[Lanes<T, N>; 3]; 3]) -> [[Lanes<T, N>; 4]; 4] {
    let [a, b, c] = [filter_axis(a), filter_axis(b), filter_axis(c)];
    [
        filter_axis([a[0], b[0], c[0]]),
        filter_axis([a[1], b[1], c[1]]),
        filter_axis([a[2], b[2], c[2]]),
        filter_axis([a[3], b[3], c[3]]),
    ]
}

#[inline(always)]
fn grad_axis<T: Float, const N: usize>([a, b]: [Lanes<T, N>; 2]) -> [Lanes<T, N>; 4] {
    [a, a + b, a - b, Lanes::ZERO - b]
}

/// A y Aᵀ: transforms the gradients of tiles. Returns the transposed result.
#[inline(always)]
pub(super) fn grad<T: Float, const N: usize>([a, b]: [[Lanes<T, N>; 2]; 2]) -> [[Lanes<T, N>; 4]; 4] {
    let [a, b] = [grad_axis(a), grad_axis(b)];
    [grad_axis([a[0], b[0]]), grad_axis([a[1], b[1]]), grad_axis([a[2], b[2]]), grad_axis([a[3], b[3]])]
}

#[inline(always)]
fn weight_axis<T: Float, const N: usize>([a, b, c, d]: [Lanes<T, N>; 4]) -> [Lanes<T, N>; 3] {
    let half = T::ONE / (T::ONE + T::ONE);
    let (sum, difference) = ((b + c) * half, (b - c) * half);
    [a + sum, difference, sum + d]
}

/// Gᵀ m G: the gradients of filters from their products, which are transposed.
#[inline(always)]
pub(super) fn weight<T: Float, const N: usize>([a, b, c, d]: [[Lanes<T, N>; 4]; 4]) -> [[Lanes<T, N>; 3]; 3] {
    let [a, b, c, d] = [weight_axis(a), weight_axis(b), weight_axis(c), weight_axis(d)];
    [
        weight_axis([a[0], b[0], c[0], d[0]]),
        weight_axis([a[1], b[1], c[1], d[1]]),
        weight_axis([a[2], b[2], c[2], d[2]]),
    ]
}
