//! Random fills. Element i depends on the key and i alone: it is made from block i / 4 of the random bits, or i / 2 for
//! types that need 64 bits per element.

use std::f64::consts::TAU;

use pulp::{Simd, WithSimd};

use super::dispatch::{host_mut, unsupported};
use super::number::{Float, Number};
use super::parallel::{HEAVY, Workers};
use super::{angle, exp, philox, simd};
use crate::backend::{Distribution, RandomKey};
use crate::dtype::DType;
use crate::error::Result;
use crate::storage::ViewMut;

/// See [`Kernel::Random`](crate::backend::Kernel::Random).
///
/// Integers take the floor of the value drawn. Only floats can be normal.
pub(super) fn random(
    workers: &Workers,
    op: &'static str,
    distribution: Distribution,
    key: RandomKey,
    out: ViewMut<'_>,
) -> Result<()> {
    let dtype = out.dtype();
    match dtype {
        DType::F32 => float(workers, host_mut::<f32>(op, out)?, distribution, key, uniform4, normal4),
        DType::F64 => float(workers, host_mut::<f64>(op, out)?, distribution, key, uniform2, normal2),
        _ if matches!(distribution, Distribution::Normal { .. }) => return Err(unsupported(op, dtype)),
        DType::I64 => integer::<i64>(workers, host_mut(op, out)?, distribution, key, |value| value as i64),
        DType::I32 => integer::<i32>(workers, host_mut(op, out)?, distribution, key, |value| value as i32),
        DType::U8 => integer::<u8>(workers, host_mut(op, out)?, distribution, key, |value| value as u8),
        DType::Bool => {
            integer::<u8>(workers, host_mut(op, out)?, distribution, key, |value| u8::from(value != 0.0));
        }
        DType::F16 | DType::BF16 => return Err(unsupported(op, dtype)),
    }
    Ok(())
}

fn float<T: Float, const N: usize>(
    workers: &Workers,
    out: &mut [T],
    distribution: Distribution,
    key: RandomKey,
    uniform: impl Fn(Words) -> [[f64; LANES]; N] + Copy + Sync,
    normal: impl Fn(Words) -> [[f64; LANES]; N] + Copy + Sync,
) {
    match distribution {
        Distribution::Uniform { low, high } => {
            let (first, end) = (T::from_f64(low), T::from_f64(high));
            // Rounding may reach the end, which does not belong to the range.
            let last = if end > first { end.next_down() } else { first };
            fill(workers, out, key, uniform, |u| {
                let value = T::from_f64(low + u * (high - low));
                if value < end { value } else { last }
            });
        }
        Distribution::Normal { mean, std } => {
            fill(workers, out, key, normal, |z| T::from_f64(mean + std * z));
        }
        // An array rather than a branch, which no processor could predict.
        Distribution::Bernoulli { p, value } => {
            let value = T::from_f64(value);
            fill(workers, out, key, uniform, |u| [T::ZERO, value][usize::from(u < p)]);
        }
    }
}

fn integer<T: Number>(
    workers: &Workers,
    out: &mut [T],
    distribution: Distribution,
    key: RandomKey,
    convert: impl Fn(f64) -> T + Sync,
) {
    match distribution {
        Distribution::Uniform { low, high } => {
            let last = (high.ceil() - 1.0).max(low.floor());
            fill(workers, out, key, uniform2, |u| convert((low + u * (high - low)).floor().min(last)));
        }
        Distribution::Bernoulli { p, value } => {
            let value = convert(value);
            fill(workers, out, key, uniform2, |u| [T::ZERO, value][usize::from(u < p)]);
        }
        // Refused by the caller.
        Distribution::Normal { .. } => {}
    }
}

/// Blocks of random bits that are made at a time.
const LANES: usize = 16;

/// The four words of so many blocks, side by side.
type Words = [[u32; LANES]; 4];

