//! Conversion between f16 and f32 with the instructions of F16C, 32 elements at a time.
//!
//! The slice conversions of `half` call a function for every eight elements, which takes several times as long.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_FROUND_TO_NEAREST_INT, _mm256_cvtph_ps, _mm256_cvtps_ph};

use half::f16;
use half::slice::HalfFloatSliceExt;

/// Converts f16 to f32, exactly. The slices have equal length.
pub(in crate::backend::cpu) fn upcast(from: &[f16], to: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("f16c") {
        // SAFETY: the processor has these instructions.
        return unsafe { upcast_eights(from, to) };
    }
    from.convert_to_f32_slice(to);
}

/// Rounds f32 to nearest f16, ties to even. The slices have equal length.
pub(in crate::backend::cpu) fn narrow(from: &[f32], to: &mut [f16]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("f16c") {
        // SAFETY: the processor has these instructions.
        return unsafe { narrow_eights(from, to) };
    }
    to.convert_from_f32_slice(from);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx,f16c")]
fn upcast_eights(from: &[f16], to: &mut [f32]) {
    let ((from, last_from), (to, last_to)) = (from.as_chunks::<32>(), to.as_chunks_mut::<32>());
    for (to, from) in to.iter_mut().zip(from) {
        for (to, from) in to.as_chunks_mut::<8>().0.iter_mut().zip(from.as_chunks::<8>().0) {
            *to = bytemuck::cast(_mm256_cvtph_ps(bytemuck::cast(*from)));
        }
    }
    last_from.convert_to_f32_slice(last_to);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx,f16c")]
fn narrow_eights(from: &[f32], to: &mut [f16]) {
    let ((from, last_from), (to, last_to)) = (from.as_chunks::<32>(), to.as_chunks_mut::<32>());
    for (to, from) in to.iter_mut().zip(from) {
        for (to, from) in to.as_chunks_mut::<8>().0.iter_mut().zip(from.as_chunks::<8>().0) {
            *to = bytemuck::cast(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(bytemuck::cast(*from)));
        }
    }
    last_to.convert_from_f32_slice(last_from);
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
