//! The arithmetic of kernels: traits for all numbers, for floats and for integers.

use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub, SubAssign};

use half::{bf16, f16};

use super::gemm::{f16_to_f32, to_bf16};
use super::{angle, erf, exp, power};
use crate::shape::{RawElement, Scalar};

/// A number type of tensors.
pub(crate) trait Stored: RawElement {
    /// The nearest value. Floats become integers by truncation and saturate; wide integers wrap.
    fn from_scalar(value: Scalar) -> Self;
}

/// A number type with arithmetic. Integer arithmetic wraps, so that it never panics.
pub(crate) trait Number: Stored {
    /// 0
    const ZERO: Self;
    /// 1
    const ONE: Self;
    /// The smallest value; -∞ for floats.
    const LOWEST: Self;
    /// The largest value; ∞ for floats.
    const HIGHEST: Self;
    /// NaN for floats; 0 for integers, which are never [NaN](Self::is_nan).
    const NAN: Self;

    /// The nearest value; integers truncate and saturate.
    fn from_f64(value: f64) -> Self;

    /// self + rhs
    fn plus(self, rhs: Self) -> Self;
    /// self - rhs
    fn minus(self, rhs: Self) -> Self;
    /// self rhs
    fn times(self, rhs: Self) -> Self;
    /// self / rhs; 0 for an integer divided by 0.
    fn over(self, rhs: Self) -> Self;
    /// self · factor + term; a fused multiply-add for floats. Only for loops that [vectorize](super::simd): elsewhere
    /// it is a function call.
    fn fused(self, factor: Self, term: Self) -> Self;
    /// -self
    fn negative(self) -> Self;
    /// |self|
    fn magnitude(self) -> Self;
    /// Whether the value is NaN.
    fn is_nan(self) -> bool;

    /// max(self, rhs); NaN if either argument is NaN.
    fn larger(self, rhs: Self) -> Self {
        if self > rhs || self.is_nan() { self } else { rhs }
    }

    /// min(self, rhs); NaN if either argument is NaN.
    fn smaller(self, rhs: Self) -> Self {
        if self < rhs || self.is_nan() { self } else { rhs }
    }

    /// 1, 0 or -1; NaN stays NaN.
    fn sign(self) -> Self {
        if self > Self::ZERO {
            Self::ONE
        } else if self < Self::ZERO {
            Self::ZERO.minus(Self::ONE)
        } else {
            self
        }
    }

    /// min(max(self, low), high); NaN stays NaN.
    fn clamped(self, low: Self, high: Self) -> Self {
        if self < low {
            low
        } else if self > high {
            high
        } else {
            self
        }
    }

    /// max(self, 0). NaN stays NaN, so that errors in the data do not disappear. -0 becomes 0 (on a GPU it stays).
    // Adds 0, so that both branches change the value. Otherwise the compiler uses masked stores when this runs in place, and
    // those are slow on many processors.
    fn rectified(self) -> Self {
        if self < Self::ZERO { Self::ZERO } else { self.plus(Self::ZERO) }
    }
}

macro_rules! stored {
    ($($type:ty),*) => {$(
        impl Stored for $type {
            fn from_scalar(value: Scalar) -> Self {
                match value {
                    Scalar::Float(value) => value as Self,
                    Scalar::Int(value) => value as Self,
                }
            }
        }
    )*};
}

stored!(f32, f64, i64, i32, u32, u8);

/// Defines `from_f64`, which is a cast for all numbers.
macro_rules! from_wide {
    () => {
        fn from_f64(value: f64) -> Self {
            value as Self
        }
    };
}

