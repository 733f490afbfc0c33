//! Elementwise functions of one argument, and their derivatives.

use super::dispatch::{float, host, host_mut, integer, number};
use super::fold::BLOCK;
use super::halves;
use super::number::{Float, Integer, Number};
use super::operands::{Pair, Source};
use super::parallel::{HEAVY, LIGHT, Workers};
use super::power::raise;
use super::simd::{self, Loop};
use crate::backend::Unary;
use crate::error::Result;
use crate::layout::Layout;
use crate::storage::{View, ViewMut};

/// See [`Map`](crate::backend::kernels::Map).
pub(crate) fn unary(
    workers: &Workers,
    op: &'static str,
    f: Unary,
    input: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let dtype = out.dtype();
    if let Unary::Powf(exponent) = f
        && !dtype.is_float()
    {
        // The op has checked that the exponent is an integer ≥ 0.
        let exponent = exponent as u64;
        return integer!(op, dtype, T => {
            let (data, out) = (host::<T>(op, &input)?, host_mut::<T>(op, out)?);
            Source::of(data, input.layout()).map(workers, HEAVY, out, |x| x.raised(exponent));
            Ok(())
        });
    }
    if halves::any_of([dtype, input.dtype()]) {
        let chunk = if f.is_arithmetic() { LIGHT } else { HEAVY };
        return halves::map(workers, op, chunk, [input], out, &|[x], out| {
            transcendental(workers, f, &Source::of(x, &Layout::of_row(x.len())), out);
        });
    }
    if f.is_arithmetic() {
        number!(op, dtype, T => {
            let (data, out) = (host::<T>(op, &input)?, host_mut::<T>(op, out)?);
            arithmetic(workers, f, &Source::of(data, input.layout()), out);
            Ok(())
        })
    } else {
        float!(op, dtype, T => {
            let (data, out) = (host::<T>(op, &input)?, host_mut::<T>(op, out)?);
            transcendental(workers, f, &Source::of(data, input.layout()), out);
            Ok(())
        })
    }
}

/// Computes the functions that integers support too.
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
        Unary::DivScalar(c) => {
            let c = T::from_scalar(c);
            source.map(workers, LIGHT, out, |x| x.over(c));
        }
        Unary::Sign => source.map(workers, LIGHT, out, T::sign),
        Unary::Clamp(low, high) => {
            let (low, high) = (T::from_scalar(low), T::from_scalar(high));
            source.map(workers, LIGHT, out, |x| x.clamped(low, high));
        }
        _ => debug_assert!(!f.is_arithmetic(), "{} is for floats", f.name()),
    }
}

/// Evaluates an expression with `$power` as a closure for xᵃ, for common exponents that need no logarithm.
macro_rules! power {
    ($T:ident, $exponent:expr, $power:ident => $body:expr, else $otherwise:expr) => {{
        let exponent: f64 = $exponent;
        if exponent == 1.0 {
            let $power = |x: $T| x;
            $body
        } else if exponent == 2.0 {
            let $power = |x: $T| x * x;
            $body
        } else if exponent == 3.0 {
            let $power = |x: $T| x * x * x;
            $body
        } else if exponent == 0.5 {
            let $power = |x: $T| x.sqrt();
            $body
        } else if exponent == -1.0 {
            let $power = |x: $T| $T::ONE / x;
            $body
        } else if exponent == -0.5 {
            let $power = |x: $T| $T::ONE / x.sqrt();
            $body
        } else {
            $otherwise
        }
    }};
}

/// Whether all angles are below [`Float::LARGE_ANGLE`].
fn small_angles<T: Float>(source: &Source<'_, T>) -> bool {
    let mut all = true;
    source.blocks::<BLOCK>(0..source.len(), |_, block| all &= simd::run(AreSmall(block)));
    all
}

struct AreSmall<'a, T>(&'a [T]);

impl<T: Float> Loop for AreSmall<'_, T> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        self.0.iter().fold(true, |all, angle| all & (angle.magnitude() < T::LARGE_ANGLE))
    }
}

