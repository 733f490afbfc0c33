//! Random elements. Element i depends only on the key and i: it uses block i / 4 of the random bits, or i / 2 for types that
//! need 64 bits per element.

mod philox;

use std::array;
use std::f64::consts::TAU;
use std::marker::PhantomData;

use super::Random;
use crate::cpu::dispatch::{host_mut, unsupported};
use crate::cpu::halves::parts;
use crate::cpu::number::{Float, Number};
use crate::cpu::parallel::{HEAVY, Workers};
use crate::cpu::simd::{self, Loop};
use crate::cpu::{angle, exp};
use crate::error::Result;
use crate::families::{Distribution, RandomKey, RunCpu};
use crate::shape::DType;
use crate::storage::ViewMut;

impl RunCpu for Random<'_> {
    /// Integers are the floor of the drawn value. A normal distribution requires floats.
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { distribution, key, ref mut out } = *self;
        let dtype = out.dtype();
        match dtype {
            DType::F32 => float::<f32, 4>(workers, host_mut(op, out)?, distribution, key),
            DType::F64 => float::<f64, 2>(workers, host_mut(op, out)?, distribution, key),
            DType::F16 | DType::BF16 => return halves(workers, op, out, distribution, key),
            _ if matches!(distribution, Distribution::Normal { .. }) => return Err(unsupported(op, dtype)),
            DType::I64 => {
                integer::<i64>(workers, host_mut(op, out)?, distribution, key, |value| value as i64)
            }
            DType::I32 => {
                integer::<i32>(workers, host_mut(op, out)?, distribution, key, |value| value as i32)
            }
            DType::U32 => {
                integer::<u32>(workers, host_mut(op, out)?, distribution, key, |value| value as u32)
            }
            DType::U8 => integer::<u8>(workers, host_mut(op, out)?, distribution, key, |value| value as u8),
            DType::Bool => {
                integer::<u8>(workers, host_mut(op, out)?, distribution, key, |value| u8::from(value != 0.0));
            }
        }
        Ok(())
    }
}

/// Fills floats, `N` per block of random bits.
fn float<T: Float, const N: usize>(
    workers: &Workers,
    out: &mut [T],
    distribution: Distribution,
    key: RandomKey,
) where
    Uniform: Draw<N>,
    Normal: Draw<N>,
{
    // Chunks start at block boundaries.
    const { assert!(HEAVY.is_multiple_of(N)) };
    workers.chunks(out, HEAVY, &|start, out| draw_floats((start / N) as u64, out, distribution, key));
}

/// Fills 16-bit floats. They are drawn as f32.
fn halves(
    workers: &Workers,
    op: &'static str,
    out: &mut ViewMut<'_>,
    distribution: Distribution,
    key: RandomKey,
) -> Result<()> {
    parts(workers, op, [out], [HEAVY], &|chunk, [mut part]| {
        let mut drawn = [0.0_f32; DRAWN];
        for start in (0..part.len()).step_by(DRAWN) {
            let drawn = &mut drawn[..DRAWN.min(part.len() - start)];
            draw_floats::<f32, 4>(((chunk * HEAVY + start) / 4) as u64, drawn, distribution, key);
            part.store(start, drawn);
        }
    })
}

/// Draws floats from block number `first` on.
fn draw_floats<T: Float, const N: usize>(
    first: u64,
    out: &mut [T],
    distribution: Distribution,
    key: RandomKey,
) where
    Uniform: Draw<N>,
    Normal: Draw<N>,
{
    match distribution {
        Distribution::Uniform { low, high } => {
            let (start, end) = (T::from_f64(low), T::from_f64(high));
            // Rounding may reach the upper bound, which is excluded.
            let last = if end > start { end.next_down() } else { start };
            let value = |u: f64| {
                let value = T::from_f64(low + u * (high - low));
                if value < end { value } else { last }
            };
            simd::run(Fill::<_, _, _, N> { out, key, first, value, draw: PhantomData::<Uniform> });
        }
        Distribution::Normal { mean, std } => {
            let value = |z: f64| T::from_f64(mean + std * z);
            simd::run(Fill::<_, _, _, N> { out, key, first, value, draw: PhantomData::<Normal> });
        }
        // An array rather than a branch, which no processor could predict.
        Distribution::Bernoulli { p, value } => {
            let value = T::from_f64(value);
            let value = |u: f64| [T::ZERO, value][usize::from(u < p)];
            simd::run(Fill::<_, _, _, N> { out, key, first, value, draw: PhantomData::<Uniform> });
        }
    }
}

/// The number of integers that are drawn as `f64`, or 16-bit floats that are drawn as `f32`, at a time.
const DRAWN: usize = 512;