macro_rules! float_number {
    (
        $type:ident,
        exp: $exp:path,
        of_negative: $exp_of_negative:path,
        ln: $ln:path,
        ln_1p: $ln_1p:path,
        exp_m1: $exp_m1:path,
        ln_1p_of_fraction: $ln_1p_of_fraction:path,
        tanh: $tanh:path,
        erf: $erf:path,
        sin: $sin:path,
        cos: $cos:path,
        atan2: $atan2:path,
        below: $limit:expr,
        powf: $powf:path $(,)?
    ) => {
        impl Number for $type {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LOWEST: Self = Self::NEG_INFINITY;
            const HIGHEST: Self = Self::INFINITY;
            const NAN: Self = Self::NAN;

            from_wide!();

            fn plus(self, rhs: Self) -> Self {
                self + rhs
            }

            fn minus(self, rhs: Self) -> Self {
                self - rhs
            }

            fn times(self, rhs: Self) -> Self {
                self * rhs
            }

            fn over(self, rhs: Self) -> Self {
                self / rhs
            }

            #[inline(always)]
            fn fused(self, factor: Self, term: Self) -> Self {
                self.mul_add(factor, term)
            }

            fn negative(self) -> Self {
                -self
            }

            fn magnitude(self) -> Self {
                self.abs()
            }

            fn is_nan(self) -> bool {
                $type::is_nan(self)
            }
        }

        impl Float for $type {
            const LARGE_ANGLE: Self = $limit;

            #[inline(always)]
            fn exp(self) -> Self {
                $exp(self)
            }

            #[inline(always)]
            fn exp_of_negative(self) -> Self {
                $exp_of_negative(self)
            }

            #[inline(always)]
            fn ln(self) -> Self {
                $ln(self)
            }

            #[inline(always)]
            fn sqrt(self) -> Self {
                $type::sqrt(self)
            }

            #[inline(always)]
            fn floor(self) -> Self {
                $type::floor(self)
            }

            #[inline(always)]
            fn ceil(self) -> Self {
                $type::ceil(self)
            }

            #[inline(always)]
            fn round_ties_even(self) -> Self {
                $type::round_ties_even(self)
            }

            #[inline(always)]
            fn tanh(self) -> Self {
                $tanh(self)
            }

            #[inline(always)]
            fn erf(self) -> Self {
                $erf(self)
            }

            fn sin(self) -> Self {
                if self.abs() < Self::LARGE_ANGLE { self.sin_of_small() } else { $type::sin(self) }
            }

            fn cos(self) -> Self {
                if self.abs() < Self::LARGE_ANGLE { self.cos_of_small() } else { $type::cos(self) }
            }

            #[inline(always)]
            fn sin_of_small(self) -> Self {
                $sin(self)
            }

            #[inline(always)]
            fn cos_of_small(self) -> Self {
                $cos(self)
            }

            #[inline(always)]
            fn ln_1p(self) -> Self {
                $ln_1p(self)
            }

            #[inline(always)]
            fn ln_1p_of_fraction(self) -> Self {
                $ln_1p_of_fraction(self)
            }

            #[inline(always)]
            fn exp_m1(self) -> Self {
                $exp_m1(self)
            }

            #[inline(always)]
            fn powf(self, exponent: Self) -> Self {
                $powf(self, exponent)
            }

            #[inline(always)]
            fn atan2(self, x: Self) -> Self {
                $atan2(self, x)
            }

            fn next_down(self) -> Self {
                $type::next_down(self)
            }
        }
    };
}

macro_rules! integer_number {
    ($type:ident, $abs:ident) => {
        impl Number for $type {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const LOWEST: Self = Self::MIN;
            const HIGHEST: Self = Self::MAX;
            const NAN: Self = 0;

            from_wide!();

            fn plus(self, rhs: Self) -> Self {
                self.wrapping_add(rhs)
            }

            fn minus(self, rhs: Self) -> Self {
                self.wrapping_sub(rhs)
            }

            fn times(self, rhs: Self) -> Self {
                self.wrapping_mul(rhs)
            }

            fn over(self, rhs: Self) -> Self {
                if rhs == 0 { 0 } else { self.wrapping_div(rhs) }
            }

            #[inline(always)]
            fn fused(self, factor: Self, term: Self) -> Self {
                self.wrapping_mul(factor).wrapping_add(term)
            }

            fn negative(self) -> Self {
                self.wrapping_neg()
            }

            fn magnitude(self) -> Self {
                self.$abs()
            }

            fn is_nan(self) -> bool {
                false
            }
        }
    };
}

macro_rules! integer {
    ($($type:ident),*) => {$(
        impl Integer for $type {
            fn raised(self, exponent: u64) -> Self {
                let (mut power, mut square, mut left) = (1 as Self, self, exponent);
                while left > 0 {
                    if left % 2 == 1 {
                        power = power.wrapping_mul(square);
                    }
                    square = square.wrapping_mul(square);
                    left /= 2;
                }
                power
            }

            fn unsigned(self) -> u64 {
                self as u64
            }
        }
    )*};
}

/// |x| of an unsigned number, for the macro.
trait UnsignedAbs {
    fn itself(self) -> Self;
}

macro_rules! unsigned_abs {
    ($($type:ty),*) => {$(
        impl UnsignedAbs for $type {
            fn itself(self) -> Self {
                self
            }
        }
    )*};
}

unsigned_abs!(u32, u8);

