//! xʸ in single precision, without branches, calls and tables, so that loops vectorize.

use super::angle::ROUNDER;
use super::erf::fused_horner;
use super::number::Float;
use super::simd::{self, Loop};

/// `x = xʸ`, in place, with one y for all x.
pub(crate) fn raise<T: Float>(bases: &mut [T], exponent: T) {
    simd::run(Raise { bases, exponent });
}

/// `x[i] = x[i]^y[i]`, in place.
pub(crate) fn raise_each<T: Float>(bases: &mut [T], exponents: &[T]) {
    simd::run(RaiseEach { bases, exponents });
}

// Custom loops, because the compiler does not inline closures with such a long body.

struct Raise<'a, T> {
    bases: &'a mut [T],
    exponent: T,
}

impl<T: Float> Loop for Raise<'_, T> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for base in self.bases {
            *base = base.powf(self.exponent);
        }
    }
}

struct RaiseEach<'a, T> {
    bases: &'a mut [T],
    exponents: &'a [T],
}

impl<T: Float> Loop for RaiseEach<'_, T> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (base, &exponent) in self.bases.iter_mut().zip(self.exponents) {
            *base = base.powf(exponent);
        }
    }
}

/// xʸ = 2^(y log₂ |x|), with the logarithm in double precision; accurate to two units in the last place.
///
/// Special cases are those of IEEE 754: x⁰ = 1ʸ = 1. Negative x require an integer y; an odd y keeps the sign.
#[inline(always)]
pub(crate) fn pow_f32(x: f32, y: f32) -> f32 {
    let size = x.abs();
    let power = f64::from(y) * log2(f64::from(size));
    let value = if size == 1.0 { 1.0 } else { exp2(power) };

    let half = 0.5 * y;
    let (is_integer, is_even) = (y.trunc() == y, half.trunc() == half);
    let signed = if is_integer && !is_even { value.copysign(x) } else { value };
    let is_real = is_integer || x >= 0.0 || size == 0.0 || size == f32::INFINITY;
    let value = if is_real { signed } else { f32::NAN };
    if x == 1.0 || y == 0.0 { 1.0 } else { value }
}

/// log₂ x for normal x ≥ 0, with a relative error of 10⁻¹¹.
///
/// x = 2ⁿ m with √½ ≤ m < √2, and ln m = 2 artanh s with s = (m - 1) / (m + 1), from the series s + s³/3 + s⁵/5 …
#[inline(always)]
fn log2(x: f64) -> f64 {
    const P: [f64; 6] = [1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0];
    let bits = x.to_bits();
    let n = bits.wrapping_sub(std::f64::consts::FRAC_1_SQRT_2.to_bits()).cast_signed() >> 52;
    let m = f64::from_bits(bits.wrapping_sub((n << 52).cast_unsigned()));
    // Adds n to the lowest bits of a float, which is faster than a conversion.
    let n = f64::from_bits(ROUNDER.to_bits().wrapping_add(n.cast_unsigned())) - ROUNDER;
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let value = (s * square).mul_add(fused_horner(&P, square), s).mul_add(2.0 * std::f64::consts::LOG2_E, n);
    // Returns ∞ and NaN unchanged.
    let value = if x < f64::INFINITY { value } else { x };
    if x == 0.0 { f64::NEG_INFINITY } else { value }
}

/// 2ˣ: x = n + r with |r| ≤ ½, and the series of e^(r ln 2). Overflows to ∞, and underflows gradually to 0.
#[inline(always)]
fn exp2(x: f64) -> f32 {
    const P: [f32; 7] = [1.0 / 5_040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0];
    // Outside of this range, the result is ∞ or 0. NaN passes.
    let x = if x > 200.0 { 200.0 } else { x };
    let x = if x < -200.0 { -200.0 } else { x };
    let shifted = x + ROUNDER;
    let r = (x - (shifted - ROUNDER)) as f32 * std::f32::consts::LN_2;
    let value = f64::from(fused_horner(&P, r).mul_add(r, 1.0));
    // In f64, so that only the final conversion rounds to a subnormal number.
    (value * f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_within_two_units() {
        let exponents =
            [-30.5, -7.0, -2.5, -1.0, -0.5, -0.01, 1e-4, 0.3, 0.5, 1.0, 1.5, 2.2, 3.0, 10.0, 77.7];
        let mut worst = 0.0_f64;
        for y in exponents {
            for x in (1..f32::INFINITY.to_bits()).step_by(49_999).map(f32::from_bits) {
                let right = f64::from(x).powf(f64::from(y));
                let value = pow_f32(x, y);
                if right >= f64::from(f32::MIN_POSITIVE)
                    && (right as f32).is_finite()
                    && right as f32 != f32::MAX
                {
                    let unit = f64::from((right as f32).next_up()) - f64::from(right as f32);
                    worst = worst.max((f64::from(value) - right).abs() / unit);
                } else {
                    let smallest = f64::from(f32::from_bits(1));
                    let as_right =
                        (f64::from(value) - right).abs() <= 1.5 * smallest || value == right as f32;
                    assert!(as_right, "{x:e} to the {y}: {value:e}, {right:e}");
                }
            }
        }
        assert!(worst < 2.0, "{worst}");
    }

    #[test]
    fn special_powers_agree_with_the_standard_library() {
        let (infinity, tiny) = (f32::INFINITY, f32::from_bits(1));
        let ends =
            [0.0, tiny, f32::MIN_POSITIVE, 0.5, 1.0, 1.5, 2.0, 3.0, 16_777_217.0, 1e30, f32::MAX, infinity];
        let ends: Vec<f32> = ends.iter().flat_map(|&x| [x, -x]).chain([f32::NAN]).collect();
        for &x in &ends {
            for &y in &ends {
                let (value, right) = (pow_f32(x, y), x.powf(y));
                let same = value.to_bits() == right.to_bits() || value.is_nan() && right.is_nan();
                assert!(
                    same || (value - right).abs() <= right.abs() * 3e-7,
                    "{x:e} to the {y:e}: {value:e}, {right:e}"
                );
                assert!(
                    value.is_nan() || value.is_sign_negative() == right.is_sign_negative(),
                    "{x:e} to the {y:e}"
                );
            }
        }
    }
}
