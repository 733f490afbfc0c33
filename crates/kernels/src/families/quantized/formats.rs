//! The formats of quantized blocks, and the conversion of blocks from and to `f32`.
//!
//! ```text
//! format  values  bytes  block                                   value
//! Q8_0      32     34    d: f16, q: 32 signed bytes              q · d
//! Q4_0      32     18    d: f16, q: 16 bytes of two nibbles      (q - 8) · d
//! Q4_1      32     20    d: f16, m: f16, q: 16 bytes             q · d + m
//! NF4       64     36    d: f32, q: 2 × 16 bytes                 LEVELS[q] · d
//! ```
//!
//! The low nibbles of 16 bytes are the values 0 to 15 of a unit of 32 values, and the high nibbles are the values 16 to 31.
//! The first three formats are those of GGUF; their rounding is that of ggml and of the Python package `gguf`. NF4 is that
//! of QLoRA (Dettmers et al. 2023), with this order of nibbles.

use std::fmt;
use std::marker::PhantomData;

use half::f16;

use crate::cpu::gemm::f16_to_f32;
use crate::cpu::simd::{self, Loop};

/// The number of values that are converted together.
pub(crate) const UNIT: usize = 32;

/// The values of a unit.
pub(crate) type Unit = [f32; UNIT];

/// The levels of NF4 in units of the largest magnitude of a block.
pub(crate) const LEVELS: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// A format of quantized weights: blocks of consecutive values with a scale each.
///
/// ```
/// use highwater_kernels::families::BlockFormat;
/// let values: Vec<f32> = (0..64).map(|i| i as f32 / 64.0).collect();
/// let mut blocks = vec![0; BlockFormat::Q8_0.row_bytes(64).unwrap()];
/// BlockFormat::Q8_0.quantize(&values, &mut blocks);
/// let mut restored = vec![0.0; 64];
/// BlockFormat::Q8_0.dequantize(&blocks, &mut restored);
/// assert!(values.iter().zip(&restored).all(|(a, b)| (a - b).abs() < 0.005));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockFormat {
    /// 32 values of 8 bits and a 16-bit scale: 8.5 bits per value.
    Q8_0,
    /// 32 values of 4 bits and a 16-bit scale: 4.5 bits per value.
    Q4_0,
    /// 32 values of 4 bits, a 16-bit scale and a 16-bit minimum: 5 bits per value.
    Q4_1,
    /// 64 values of 4 bits at the quantiles of a normal distribution, and a 32-bit scale: 4.5 bits per value.
    Nf4,
}

impl BlockFormat {
    /// All formats.
    pub const ALL: [Self; 4] = [Self::Q8_0, Self::Q4_0, Self::Q4_1, Self::Nf4];

    /// Returns the format's name: `Q4_1`, as in GGUF files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Nf4 => "NF4",
        }
    }

    /// Returns the number of values in a block.
    #[must_use]
    pub const fn block_values(self) -> usize {
        match self {
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 => 32,
            Self::Nf4 => 64,
        }
    }

    /// Returns the bytes of a block.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Nf4 => 36,
        }
    }

    /// Returns the bytes of a row of `columns` values; `None` unless the row has whole blocks.
    #[must_use]
    pub const fn row_bytes(self, columns: usize) -> Option<usize> {
        if columns.is_multiple_of(self.block_values()) {
            (columns / self.block_values()).checked_mul(self.block_bytes())
        } else {
            None
        }
    }

    /// Converts blocks to values. Whole blocks for which `values` has no elements are ignored.
    pub fn dequantize(self, blocks: &[u8], values: &mut [f32]) {
        let units = blocks.len() / self.block_bytes() * (self.block_values() / UNIT);
        let values = values.as_chunks_mut().0;
        let count = values.len().min(units);
        self.units(blocks, 0, 1, &mut values[..count]);
    }

    /// Converts values to blocks. The scales are those of ggml, and of bitsandbytes for NF4.
    pub fn quantize(self, values: &[f32], blocks: &mut [u8]) {
        match self {
            Self::Q8_0 => each(values, blocks, quantize_q8_0),
            Self::Q4_0 => each(values, blocks, quantize_q4_0),
            Self::Q4_1 => each(values, blocks, quantize_q4_1),
            Self::Nf4 => each(values, blocks, quantize_nf4),
        }
    }

    /// Converts the units number `first`, `first + step`, ….
    pub(crate) fn units(self, blocks: &[u8], first: usize, step: usize, out: &mut [Unit]) {
        match self {
            Self::Q8_0 => simd::run(Units::<Q8_0> { blocks, first, step, out, format: PhantomData }),
            Self::Q4_0 => simd::run(Units::<Q4_0> { blocks, first, step, out, format: PhantomData }),
            Self::Q4_1 => simd::run(Units::<Q4_1> { blocks, first, step, out, format: PhantomData }),
            Self::Nf4 => simd::run(Units::<Nf4> { blocks, first, step, out, format: PhantomData }),
        }
    }
}