/// Computes the functions that require floats.
fn transcendental<T: Float>(workers: &Workers, f: Unary, source: &Source<'_, T>, out: &mut [T]) {
    match f {
        Unary::Exp => source.map(workers, HEAVY, out, T::exp),
        Unary::Log => source.map(workers, HEAVY, out, T::ln),
        Unary::Sqrt => source.map(workers, LIGHT, out, T::sqrt),
        Unary::Gelu => source.map(workers, HEAVY, out, gelu),
        Unary::Tanh => source.map(workers, HEAVY, out, T::tanh),
        Unary::Sigmoid => source.map(workers, HEAVY, out, logistic),
        Unary::Recip => source.map(workers, LIGHT, out, |x| T::ONE / x),
        Unary::Rsqrt => source.map(workers, LIGHT, out, |x| T::ONE / x.sqrt()),
        Unary::Floor => source.map(workers, LIGHT, out, T::floor),
        Unary::Ceil => source.map(workers, LIGHT, out, T::ceil),
        Unary::Round => source.map(workers, LIGHT, out, T::round_ties_even),
        Unary::Sin if small_angles(source) => source.map(workers, HEAVY, out, T::sin_of_small),
        Unary::Sin => source.map(workers, HEAVY, out, T::sin),
        Unary::Cos if small_angles(source) => source.map(workers, HEAVY, out, T::cos_of_small),
        Unary::Cos => source.map(workers, HEAVY, out, T::cos),
        Unary::Silu => source.map(workers, HEAVY, out, silu),
        Unary::Softplus => source.map(workers, HEAVY, out, softplus),
        Unary::GeluTanh => source.map(workers, HEAVY, out, gelu_tanh),
        Unary::LeakyRelu(slope) => {
            let slope = T::from_f64(slope);
            source.map(workers, LIGHT, out, move |x| x * if x < T::ZERO { slope } else { T::ONE });
        }
        Unary::Elu(factor) => {
            let factor = T::from_f64(factor);
            source.map(workers, HEAVY, out, move |x| if x > T::ZERO { x } else { factor * exp_m1(x) });
        }
        Unary::Mish => source.map(workers, HEAVY, out, |x| x * MishParts::of(x).tanh()),
        Unary::Hardswish => source.map(workers, LIGHT, out, hardswish),
        Unary::Powf(exponent) => power!(T, exponent,
            power => source.map(workers, LIGHT, out, power),
            else workers.chunks(out, HEAVY, &|start, part| {
                source.load(start, part);
                raise(part, T::from_f64(exponent));
            })
        ),
        Unary::Neg
        | Unary::Abs
        | Unary::Square
        | Unary::Relu
        | Unary::Sign
        | Unary::Clamp(..)
        | Unary::AddScalar(_)
        | Unary::MulScalar(_)
        | Unary::DivScalar(_) => arithmetic(workers, f, source, out),
    }
}

/// See [`MapGrad`](crate::backend::kernels::MapGrad).
#[inline(never)]
pub(crate) fn unary_grad(
    workers: &Workers,
    op: &'static str,
    f: Unary,
    saved: View<'_>,
    grad: Option<View<'_>>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    if halves::any_of([out.dtype(), saved.dtype(), grad.map_or(out.dtype(), |grad| grad.dtype())]) {
        return unary_grad_of_halves(workers, op, f, (saved, grad), out);
    }
    float!(op, out.dtype(), T => {
        let out = host_mut::<T>(op, out)?;
        let small = match f {
            Unary::Sin | Unary::Cos => small_angles(&Source::<T>::new(op, saved)?),
            _ => false,
        };
        let saved_data = host::<T>(op, &saved)?;
        let Some(grad) = grad else {
            let source = Source::of(saved_data, saved.layout());
            derivative_in_place(workers, (f, small), &source, out);
            return Ok(());
        };
        let grad_data = host::<T>(op, &grad)?;
        let pair = Pair::of((saved_data, saved.layout()), (grad_data, grad.layout()));
        derivative(workers, (f, small), &pair, out);
        Ok(())
    })
}

