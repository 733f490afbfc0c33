//! Conversion between element types.
//!
//! Numbers convert like Rust's `as`: floats truncate to integers and saturate, wide integers wrap to narrow ones.
//! 16-bit floats are computed from f32. To avoid double rounding, values are first rounded to odd in f32 (Boldo and
//! Melquiond, "When double rounding is odd", 2005).

use half::{bf16, f16};

use super::dispatch::{host_mut, number};
use super::number::Stored;
use super::operands::Source;
use super::parallel::{LIGHT, Workers};
use super::simd::{self, Loop, f16c};
use crate::error::Result;
use crate::shape::{DType, RawElement, Scalar};
use crate::storage::{View, ViewMut};

/// The number of elements that are converted at a time through a buffer on the stack.
const BLOCK: usize = 1024;

/// Converts all elements. The types differ, and the output is not boolean. Boolean inputs are bytes.
pub(crate) fn convert(
    workers: &Workers,
    op: &'static str,
    input: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    match input.dtype() {
        DType::F16 => from_half::<f16>(workers, op, input, out),
        DType::BF16 => from_half::<bf16>(workers, op, input, out),
        DType::Bool => from_number::<u8>(workers, op, input, out),
        dtype => number!(op, dtype, A => from_number::<A>(workers, op, input, out)),
    }
}

fn from_number<A>(workers: &Workers, op: &'static str, input: View<'_>, out: &mut ViewMut<'_>) -> Result<()>
where
    A: Rounded + Cast<f32> + Cast<f64> + Cast<i64> + Cast<i32> + Cast<u32> + Cast<u8>,
{
    let source = Source::<A>::new(op, input)?;
    match out.dtype() {
        DType::F16 => to_half::<A, f16>(workers, &source, host_mut(op, out)?),
        DType::BF16 => to_half::<A, bf16>(workers, &source, host_mut(op, out)?),
        dtype => {
            return number!(op, dtype, B => {
                let out = host_mut::<B>(op, out)?;
                source.map(workers, LIGHT, out, |value| Cast::<B>::cast(value));
                Ok(())
            });
        }
    }
    Ok(())
}

fn from_half<H: Half>(
    workers: &Workers,
    op: &'static str,
    input: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let source = Source::<H>::new(op, input)?;
    match out.dtype() {
        DType::F32 => blocks(workers, &source, host_mut(op, out)?, &|block, part| H::upcast(block, part)),
        DType::F16 => to_half::<H, f16>(workers, &source, host_mut(op, out)?),
        DType::BF16 => to_half::<H, bf16>(workers, &source, host_mut(op, out)?),
        dtype => {
            return number!(op, dtype, B => {
                blocks(workers, &source, host_mut::<B>(op, out)?, &|block, part| {
                    let mut wide = [0.0; BLOCK];
                    let wide = &mut wide[..block.len()];
                    H::upcast(block, wide);
                    part.iter_mut().zip(wide).for_each(|(to, from)| *to = Cast::<B>::cast(*from));
                });
                Ok(())
            });
        }
    }
    Ok(())
}

fn to_half<A: Rounded, H: Half>(workers: &Workers, source: &Source<'_, A>, out: &mut [H]) {
    blocks(workers, source, out, &|block, part| {
        let mut space = [0.0; BLOCK];
        H::narrow(A::rounded_to_odd(block, &mut space[..block.len()]), part);
    });
}

/// Calls `f` with each block of elements and its part of `out`.
fn blocks<A: RawElement, B: Send>(
    workers: &Workers,
    source: &Source<'_, A>,
    out: &mut [B],
    f: &(dyn Fn(&[A], &mut [B]) + Sync),
) {
    workers.chunks(out, LIGHT, &|start, part| {
        source.blocks::<BLOCK>(start..start + part.len(), |range, block| {
            f(block, &mut part[range.start - start..range.end - start]);
        });
    });
}

/// A 16-bit float type.
pub(crate) trait Half: Rounded {
    /// Converts to f32, exactly.
    fn upcast(from: &[Self], to: &mut [f32]);

    /// Rounds f32 to nearest, ties to even. Overflows to infinity.
    fn narrow(from: &[f32], to: &mut [Self]);

    /// Converts rows of `len` elements, which are `step` apart, to rows that are `to_step` apart.
    fn upcast_rows(from: &[Self], step: usize, [rows, len]: [usize; 2], to: &mut [f32], to_step: usize) {
        for row in 0..rows {
            Self::upcast(&from[row * step..][..len], &mut to[row * to_step..][..len]);
        }
    }
}

impl Half for f16 {
    fn upcast(from: &[Self], to: &mut [f32]) {
        f16c::upcast(from, to);
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        f16c::narrow(from, to);
    }
}

/// Rows of bf16, converted in one call: a call per short row would take longer than its conversion.
struct UpcastRows<'a> {
    from: &'a [bf16],
    step: usize,
    rows: usize,
    len: usize,
    to: &'a mut [f32],
    to_step: usize,
}

impl Loop for UpcastRows<'_> {
    type Element = f32;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { from, step, rows, len, to, to_step } = self;
        for row in 0..rows {
            let (from, to) = (&from[row * step..][..len], &mut to[row * to_step..][..len]);
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from_high_bits(*from));
        }
    }
}

