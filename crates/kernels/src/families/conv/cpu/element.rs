//! The elements of stored images, filters and outputs.

use half::{bf16, f16};

use crate::cpu::gemm::to_bf16;

/// A stored element whose sums have type `T`.
pub(crate) trait FromSum<T>: bytemuck::Pod + Send + Sync {
    /// Whether the element has fewer bits than its sums.
    const IS_ROUNDED: bool;

    /// Rounds a sum to nearest, ties to even.
    fn from_sum(sum: T) -> Self;

    /// The elements as sums, if they have that type.
    fn as_sums(elements: &mut [Self]) -> Option<&mut [T]>;
}

/// Implements [`FromSum`].
macro_rules! from_sum {
    ($($type:ty, $sum:ty: $round:expr, $as_sums:expr;)+) => {$(
        impl FromSum<$sum> for $type {
            const IS_ROUNDED: bool = size_of::<$type>() < size_of::<$sum>();

            #[inline(always)]
            fn from_sum(sum: $sum) -> Self {
                let round: fn($sum) -> Self = $round;
                round(sum)
            }

            #[inline(always)]
            fn as_sums(elements: &mut [Self]) -> Option<&mut [$sum]> {
                let as_sums: fn(&mut [Self]) -> Option<&mut [$sum]> = $as_sums;
                as_sums(elements)
            }
        }
    )+};
}

from_sum! {
    f32, f32: |sum| sum, |elements| Some(elements);
    f64, f64: |sum| sum, |elements| Some(elements);
    bf16, f32: to_bf16, |_| None;
    f16, f32: to_f16, |_| None;
}

/// The nearest f16; ties go to even. Without branches, so that loops vectorize.
#[inline(always)]
fn to_f16(value: f32) -> f16 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    // The exponent and fraction at the place where f16 has them, with the fraction rounded.
    let normal = magnitude.wrapping_sub(0x3800_0000).wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13;
    // The sum has the place value of a subnormal f16 in its last bit, so the addition rounds.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let special = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
    let rounded = if magnitude < 0x4780_0000 { finite } else { special };
    f16::from_bits((rounded | bits >> 16 & 0x8000) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_to_f16_equals_that_of_half() {
        // All exponents, with fractions at and beside the midpoints of neighbors.
        for high in 0..1_u32 << 19 {
            for low in [0, 1, 0xfff, 0x1000, 0x1001, 0x1fff] {
                let value = f32::from_bits(high << 13 | low);
                let (found, expected) = (to_f16(value), f16::from_f32_const(value));
                let equal = found.to_bits() == expected.to_bits();
                assert!(equal || found.is_nan() && expected.is_nan(), "{value:e}: {found:?}");
            }
        }
    }
}