impl fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The conversion of one unit.
trait Format {
    /// Returns the values of a unit.
    fn unit(blocks: &[u8], unit: usize) -> Unit;
}

/// A loop over units, which the compiler vectorizes.
struct Units<'a, F> {
    blocks: &'a [u8],
    first: usize,
    step: usize,
    out: &'a mut [Unit],
    format: PhantomData<F>,
}

impl<F: Format> Loop for Units<'_, F> {
    type Element = f32;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (number, out) in self.out.iter_mut().enumerate() {
            *out = F::unit(self.blocks, self.first + number * self.step);
        }
    }
}

struct Q8_0;

impl Format for Q8_0 {
    #[inline(always)]
    fn unit(blocks: &[u8], unit: usize) -> Unit {
        let [d0, d1, q @ ..] = &blocks.as_chunks::<34>().0[unit];
        let d = half([*d0, *d1]);
        let mut values = [0.0; UNIT];
        for i in 0..UNIT {
            values[i] = f32::from(q[i].cast_signed()) * d;
        }
        values
    }
}

struct Q4_0;

impl Format for Q4_0 {
    #[inline(always)]
    fn unit(blocks: &[u8], unit: usize) -> Unit {
        let [d0, d1, q @ ..] = &blocks.as_chunks::<18>().0[unit];
        let (d, q) = (half([*d0, *d1]), nibbles(q));
        let mut values = [0.0; UNIT];
        for i in 0..UNIT {
            values[i] = (f32::from(q[i]) - 8.0) * d;
        }
        values
    }
}

struct Q4_1;

impl Format for Q4_1 {
    #[inline(always)]
    fn unit(blocks: &[u8], unit: usize) -> Unit {
        let [d0, d1, m0, m1, q @ ..] = &blocks.as_chunks::<20>().0[unit];
        let (d, m, q) = (half([*d0, *d1]), half([*m0, *m1]), nibbles(q));
        let mut values = [0.0; UNIT];
        for i in 0..UNIT {
            values[i] = f32::from(q[i]) * d + m;
        }
        values
    }
}

struct Nf4;

impl Format for Nf4 {
    #[inline(always)]
    fn unit(blocks: &[u8], unit: usize) -> Unit {
        let [d0, d1, d2, d3, q @ ..] = &blocks.as_chunks::<36>().0[unit / 2];
        let q = &q.as_chunks::<16>().0[unit % 2];
        let (d, q) = (f32::from_le_bytes([*d0, *d1, *d2, *d3]), nibbles(q));
        let mut values = [0.0; UNIT];
        for i in 0..UNIT {
            values[i] = level(q[i]) * d;
        }
        values
    }
}

/// Returns the level of NF4 by selections, because the compiler vectorizes no lookup in a table.
#[inline(always)]
fn level(q: u8) -> f32 {
    let bit = |n: u8, zero: f32, one: f32| if q >> n & 1 == 0 { zero } else { one };
    let eight: [f32; 8] = std::array::from_fn(|i| bit(0, LEVELS[2 * i], LEVELS[2 * i + 1]));
    let four: [f32; 4] = std::array::from_fn(|i| bit(1, eight[2 * i], eight[2 * i + 1]));
    let two: [f32; 2] = std::array::from_fn(|i| bit(2, four[2 * i], four[2 * i + 1]));
    bit(3, two[0], two[1])
}

#[inline(always)]
fn half(bytes: [u8; 2]) -> f32 {
    f16_to_f32(f16::from_le_bytes(bytes))
}

/// Returns the low nibbles, then the high ones.
#[inline(always)]
fn nibbles(bytes: &[u8; UNIT / 2]) -> [u8; UNIT] {
    let mut values = [0; UNIT];
    for (i, byte) in bytes.iter().enumerate() {
        values[i] = byte & 15;
        values[i + UNIT / 2] = byte >> 4;
    }
    values
}

/// Converts blocks of `E` values to `B` bytes each.
fn each<const E: usize, const B: usize>(values: &[f32], blocks: &mut [u8], block: fn(&[f32; E]) -> [u8; B]) {
    let (values, blocks) = (values.as_chunks().0, blocks.as_chunks_mut().0);
    blocks.iter_mut().zip(values).for_each(|(to, from)| *to = block(from));
}

/// 1 / d, or 0 for blocks of equal values.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// Returns the first value with the largest magnitude.
fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest: f32, value| if value.abs() > largest.abs() { *value } else { largest })
}

/// Packs numbers from 0 to 15: the first half in the low nibbles.
fn packed<const N: usize>(values: &[f32], q: impl Fn(f32) -> u8) -> [u8; N] {
    std::array::from_fn(|i| q(values[i]) | q(values[i + N]) << 4)
}

