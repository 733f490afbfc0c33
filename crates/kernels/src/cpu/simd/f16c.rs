//! Conversion between f16 and f32 with the instructions of F16C or AVX-512.
//!
//! The slice conversions of `half` call a function for every eight elements, which takes several times as long.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    _MM_FROUND_TO_NEAREST_INT, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm512_cvtph_ps, _mm512_cvtps_ph,
};

use half::f16;
use half::slice::HalfFloatSliceExt;

/// Defines functions that convert `$lanes` elements at a time.
#[cfg(target_arch = "x86_64")]
macro_rules! conversions {
    ($features:literal, $lanes:literal: $upcast:ident by $widen:expr, $narrow:ident by $round:expr) => {
        #[target_feature(enable = $features)]
        fn $upcast(from: &[f16], to: &mut [f32]) {
            let ((from, last_from), (to, last_to)) =
                (from.as_chunks::<$lanes>(), to.as_chunks_mut::<$lanes>());
            for (to, from) in to.iter_mut().zip(from) {
                *to = bytemuck::cast($widen(bytemuck::cast(*from)));
            }
            last_from.convert_to_f32_slice(last_to);
        }

        #[target_feature(enable = $features)]
        fn $narrow(from: &[f32], to: &mut [f16]) {
            let ((from, last_from), (to, last_to)) =
                (from.as_chunks::<$lanes>(), to.as_chunks_mut::<$lanes>());
            for (to, from) in to.iter_mut().zip(from) {
                *to = bytemuck::cast($round(bytemuck::cast(*from)));
            }
            last_to.convert_from_f32_slice(last_from);
        }
    };
}

#[cfg(target_arch = "x86_64")]
conversions!("avx,f16c", 8: upcast_8 by _mm256_cvtph_ps, narrow_8 by _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>);
#[cfg(target_arch = "x86_64")]
conversions!("avx512f", 16: upcast_16 by _mm512_cvtph_ps, narrow_16 by _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>);

/// Converts f16 to f32, exactly. The slices have equal length.
pub(crate) fn upcast(from: &[f16], to: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has these instructions.
        return unsafe { upcast_16(from, to) };
    }
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("f16c") {
        // SAFETY: the processor has these instructions.
        return unsafe { upcast_8(from, to) };
    }
    from.convert_to_f32_slice(to);
}

/// Rounds f32 to nearest f16, ties to even. The slices have equal length.
pub(crate) fn narrow(from: &[f32], to: &mut [f16]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has these instructions.
        return unsafe { narrow_16(from, to) };
    }
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("f16c") {
        // SAFETY: the processor has these instructions.
        return unsafe { narrow_8(from, to) };
    }
    to.convert_from_f32_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_agree_with_the_half_crate_at_every_length() {
        let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        for len in (0..70).chain([all.len()]) {
            let mut wide = vec![0.0; len];
            upcast(&all[..len], &mut wide);
            for (wide, half) in wide.iter().zip(&all) {
                assert!(*wide == half.to_f32_const() || wide.is_nan() && half.is_nan(), "{wide:e}");
            }
        }
        // Values between two neighbors of f16, halfway, and slightly beside: all sign and exponent bits occur.
        for offset in [0_u32, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF] {
            let near: Vec<f32> = (0..1_u32 << 19).map(|high| f32::from_bits(high << 13 | offset)).collect();
            let mut halves = vec![f16::ZERO; near.len()];
            narrow(&near, &mut halves);
            for (&value, half) in near.iter().zip(halves) {
                let expected = f16::from_f32_const(value);
                assert!(half.to_bits() == expected.to_bits() || half.is_nan() && value.is_nan(), "{value:e}");
            }
        }
    }
}