/// out[i] = value(draw(block i / N)[i mod N])
fn fill<T: Number, const N: usize>(
    workers: &Workers,
    out: &mut [T],
    key: RandomKey,
    draw: impl Fn(Words) -> [[f64; LANES]; N] + Copy + Sync,
    value: impl Fn(f64) -> T + Sync,
) {
    // Chunks begin at blocks.
    const { assert!(HEAVY.is_multiple_of(N)) };
    workers.chunks(out, HEAVY, &|start, out| {
        simd::run(Fill { out, key, first: (start / N) as u64, draw, value: &value });
    });
}

/// A part of a fill, from block number `first` on. What draws is held by value: behind a reference it would not be inlined.
struct Fill<'a, T, D, V> {
    out: &'a mut [T],
    key: RandomKey,
    first: u64,
    draw: D,
    value: V,
}

impl<T: Number, D: Fn(Words) -> [[f64; LANES]; N], V: Fn(f64) -> T, const N: usize> WithSimd
    for Fill<'_, T, D, V>
{
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (first, out) in (self.first..).step_by(LANES).zip(self.out.chunks_mut(LANES * N)) {
            let drawn = (self.draw)(philox::blocks::<LANES>(self.key, first));
            for (i, out) in out.chunks_mut(N).enumerate() {
                out.iter_mut().zip(&drawn).for_each(|(out, drawn)| *out = (self.value)(drawn[i]));
            }
        }
    }
}

/// Four numbers in [0, 1) of 24 bits each: as many as fit an `f32` exactly.
#[inline(always)]
fn uniform4(words: Words) -> [[f64; LANES]; 4] {
    words.map(|words| words.map(|word| f64::from(word >> 8) / f64::from(1 << 24)))
}

/// Two numbers in [0, 1) of 53 bits each: as many as fit an `f64` exactly.
#[inline(always)]
fn uniform2([a, b, c, d]: Words) -> [[f64; LANES]; 2] {
    [(a, b), (c, d)].map(|(low, high)| {
        std::array::from_fn(|i| (wide(low[i], high[i]) >> 11) as f64 / (1_u64 << 53) as f64)
    })
}

const fn wide(low: u32, high: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

/// Four normal numbers by the Box-Muller transform: √(-2 ln u) (cos, sin)(2π v) with u in (0, 1].
#[inline(always)]
fn normal4([a, b, c, d]: Words) -> [[f64; LANES]; 4] {
    let ([w, x], [y, z]) = (normal_pairs(a, b), normal_pairs(c, d));
    [w, x, y, z]
}

#[inline(always)]
fn normal_pairs(u: [u32; LANES], v: [u32; LANES]) -> [[f64; LANES]; 2] {
    const STEP: f32 = 1.0 / 4_294_967_296.0;
    // The middle of each of 2³² intervals, in f32: not 0, and fine near 0, where the tails of the distribution are.
    let unit = |word: u32| word as f32 * STEP + 0.5 * STEP;
    let mut pairs = [[0.0; LANES]; 2];
    for i in 0..LANES {
        let radius = (-2.0 * exp::log_f32(unit(u[i]))).sqrt();
        let angle = unit(v[i]) * TAU as f32;
        pairs[0][i] = f64::from(radius * angle::cos_f32(angle));
        pairs[1][i] = f64::from(radius * angle::sin_f32(angle));
    }
    pairs
}

/// As [`normal4`] in double precision.
fn normal2([a, b, c, d]: Words) -> [[f64; LANES]; 2] {
    let unit = |low: u32, high: u32| ((wide(low, high) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    let mut pairs = [[0.0; LANES]; 2];
    for i in 0..LANES {
        let radius = (-2.0 * unit(a[i], b[i]).ln()).sqrt();
        let (sin, cos) = (unit(c[i], d[i]) * TAU).sin_cos();
        (pairs[0][i], pairs[1][i]) = (radius * cos, radius * sin);
    }
    pairs
}

#[cfg(test)]
mod tests;