fn quantize_q8_0(values: &[f32; 32]) -> [u8; 34] {
    let d = largest(values).abs() / 127.0;
    let factor = inverse(d);
    let mut block = [0; 34];
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    let pairs = block[2..].iter_mut().zip(values);
    pairs.for_each(|(q, value)| *q = ((value * factor).round() as i8).cast_unsigned());
    block
}

fn quantize_q4_0(values: &[f32; 32]) -> [u8; 18] {
    let d = largest(values) / -8.0;
    let factor = inverse(d);
    let mut block = [0; 18];
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    block[2..].copy_from_slice(&packed::<16>(values, |value| ((value * factor + 8.5) as u8).min(15)));
    block
}

fn quantize_q4_1(values: &[f32; 32]) -> [u8; 20] {
    let least = values.iter().copied().fold(f32::INFINITY, f32::min);
    let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let d = (most - least) / 15.0;
    let factor = inverse(d);
    let mut block = [0; 20];
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    block[2..4].copy_from_slice(&f16::from_f32(least).to_le_bytes());
    let q = |value: f32| (((value - least) * factor + 0.5) as u8).min(15);
    block[4..].copy_from_slice(&packed::<16>(values, q));
    block
}

fn quantize_nf4(values: &[f32; 64]) -> [u8; 36] {
    let d = largest(values).abs();
    let factor = inverse(d);
    // The number of boundaries below a value. The boundaries are the means of neighboring levels.
    let q = |value: f32| {
        let above = |level: &&[f32; 2]| value * factor > (level[0] + level[1]) / 2.0;
        LEVELS.array_windows().filter(above).count() as u8
    };
    let mut block = [0; 36];
    block[..4].copy_from_slice(&d.to_le_bytes());
    let (first, second) = values.split_at(UNIT);
    block[4..20].copy_from_slice(&packed::<16>(first, q));
    block[20..].copy_from_slice(&packed::<16>(second, q));
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::noise;

    #[test]
    fn quantized_values_are_near_the_values() {
        for format in BlockFormat::ALL {
            for scale in [0.0_f32, 0.1, 1.0, 100.0] {
                let values: Vec<f32> = noise(5, 640).into_iter().map(|x| x as f32 * scale).collect();
                let mut blocks = vec![0xAA; format.row_bytes(640).unwrap()];
                format.quantize(&values, &mut blocks);
                let mut restored = vec![f32::NAN; 640];
                format.dequantize(&blocks, &mut restored);
                let steps = match format {
                    BlockFormat::Q8_0 => 250.0,
                    BlockFormat::Q4_0 | BlockFormat::Q4_1 => 13.0,
                    // The largest gap between levels is 0.3.
                    BlockFormat::Nf4 => 6.5,
                };
                for (value, restored) in values.iter().zip(&restored) {
                    assert!((value - restored).abs() <= scale / steps, "{format}: {restored} for {value}");
                }
            }
        }
    }

    #[test]
    fn quantizing_dequantized_values_changes_nothing() {
        for format in BlockFormat::ALL {
            let values: Vec<f32> = noise(6, 256).into_iter().map(|x| x as f32).collect();
            let mut once = vec![0.0; 256];
            let mut blocks = vec![0; format.row_bytes(256).unwrap()];
            format.quantize(&values, &mut blocks);
            format.dequantize(&blocks, &mut once);
            let mut again = vec![0.0; 256];
            format.quantize(&once, &mut blocks);
            format.dequantize(&blocks, &mut again);
            for (once, again) in once.iter().zip(&again) {
                assert!((once - again).abs() < 2e-3, "{format}: {again} for {once}");
            }
        }
    }

    #[test]
    fn nf4_has_the_sixteen_levels_in_order() {
        let mut block = [0; 36];
        block[..4].copy_from_slice(&2.0_f32.to_le_bytes());
        for i in 0..16 {
            block[4 + i] = i as u8 | (15 - i as u8) << 4;
        }
        let mut values = [0.0; 64];
        BlockFormat::Nf4.dequantize(&block, &mut values);
        for i in 0..16 {
            assert_eq!([values[i], values[31 - i], values[32 + i]], [2.0 * LEVELS[i], 2.0 * LEVELS[i], -2.0]);
        }
    }

    #[test]
    fn values_that_are_not_finite_do_not_panic() {
        for format in BlockFormat::ALL {
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -f32::MAX] {
                let mut values = [1.0; 64];
                values[7] = value;
                let mut blocks = vec![0; format.row_bytes(64).unwrap()];
                format.quantize(&values, &mut blocks);
                format.dequantize(&blocks, &mut values);
            }
        }
    }

    #[test]
    fn rows_have_whole_blocks() {
        assert_eq!(BlockFormat::Q4_1.row_bytes(96), Some(60));
        assert_eq!(BlockFormat::Nf4.row_bytes(96), None);
        assert_eq!(BlockFormat::Q8_0.row_bytes(0), Some(0));
        assert_eq!(BlockFormat::Q8_0.row_bytes(usize::MAX - 31), None);
    }
}
