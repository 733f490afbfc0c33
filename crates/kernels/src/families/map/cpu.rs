//! Elementwise functions of one argument, and their derivatives, from the table `unary_functions`.

use super::functions::{if_of_numbers, unary_functions};
use super::{Map, MapGrad};
use crate::cpu::dispatch::{float, host, host_mut, integer, unsupported};
use crate::cpu::fold::BLOCK;
use crate::cpu::halves;
use crate::cpu::number::{Float, Integer};
use crate::cpu::operands::{Pair, Source};
use crate::cpu::parallel::{HEAVY, LIGHT, Workers};
use crate::cpu::power::raise;
use crate::cpu::simd::{self, Loop};
use crate::error::Result;
use crate::families::{RunCpu, Unary};
use crate::layout::Layout;
use crate::shape::{DType, Scalar};

impl RunCpu for Map<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { f, input, ref mut out } = *self;
        let dtype = out.dtype();
        if halves::any_of([dtype, input.dtype()]) {
            let chunk = if f.is_light() { LIGHT } else { HEAVY };
            return halves::map(workers, op, chunk, [input], out, &|[x], out| {
                of_floats(workers, f, &Source::of(x, &Layout::of_row(x.len())), out);
            });
        }
        if dtype.is_float() {
            return float!(op, dtype, T => {
                let (data, out) = (host::<T>(op, &input)?, host_mut::<T>(op, out)?);
                of_floats(workers, f, &Source::of(data, input.layout()), out);
                Ok(())
            });
        }
        integer!(op, dtype, T => {
            let (data, out) = (host::<T>(op, &input)?, host_mut::<T>(op, out)?);
            of_integers(workers, (op, dtype), f, &Source::of(data, input.layout()), out)
        })
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
    type Element = T;
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        self.0.iter().fold(true, |all, angle| all & (angle.magnitude() < T::LARGE_ANGLE))
    }
}

/// The chunk of a function by the cost in its row.
macro_rules! chunk {
    (light) => {
        LIGHT
    };
    (heavy) => {
        HEAVY
    };
}

pub(crate) use chunk;

/// Computes one function of the table: in a loop over its operands with the cost as chunk, or by its own loop.
macro_rules! compute {
    (by($f:expr), $operands:ident, $workers:ident, $out:ident, [$($constant:ident),*]) => {
        $f($workers, $operands, $out $(, $constant)*)
    };
    ($cost:ident($f:expr), $operands:ident, $workers:ident, $out:ident, [$($constant:ident),*]) => {{
        $(let $constant = T::from_scalar(Scalar::from($constant));)*
        $operands.map($workers, chunk!($cost), $out, $f)
    }};
}

