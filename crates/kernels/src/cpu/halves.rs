//! Elementwise kernels on 16-bit floats: each block of elements is converted to f32 on the stack, computed, and rounded.
//!
//! The blocks stay in the L1 cache, so that memory traffic is that of 16-bit elements. Operands may also be f32. `rows` is
//! for kernels that compute rows.

mod rows;

pub(crate) use self::rows::{Load, Part, ROW, parts, pieces, sum};

use half::{bf16, f16};

use super::convert::Half;
use super::dispatch::{any, host_mut, unsupported};
use super::gemm::f16_to_f32;
use super::operands::Source;
use super::parallel::Workers;
use crate::error::Result;
use crate::shape::DType;
use crate::storage::{View, ViewMut};

/// The number of elements of a block: 8 KiB of f32 for each operand.
const BLOCK: usize = 2048;

/// A function of a block of each input, which writes or updates a block of each output.
type OfBlocks<'f, const N: usize, const M: usize> = dyn Fn([&[f32]; N], [&mut [f32]; M]) + Sync + 'f;

/// A function that computes a block of the output from a block of each input.
type Map<'f, const N: usize> = dyn Fn([&[f32]; N], &mut [f32]) + Sync + 'f;

/// Whether any operand is a 16-bit float. The others are then f32.
pub(crate) fn any_of<const N: usize>(dtypes: [DType; N]) -> bool {
    dtypes.iter().any(|dtype| dtype.is_half())
}

