//! The tensor types of GGUF files, and the conversion of their quantized blocks to `f32`.
//!
//! A block holds the quantized values of 32 or 256 consecutive elements, with scales. `d` and `m` are its scale and
//! minimum as 16-bit floats. Rounding is that of ggml and of the Python package `gguf`, so all values are equal.

use half::f16;
use highwater_tensor::{BlockFormat, DType};

use crate::io::stored::Kind;

/// A tensor type.
#[derive(Debug)]
pub(super) struct TensorType {
    /// Its number in files.
    pub(super) id: u32,
    pub(super) name: &'static str,
    pub(super) storage: TypeStorage,
}

/// The storage of elements.
#[derive(Clone, Copy, Debug)]
pub(super) enum TypeStorage {
    /// One element after another.
    Elements(Kind),
    /// Blocks of quantized values.
    Blocks(BlockType),
    /// A type that cannot be read.
    Unsupported,
}

/// A type of quantized blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockType {
    /// Elements of a block.
    pub(super) elements: usize,
    /// Bytes of a block.
    pub(super) bytes: usize,
    /// Converts whole blocks.
    pub(super) dequantize: fn(&[u8], &mut [f32]),
    /// The format, if kernels compute with it.
    pub(super) format: Option<BlockFormat>,
}

const fn elements(id: u32, name: &'static str, kind: Kind) -> TensorType {
    TensorType { id, name, storage: TypeStorage::Elements(kind) }
}

const fn blocks(
    id: u32,
    name: &'static str,
    [elements, bytes]: [usize; 2],
    dequantize: fn(&[u8], &mut [f32]),
) -> TensorType {
    let storage = TypeStorage::Blocks(BlockType { elements, bytes, dequantize, format: None });
    TensorType { id, name, storage }
}

/// A type that kernels compute with.
const fn computed(id: u32, format: BlockFormat, dequantize: fn(&[u8], &mut [f32])) -> TensorType {
    let (elements, bytes) = (format.block_values(), format.block_bytes());
    let storage = TypeStorage::Blocks(BlockType { elements, bytes, dequantize, format: Some(format) });
    TensorType { id, name: format.name(), storage }
}

const fn unsupported(id: u32, name: &'static str) -> TensorType {
    TensorType { id, name, storage: TypeStorage::Unsupported }
}

/// All types by their number.
pub(super) const TYPES: &[TensorType] = &[
    elements(0, "F32", Kind::Same(DType::F32)),
    elements(1, "F16", Kind::Same(DType::F16)),
    computed(2, BlockFormat::Q4_0, |from, to| BlockFormat::Q4_0.dequantize(from, to)),
    computed(3, BlockFormat::Q4_1, |from, to| BlockFormat::Q4_1.dequantize(from, to)),
    blocks(6, "Q5_0", [32, 22], |from, to| each(from, to, q5_0)),
    blocks(7, "Q5_1", [32, 24], |from, to| each(from, to, q5_1)),
    computed(8, BlockFormat::Q8_0, |from, to| BlockFormat::Q8_0.dequantize(from, to)),
    unsupported(9, "Q8_1"),
    unsupported(10, "Q2_K"),
    unsupported(11, "Q3_K"),
    blocks(12, "Q4_K", [256, 144], |from, to| each(from, to, q4_k)),
    blocks(13, "Q5_K", [256, 176], |from, to| each(from, to, q5_k)),
    blocks(14, "Q6_K", [256, 210], |from, to| each(from, to, q6_k)),
    unsupported(15, "Q8_K"),
    unsupported(16, "IQ2_XXS"),
    unsupported(17, "IQ2_XS"),
    unsupported(18, "IQ3_XXS"),
    unsupported(19, "IQ1_S"),
    unsupported(20, "IQ4_NL"),
    unsupported(21, "IQ3_S"),
    unsupported(22, "IQ2_S"),
    unsupported(23, "IQ4_XS"),
    elements(24, "I8", Kind::I8),
    elements(25, "I16", Kind::I16),
    elements(26, "I32", Kind::Same(DType::I32)),
    elements(27, "I64", Kind::Same(DType::I64)),
    elements(28, "F64", Kind::Same(DType::F64)),
    unsupported(29, "IQ1_M"),
    elements(30, "BF16", Kind::Same(DType::BF16)),
    unsupported(34, "TQ1_0"),
    unsupported(35, "TQ2_0"),
    unsupported(39, "MXFP4"),
    unsupported(40, "NVFP4"),
    unsupported(41, "Q1_0"),
];

