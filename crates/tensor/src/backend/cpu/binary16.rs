//! Conversion between f16 and f32, with the processor's instructions or with bit operations without branches, which
//! vectorize.
//!
//! The algorithm is that of F. Giesen, "Half-to-float and float-to-half conversions", 2012. Float arithmetic handles
//! subnormal numbers.

#[cfg(target_arch = "x86_64")]
mod instructions;

use half::f16;

use super::simd;

/// Converts f16 to f32, exactly. NaN keeps its sign and becomes quiet. The slices have equal length.
pub(super) fn upcast(from: &[f16], to: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    let (from, to) = match instructions::Instructions::detect() {
        Some(instructions) => instructions.upcast(from, to),
        None => (from, to),
    };
    simd::zip(to, from, |to, from| *to = upcast_bits(from.to_bits()));
}

/// Rounds f32 to f16, to nearest, ties to even. Overflows to ∞. NaN keeps its sign and becomes quiet. The slices have equal
/// length.
pub(super) fn narrow(from: &[f32], to: &mut [f16]) {
    #[cfg(target_arch = "x86_64")]
    let (from, to) = match instructions::Instructions::detect() {
        Some(instructions) => instructions.narrow(from, to),
        None => (from, to),
    };
    simd::zip(to, from, |to, from| *to = f16::from_bits(narrowed(from)));
}

/// The difference between the exponent biases, shifted to the exponent bits of an f32.
const REBIAS: u32 = (127 - 15) << 23;

/// The number of mantissa bits of an f32 beyond those of an f16.
const BEHIND: u32 = 23 - 10;

/// Converts the bits of one f16, like [`upcast`].
#[inline(always)]
fn upcast_bits(half: u16) -> f32 {
    /// The exponent of ∞ and NaN.
    const LAST: u32 = 0x7C00 << BEHIND;
    /// 2⁻¹⁴, the smallest normal number. Subtracting it normalizes a subnormal number with this exponent.
    const LEAST_NORMAL: u32 = REBIAS + (1 << 23);
    let magnitude = u32::from(half & 0x7FFF) << BEHIND;
    let normal = magnitude + REBIAS;
    let subnormal = (f32::from_bits(magnitude + LEAST_NORMAL) - f32::from_bits(LEAST_NORMAL)).to_bits();
    let value = if magnitude < 1 << 23 { subnormal } else { normal };
    let value = if magnitude >= LAST { normal + REBIAS } else { value };
    let value = if magnitude > LAST { value | 1 << 22 } else { value };
    f32::from_bits(value | u32::from(half & 0x8000) << 16)
}

/// Rounds one f32, like [`narrow`].
#[inline(always)]
fn narrowed(value: f32) -> u16 {
    /// 2¹⁶, above all finite values.
    const BEYOND: u32 = (127 + 16) << 23;
    /// 2⁻¹⁴, the smallest normal number.
    const LEAST_NORMAL: u32 = (127 - 14) << 23;
    /// ½. Adding it to a number below 2⁻¹⁴ rounds that number to multiples of 2⁻²⁴, which are in the lowest bits.
    const ROUNDER: u32 = (127 - 1) << 23;
    let bits = value.to_bits();
    let magnitude = bits & 0x7FFF_FFFF;
    // Rounds to nearest, ties to even. Overflow carries into the exponent of ∞.
    let odd = magnitude >> BEHIND & 1;
    let normal = magnitude.wrapping_sub(REBIAS).wrapping_add((1 << (BEHIND - 1)) - 1 + odd) >> BEHIND;
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(ROUNDER)).to_bits().wrapping_sub(ROUNDER);
    let half = if magnitude < LEAST_NORMAL { subnormal } else { normal };
    let half = if magnitude >= BEYOND { 0x7C00 } else { half };
    let nan = 0x7E00 | magnitude >> BEHIND & 0x3FF;
    let half = if magnitude > 0x7F80_0000 { nan } else { half };
    (half | bits >> 16 & 0x8000) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upcasts_agree_with_the_half_crate() {
        for bits in 0..=u16::MAX {
            let right = f16::from_bits(bits).to_f32_const();
            assert_eq!(upcast_bits(bits).to_bits(), right.to_bits(), "{bits:x}");
        }
    }

    #[test]
    fn rounding_agrees_with_the_half_crate() {
        // All exponents with all mantissa bits that rounding reads: values, midpoints between neighbors, and the values
        // next to those, including infinities and NaN.
        for high in 0..=u32::from(u16::MAX) << 3 {
            for low in [0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF] {
                let value = f32::from_bits(high << 13 | low);
                let right = f16::from_f32_const(value).to_bits();
                assert_eq!(narrowed(value), right, "{value:e} {:x}", value.to_bits());
            }
        }
    }

    #[test]
    fn rounding_to_subnormals_agrees_with_the_half_crate() {
        for bits in (1_f32 / 134_217_728.0).to_bits() / 97..(1_f32 / 8192.0).to_bits() / 97 {
            let value = f32::from_bits(bits * 97);
            assert_eq!(narrowed(value), f16::from_f32_const(value).to_bits(), "{value:e}");
        }
    }
    #[test]
    fn conversions_do_not_depend_on_the_instruction_set() {
        let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        let mut wide = vec![0.0; all.len()];
        upcast(&all, &mut wide);
        assert!(
            wide.iter().zip(0..=u16::MAX).all(|(value, bits)| value.to_bits() == upcast_bits(bits).to_bits())
        );

        let numbers: Vec<f32> = (0..=u32::MAX).step_by(4099).map(f32::from_bits).collect();
        let mut narrow = vec![f16::ZERO; numbers.len()];
        super::narrow(&numbers, &mut narrow);
        for (half, &value) in narrow.iter().zip(&numbers) {
            assert_eq!(half.to_bits(), narrowed(value), "{:x}", value.to_bits());
        }
        for len in 0..20 {
            let (mut wide, mut back) = (vec![0.0; len], vec![f16::ZERO; len]);
            upcast(&all[0x3C00..][..len], &mut wide);
            super::narrow(&wide, &mut back);
            assert_eq!(back, all[0x3C00..][..len]);
        }
    }
}