/// Computes an output from inputs of the same shape, in chunks of `chunk` elements.
pub(crate) fn map<const N: usize>(
    workers: &Workers,
    op: &'static str,
    chunk: usize,
    inputs: [View<'_>; N],
    out: &mut ViewMut<'_>,
    f: &Map<'_, N>,
) -> Result<()> {
    run(workers, op, chunk, inputs, ([out], false), &|inputs, [out]| f(inputs, out))
}

/// Updates outputs in place.
pub(crate) fn update<const N: usize, const M: usize>(
    workers: &Workers,
    op: &'static str,
    chunk: usize,
    inputs: [View<'_>; N],
    outs: [&mut ViewMut<'_>; M],
    f: &OfBlocks<'_, N, M>,
) -> Result<()> {
    run(workers, op, chunk, inputs, (outs, true), f)
}

fn run<const N: usize, const M: usize>(
    workers: &Workers,
    op: &'static str,
    chunk: usize,
    inputs: [View<'_>; N],
    (outs, are_read): ([&mut ViewMut<'_>; M], bool),
    f: &OfBlocks<'_, N, M>,
) -> Result<()> {
    let mut sources = Vec::with_capacity(N);
    for input in inputs {
        sources.push(Floats::new(op, input)?);
    }
    let (dtypes, bytes) = bytes_of(op, outs)?;
    let sizes = dtypes.map(|dtype| chunk * dtype.size());
    workers.chunks_of_bytes(bytes, (chunk, sizes), &|number, mut parts| {
        let len = parts.first().map_or(0, |part| part.len()) / dtypes.first().map_or(1, |dtype| dtype.size());
        let (mut read, mut written) = ([[0.0; BLOCK]; N], [[0.0; BLOCK]; M]);
        for start in (0..len).step_by(BLOCK) {
            let count = BLOCK.min(len - start);
            for (source, block) in sources.iter().zip(&mut read) {
                source.load(number * chunk + start, &mut block[..count]);
            }
            if are_read {
                for ((part, dtype), block) in parts.iter().zip(dtypes).zip(&mut written) {
                    upcast(dtype, &part[start * dtype.size()..], &mut block[..count]);
                }
            }
            f(
                read.each_ref().map(|block| &block[..count]),
                written.each_mut().map(|block| &mut block[..count]),
            );
            for ((part, dtype), block) in parts.iter_mut().zip(dtypes).zip(&written) {
                round(dtype, &block[..count], &mut part[start * dtype.size()..]);
            }
        }
    });
    Ok(())
}

/// The types of outputs, and their elements as bytes.
fn bytes_of<'a, const M: usize>(
    op: &'static str,
    outs: [&'a mut ViewMut<'_>; M],
) -> Result<([DType; M], [&'a mut [u8]; M])> {
    let (mut dtypes, mut bytes) = ([DType::F32; M], std::array::from_fn(|_| Default::default()));
    let of_outs: &mut [&mut [u8]; M] = &mut bytes;
    for ((dtype, bytes), out) in dtypes.iter_mut().zip(of_outs).zip(outs) {
        *dtype = out.dtype();
        *bytes = any!(*dtype, T => bytemuck::cast_slice_mut::<T, u8>(host_mut::<T>(op, out)?));
    }
    Ok((dtypes, bytes))
}

/// The elements of a view of any float type but f64.
pub(crate) enum Floats<'a> {
    F32(Source<'a, f32>),
    F16(Source<'a, f16>),
    BF16(Source<'a, bf16>),
}

impl<'a> Floats<'a> {
    pub(crate) fn new(op: &'static str, view: View<'a>) -> Result<Self> {
        match view.dtype() {
            DType::F32 => Source::new(op, view).map(Self::F32),
            DType::F16 => Source::new(op, view).map(Self::F16),
            DType::BF16 => Source::new(op, view).map(Self::BF16),
            dtype => Err(unsupported(op, dtype)),
        }
    }

    /// Copies elements as f32, starting at number `start`.
    pub(crate) fn load(&self, start: usize, out: &mut [f32]) {
        match self {
            Self::F32(source) => source.load(start, out),
            Self::F16(source) => load_half(source, start, out),
            Self::BF16(source) => load_half(source, start, out),
        }
    }

    /// Element number `index` as f32.
    pub(crate) fn get(&self, index: usize) -> f32 {
        match self {
            Self::F32(source) => source.get(index),
            Self::F16(source) => f16_to_f32(source.get(index)),
            Self::BF16(source) => source.get(index).to_f32(),
        }
    }

    /// Copies `rows` rows of `len` elements as f32, from number `start` on, `step` elements apart, to rows of `out` that are
    /// `out_step` apart.
    pub(crate) fn load_rows(
        &self,
        [start, step]: [usize; 2],
        [rows, len]: [usize; 2],
        out: &mut [f32],
        out_step: usize,
    ) {
        let all = start..start + rows.saturating_sub(1) * step + len;
        match self {
            Self::BF16(source) => {
                if let Some(data) = source.slice(all) {
                    return bf16::upcast_rows(data, step, [rows, len], out, out_step);
                }
            }
            Self::F16(source) => {
                if let Some(data) = source.slice(all) {
                    return f16::upcast_rows(data, step, [rows, len], out, out_step);
                }
            }
            Self::F32(_) => {}
        }
        for row in 0..rows {
            self.load(start + row * step, &mut out[row * out_step..][..len]);
        }
    }

    /// The number of rows to process together, because neighboring rows share cache lines.
    pub(crate) fn rows_per_tile(&self) -> usize {
        match self {
            Self::F32(source) => source.rows_per_tile(),
            Self::F16(source) => source.rows_per_tile(),
            Self::BF16(source) => source.rows_per_tile(),
        }
    }
}

fn load_half<H: Half>(source: &Source<'_, H>, start: usize, out: &mut [f32]) {
    source.blocks::<BLOCK>(start..start + out.len(), |range, block| {
        H::upcast(block, &mut out[range.start - start..range.end - start]);
    });
}

/// Converts the first elements of an output to f32.
fn upcast(dtype: DType, from: &[u8], to: &mut [f32]) {
    let from = &from[..to.len() * dtype.size()];
    match dtype {
        DType::F16 => Half::upcast(bytemuck::cast_slice::<u8, f16>(from), to),
        DType::BF16 => Half::upcast(bytemuck::cast_slice::<u8, bf16>(from), to),
        _ => to.copy_from_slice(bytemuck::cast_slice(from)),
    }
}

/// Writes the first elements of an output.
fn round(dtype: DType, from: &[f32], to: &mut [u8]) {
    let to = &mut to[..from.len() * dtype.size()];
    match dtype {
        DType::F16 => Half::narrow(from, bytemuck::cast_slice_mut::<u8, f16>(to)),
        DType::BF16 => Half::narrow(from, bytemuck::cast_slice_mut::<u8, bf16>(to)),
        _ => bytemuck::cast_slice_mut(to).copy_from_slice(from),
    }
}

#[cfg(test)]
mod tests;
