//! The error function erf(x) = 2/√π ∫₀ˣ e^(-t²) dt, which the standard library lacks.

#![allow(clippy::excessive_precision, reason = "coefficients stand here as they were published")]

use super::number::Float;

/// erf in double precision: rational Chebyshev approximations of W. J. Cody, "Rational Chebyshev approximations for the
/// error function", Math. Comp. 23 (1969), pages 631 to 637, with the coefficients of his routine CALERF.
///
/// The approximations' own error is below 6·10⁻¹⁹ relative in each of the three ranges, so what remains is rounding:
/// at most a few units in the last place.
pub(crate) fn erf_f64(x: f64) -> f64 {
    let y = x.abs();
    if y <= 0.46875 {
        return x * near_zero(y * y);
    }
    // For NaN the comparison is false, and the formula returns NaN.
    if y >= 6.0 {
        return 1.0_f64.copysign(x);
    }
    let complement = gaussian(y) * if y <= 4.0 { middle(y) } else { far(y) };
    // Adds 0.5 twice instead of 1 once: exact, and more accurate if the complement is close to 0.5.
    ((0.5 - complement) + 0.5).copysign(x)
}

/// erf(x) / x for |x| ≤ 0.46875, from x².
fn near_zero(square: f64) -> f64 {
    const P: [f64; 5] = [
        1.857_777_061_846_031_53e-1,
        3.161_123_743_870_565_6,
        1.138_641_541_510_501_56e2,
        3.774_852_376_853_020_21e2,
        3.209_377_589_138_469_47e3,
    ];
    const Q: [f64; 5] = [
        1.0,
        2.360_129_095_234_412_09e1,
        2.440_246_379_344_441_73e2,
        1.282_616_526_077_372_28e3,
        2.844_236_833_439_170_62e3,
    ];
    horner(&P, square) / horner(&Q, square)
}

/// e^(x²) (1 - erf(x)) for 0.46875 ≤ x ≤ 4.
fn middle(x: f64) -> f64 {
    const P: [f64; 9] = [
        2.153_115_354_744_038_46e-8,
        5.641_884_969_886_700_89e-1,
        8.883_149_794_388_375_94,
        6.611_919_063_714_162_95e1,
        2.986_351_381_974_001_31e2,
        8.819_522_212_417_690_9e2,
        1.712_047_612_634_070_58e3,
        2.051_078_377_826_071_47e3,
        1.230_339_354_797_997_25e3,
    ];
    const Q: [f64; 9] = [
        1.0,
        1.574_492_611_070_983_47e1,
        1.176_939_508_913_124_99e2,
        5.371_811_018_620_098_58e2,
        1.621_389_574_566_690_19e3,
        3.290_799_235_733_459_63e3,
        4.362_619_090_143_247_16e3,
        3.439_367_674_143_721_64e3,
        1.230_339_354_803_749_42e3,
    ];
    horner(&P, x) / horner(&Q, x)
}

/// e^(x²) (1 - erf(x)) for x ≥ 4.
fn far(x: f64) -> f64 {
    const P: [f64; 6] = [
        1.631_538_713_730_209_78e-2,
        3.053_266_349_612_323_44e-1,
        3.603_448_999_498_044_39e-1,
        1.257_817_261_112_292_46e-1,
        1.608_378_514_874_227_66e-2,
        6.587_491_615_298_378_03e-4,
    ];
    const Q: [f64; 6] = [
        1.0,
        2.568_520_192_289_822_42,
        1.872_952_849_923_467_25,
        5.279_051_029_514_284_12e-1,
        6.051_834_131_244_131_91e-2,
        2.335_204_976_268_691_85e-3,
    ];
    let inverse = 1.0 / (x * x);
    let correction = inverse * horner(&P, inverse) / horner(&Q, inverse);
    (0.5 * std::f64::consts::FRAC_2_SQRT_PI - correction) / x
}

/// e^(-x²), with x² split into two parts for accuracy.
fn gaussian(x: f64) -> f64 {
    let head = (x * 16.0).trunc() / 16.0;
    let tail = (x - head) * (x + head);
    (-head * head).exp() * (-tail).exp()
}

/// Evaluates a polynomial, highest coefficient first.
#[inline(always)]
pub(crate) fn horner<T: Float, const N: usize>(coefficients: &[T; N], x: T) -> T {
    coefficients[1..].iter().fold(coefficients[0], |sum, &coefficient| sum * x + coefficient)
}

