//! The micro-kernels of x86-64: AVX-512, also with bf16 pairs, and AVX2.

use std::arch::x86_64::*;

use super::vector::{Vector, multiply};
use super::{Pair, ROWS, Right, Tile};

/// Implements [`Vector`] for a register of floats.
macro_rules! float_vector {
    ($vector:ty: $lanes:literal lanes of $type:ty, $rows:literal rows,
        $zero:ident, $load:ident, $broadcast:ident, $multiply_add:ident, $store:ident) => {
        impl Vector for $vector {
            type Packed = $type;
            type Sum = $type;
            type Operand = Self;

            const LANES: usize = $lanes;
            const ROWS: usize = $rows;

            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: the processor supports the instruction.
                unsafe { $zero() }
            }

            #[inline(always)]
            unsafe fn load(from: *const $type) -> Self {
                // SAFETY: as above, and `from` is valid for a register.
                unsafe { $load(from) }
            }

            #[inline(always)]
            unsafe fn broadcast(value: $type) -> Self {
                // SAFETY: the processor supports the instruction.
                unsafe { $broadcast(value) }
            }

            #[inline(always)]
            unsafe fn multiply_add(self, lhs: Self, rhs: Self) -> Self {
                // SAFETY: the processor supports the instruction.
                unsafe { $multiply_add(lhs, rhs, self) }
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut $type) {
                // SAFETY: as above, and `to` is valid for a register.
                unsafe { $store(to, self) }
            }
        }
    };
}

float_vector!(__m512: 16 lanes of f32, 12 rows,
    _mm512_setzero_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_storeu_ps);
float_vector!(__m512d: 8 lanes of f64, 12 rows,
    _mm512_setzero_pd, _mm512_loadu_pd, _mm512_set1_pd, _mm512_fmadd_pd, _mm512_storeu_pd);
float_vector!(__m256: 8 lanes of f32, 6 rows,
    _mm256_setzero_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_storeu_ps);
float_vector!(__m256d: 4 lanes of f64, 6 rows,
    _mm256_setzero_pd, _mm256_loadu_pd, _mm256_set1_pd, _mm256_fmadd_pd, _mm256_storeu_pd);

/// Sixteen `f32` sums of products of bf16 pairs.
#[derive(Clone, Copy)]
struct PairSums(__m512);

impl Vector for PairSums {
    type Packed = Pair;
    type Sum = f32;
    type Operand = __m512i;

    const LANES: usize = 16;
    const ROWS: usize = 12;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the processor supports the instruction.
        Self(unsafe { _mm512_setzero_ps() })
    }

    #[inline(always)]
    unsafe fn load(from: *const Pair) -> __m512i {
        // SAFETY: as above, and `from` is valid for a register.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn broadcast(value: Pair) -> __m512i {
        // SAFETY: the processor supports the instruction.
        unsafe { _mm512_set1_epi32(value.0.cast_signed()) }
    }

    #[inline(always)]
    unsafe fn multiply_add(self, lhs: __m512i, rhs: __m512i) -> Self {
        // SAFETY: all registers of 512 bits have the same representation.
        let [lhs, rhs] = unsafe { std::mem::transmute::<[__m512i; 2], [__m512bh; 2]>([lhs, rhs]) };
        // SAFETY: the processor supports the instruction.
        Self(unsafe { _mm512_dpbf16_ps(self.0, lhs, rhs) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as above, and `to` is valid for a register.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }
}

/// Defines the kernel of an instruction set.
macro_rules! kernels {
    ($($name:ident: $vector:ty, $packed:ty => $sum:ty, $features:literal;)+) => {$(
        /// See [`Packed::multiply`](super::Packed::multiply). Callers have found the instruction set.
        pub(super) fn $name(
            lhs: &[[$packed; ROWS]],
            rhs: impl Right<$packed>,
            rows: usize,
            tile: &mut Tile<$sum>,
        ) {
            #[target_feature(enable = $features)]
            fn kernel(
                lhs: &[[$packed; ROWS]],
                rhs: impl Right<$packed>,
                rows: usize,
                tile: &mut Tile<$sum>,
            ) {
                // SAFETY: this function is compiled for the instruction set.
                unsafe { multiply::<$vector>(lhs, rhs, rows, tile) }
            }

            // SAFETY: `Packed::multiply` has found the instruction set.
            unsafe { kernel(lhs, rhs, rows, tile) }
        }
    )+};
}

kernels! {
    f32_avx512: __m512, f32 => f32, "avx512f,avx512vl,fma";
    f64_avx512: __m512d, f64 => f64, "avx512f,avx512vl,fma";
    f32_avx2: __m256, f32 => f32, "avx2,fma";
    f64_avx2: __m256d, f64 => f64, "avx2,fma";
    pairs_avx512: PairSums, Pair => f32, "avx512f,avx512vl,avx512bf16";
}

/// See [`round_to_pairs`](super::round_to_pairs). Callers have found the instruction set.
pub(super) fn round_to_pairs(from: &[f32], to: &mut [Pair]) {
    #[target_feature(enable = "avx512f,avx512vl,avx512bf16")]
    fn rounded(from: &[f32], to: &mut [Pair]) {
        for (from, to) in from.as_chunks::<32>().0.iter().zip(to.as_chunks_mut::<16>().0) {
            let (low, high) = from.split_at(16);
            // SAFETY: the slice has 16 elements.
            let low = unsafe { _mm512_loadu_ps(low.as_ptr()) };
            // SAFETY: as above.
            let high = unsafe { _mm512_loadu_ps(high.as_ptr()) };
            let rounded = _mm512_cvtne2ps_pbh(high, low);
            // SAFETY: both types have 512 bits.
            *to = unsafe { std::mem::transmute::<__m512bh, [Pair; 16]>(rounded) };
        }
    }

    // SAFETY: `round_to_pairs` has found the instruction set.
    unsafe { rounded(from, to) }
}
