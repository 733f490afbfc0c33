//! The micro-kernels of AArch64, whose processors all support NEON.

use std::arch::aarch64::*;

use super::vector::{Vector, multiply};
use super::{ROWS, Right, Tile};

/// Implements [`Vector`] for a register of floats, and defines its kernel.
macro_rules! neon {
    ($kernel:ident, $vector:ty: $lanes:literal lanes of $type:ty, $load:ident, $broadcast:ident, $multiply_add:ident, $store:ident) => {
        impl Vector for $vector {
            type Packed = $type;
            type Sum = $type;
            type Operand = Self;

            const LANES: usize = $lanes;
            const ROWS: usize = 12;

            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: all processors support the instruction.
                unsafe { $broadcast(0.0) }
            }

            #[inline(always)]
            unsafe fn load(from: *const $type) -> Self {
                // SAFETY: as above, and `from` is valid for a register.
                unsafe { $load(from) }
            }

            #[inline(always)]
            unsafe fn broadcast(value: $type) -> Self {
                // SAFETY: all processors support the instruction.
                unsafe { $broadcast(value) }
            }

            #[inline(always)]
            unsafe fn multiply_add(self, lhs: Self, rhs: Self) -> Self {
                // SAFETY: all processors support the instruction.
                unsafe { $multiply_add(self, lhs, rhs) }
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut $type) {
                // SAFETY: as above, and `to` is valid for a register.
                unsafe { $store(to, self) }
            }
        }

        /// See [`Packed::multiply`](super::Packed::multiply).
        pub(super) fn $kernel(
            lhs: &[[$type; ROWS]],
            rhs: impl Right<$type>,
            rows: usize,
            tile: &mut Tile<$type>,
        ) {
            // SAFETY: all processors support NEON.
            unsafe { multiply::<$vector>(lhs, rhs, rows, tile) }
        }
    };
}

neon!(f32_neon, float32x4_t: 4 lanes of f32, vld1q_f32, vdupq_n_f32, vfmaq_f32, vst1q_f32);
neon!(f64_neon, float64x2_t: 2 lanes of f64, vld1q_f64, vdupq_n_f64, vfmaq_f64, vst1q_f64);