/// [`unary_grad`] of 16-bit floats.
fn unary_grad_of_halves(
    workers: &Workers,
    op: &'static str,
    f: Unary,
    (saved, grad): (View<'_>, Option<View<'_>>),
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let small = |values: &Source<'_, f32>| matches!(f, Unary::Sin | Unary::Cos) && small_angles(values);
    let Some(grad) = grad else {
        return halves::update(workers, op, LIGHT, [saved], [out], &|[saved], [out]| {
            let saved = Source::of(saved, &Layout::of_row(saved.len()));
            derivative_in_place(workers, (f, small(&saved)), &saved, out);
        });
    };
    halves::map(workers, op, LIGHT, [saved, grad], out, &|[saved, grad], out| {
        let row = Layout::of_row(saved.len());
        let is_small = small(&Source::of(saved, &row));
        derivative(workers, (f, is_small), &Pair::of((saved, &row), (grad, &row)), out);
    })
}

/// The gradient of ReLU in place: `g = if y > 0 { g } else { 0 }`.
// Adds 0 as `rectified` does, also where the gradient is not in place, so that both variants return the same bits.
fn rectify<T: Float>(g: &mut T, y: T) {
    *g = if y <= T::ZERO { T::ZERO } else { *g + T::ZERO };
}

/// The number of gradients that [`derivative_in_place`] copies at a time.
const BLOCK_IN_PLACE: usize = 256;

/// [`derivative`] with g in the output. Copies g block by block, so that the functions are not compiled twice. ReLU,
/// the most common function, has its own loop.
fn derivative_in_place<T: Float>(workers: &Workers, f: (Unary, bool), saved: &Source<'_, T>, out: &mut [T]) {
    if f.0 == Unary::Relu {
        workers.chunks(out, LIGHT, &|start, part| {
            saved.each(start, part, rectify);
        });
        return;
    }
    workers.chunks(out, LIGHT, &|start, part| {
        let (mut grads, mut values) = ([T::ZERO; BLOCK_IN_PLACE], Vec::new());
        for (piece, out) in part.chunks_mut(BLOCK_IN_PLACE).enumerate() {
            let (first, grads) = (start + piece * BLOCK_IN_PLACE, &mut grads[..out.len()]);
            grads.copy_from_slice(out);
            let saved = saved.part(first..first + out.len(), &mut values);
            let row = Layout::of_row(out.len());
            derivative(workers, f, &Pair::of((saved, &row), (grads, &row)), out);
        }
    });
}

