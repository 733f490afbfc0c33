//! Functions of one number, and their derivatives.

use super::dispatch::{float, host_mut, number};
use super::number::{Float, Number};
use super::operands::{Pair, Source};
use super::parallel::{HEAVY, LIGHT, Workers};
use crate::backend::Unary;
use crate::error::Result;
use crate::storage::{View, ViewMut};

/// See [`Kernel::Unary`](crate::backend::Kernel::Unary).
pub(super) fn unary(
    workers: &Workers,
    op: &'static str,
    f: Unary,
    input: View<'_>,
    out: ViewMut<'_>,
) -> Result<()> {
    let dtype = out.dtype();
    if f.takes_integers() {
        number!(op, dtype, T => {
            arithmetic::<T>(workers, f, &Source::new(op, input)?, host_mut(op, out)?);
            Ok(())
        })
    } else {
        float!(op, dtype, T => {
            transcendental::<T>(workers, f, &Source::new(op, input)?, host_mut(op, out)?);
            Ok(())
        })
    }
}

/// The functions that integers have too.
fn arithmetic<T: Number>(workers: &Workers, f: Unary, source: &Source<'_, T>, out: &mut [T]) {
    match f {
        Unary::Neg => source.map(workers, LIGHT, out, T::negative),
        Unary::Abs => source.map(workers, LIGHT, out, T::magnitude),
        Unary::Square => source.map(workers, LIGHT, out, |x| x.times(x)),
        Unary::Relu => source.map(workers, LIGHT, out, T::rectified),
        Unary::AddScalar(c) => {
            let c = T::from_scalar(c);
            source.map(workers, LIGHT, out, |x| x.plus(c));
        }
        Unary::MulScalar(c) => {
            let c = T::from_scalar(c);
            source.map(workers, LIGHT, out, |x| x.times(c));
        }
        Unary::Exp | Unary::Log | Unary::Sqrt | Unary::Gelu | Unary::Tanh | Unary::Sigmoid => {
            debug_assert!(!f.takes_integers(), "{} is for floats", f.name());
        }
    }
}

/// The functions that only floats have.
fn transcendental<T: Float>(workers: &Workers, f: Unary, source: &Source<'_, T>, out: &mut [T]) {
    match f {
        Unary::Exp => source.map(workers, HEAVY, out, T::exp),
        Unary::Log => source.map(workers, HEAVY, out, T::ln),
        Unary::Sqrt => source.map(workers, LIGHT, out, T::sqrt),
        Unary::Gelu => source.map(workers, HEAVY, out, gelu),
        Unary::Tanh => source.map(workers, HEAVY, out, T::tanh),
        Unary::Sigmoid => source.map(workers, HEAVY, out, |x| T::ONE / (T::ONE + (-x).exp())),
        Unary::Neg | Unary::Abs | Unary::Square | Unary::Relu | Unary::AddScalar(_) | Unary::MulScalar(_) => {
            arithmetic(workers, f, source, out)
        }
    }
}

/// See [`Kernel::UnaryGrad`](crate::backend::Kernel::UnaryGrad).
pub(super) fn unary_grad(
    workers: &Workers,
    op: &'static str,
    f: Unary,
    saved: View<'_>,
    grad: View<'_>,
    out: ViewMut<'_>,
) -> Result<()> {
    float!(op, out.dtype(), T => {
        derivative::<T>(workers, f, &Pair::new(op, saved, grad)?, host_mut(op, out)?);
        Ok(())
    })
}

/// out = g f'(x), or the same from the value y = f(x) where that is what was saved.
fn derivative<T: Float>(workers: &Workers, f: Unary, pair: &Pair<'_, T, T>, out: &mut [T]) {
    let two = T::ONE + T::ONE;
    match f {
        Unary::Neg => pair.map(workers, LIGHT, out, |_, g| -g),
        Unary::Abs => pair.map(workers, LIGHT, out, |x, g| {
            if x > T::ZERO {
                g
            } else if x < T::ZERO {
                -g
            } else {
                // 0 at 0, where there is no derivative, and NaN for NaN.
                x.magnitude()
            }
        }),
        Unary::Square => pair.map(workers, LIGHT, out, |x, g| two * x * g),
        Unary::Exp => pair.map(workers, LIGHT, out, |y, g| g * y),
        Unary::Log => pair.map(workers, LIGHT, out, |x, g| g / x),
        Unary::Sqrt => pair.map(workers, LIGHT, out, |y, g| g / (two * y)),
        Unary::Relu => pair.map(workers, LIGHT, out, |y, g| if y <= T::ZERO { T::ZERO } else { g }),
        Unary::Gelu => pair.map(workers, HEAVY, out, |x, g| g * gelu_slope(x)),
        Unary::Tanh => pair.map(workers, LIGHT, out, |y, g| g * (T::ONE - y * y)),
        Unary::Sigmoid => pair.map(workers, LIGHT, out, |y, g| g * y * (T::ONE - y)),
        Unary::AddScalar(_) => pair.map(workers, LIGHT, out, |_, g| g),
        Unary::MulScalar(c) => {
            let c = T::from_scalar(c);
            pair.map(workers, LIGHT, out, |_, g| g * c);
        }
    }
}

/// Φ(x), the normal distribution function: (1 + erf(x / √2)) / 2.
fn normal_cdf<T: Float>(x: T) -> T {
    T::from_f64(0.5) * (T::ONE + (x * T::from_f64(std::f64::consts::FRAC_1_SQRT_2)).erf())
}

/// x Φ(x), see Hendrycks and Gimpel, Gaussian error linear units, 2016.
fn gelu<T: Float>(x: T) -> T {
    x * normal_cdf(x)
}

/// (x Φ(x))' = Φ(x) + x φ(x) with the density φ(x) = exp(-x²/2) / √(2π).
fn gelu_slope<T: Float>(x: T) -> T {
    // 1 / √(2π)
    const PEAK: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2 * 0.5;
    normal_cdf(x) + x * T::from_f64(PEAK) * (T::from_f64(-0.5) * x * x).exp()
}

#[cfg(test)]
mod tests;