float_number! {
    f32,
    exp: exp::exp_f32,
    of_negative: exp::exp_f32_of_negative,
    ln: exp::log_f32,
    ln_1p: exp::log_1p_f32,
    exp_m1: exp::exp_m1_f32,
    ln_1p_of_fraction: exp::log_1p_f32_of_fraction,
    tanh: exp::tanh_f32,
    erf: erf::erf_f32,
    sin: angle::sin_f32,
    cos: angle::cos_f32,
    atan2: angle::atan2_f32,
    below: angle::LIMIT,
    powf: power::pow_f32,
}
float_number! {
    f64,
    exp: f64::exp,
    of_negative: f64::exp,
    ln: f64::ln,
    ln_1p: f64::ln_1p,
    exp_m1: f64::exp_m1,
    ln_1p_of_fraction: f64::ln_1p,
    tanh: f64::tanh,
    erf: erf::erf_f64,
    sin: f64::sin,
    cos: f64::cos,
    atan2: f64::atan2,
    below: f64::INFINITY,
    powf: f64::powf,
}
integer_number!(i64, wrapping_abs);
integer_number!(i32, wrapping_abs);
integer_number!(u32, itself);
integer_number!(u8, itself);

integer!(i64, i32, u32, u8);

/// An integer type.
pub(crate) trait Integer: Number {
    /// self raised to `exponent`, wrapping.
    fn raised(self, exponent: u64) -> Self;
    /// The bits, sign-extended to 64 bits.
    fn unsigned(self) -> u64;

    /// self raised to `exponent`. For a negative exponent, the reciprocal truncated to an integer: 0 except for 1 and -1.
    fn power(self, exponent: Self) -> Self {
        if exponent >= Self::ZERO {
            self.raised(exponent.unsigned())
        } else if self.magnitude() == Self::ONE {
            // 1 and -1 are their own inverses.
            self.raised(exponent.unsigned() % 2)
        } else {
            Self::ZERO
        }
    }
}

/// A float type.
pub(crate) trait Float:
    Number
    + Add<Output = Self>
    + AddAssign
    + Sub<Output = Self>
    + SubAssign
    + Mul<Output = Self>
    + MulAssign
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// The smallest angle that [`sin_of_small`](Self::sin_of_small) and [`cos_of_small`](Self::cos_of_small) do not support.
    const LARGE_ANGLE: Self;

    /// eˣ
    fn exp(self) -> Self;
    /// eˣ for x ≤ 0; may be 0 instead of a subnormal number.
    fn exp_of_negative(self) -> Self;
    /// ln x
    fn ln(self) -> Self;
    /// √x
    fn sqrt(self) -> Self;
    /// ⌊x⌋
    fn floor(self) -> Self;
    /// ⌈x⌉
    fn ceil(self) -> Self;
    /// The nearest integer, ties to even.
    fn round_ties_even(self) -> Self;
    /// tanh x
    fn tanh(self) -> Self;
    /// The error function; see [`erf`].
    fn erf(self) -> Self;
    /// sin x
    fn sin(self) -> Self;
    /// cos x
    fn cos(self) -> Self;
    /// sin x for |x| < [`LARGE_ANGLE`](Self::LARGE_ANGLE), without branches.
    fn sin_of_small(self) -> Self;
    /// cos x for |x| < [`LARGE_ANGLE`](Self::LARGE_ANGLE), without branches.
    fn cos_of_small(self) -> Self;
    /// ln(1 + x), accurate for small x
    fn ln_1p(self) -> Self;
    /// ln(1 + x) for 0 ≤ x ≤ 1, accurate for small x
    fn ln_1p_of_fraction(self) -> Self;
    /// eˣ - 1, accurate for small x
    fn exp_m1(self) -> Self;
    /// x raised to `exponent`
    fn powf(self, exponent: Self) -> Self;
    /// The angle of the point (x, self)
    fn atan2(self, x: Self) -> Self;
    /// The largest value below x.
    fn next_down(self) -> Self;
}

/// An element with a type for sums that add many elements one after another. Such sums in `f32` would lose small elements.
pub(crate) trait Summed: RawElement {
    /// The type of the sums.
    type Sum: Number;

    /// Converts an element.
    fn widen(self) -> Self::Sum;
    /// Rounds a sum.
    fn round(sum: Self::Sum) -> Self;
}

macro_rules! summed {
    ($($type:ty => $sum:ty),*) => {$(
        impl Summed for $type {
            type Sum = $sum;

            #[inline(always)]
            fn widen(self) -> $sum {
                self as $sum
            }

            #[inline(always)]
            fn round(sum: $sum) -> Self {
                sum as Self
            }
        }
    )*};
}

macro_rules! summed_halves {
    ($($type:ty: $widen:expr, $round:expr);*) => {$(
        impl Summed for $type {
            type Sum = f64;

            #[inline(always)]
            fn widen(self) -> f64 {
                f64::from($widen(self))
            }

            #[inline(always)]
            fn round(sum: f64) -> Self {
                $round(sum as f32)
            }
        }
    )*};
}

summed_halves!(bf16: bf16::to_f32, to_bf16; f16: f16_to_f32, f16::from_f32);

summed!(f32 => f64, f64 => f64, i64 => i64, i32 => i32, u32 => u32, u8 => u8);