/// `out = g f'(x)`. The first element of each pair is x, or y = f(x) if the backward pass reads the output. `small`
/// states that all angles are below [`Float::LARGE_ANGLE`].
fn derivative<T: Float>(workers: &Workers, (f, small): (Unary, bool), pair: &Pair<'_, T, T>, out: &mut [T]) {
    let two = T::ONE + T::ONE;
    match f {
        Unary::Neg => pair.map(workers, LIGHT, out, |_, g| -g),
        Unary::Abs => pair.map(workers, LIGHT, out, |x, g| {
            if x > T::ZERO {
                g
            } else if x < T::ZERO {
                -g
            } else {
                // 0 for x = 0 and NaN for NaN.
                x.magnitude()
            }
        }),
        Unary::Square => pair.map(workers, LIGHT, out, |x, g| two * x * g),
        Unary::Exp => pair.map(workers, LIGHT, out, |y, g| g * y),
        Unary::Log => pair.map(workers, LIGHT, out, |x, g| g / x),
        Unary::Sqrt => pair.map(workers, LIGHT, out, |y, g| g / (two * y)),
        Unary::Relu => pair.map(workers, LIGHT, out, |y, g| if y <= T::ZERO { T::ZERO } else { g + T::ZERO }),
        Unary::Gelu => pair.map(workers, HEAVY, out, |x, g| g * gelu_slope(x)),
        Unary::Tanh => pair.map(workers, LIGHT, out, |y, g| g * (T::ONE - y * y)),
        Unary::Sigmoid => pair.map(workers, LIGHT, out, |y, g| g * y * (T::ONE - y)),
        Unary::Recip => pair.map(workers, LIGHT, out, |y, g| -g * y * y),
        Unary::Rsqrt => {
            let half = T::from_f64(-0.5);
            pair.map(workers, LIGHT, out, |y, g| half * g * y * y * y);
        }
        Unary::Sign | Unary::Floor | Unary::Ceil | Unary::Round => {
            pair.map(workers, LIGHT, out, |_, _| T::ZERO);
        }
        Unary::Sin if small => pair.map(workers, HEAVY, out, |x, g| g * x.cos_of_small()),
        Unary::Sin => pair.map(workers, HEAVY, out, |x, g| g * x.cos()),
        Unary::Cos if small => pair.map(workers, HEAVY, out, |x, g| -g * x.sin_of_small()),
        Unary::Cos => pair.map(workers, HEAVY, out, |x, g| -g * x.sin()),
        Unary::Silu => pair.map(workers, HEAVY, out, |x, g| {
            let s = logistic(x);
            g * s * (T::ONE + x * (T::ONE - s))
        }),
        Unary::Softplus => pair.map(workers, HEAVY, out, |x, g| g * logistic(x)),
        Unary::GeluTanh => pair.map(workers, HEAVY, out, |x, g| g * gelu_tanh_slope(x)),
        Unary::LeakyRelu(slope) => {
            let slope = T::from_f64(slope);
            pair.map(workers, LIGHT, out, move |x, g| g * if x <= T::ZERO { slope } else { T::ONE });
        }
        Unary::Elu(factor) => {
            let factor = T::from_f64(factor);
            pair.map(workers, HEAVY, out, move |x, g| {
                g * if x > T::ZERO { T::ONE } else { factor * x.exp() }
            });
        }
        Unary::Mish => pair.map(workers, HEAVY, out, |x, g| g * MishParts::of(x).slope(x)),
        Unary::Hardswish => pair.map(workers, LIGHT, out, |x, g| g * hardswish_slope(x)),
        Unary::Powf(exponent) => {
            let factor = T::from_f64(exponent);
            if exponent == 0.0 {
                // x⁰ is constant; the formula below returns NaN for x = 0.
                pair.map(workers, LIGHT, out, |_, _| T::ZERO);
            } else {
                power!(T, exponent - 1.0,
                    power => pair.map(workers, LIGHT, out, |x, g| g * factor * power(x)),
                    else workers.chunks(out, HEAVY, &|start, part| {
                        pair.each(start, part, |out, x, _| *out = x);
                        raise(part, T::from_f64(exponent - 1.0));
                        pair.each(start, part, |out, _, g| *out *= g * factor);
                    })
                );
            }
        }
        Unary::Clamp(low, high) => {
            let (low, high) = (T::from_scalar(low), T::from_scalar(high));
            pair.map(workers, LIGHT, out, |x, g| if x > low && x < high { g } else { T::ZERO });
        }
        Unary::AddScalar(_) => pair.map(workers, LIGHT, out, |_, g| g),
        Unary::MulScalar(c) => {
            let c = T::from_scalar(c);
            pair.map(workers, LIGHT, out, |_, g| g * c);
        }
        Unary::DivScalar(c) => {
            let c = T::from_scalar(c);
            pair.map(workers, LIGHT, out, |_, g| g / c);
        }
    }
}

/// Φ(x), the normal distribution function: (1 + erf(x / √2)) / 2.
#[inline(always)]
fn normal_cdf<T: Float>(x: T) -> T {
    T::from_f64(0.5) * (T::ONE + (x * T::from_f64(std::f64::consts::FRAC_1_SQRT_2)).erf())
}

/// σ(x) = 1 / (1 + e⁻ˣ)
#[inline(always)]
pub(crate) fn logistic<T: Float>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp())
}

/// x σ(x)
#[inline(always)]
pub(crate) fn silu<T: Float>(x: T) -> T {
    x * logistic(x)
}

/// ln(1 + eˣ) = max(x, 0) + ln(1 + e^-|x|), which does not overflow.
#[inline(always)]
fn softplus<T: Float>(x: T) -> T {
    x.rectified() + (-x.magnitude()).exp().ln_1p()
}