/// Defines the functions that compute values and derivatives, with one loop for each row of the table.
macro_rules! computations {
    ($(
        $(#[$meta:meta])*
        $name:ident: $variant:ident $(($($constant:ident: $type:ty = $example:expr),+))? {
            domain: $domain:ident, grad_reads: $reads:ident, smooth: [$($smooth:expr),+],
            value: $cost:ident($value:expr),
            grad: $grad_cost:ident($grad:expr),
        }
    )*) => {
        /// Computes the functions that integers support.
        #[allow(unused_variables, reason = "the constants of other functions are not used")]
        fn of_integers<T: Integer>(
            workers: &Workers,
            (op, dtype): (&'static str, DType),
            f: Unary,
            source: &Source<'_, T>,
            out: &mut [T],
        ) -> Result<()> {
            if let Unary::Powf(exponent) = f {
                // The op has checked that the exponent is an integer ≥ 0.
                let exponent = exponent as u64;
                source.map(workers, HEAVY, out, |x| x.raised(exponent));
                return Ok(());
            }
            match f {
                $(Unary::$variant $(($($constant),+))? => if_of_numbers!(
                    $domain,
                    compute!($cost($value), source, workers, out, [$($($constant),+)?]),
                    return Err(unsupported(op, dtype))
                ),)*
            }
            Ok(())
        }

        /// Computes all functions.
        fn of_floats<T: Float>(workers: &Workers, f: Unary, source: &Source<'_, T>, out: &mut [T]) {
            match f {
                $(Unary::$variant $(($($constant),+))? => {
                    compute!($cost($value), source, workers, out, [$($($constant),+)?]);
                })*
            }
        }

        /// `out = g f'(x)`. The first element of each pair is x, or y = f(x) if the backward pass reads the output.
        #[allow(unused_variables, reason = "some derivatives do not depend on the constants")]
        fn derivative<T: Float>(workers: &Workers, f: Unary, pair: &Pair<'_, T, T>, out: &mut [T]) {
            match f {
                $(Unary::$variant $(($($constant),+))? => {
                    compute!($grad_cost($grad), pair, workers, out, [$($($constant),+)?]);
                })*
            }
        }
    };
}

unary_functions!(computations);

/// sin x, by a loop without branches if all angles are small.
fn sine<T: Float>(workers: &Workers, source: &Source<'_, T>, out: &mut [T]) {
    if small_angles(source) {
        source.map(workers, HEAVY, out, T::sin_of_small);
    } else {
        source.map(workers, HEAVY, out, T::sin);
    }
}

/// cos x, as [`sine`].
fn cosine<T: Float>(workers: &Workers, source: &Source<'_, T>, out: &mut [T]) {
    if small_angles(source) {
        source.map(workers, HEAVY, out, T::cos_of_small);
    } else {
        source.map(workers, HEAVY, out, T::cos);
    }
}

/// g cos x
fn sine_grad<T: Float>(workers: &Workers, pair: &Pair<'_, T, T>, out: &mut [T]) {
    by_angles(workers, pair, out, |x, g| g * x.cos_of_small(), |x, g| g * x.cos());
}

/// -g sin x
fn cosine_grad<T: Float>(workers: &Workers, pair: &Pair<'_, T, T>, out: &mut [T]) {
    by_angles(workers, pair, out, |x, g| -g * x.sin_of_small(), |x, g| -g * x.sin());
}

/// Maps pairs of an angle and a gradient: by `small` in chunks where all angles are below [`Float::LARGE_ANGLE`].
fn by_angles<T: Float>(
    workers: &Workers,
    pair: &Pair<'_, T, T>,
    out: &mut [T],
    small: impl Fn(T, T) -> T + Sync,
    any: impl Fn(T, T) -> T + Sync,
) {
    workers.chunks(out, HEAVY, &|start, part| {
        pair.each(start, part, |out, x, _| *out = x);
        if simd::run(AreSmall(part)) {
            pair.each(start, part, |out, x, g| *out = small(x, g));
        } else {
            pair.each(start, part, |out, x, g| *out = any(x, g));
        }
    });
}

/// xᶜ
fn power<T: Float>(workers: &Workers, source: &Source<'_, T>, out: &mut [T], exponent: f64) {
    power!(T, exponent,
        power => source.map(workers, LIGHT, out, power),
        else workers.chunks(out, HEAVY, &|start, part| {
            source.load(start, part);
            raise(part, T::from_f64(exponent));
        })
    );
}

/// g c xᶜ⁻¹
fn power_grad<T: Float>(workers: &Workers, pair: &Pair<'_, T, T>, out: &mut [T], exponent: f64) {
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

impl RunCpu for MapGrad<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { f, saved, grad, ref mut out } = *self;
        let dtype = out.dtype();
        if halves::any_of([dtype, saved.dtype(), grad.map_or(dtype, |grad| grad.dtype())]) {
            let Some(grad) = grad else {
                return halves::update(workers, op, LIGHT, [saved], [out], &|[saved], [out]| {
                    let saved = Source::of(saved, &Layout::of_row(saved.len()));
                    derivative_in_place(workers, f, &saved, out);
                });
            };
            return halves::map(workers, op, LIGHT, [saved, grad], out, &|[saved, grad], out| {
                let row = Layout::of_row(saved.len());
                derivative(workers, f, &Pair::of((saved, &row), (grad, &row)), out);
            });
        }
        float!(op, dtype, T => {
            let out = host_mut::<T>(op, out)?;
            let saved_data = host::<T>(op, &saved)?;
            let Some(grad) = grad else {
                let source = Source::of(saved_data, saved.layout());
                derivative_in_place(workers, f, &source, out);
                return Ok(());
            };
            let grad_data = host::<T>(op, &grad)?;
            let pair = Pair::of((saved_data, saved.layout()), (grad_data, grad.layout()));
            derivative(workers, f, &pair, out);
            Ok(())
        })
    }
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
fn derivative_in_place<T: Float>(workers: &Workers, f: Unary, saved: &Source<'_, T>, out: &mut [T]) {
    if f == Unary::Relu {
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
    x.rectified() + (-x.magnitude()).exp().ln_1p_of_fraction()
}

/// eˣ - 1 for x ≤ 0, as 2t / (1 - t) with t = tanh(x/2): accurate for small x.
#[inline(always)]
fn exp_m1_of_negative<T: Float>(x: T) -> T {
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