/// Evaluates a polynomial with fused multiply-adds, for loops that vectorize.
#[inline(always)]
pub(crate) fn fused_horner<T: Float, const N: usize>(coefficients: &[T; N], x: T) -> T {
    coefficients[1..].iter().fold(coefficients[0], |sum, &coefficient| sum.fused(x, coefficient))
}

/// erf in single precision: the odd rational approximation that Eigen and XLA use, to within 5·10⁻⁷.
///
/// It has no branches, so that loops vectorize. From |x| = 3.64 on it is exactly ±1. So x (1 + erf(x)) is 0 for large
/// negative x, instead of x times the rounding error.
#[inline(always)]
pub(crate) fn erf_f32(x: f32) -> f32 {
    const P: [f32; 7] = [
        -2.726_142_4e-10,
        2.770_681_4e-8,
        -2.101_024e-6,
        -5.692_506e-5,
        -7.349_906_3e-4,
        -2.954_6e-3,
        -1.609_603_3e-2,
    ];
    // For slightly larger x, the quotient would round to more than 1.
    const ONE_FROM: f32 = 3.64;
    const Q: [f32; 5] = [-1.456_607_2e-5, -2.133_740_6e-4, -1.682_827e-3, -7.373_329e-3, -1.426_473_9e-2];
    let clamped = x.clamp(-4.0, 4.0);
    let square = clamped * clamped;
    let value = clamped * fused_horner(&P, square) / fused_horner(&Q, square);
    if x.abs() >= ONE_FROM { 1.0_f32.copysign(x) } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_never_goes_beyond_one() {
        for x in (3.0_f32.to_bits()..4.1_f32.to_bits()).map(f32::from_bits) {
            assert!(erf_f32(x) <= 1.0 && erf_f32(-x) >= -1.0, "{x}");
        }
    }

    /// erf to twenty digits, from Abramowitz and Stegun, table 7.1, and higher precision arithmetic.
    const KNOWN: [(f64, f64); 14] = [
        (0.0, 0.0),
        (1e-10, 1.128_379_167_095_512_6e-10),
        (0.1, 0.112_462_916_018_284_89),
        (0.25, 0.276_326_390_168_236_93),
        (0.46875, 0.492_613_473_217_937_97),
        (0.5, 0.520_499_877_813_046_54),
        (1.0, 0.842_700_792_949_714_87),
        (1.5, 0.966_105_146_475_310_73),
        (2.0, 0.995_322_265_018_952_73),
        (2.5, 0.999_593_047_982_555_04),
        (3.0, 0.999_977_909_503_001_41),
        (3.5, 0.999_999_256_901_627_66),
        (4.5, 0.999_999_999_803_384_0),
        (7.0, 1.0),
    ];

    #[test]
    fn erf_agrees_with_known_values() {
        for (x, expected) in KNOWN {
            assert!((erf_f64(x) - expected).abs() <= 2.3e-16, "erf({x}) = {:e}", erf_f64(x));
            assert_eq!(erf_f64(-x), -erf_f64(x));
        }
    }

    #[test]
    fn erf_agrees_with_its_power_series() {
        // 2/√π Σ (-1)ⁿ x^(2n+1) / (n! (2n+1)); its terms cancel, which costs digits for larger x.
        for i in 0..=300 {
            let x = f64::from(i) / 100.0;
            let (mut term, mut sum) = (x, x);
            for n in 1..100 {
                term *= -x * x / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            let expected = sum * std::f64::consts::FRAC_2_SQRT_PI;
            assert!((erf_f64(x) - expected).abs() <= 1e-15 * (x * x).exp().max(1.0), "erf({x})");
        }
    }

    #[test]
    fn erf_in_single_precision_is_within_a_millionth() {
        let mut worst = 0.0_f64;
        for i in -60_000..=60_000 {
            let x = i as f32 / 10_000.0;
            worst = worst.max((f64::from(erf_f32(x)) - erf_f64(f64::from(x))).abs());
        }
        assert!(worst <= 5e-7, "{worst:e}");
    }

    #[test]
    fn erf_of_infinities_nan_and_zero() {
        for infinity in [f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(erf_f64(infinity), infinity.signum());
            assert_eq!(erf_f32(infinity as f32), infinity.signum() as f32);
        }
        assert!(erf_f64(f64::NAN).is_nan() && erf_f32(f32::NAN).is_nan());
        assert!(erf_f64(-0.0).is_sign_negative() && erf_f32(-0.0).is_sign_negative());
    }
}
