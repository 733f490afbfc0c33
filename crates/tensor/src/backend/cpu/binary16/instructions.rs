//! Conversion between f16 and f32 with the F16C instructions, eight numbers at a time. The results equal those of the parent
//! module bit for bit.

use std::arch::is_x86_feature_detected;
use std::arch::x86_64::{_MM_FROUND_TO_NEAREST_INT, _mm256_cvtph_ps, _mm256_cvtps_ph};

use half::f16;

/// The number of values that one instruction converts.
const LANES: usize = 8;

/// Proof that the processor supports F16C.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instructions(());

impl Instructions {
    /// Returns `None` on processors without F16C.
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx") && is_x86_feature_detected!("f16c")).then_some(Self(()))
    }

    /// Converts whole vectors, and returns the remaining elements.
    pub(super) fn upcast<'a, 'b>(self, from: &'a [f16], to: &'b mut [f32]) -> (&'a [f16], &'b mut [f32]) {
        // SAFETY: `self` proves that the processor supports the instructions.
        unsafe { upcast(from, to) }
    }

    /// Rounds whole vectors to nearest, ties to even, and returns the remaining elements.
    pub(super) fn narrow<'a, 'b>(self, from: &'a [f32], to: &'b mut [f16]) -> (&'a [f32], &'b mut [f16]) {
        // SAFETY: as above.
        unsafe { narrow(from, to) }
    }
}

#[target_feature(enable = "avx,f16c")]
fn upcast<'a, 'b>(from: &'a [f16], to: &'b mut [f32]) -> (&'a [f16], &'b mut [f32]) {
    let (from, from_rest) = from.as_chunks::<LANES>();
    let (to, to_rest) = to.as_chunks_mut::<LANES>();
    for (to, &from) in to.iter_mut().zip(from) {
        *to = bytemuck::cast(_mm256_cvtph_ps(bytemuck::cast(from)));
    }
    (from_rest, to_rest)
}

#[target_feature(enable = "avx,f16c")]
fn narrow<'a, 'b>(from: &'a [f32], to: &'b mut [f16]) -> (&'a [f32], &'b mut [f16]) {
    let (from, from_rest) = from.as_chunks::<LANES>();
    let (to, to_rest) = to.as_chunks_mut::<LANES>();
    for (to, &from) in to.iter_mut().zip(from) {
        *to = bytemuck::cast(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(bytemuck::cast(from)));
    }
    (from_rest, to_rest)
}
