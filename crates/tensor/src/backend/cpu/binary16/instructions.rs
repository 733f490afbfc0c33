//! f16 to f32 and back by the processor's own instructions, eight numbers at a time. They give the very bits that the loops
//! of the parent module give.

use std::arch::is_x86_feature_detected;
use std::arch::x86_64::{_MM_FROUND_TO_NEAREST_INT, _mm256_cvtph_ps, _mm256_cvtps_ph};

use half::f16;

/// Numbers that an instruction converts.
const LANES: usize = 8;

/// That the processor has these instructions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instructions(());

impl Instructions {
    /// `None` on processors older than 2012.
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx") && is_x86_feature_detected!("f16c")).then_some(Self(()))
    }

    /// The same numbers, as far as whole instructions go; what is left.
    pub(super) fn upcast<'a, 'b>(self, from: &'a [f16], to: &'b mut [f32]) -> (&'a [f16], &'b mut [f32]) {
        // SAFETY: the processor has the instructions, or there was no `self`.
        unsafe { upcast(from, to) }
    }

    /// The nearest numbers, ties to even, as far as whole instructions go; what is left.
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