/// Converts blocks of `B` bytes to `E` elements each.
fn each<const B: usize, const E: usize>(from: &[u8], to: &mut [f32], block: fn(&[u8; B], &mut [f32; E])) {
    let (from, to) = (from.as_chunks().0, to.as_chunks_mut().0);
    from.iter().zip(to).for_each(|(from, to)| block(from, to));
}

/// Returns the 16-bit float at this place of a block.
fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Returns the 32 values of five bits whose low bits are in 16 bytes, and whose high bits are in the four bytes before.
fn five_bits(block: &[u8], at: usize) -> [u8; 32] {
    let high = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let mut values = [0; 32];
    for i in 0..16 {
        let q = block[at + 4 + i];
        values[i] = (q & 15) | ((high >> i & 1) as u8) << 4;
        values[i + 16] = (q >> 4) | ((high >> (i + 16) & 1) as u8) << 4;
    }
    values
}

/// d, 32 high bits, 16 bytes of two values each: (q - 16) · d.
fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    let values = five_bits(block, 2);
    out.iter_mut().zip(values).for_each(|(out, q)| *out = (f32::from(q) - 16.0) * d);
}

/// d, m, 32 high bits, 16 bytes of two values each: q · d + m.
fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    let values = five_bits(block, 4);
    out.iter_mut().zip(values).for_each(|(out, q)| *out = f32::from(q) * d + m);
}

/// Returns the six-bit scale and minimum of a group of 32 elements, of eight groups in 12 bytes.
const fn scale_and_minimum(packed: &[u8], group: usize) -> (u8, u8) {
    if group < 4 {
        return (packed[group] & 63, packed[group + 4] & 63);
    }
    let (low, scale, minimum) = (packed[group + 4], packed[group - 4] >> 6, packed[group] >> 6);
    ((low & 15) | scale << 4, (low >> 4) | minimum << 4)
}

/// d, m, 12 bytes of scales and minima, 128 bytes of two values each. Each 32 bytes hold two groups of 32 elements.
fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for group in 0..8 {
        let (scale, minimum) = scale_and_minimum(&block[4..16], group);
        let (d, m) = (d * f32::from(scale), m * f32::from(minimum));
        let (bytes, shift) = (&block[16 + group / 2 * 32..][..32], group % 2 * 4);
        for (out, &q) in out[group * 32..][..32].iter_mut().zip(bytes) {
            *out = d * f32::from(q >> shift & 15) - m;
        }
    }
}

/// As [`q4_k`], with 32 bytes of high bits: bit `group` of byte `i` belongs to element `i` of the group.
fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for group in 0..8 {
        let (scale, minimum) = scale_and_minimum(&block[4..16], group);
        let (d, m) = (d * f32::from(scale), m * f32::from(minimum));
        let (bytes, shift) = (&block[48 + group / 2 * 32..][..32], group % 2 * 4);
        for ((out, &q), &high) in out[group * 32..][..32].iter_mut().zip(bytes).zip(&block[16..48]) {
            *out = d * f32::from((q >> shift & 15) | (high >> group & 1) << 4) - m;
        }
    }
}

/// 128 bytes of low four bits, 64 bytes of high two bits, 16 signed scales of 16 elements each, d: (q - 32) · d · scale.
fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = half_at(block, 208);
    // Each half has four groups of 32 elements.
    for group in 0..8 {
        let (half, part) = (group / 4, group % 4);
        let low = &block[half * 64 + part % 2 * 32..][..32];
        let high = &block[128 + half * 32..][..32];
        let (low_shift, high_shift) = (part / 2 * 4, part * 2);
        for i in 0..32 {
            let q = (low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4;
            let scale = d * f32::from(block[192 + group * 2 + i / 16].cast_signed());
            out[group * 32 + i] = scale * (f32::from(q) - 32.0);
        }
    }
}