/// eˣ - 1 for x ≤ 0, as 2t / (1 - t) with t = tanh(x/2): accurate for small x.
#[inline(always)]
fn exp_m1<T: Float>(x: T) -> T {
    let t = (T::from_f64(0.5) * x).tanh();
    (t + t) / (T::ONE - t)
}

/// The fraction tanh(ln(1 + eˣ)) = `top` / (`top` + `rest`), by n = e^-|x|, which does not overflow.
struct MishParts<T> {
    n: T,
    top: T,
    rest: T,
}

impl<T: Float> MishParts<T> {
    #[inline(always)]
    fn of(x: T) -> Self {
        let (n, two) = ((-x.magnitude()).exp(), T::ONE + T::ONE);
        let (top, rest) = if x < T::ZERO { (n * (n + two), two) } else { (T::ONE + two * n, two * n * n) };
        Self { n, top, rest }
    }

    #[inline(always)]
    fn tanh(&self) -> T {
        self.top / (self.top + self.rest)
    }

    /// The derivative of mish: t + x (1 - t²) σ(x) with t = tanh(ln(1 + eˣ)).
    #[inline(always)]
    fn slope(&self, x: T) -> T {
        let Self { n, top, rest } = *self;
        let bottom = top + rest;
        let logistic = if x < T::ZERO { n } else { T::ONE } / (T::ONE + n);
        let steep = rest * (bottom + top) / (bottom * bottom) * logistic;
        // Far from 0 that is 0, where x may be infinite.
        self.tanh() + if steep == T::ZERO { T::ZERO } else { x * steep }
    }
}

/// x min(max(x + 3, 0), 6) / 6
#[inline(always)]
fn hardswish<T: Float>(x: T) -> T {
    let six = T::from_f64(6.0);
    x * (x + T::from_f64(3.0)).clamped(T::ZERO, six) / six
}

/// Its derivative: 0 up to -3, 1 from 3 on, and x/3 + 1/2 between, as in PyTorch.
#[inline(always)]
fn hardswish_slope<T: Float>(x: T) -> T {
    let three = T::from_f64(3.0);
    if x <= -three {
        T::ZERO
    } else if x >= three {
        T::ONE
    } else {
        x / three + T::from_f64(0.5)
    }
}

/// √(2/π), and the weight of the cube, in the approximation of Φ by tanh.
const TANH_SCALE: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
const TANH_CUBE: f64 = 0.044_715;

/// ½ (1 + tanh u) for u = √(2/π) (x + 0.044715 x³), by way of exp, which is the quicker function: it is σ(2u).
#[inline(always)]
fn half_of_tanh<T: Float>(x: T) -> T {
    logistic(T::from_f64(2.0 * TANH_SCALE) * (x + T::from_f64(TANH_CUBE) * x * x * x))
}

/// ½ x (1 + tanh u), Hendrycks and Gimpel's approximation of [`gelu`].
#[inline(always)]
pub(crate) fn gelu_tanh<T: Float>(x: T) -> T {
    x * half_of_tanh(x)
}

/// Its derivative: s + 2 x s (1 - s) u' with s = σ(2u).
#[inline(always)]
fn gelu_tanh_slope<T: Float>(x: T) -> T {
    let s = half_of_tanh(x);
    let inner = T::from_f64(2.0 * TANH_SCALE) * (T::ONE + T::from_f64(3.0 * TANH_CUBE) * x * x);
    let steep = x * s * (T::ONE - s);
    // Far from 0 that is 0, and u' may be beyond the type.
    s + if steep == T::ZERO { T::ZERO } else { steep * inner }
}

/// x Φ(x), see Hendrycks and Gimpel, Gaussian error linear units, 2016.
#[inline(always)]
pub(crate) fn gelu<T: Float>(x: T) -> T {
    x * normal_cdf(x)
}

/// (x Φ(x))' = Φ(x) + x φ(x) with the density φ(x) = exp(-x²/2) / √(2π).
#[inline(always)]
fn gelu_slope<T: Float>(x: T) -> T {
    // 1 / √(2π)
    const PEAK: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2 * 0.5;
    normal_cdf(x) + x * T::from_f64(PEAK) * (T::from_f64(-0.5) * x * x).exp()
}

#[cfg(test)]
mod tests;