/// A bf16 is the upper 16 bits of an f32.
#[inline(always)]
const fn from_high_bits(from: bf16) -> f32 {
    f32::from_bits((from.to_bits() as u32) << 16)
}

impl Half for bf16 {
    fn upcast(from: &[Self], to: &mut [f32]) {
        simd::zip(to, from, |to, from| *to = from_high_bits(from));
    }

    fn upcast_rows(from: &[Self], step: usize, [rows, len]: [usize; 2], to: &mut [f32], to_step: usize) {
        simd::run(UpcastRows { from, step, rows, len, to, to_step });
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        simd::zip(to, from, |to, from| {
            let bits = from.to_bits();
            // Rounds to nearest, ties to even.
            let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
            // NaN keeps its sign and does not become ∞.
            let quiet = bits >> 16 | 0x40;
            *to = Self::from_bits(if from.is_nan() { quiet } else { rounded } as u16);
        });
    }
}

macro_rules! half_float {
    ($($type:ty),*) => {$(
        impl Rounded for $type {
            fn rounded_to_odd<'a>(from: &'a [Self], space: &'a mut [f32]) -> &'a [f32] {
                Self::upcast(from, space);
                space
            }
        }

        impl Stored for $type {
            fn from_scalar(value: Scalar) -> Self {
                let wide = match value {
                    Scalar::Float(value) => odd_of_f64(value),
                    Scalar::Int(value) => odd_of_i64(value),
                };
                Self::from_f32(wide)
            }
        }
    )*};
}

half_float!(f16, bf16);

/// A number type that converts to 16-bit floats.
pub(crate) trait Rounded: RawElement {
    /// Converts to f32, rounded to odd: of the two nearest values, the one whose last bit is 1. Writes to `space` unless the
    /// values already are f32.
    fn rounded_to_odd<'a>(from: &'a [Self], space: &'a mut [f32]) -> &'a [f32];
}

macro_rules! rounded {
    ($($type:ty => $odd:expr),*) => {$(
        impl Rounded for $type {
            fn rounded_to_odd<'a>(from: &'a [Self], space: &'a mut [f32]) -> &'a [f32] {
                space.iter_mut().zip(from).for_each(|(to, &from)| *to = $odd(from));
                space
            }
        }
    )*};
}

rounded!(
    f64 => odd_of_f64,
    i64 => odd_of_i64,
    i32 => |value| odd_of_f64(f64::from(value)),
    u32 => |value| odd_of_f64(f64::from(value)),
    u8 => f32::from
);

impl Rounded for f32 {
    fn rounded_to_odd<'a>(from: &'a [Self], _: &'a mut [f32]) -> &'a [f32] {
        from
    }
}

fn odd_of_f64(value: f64) -> f32 {
    let near = value as f32;
    let (wide, bits) = (f64::from(near), near.to_bits());
    if wide == value || wide.is_nan() || bits & 1 == 1 {
        return near;
    }
    // The neighbor on the other side of the value; next to infinity that is the largest finite number.
    f32::from_bits(if wide.abs() > value.abs() { bits - 1 } else { bits + 1 })
}

fn odd_of_i64(value: i64) -> f32 {
    // Rounds to odd to the 53 bits of an f64: sets the last bit if any lower bit is set.
    const CUT: i64 = (1 << 16) - 1;
    let exact = if value.unsigned_abs() >> 53 == 0 {
        value
    } else {
        value & !CUT | i64::from(value & CUT != 0) << 16
    };
    odd_of_f64(exact as f64)
}

/// Conversion between number types, like `as`.
pub(crate) trait Cast<To> {
    /// The converted number.
    fn cast(self) -> To;
}

macro_rules! cast {
    ($($from:ty),*) => {$(
        cast!($from: f32, f64, i64, i32, u32, u8);
    )*};
    ($from:ty: $($to:ty),*) => {$(
        impl Cast<$to> for $from {
            fn cast(self) -> $to {
                self as $to
            }
        }
    )*};
}

cast!(f32, f64, i64, i32, u32, u8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bfloat16_conversions_agree_with_the_half_crate() {
        let all: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
        let mut wide = vec![0.0; all.len()];
        bf16::upcast(&all, &mut wide);
        for (wide, half) in wide.into_iter().zip(all) {
            assert!(wide == half.to_f32_const() || wide.is_nan() && half.is_nan(), "{wide:e}");
        }

        // All values, the midpoints between neighbors, and the values next to those, including infinities and NaN.
        for offset in [0_u32, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF] {
            let near: Vec<f32> =
                (0..=u32::from(u16::MAX)).map(|high| f32::from_bits(high << 16 | offset)).collect();
            let mut narrow = vec![bf16::ZERO; near.len()];
            bf16::narrow(&near, &mut narrow);
            for (&value, half) in near.iter().zip(narrow) {
                assert_eq!(
                    half.to_bits(),
                    bf16::from_f32(value).to_bits(),
                    "{value:e} {:x}",
                    value.to_bits()
                );
            }
        }
    }
}
