//! The micro-kernel: multiplies two packed panels to one tile of the output.
//!
//! ```text
//!                  rhs panel: rows of COLUMNS elements
//!                ┌────────────────────────────┐
//!                │                            │  depth
//!                └────────────────────────────┘
//!  lhs panel     ┌────────────────────────────┐
//!  rows of ROWS  │ tile: ROWS × COLUMNS sums  │  each step broadcasts the elements of one row of lhs
//!  elements      └────────────────────────────┘  and multiplies them by one row of rhs
//! ```
//!
//! The 12 × 32 sums of `f32` fill 24 of the 32 registers of AVX-512, which hides the latency of its multiply-adds. Narrower
//! vectors compute the same tile in parts. Each sum adds its products in the order of depth, with one fused multiply-add
//! each. So results of `f32` and `f64` are equal bit for bit for all instruction sets that have fused multiply-adds.

#[cfg(target_arch = "aarch64")]
mod neon;
mod right;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod vector;
#[cfg(target_arch = "x86_64")]
mod x86;

use self::right::Row;
pub(crate) use self::right::{HALF, Right, Stored};
use super::super::number::Float;
use super::super::simd::{Instructions, instructions};

/// Rows of a tile, and elements in a row of a panel of the left operand.
pub(crate) const ROWS: usize = 12;

/// Columns of a tile, and elements in a row of a panel of the right operand.
pub(crate) const COLUMNS: usize = 32;

/// The sums of one tile.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Tile<T>(pub(crate) [[T; COLUMNS]; ROWS]);

impl<T: Float> Tile<T> {
    pub(crate) const ZERO: Self = Self([[T::ZERO; COLUMNS]; ROWS]);
}

/// An element of packed panels.
pub(crate) trait Packed: bytemuck::Pod + Send + Sync {
    /// The type of the sums.
    type Sum: Float;

    /// Overwrites the first `rows` rows of the tile with the product of two panels of equal depth, summed over that depth.
    /// The other rows are unspecified.
    fn multiply(lhs: &[[Self; ROWS]], rhs: impl Right<Self>, rows: usize, tile: &mut Tile<Self::Sum>);
}

/// Two consecutive bf16 elements of one row or column of a matrix, the first one in the lower half.
#[derive(Clone, Copy, Debug, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub(crate) struct Pair(pub(in super::super) u32);

impl Pair {
    /// Whether this processor has an instruction that multiplies pairs.
    pub(crate) fn is_supported() -> bool {
        match instructions() {
            #[cfg(target_arch = "x86_64")]
            Instructions::V4 { bf16 } => bf16,
            _ => false,
        }
    }
}

/// Rounds consecutive elements to pairs of the nearest bf16, ties to even, if the processor has an instruction for it. It rounds
/// subnormal elements to 0, as the products of pairs do.
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "no instruction is known"))]
pub(super) fn round_to_pairs(from: &[f32], to: &mut [Pair]) -> bool {
    match instructions() {
        #[cfg(target_arch = "x86_64")]
        Instructions::V4 { bf16: true } => {
            x86::round_to_pairs(from, to);
            true
        }
        _ => false,
    }
}

impl Packed for f32 {
    type Sum = Self;

    #[inline]
    fn multiply(lhs: &[[Self; ROWS]], rhs: impl Right<Self>, rows: usize, tile: &mut Tile<Self>) {
        assert!(lhs.len() == rhs.len() && rows <= ROWS);
        match instructions() {
            #[cfg(target_arch = "x86_64")]
            Instructions::V4 { .. } => x86::f32_avx512(lhs, rhs, rows, tile),
            #[cfg(target_arch = "x86_64")]
            Instructions::V3 => x86::f32_avx2(lhs, rhs, rows, tile),
            #[cfg(target_arch = "aarch64")]
            Instructions::Baseline => neon::f32_neon(lhs, rhs, rows, tile),
            #[cfg(not(target_arch = "aarch64"))]
            _ => portable(lhs, rhs, rows, tile),
        }
    }
}

impl Packed for f64 {
    type Sum = Self;

    #[inline]
    fn multiply(lhs: &[[Self; ROWS]], rhs: impl Right<Self>, rows: usize, tile: &mut Tile<Self>) {
        assert!(lhs.len() == rhs.len() && rows <= ROWS);
        match instructions() {
            #[cfg(target_arch = "x86_64")]
            Instructions::V4 { .. } => x86::f64_avx512(lhs, rhs, rows, tile),
            #[cfg(target_arch = "x86_64")]
            Instructions::V3 => x86::f64_avx2(lhs, rhs, rows, tile),
            #[cfg(target_arch = "aarch64")]
            Instructions::Baseline => neon::f64_neon(lhs, rhs, rows, tile),
            #[cfg(not(target_arch = "aarch64"))]
            _ => portable(lhs, rhs, rows, tile),
        }
    }
}

impl Packed for Pair {
    type Sum = f32;

    #[inline]
    fn multiply(lhs: &[[Self; ROWS]], rhs: impl Right<Self>, rows: usize, tile: &mut Tile<f32>) {
        assert!(lhs.len() == rhs.len() && rows <= ROWS);
        match instructions() {
            #[cfg(target_arch = "x86_64")]
            Instructions::V4 { bf16: true } => x86::pairs_avx512(lhs, rhs, rows, tile),
            _ => portable_pairs(lhs, rhs, rows, tile),
        }
    }
}

/// The kernel for processors without one above.
#[cfg_attr(all(target_arch = "aarch64", not(test)), expect(dead_code, reason = "all processors have NEON"))]
fn portable<T: Float>(lhs: &[[T; ROWS]], rhs: impl Right<T>, rows: usize, tile: &mut Tile<T>) {
    for (row, sums) in tile.0.iter_mut().enumerate().take(rows) {
        *sums = [T::ZERO; COLUMNS];
        for (lhs, rhs) in lhs.iter().zip(rhs.rows()) {
            for (half, sums) in sums.chunks_exact_mut(HALF).enumerate() {
                let rhs = rhs.register(half * HALF, HALF);
                sums.iter_mut().zip(rhs).for_each(|(sum, &rhs)| *sum += lhs[row] * rhs);
            }
        }
    }
}

/// Multiplies pairs on processors without an instruction for them. For tests: products use `f32` panels there.
fn portable_pairs(lhs: &[[Pair; ROWS]], rhs: impl Right<Pair>, rows: usize, tile: &mut Tile<f32>) {
    let halves = |Pair(bits): Pair| [f32::from_bits(bits << 16), f32::from_bits(bits & 0xffff_0000)];
    for (row, sums) in tile.0.iter_mut().enumerate().take(rows) {
        *sums = [0.0; COLUMNS];
        for (lhs, rhs) in lhs.iter().zip(rhs.rows()) {
            let [a, b] = halves(lhs[row]);
            for (half, sums) in sums.chunks_exact_mut(HALF).enumerate() {
                for (sum, &rhs) in sums.iter_mut().zip(rhs.register(half * HALF, HALF)) {
                    let [c, d] = halves(rhs);
                    *sum += a * c + b * d;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
