//! sin and cos in single precision, without branches and calls, so that loops vectorize.

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
}
