//! exp, exp - 1, tanh and logarithms in single precision, without branches and calls, so that loops vectorize.

#![allow(clippy::excessive_precision, reason = "coefficients stand here as they were published")]

use super::erf::fused_horner;

/// 1.5 · 2²³. The sum with a small number has the nearest integer in its lowest bits.
const ROUNDER: f32 = 12_582_912.0;

/// (eʳ - 1 - r) / r² for |r| ≤ ln 2 / 2, from S. L. Moshier's Cephes library, `expf`.
const EXP: [f32; 6] =
    [1.987_569_15e-4, 1.398_199_950_7e-3, 8.333_451_907_3e-3, 4.166_579_589_4e-2, 1.666_666_545_9e-1, 0.5];

/// Reduces x = n ln 2 + r with |r| ≤ ln 2 / 2. Returns n + [`ROUNDER`], and r.
#[inline(always)]
fn reduced(x: f32) -> (f32, f32) {
    // ln 2 in two parts: n times the first is exact.
    const LN_2_HEAD: f32 = 0.693_359_375;
    const LN_2_TAIL: f32 = -2.121_944_4e-4;
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUNDER);
    let n = shifted - ROUNDER;
    (shifted, n.mul_add(-LN_2_TAIL, n.mul_add(-LN_2_HEAD, x)))
}

/// eˣ = 2ⁿ eʳ, accurate to two units in the last place. Overflows to ∞, and underflows gradually to 0.
#[inline(always)]
pub(crate) fn exp_f32(x: f32) -> f32 {
    // Outside of this range, the result is ∞ or 0. NaN passes. Masked scores skip the computation, because arithmetic with
    // subnormal numbers is slow.
    let is_zero = x < -104.0;
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if is_zero { 0.0 } else { x };
    let (shifted, r) = reduced(x);
    let value = fused_horner(&EXP, r).mul_add(r * r, r) + 1.0;
    // Two factors, because n may exceed the exponent range of a float.
    let n = shifted.to_bits().wrapping_sub(ROUNDER.to_bits()).cast_signed();
    let half = n >> 1;
    let value = value * power_of_two(half) * power_of_two(n.wrapping_sub(half));
    if is_zero { 0.0 } else { value }
}

/// eˣ for x ≤ 0, accurate to two units in the last place. 0 instead of subnormal numbers. For softmax: takes three quarters
/// of the time of [`exp_f32`].
#[inline(always)]
pub(crate) fn exp_f32_of_negative(x: f32) -> f32 {
    // ln 2⁻¹²⁶, rounded up.
    let is_zero = x < -87.336_54;
    let (shifted, r) = reduced(x);
    let value = fused_horner(&EXP, r).mul_add(r * r, r) + 1.0;
    let n = shifted.to_bits().wrapping_sub(ROUNDER.to_bits()).cast_signed();
    if is_zero { 0.0 } else { value * power_of_two(n) }
}

/// 2ⁿ for n from -126 to 127.
#[inline(always)]
const fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23).cast_unsigned())
}

/// tanh x = y / (y + 2) with y = e^(2|x|) - 1 = 2ⁿ (eʳ - 1) + 2ⁿ - 1, accurate to 2.5 units in the last place, also near 0.
#[inline(always)]
pub(crate) fn tanh_f32(x: f32) -> f32 {
    // For larger x, the result is 1. NaN passes.
    let double = 2.0 * x.abs();
    let double = if double > 20.0 { 20.0 } else { double };
    let (shifted, r) = reduced(double);
    let power = power_of_two(shifted.to_bits().wrapping_sub(ROUNDER.to_bits()).cast_signed());
    let y = power.mul_add(fused_horner(&EXP, r).mul_add(r * r, r), power - 1.0);
    // Also restores the sign of -0.
    (y / (y + 2.0)).copysign(x)
}

/// ln x, accurate to two units in the last place: x = 2ⁿ m with √½ ≤ m < √2, and a polynomial in m - 1 from Cephes' `logf`.
/// ln 0 = -∞; negative x return NaN.
#[inline(always)]
pub(crate) fn log_f32(x: f32) -> f32 {
    const LN_2_HEAD: f32 = 0.693_359_375;
    const LN_2_TAIL: f32 = -2.121_944_4e-4;
    const P: [f32; 9] = [
        7.037_683_629_2e-2,
        -1.151_461_031_0e-1,
        1.167_699_874_0e-1,
        -1.242_014_084_6e-1,
        1.424_932_278_7e-1,
        -1.666_805_766_5e-1,
        2.000_071_476_5e-1,
        -2.499_999_399_3e-1,
        3.333_333_117_4e-1,
    ];
    // Scales subnormal numbers.
    let is_tiny = x < f32::MIN_POSITIVE;
    let bits = if is_tiny { x * 8_388_608.0 } else { x }.to_bits();
    let n = bits.wrapping_sub(std::f32::consts::FRAC_1_SQRT_2.to_bits()).cast_signed() >> 23;
    let m = f32::from_bits(bits.wrapping_sub((n << 23).cast_unsigned()));
    let n = n as f32 - if is_tiny { 23.0 } else { 0.0 };
    let (r, square) = (m - 1.0, (m - 1.0) * (m - 1.0));
    let small = square.mul_add(-0.5, (fused_horner(&P, r) * r).mul_add(square, n * LN_2_TAIL));
    let value = n.mul_add(LN_2_HEAD, r + small);
    // Returns ∞ and NaN unchanged.
    let value = if x < f32::INFINITY { value } else { x };
    let value = if x < 0.0 { f32::NAN } else { value };
    if x == 0.0 { f32::NEG_INFINITY } else { value }
}

