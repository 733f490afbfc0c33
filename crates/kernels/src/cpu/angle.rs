//! sin, cos and atan2 in single precision, without branches and calls, so that loops vectorize.

#![allow(clippy::excessive_precision, reason = "coefficients stand here as they were published")]

use super::erf::fused_horner;

/// The smallest angle that requires the standard library.
pub(crate) const LIMIT: f32 = 1e6;

/// 1.5 · 2⁵². The sum with a small number has the nearest integer in its lowest bits.
pub(crate) const ROUNDER: f64 = 6_755_399_441_055_744.0;

/// sin x for |x| below [`LIMIT`], to within two units in the last place.
#[inline(always)]
pub(crate) fn sin_f32(x: f32) -> f32 {
    sin_shifted(x, 0)
}

/// cos x for |x| below [`LIMIT`], to within two units in the last place.
#[inline(always)]
pub(crate) fn cos_f32(x: f32) -> f32 {
    sin_shifted(x, 1)
}

/// sin(x + quarters · π/2): x = n π/2 + r with |r| ≤ π/4, and the polynomials of Cephes' `sinf` and `cosf` in r.
#[inline(always)]
fn sin_shifted(x: f32, quarters: u64) -> f32 {
    // π/2 in two parts, from fdlibm. The product of n and the first part, which has 33 bits, is exact.
    const HEAD: f64 = 1.570_796_326_734_125_614_17;
    const TAIL: f64 = 6.077_100_506_506_192_249_32e-11;
    const SIN: [f32; 3] = [-1.951_529_589_1e-4, 8.332_160_873_6e-3, -1.666_665_461_1e-1];
    const COS: [f32; 3] = [2.443_315_711_809_948e-5, -1.388_731_625_493_765e-3, 4.166_664_568_298_827e-2];
    let wide = f64::from(x);
    let shifted = wide.mul_add(std::f64::consts::FRAC_2_PI, ROUNDER);
    let n = shifted - ROUNDER;
    let r = n.mul_add(-TAIL, n.mul_add(-HEAD, wide)) as f32;
    let square = r * r;
    // The product keeps the sign of -0.
    let sin = fused_horner(&SIN, square).mul_add(square, 1.0) * r;
    let cos = square.mul_add(fused_horner(&COS, square).mul_add(square, -0.5), 1.0);
    let quarters = shifted.to_bits().wrapping_add(quarters);
    let value = if quarters & 1 == 0 { sin } else { cos };
    if quarters & 2 == 0 { value } else { -value }
}

/// The angle of the point (x, y), to within three units in the last place. Special cases are those of IEEE 754.
#[inline(always)]
pub(super) fn atan2_f32(y: f32, x: f32) -> f32 {
    // (atan t - t) / t³ for 0 ≤ t ≤ 1, from t²: a Chebyshev approximation with a relative error of 3·10⁻⁸ of atan t.
    const P: [f32; 9] = [
        -2.386_997_2e-3,
        1.350_777_1e-2,
        -3.587_153_9e-2,
        6.250_169_1e-2,
        -8.656_880_3e-2,
        0.110_337_645,
        -0.142_785_68,
        0.199_997_4,
        -0.333_333_31,
    ];
    // π - π rounded to f32.
    const PI_TAIL: f32 = -8.742_278e-8;
    let (height, width) = (y.abs(), x.abs());
    let is_steep = height > width;
    let (low, high) = if is_steep { (width, height) } else { (height, width) };
    // 1 for two infinities. 0 / 0 is the angle 0.
    let t = if low == high { 1.0 } else { low / high };
    let t = if height + width == 0.0 { 0.0 } else { t };
    let square = t * t;
    let angle = (fused_horner(&P, square) * square).mul_add(t, t);
    let angle = if is_steep { (std::f32::consts::FRAC_PI_2 - angle) + 0.5 * PI_TAIL } else { angle };
    let angle = if x.is_sign_negative() { (std::f32::consts::PI - angle) + PI_TAIL } else { angle };
    angle.copysign(y)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sin_and_cos_are_accurate_below_the_limit() {
        let mut worst = 0.0_f64;
        for x in (1e-20_f32.to_bits()..LIMIT.to_bits()).step_by(97).map(f32::from_bits) {
            for x in [x, -x] {
                let wide = f64::from(x);
                for (value, right) in [(sin_f32(x), wide.sin()), (cos_f32(x), wide.cos())] {
                    // Near a zero of the function a unit of its value is small; the reduction is exact to 10⁻¹⁵.
                    let unit = f64::from((right as f32).abs().next_up()) - f64::from((right as f32).abs());
                    worst = worst.max((f64::from(value) - right).abs() / (unit + 1e-15));
                }
            }
        }
        assert!(worst < 2.0, "{worst}");
        assert!(sin_f32(-0.0).is_sign_negative() && sin_f32(f32::NAN).is_nan() && cos_f32(f32::NAN).is_nan());
        assert_eq!([sin_f32(0.0), cos_f32(0.0)], [0.0, 1.0]);
    }

    #[test]
    fn angles_are_within_three_units() {
        let mut worst = 0.0_f64;
        for i in 0..4000_u32 {
            let ratio = 1.01_f32.powi(i.cast_signed() % 4000 / 2 - 1000);
            for [y, x] in [[ratio, 1.0], [-ratio, 1.3], [ratio, -0.7], [-1.1, -ratio]] {
                let (found, right) = (atan2_f32(y, x), f64::from(y).atan2(f64::from(x)));
                let unit = f64::from((right as f32).abs().next_up()) - f64::from((right as f32).abs());
                worst = worst.max((f64::from(found) - right).abs() / unit);
            }
        }
        assert!(worst < 3.0, "{worst}");
    }

    #[test]
    fn angles_of_special_points_are_those_of_the_standard_library() {
        let values = [0.0_f32, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, 1e-40];
        for y in values {
            for x in values {
                let (found, right) = (atan2_f32(y, x), y.atan2(x));
                let same = found.is_nan() && right.is_nan() || (found - right).abs() <= 3e-7 * right.abs();
                let signs = found.is_sign_negative() == right.is_sign_negative() || right.is_nan();
                assert!(same && signs, "{y}, {x}: {found} instead of {right}");
            }
        }
    }
}