/// Fills integers. They are drawn as `f64` and then converted, so that the drawing is compiled once for all types.
fn integer<T: Number>(
    workers: &Workers,
    out: &mut [T],
    distribution: Distribution,
    key: RandomKey,
    convert: fn(f64) -> T,
) {
    workers.chunks(out, HEAVY, &|start, out| {
        let mut drawn = [0.0; DRAWN];
        for (piece, out) in out.chunks_mut(DRAWN).enumerate() {
            let drawn = &mut drawn[..out.len()];
            draw_integers((start + piece * DRAWN) as u64 / 2, drawn, distribution, key);
            out.iter_mut().zip(drawn).for_each(|(out, drawn)| *out = convert(*drawn));
        }
    });
}

/// Draws integers from block number `first` on.
fn draw_integers(first: u64, out: &mut [f64], distribution: Distribution, key: RandomKey) {
    let draw = PhantomData::<Uniform>;
    match distribution {
        Distribution::Uniform { low, high } => {
            let last = (high.ceil() - 1.0).max(low.floor());
            let value = |u: f64| (low + u * (high - low)).floor().min(last);
            simd::run(Fill::<_, _, _, 2> { out, key, first, value, draw });
        }
        Distribution::Bernoulli { p, value } => {
            let value = |u: f64| [0.0, value][usize::from(u < p)];
            simd::run(Fill::<_, _, _, 2> { out, key, first, value, draw });
        }
        // The caller has returned an error.
        Distribution::Normal { .. } => {}
    }
}

/// The number of blocks of random bits that are generated at a time.
const LANES: usize = 16;

/// The four words of [`LANES`] blocks.
type Words = [[u32; LANES]; 4];

/// Converts random bits to numbers. A type and not a function, so that the loop inlines it.
trait Draw<const N: usize>: Sync + Sized {
    /// Draws `N` numbers from each block.
    fn draw(words: Words) -> [[f64; LANES]; N];
}

/// `out[i] = value(draw(block first + i / N)[i mod N])`.
struct Fill<'a, T, D, V, const N: usize> {
    out: &'a mut [T],
    key: RandomKey,
    first: u64,
    value: V,
    draw: PhantomData<D>,
}

impl<T: Number, D: Draw<N>, V: Fn(f64) -> T, const N: usize> Loop for Fill<'_, T, D, V, N> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (first, out) in (self.first..).step_by(LANES).zip(self.out.chunks_mut(LANES * N)) {
            let drawn = D::draw(philox::blocks::<LANES>(self.key, first));
            for (i, out) in out.chunks_mut(N).enumerate() {
                out.iter_mut().zip(&drawn).for_each(|(out, drawn)| *out = (self.value)(drawn[i]));
            }
        }
    }
}

/// Uniform numbers in [0, 1).
#[derive(Debug)]
struct Uniform;

/// Four numbers of 24 bits, which an `f32` represents exactly.
impl Draw<4> for Uniform {
    #[inline(always)]
    fn draw(words: Words) -> [[f64; LANES]; 4] {
        words.map(|words| words.map(|word| f64::from(word >> 8) / f64::from(1 << 24)))
    }
}

/// Two numbers of 53 bits, which an `f64` represents exactly.
impl Draw<2> for Uniform {
    #[inline(always)]
    fn draw([a, b, c, d]: Words) -> [[f64; LANES]; 2] {
        [(a, b), (c, d)].map(|(low, high)| {
            array::from_fn(|i| (wide(low[i], high[i]) >> 11) as f64 / (1_u64 << 53) as f64)
        })
    }
}

const fn wide(low: u32, high: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

/// Normal numbers from the Box-Muller transform: √(-2 ln u) (cos, sin)(2π v) with u in (0, 1].
#[derive(Debug)]
struct Normal;

/// Four numbers in single precision.
impl Draw<4> for Normal {
    #[inline(always)]
    fn draw([a, b, c, d]: Words) -> [[f64; LANES]; 4] {
        let ([w, x], [y, z]) = (normal_pairs(a, b), normal_pairs(c, d));
        [w, x, y, z]
    }
}

/// Two normal numbers from each pair of words: the cosine and the sine.
#[inline(always)]
fn normal_pairs(u: [u32; LANES], v: [u32; LANES]) -> [[f64; LANES]; 2] {
    const STEP: f32 = 1.0 / 4_294_967_296.0;
    // The midpoints of 2³² intervals: never 0, and fine-grained near 0, which produces the tails of the distribution.
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

/// Two numbers in double precision.
impl Draw<2> for Normal {
    fn draw([a, b, c, d]: Words) -> [[f64; LANES]; 2] {
        let unit = |low: u32, high: u32| ((wide(low, high) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        let mut pairs = [[0.0; LANES]; 2];
        for i in 0..LANES {
            let radius = (-2.0 * unit(a[i], b[i]).ln()).sqrt();
            let (sin, cos) = (unit(c[i], d[i]) * TAU).sin_cos();
            (pairs[0][i], pairs[1][i]) = (radius * cos, radius * sin);
        }
        pairs
    }
}

#[cfg(test)]
mod tests;