/// ln(1 + x) = 2 artanh s with s = x / (2 + x), for 0 ≤ x ≤ 1, accurate to two units in the last place. The first
/// omitted term of the series s + s³/3 + s⁵/5 … is below 10⁻⁹.
#[inline(always)]
pub(crate) fn log_1p_f32_of_fraction(x: f32) -> f32 {
    const P: [f32; 7] = [1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 0.2, 1.0 / 3.0];
    let s = x / (2.0 + x);
    let square = s * s;
    let double = s + s;
    double.mul_add(square * fused_horner(&P, square), double)
}

/// ln(1 + x) = ln u · x / (u - 1) with u = 1 + x rounded, accurate to three units in the last place. The quotient corrects
/// the rounding of u (W. Kahan). NaN below -1, -∞ at -1.
#[inline(always)]
pub(super) fn log_1p_f32(x: f32) -> f32 {
    let u = 1.0 + x;
    let rest = u - 1.0;
    let value = log_f32(u) * (x / rest);
    let value = if rest == 0.0 { x } else { value };
    // Returns ∞ and NaN unchanged.
    if x < f32::INFINITY { value } else { x }
}

/// eˣ - 1 = 2ⁿ (eʳ - 1) + (2ⁿ - 1), accurate to two units in the last place. Overflows to ∞.
#[inline(always)]
pub(super) fn exp_m1_f32(x: f32) -> f32 {
    // Outside of this range, the result is ∞ or -1. NaN passes.
    let near = if x > 89.0 { 89.0 } else { x };
    let near = if near < -20.0 { -20.0 } else { near };
    let (shifted, r) = reduced(near);
    // Half of the power and of the result, because 2¹²⁸ exceeds the range of a float.
    let n = shifted.to_bits().wrapping_sub(ROUNDER.to_bits()).cast_signed();
    let half = power_of_two(n.wrapping_sub(1));
    let value = half.mul_add(fused_horner(&EXP, r).mul_add(r * r, r), half - 0.5);
    // Also restores the sign of -0.
    (value + value).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::super::{angle, erf, power, simd};
    use super::*;

    /// The distance in units in the last place of the right value.
    fn units(value: f32, right: f64) -> f64 {
        let unit = f64::from((right as f32).next_up()) - f64::from(right as f32);
        (f64::from(value) - right).abs() / unit
    }

    /// Every 97th number from `low` to `high`, by their bits.
    fn numbers(low: f32, high: f32) -> impl Iterator<Item = f32> {
        (low.to_bits()..high.to_bits()).step_by(97).map(f32::from_bits)
    }

    #[test]
    fn exp_is_within_two_units_wherever_its_value_is_normal() {
        let worst = numbers(1e-10, 88.72)
            .chain(numbers(1e-10, 87.33).map(|x| -x))
            .map(|x| units(exp_f32(x), f64::from(x).exp()))
            .fold(0.0, f64::max);
        assert!(worst < 2.0, "{worst}");
    }

    #[test]
    fn exp_of_negative_numbers_is_within_two_units_or_zero() {
        let worst = numbers(1e-10, 87.336)
            .map(|x| units(exp_f32_of_negative(-x), f64::from(-x).exp()))
            .fold(0.0, f64::max);
        assert!(worst < 2.0, "{worst}");
        assert_eq!([exp_f32_of_negative(0.0), exp_f32_of_negative(-0.0)], [1.0, 1.0]);
        assert!(numbers(87.34, f32::INFINITY).all(|x| exp_f32_of_negative(-x) == 0.0));
        assert_eq!(exp_f32_of_negative(f32::NEG_INFINITY), 0.0);
        assert!(exp_f32_of_negative(f32::NAN).is_nan());
    }

    #[test]
    fn exp_minus_one_is_within_two_units_also_near_zero() {
        let worst = numbers(f32::MIN_POSITIVE, 88.72)
            .chain(numbers(f32::MIN_POSITIVE, 110.0).map(|x| -x))
            .map(|x| units(exp_m1_f32(x), f64::from(x).exp_m1()))
            .fold(0.0, f64::max);
        assert!(worst < 2.0, "{worst}");
        assert_eq!([exp_m1_f32(f32::INFINITY), exp_m1_f32(f32::NEG_INFINITY)], [f32::INFINITY, -1.0]);
        assert_eq!([exp_m1_f32(89.0), exp_m1_f32(0.0)], [f32::INFINITY, 0.0]);
        assert!(exp_m1_f32(f32::NAN).is_nan() && exp_m1_f32(-0.0).is_sign_negative());
    }

    #[test]
    fn exp_underflows_through_the_subnormal_numbers() {
        for x in numbers(87.33, 110.0).map(|x| -x) {
            let (value, right) = (exp_f32(x), f64::from(x).exp());
            let smallest = f64::from(f32::from_bits(1));
            assert!(
                (f64::from(value) - right).abs() <= 2.0 * smallest + right * 3e-7,
                "exp({x}) = {value:e}"
            );
        }
    }

    #[test]
    fn exp_of_infinities_nan_and_zero() {
        assert_eq!(exp_f32(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp_f32(89.0), f32::INFINITY);
        assert_eq!(exp_f32(f32::MAX), f32::INFINITY);
        assert_eq!(exp_f32(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_f32(f32::MIN), 0.0);
        assert_eq!([exp_f32(0.0), exp_f32(-0.0)], [1.0, 1.0]);
        assert!(exp_f32(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_is_within_two_and_a_half_units() {
        let worst = numbers(1e-20, 20.0).map(|x| units(tanh_f32(x), f64::from(x).tanh())).fold(0.0, f64::max);
        assert!(worst < 2.5, "{worst}");
        assert_eq!(tanh_f32(-0.3), -tanh_f32(0.3));
        assert_eq!([tanh_f32(f32::INFINITY), tanh_f32(f32::NEG_INFINITY)], [1.0, -1.0]);
        assert!(tanh_f32(f32::NAN).is_nan());
        assert!(tanh_f32(-0.0).is_sign_negative());
    }

    /// Loops use the fused multiply-add instruction, and single calls a function.
    #[test]
    fn loops_return_the_bits_of_single_calls() {
        fn check(f: impl Fn(f32) -> f32) {
            let mut values: Vec<f32> = numbers(1e-10, 80.0).step_by(100).flat_map(|x| [x, -x]).collect();
            let one_by_one: Vec<u32> = values.iter().map(|&x| f(x).to_bits()).collect();
            assert!(one_by_one.len() > 10_000);
            simd::each(&mut values, |x| *x = f(*x));
            assert!(values.iter().map(|x| x.to_bits()).eq(one_by_one));
        }
        check(exp_f32);
        check(tanh_f32);
        check(|x| log_f32(x.abs()));
        check(|x| log_1p_f32_of_fraction(x.abs()));
        check(log_1p_f32);
        check(exp_m1_f32);
        check(angle::sin_f32);
        check(erf::erf_f32);
        check(|x| power::pow_f32(x.abs(), 1.7));
    }

    #[test]
    fn logarithms_are_within_two_units() {
        let all = || numbers(f32::from_bits(1), f32::MAX);
        let worst = all().map(|x| units(log_f32(x), f64::from(x).ln())).fold(0.0, f64::max);
        assert!(worst < 2.0, "{worst}");
        let more = numbers(f32::from_bits(1), 1.0).chain([0.0, 1.0]);
        let worst = more.map(|x| units(log_1p_f32_of_fraction(x), f64::from(x).ln_1p())).fold(0.0, f64::max);
        assert!(worst < 2.0, "{worst}");
        let negative = numbers(f32::from_bits(1), 1.0).map(|x| -x);
        let worst =
            all().chain(negative).map(|x| units(log_1p_f32(x), f64::from(x).ln_1p())).fold(0.0, f64::max);
        assert!(worst < 3.0, "{worst}");
    }

    #[test]
    fn logarithms_of_infinities_zero_and_negatives() {
        assert_eq!([log_f32(0.0), log_f32(-0.0)], [f32::NEG_INFINITY; 2]);
        assert_eq!([log_f32(1.0), log_f32(f32::INFINITY)], [0.0, f32::INFINITY]);
        assert!(log_f32(-1.0).is_nan() && log_f32(f32::NEG_INFINITY).is_nan() && log_f32(f32::NAN).is_nan());
        assert!(log_1p_f32_of_fraction(f32::NAN).is_nan());
        assert_eq!([log_1p_f32(-1.0), log_1p_f32(f32::INFINITY)], [f32::NEG_INFINITY, f32::INFINITY]);
        assert!(log_1p_f32(-1.5).is_nan() && log_1p_f32(f32::NAN).is_nan());
        assert!(log_1p_f32(-0.0).is_sign_negative());
    }
}
