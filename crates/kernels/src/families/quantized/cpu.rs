//! Products with quantized matrices, on panels of [`gemm`]: the operand dequantizes the blocks of a panel while it packs
//! them. So the largest dequantized part of a matrix is the packed one.
//!
//! A product of a single row with Wᵀ, as in each step of generation, reads the blocks without panels.

use std::marker::PhantomData;
use std::ops::Range;

use half::{bf16, f16};

use super::formats::{UNIT, Unit};
use super::{BlockFormat, DequantizeRows, MatMulQuantized, MatMulQuantizedWorkspace, QuantizeRows};
use crate::cpu::convert::Half;
use crate::cpu::dispatch::{contiguous, host, host_mut, scratch, unsupported};
use crate::cpu::fold::sum_products;
use crate::cpu::gemm::{
    Block, COLUMNS, Depth, GROUP, Operand, PackInto, Pair, RUN, Strided, interleave, to_bf16,
};
use crate::cpu::halves::Floats;
use crate::cpu::operands::Source;
use crate::cpu::parallel::{HEAVY, Workers, light_runs};
use crate::cpu::simd::{self, Loop};
use crate::cpu::sums;
use crate::error::Result;
use crate::families::RunCpu;
use crate::families::grid::product;
use crate::families::index::cpu::check as check_indices;
use crate::families::matmul::cpu::{
    Bias, SMALL_VECTOR, Slots, fill, for_each_block, multiply_biased, multiply_rounded,
};
use crate::shape::{DType, RawElement};
use crate::storage::View;

/// The units that are dequantized at a time: 2 KiB of f32.
const UNITS: usize = 16;

/// The most values of a lane in a panel: pairs of 256 rows.
const LANE: usize = UNITS * UNIT;

// Panels of columns consist of whole units.
const _: () = assert!(COLUMNS == UNIT && RUN == UNIT);

/// See [`MatMulQuantizedWorkspace`].
pub(super) fn workspace(of: &MatMulQuantizedWorkspace<'_>) -> usize {
    let MatMulQuantizedWorkspace { lhs, outputs, transposed, dtype } = *of;
    let &[rows, depth] = lhs.shape().dims() else { return 0 };
    let elements = if reads_blocks(rows, transposed, dtype) {
        let row = if outputs == 0 || is_row(lhs.strides(), dtype) { 0 } else { depth };
        row.saturating_add(sums::elements(dtype, outputs))
    } else if !dtype.is_float() || product(&[rows, outputs, depth]) == 0 {
        0
    } else {
        Slots::new(dtype, [rows, outputs, depth], 1).elements()
    };
    elements.saturating_mul(dtype.computed_as().size())
}

/// Whether a product reads blocks without panels.
fn reads_blocks(rows: usize, transposed: bool, dtype: DType) -> bool {
    rows == 1 && transposed && dtype.computed_as() == DType::F32
}

/// Whether the values of a single row are contiguous f32.
fn is_row(strides: &[usize], dtype: DType) -> bool {
    dtype == DType::F32 && strides.last() == Some(&1)
}

/// A quantized matrix.
#[derive(Clone, Copy)]
struct Matrix<'a> {
    format: BlockFormat,
    blocks: &'a [u8],
    rows: usize,
    /// Units of a row.
    units: usize,
}

impl<'a> Matrix<'a> {
    fn new(op: &'static str, format: BlockFormat, blocks: &View<'a>) -> Result<Self> {
        let &[rows, bytes] = blocks.layout().shape().dims() else {
            return Err(unsupported(op, blocks.dtype()));
        };
        let units = bytes / format.block_bytes() * (format.block_values() / UNIT);
        Ok(Self { format, blocks: contiguous(op, blocks)?, rows, units })
    }

    /// Dequantizes units of a row.
    fn row(&self, row: usize, first: usize, out: &mut [Unit]) {
        self.format.units(self.blocks, row * self.units + first, 1, out);
    }

    /// Dequantizes the same unit of several rows.
    fn column(&self, row: usize, unit: usize, out: &mut [Unit]) {
        self.format.units(self.blocks, row * self.units + unit, self.units, out);
    }
}

/// A dequantized value before it is packed.
trait Value: Copy + Default + Send + Sync {
    fn of(value: f32) -> Self;
}

impl Value for f32 {
    #[inline(always)]
    fn of(value: f32) -> Self {
        value
    }
}

impl Value for f64 {
    #[inline(always)]
    fn of(value: f32) -> Self {
        Self::from(value)
    }
}

impl Value for bf16 {
    #[inline(always)]
    fn of(value: f32) -> Self {
        to_bf16(value)
    }
}

/// Wᵀ as a right operand, whose lanes are the rows of W.
struct Transposed<'a, V> {
    matrix: Matrix<'a>,
    value: PhantomData<V>,
}

impl<P: Depth, V: PackInto<P> + Value> Operand<P> for Transposed<'_, V> {
    fn pack(&self, lane: usize, depth: Range<usize>, width: usize, panel: &mut [P]) {
        debug_assert!(width == COLUMNS && depth.start.is_multiple_of(UNIT));
        let (rows, _) = panel.as_chunks_mut::<COLUMNS>();
        let (first, count) = (depth.start / UNIT, depth.len().div_ceil(UNIT).min(UNITS));
        let mut lanes = [[[0.0; UNIT]; UNITS]; GROUP];
        for group in (0..COLUMNS).step_by(GROUP) {
            for (row, units) in (lane + group..).zip(&mut lanes) {
                if row < self.matrix.rows {
                    self.matrix.row(row, first, &mut units[..count]);
                } else {
                    units[..count].fill([0.0; UNIT]);
                }
            }
            let lanes = lanes.each_ref().map(|units| units[..count].as_flattened());
            simd::run(Interleave::<P, V> { lanes, group, rows, value: PhantomData });
        }
    }
}

/// Packs dequantized values of [`GROUP`] lanes.
struct Interleave<'a, P, V> {
    lanes: [&'a [f32]; GROUP],
    group: usize,
    rows: &'a mut [[P; COLUMNS]],
    value: PhantomData<V>,
}

impl<P: Depth, V: PackInto<P> + Value> Loop for Interleave<'_, P, V> {
    type Element = P;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { lanes, group, rows, .. } = self;
        let mut staged = [[V::default(); 2 * RUN]; GROUP];
        for (run, rows) in rows.chunks_mut(RUN).enumerate() {
            for (from, staged) in lanes.iter().zip(&mut staged) {
                for (half, staged) in staged.as_chunks_mut::<RUN>().0.iter_mut().take(P::PER_ROW).enumerate()
                {
                    match from.as_chunks::<RUN>().0.get(run * P::PER_ROW + half) {
                        Some(from) => {
                            staged.iter_mut().zip(from).for_each(|(to, &from)| *to = V::of(from));
                        }
                        None => *staged = [V::default(); RUN],
                    }
                }
            }
            interleave(&staged, group, rows);
        }
    }
}

/// W as a right operand, whose lanes are the columns of W.
struct Direct<'a, V> {
    matrix: Matrix<'a>,
    value: PhantomData<V>,
}

impl<P: Depth, V: PackInto<P> + Value> Operand<P> for Direct<'_, V> {
    fn pack(&self, lane: usize, depth: Range<usize>, width: usize, panel: &mut [P]) {
        debug_assert!(width == COLUMNS && lane.is_multiple_of(UNIT));
        let (rows, _) = panel.as_chunks_mut::<COLUMNS>();
        let mut units = [[0.0; UNIT]; 2 * UNITS];
        let starts = depth.clone().step_by(UNITS * P::PER_ROW);
        for (rows, start) in rows.chunks_mut(UNITS).zip(starts) {
            let count = (UNITS * P::PER_ROW).min(depth.end - start);
            self.matrix.column(start, lane / UNIT, &mut units[..count]);
            units[count..].fill([0.0; UNIT]);
            simd::run(Convert::<P, V> { units: &units, rows, value: PhantomData });
        }
    }
}

/// Packs dequantized values of [`COLUMNS`] lanes.
struct Convert<'a, P, V> {
    units: &'a [Unit],
    rows: &'a mut [[P; COLUMNS]],
    value: PhantomData<V>,
}

impl<P: Depth, V: PackInto<P> + Value> Loop for Convert<'_, P, V> {
    type Element = P;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (row, units) in self.rows.iter_mut().zip(self.units.chunks_exact(P::PER_ROW)) {
            let (from, next) = (&units[0], &units[P::PER_ROW - 1]);
            for (lane, to) in row.iter_mut().enumerate() {
                *to = V::of(from[lane]).pack(V::of(next[lane]));
            }
        }
    }
}

impl RunCpu for MatMulQuantized<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let dtype = self.out.dtype();
        let rows = self.out.layout().shape().dims().first().copied().unwrap_or(0);
        if reads_blocks(rows, self.transposed, dtype) {
            return self.multiply_row(workers, op);
        }
        match dtype {
            DType::F32 => self.multiply::<f32, f32, f32>(workers, op, multiply_biased),
            DType::F64 => self.multiply::<f64, f64, f64>(workers, op, multiply_biased),
            DType::BF16 if Pair::is_supported() => {
                self.multiply::<Pair, bf16, bf16>(workers, op, multiply_rounded)
            }
            DType::BF16 => self.multiply::<f32, bf16, bf16>(workers, op, multiply_rounded),
            DType::F16 => self.multiply::<f32, f16, f32>(workers, op, multiply_rounded),
            dtype => Err(unsupported(op, dtype)),
        }
    }
}

/// Multiplies packed operands to a block of the output. See [`multiply_rounded`].
type Multiply<P, S, Sum> = fn([&dyn Operand<P>; 2], usize, Block<'_, S>, Option<Bias<'_, S>>, &mut [Sum]);

impl MatMulQuantized<'_> {
    /// Multiplies panels of `P`. The elements of `lhs` and of the output are stored as `S`; those of W are packed as `V`.
    #[inline(never)]
    fn multiply<P, S, V>(
        &mut self,
        workers: &Workers,
        op: &'static str,
        multiply: Multiply<P, S, P::Sum>,
    ) -> Result<()>
    where
        P: Depth<Sum: RawElement>,
        S: PackInto<P> + RawElement,
        V: PackInto<P> + Value,
    {
        let Self { format, transposed, bias, lhs, blocks, ref mut workspace, ref mut out } = *self;
        let matrix = Matrix::new(op, format, &blocks)?;
        let (&[m, k], &[row_stride, depth_stride]) = (lhs.layout().shape().dims(), lhs.layout().strides())
        else {
            return Err(unsupported(op, lhs.dtype()));
        };
        let n = out.layout().shape().dims().last().copied().unwrap_or(0);
        let bias = Bias::<S>::new(op, bias.as_ref())?;
        let (dtype, out) = (out.dtype(), host_mut::<S>(op, out)?);
        if m == 0 || n == 0 || k == 0 {
            out.chunks_mut(n.max(1)).for_each(|row| fill(row, bias));
            return Ok(());
        }
        // The stride of an axis of size 1 is arbitrary.
        let stride = |size: usize, stride: usize| if size == 1 { 1 } else { stride };
        let lhs = Strided {
            data: &host::<S>(op, &lhs)?[lhs.layout().offset()..],
            lanes: m,
            lane_stride: stride(m, row_stride),
            depth_stride: stride(k, depth_stride),
        };
        let (by_rows, by_columns): (Transposed<'_, V>, Direct<'_, V>) =
            (Transposed { matrix, value: PhantomData }, Direct { matrix, value: PhantomData });
        let rhs: &dyn Operand<P> = if transposed { &by_rows } else { &by_columns };
        let slots = Slots::new(dtype, [m, n, k], 1);
        let scratch = scratch::<P::Sum>(op, workspace, slots.elements())?;
        for_each_block(workers, out, [m, n], (slots, scratch), |_, block, scratch| {
            multiply([&lhs, rhs], k, block, bias, scratch);
        });
        Ok(())
    }

    /// Multiplies a single row with Wᵀ: one sum for each row of W, which is read once.
    fn multiply_row(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { format, bias, lhs, blocks, ref mut workspace, ref mut out, .. } = *self;
        let matrix = Matrix::new(op, format, &blocks)?;
        let depth = matrix.units * UNIT;
        let bias = bias.map(|bias| Floats::new(op, bias)).transpose()?;
        let stored: Option<&[f32]> = match is_row(lhs.layout().strides(), lhs.dtype()) {
            true => host::<f32>(op, &lhs)?.get(lhs.layout().offset()..).and_then(|row| row.get(..depth)),
            false => None,
        };
        let row = Floats::new(op, lhs)?;
        let scratch = if stored.is_some() || out.layout().shape().elements() == 0 { 0 } else { depth };
        sums::with_sums::<f32>(workers, op, workspace, scratch, out, |out, scratch| {
            row.load(0, scratch);
            let x = stored.unwrap_or(scratch);
            let rows = (SMALL_VECTOR / depth.max(1)).max(1);
            workers.chunks(out, rows, &|start, part| {
                match &bias {
                    Some(bias) => bias.load(start, part),
                    None => part.fill(0.0),
                }
                let mut units = [[0.0; UNIT]; UNITS];
                for (row, out) in (start..).zip(part) {
                    for (number, x) in x.chunks(LANE).enumerate() {
                        let units = &mut units[..x.len() / UNIT];
                        matrix.row(row, number * UNITS, units);
                        *out += sum_products(units.as_flattened(), x, |a, b| a * b);
                    }
                }
            });
        })
    }
}

impl RunCpu for DequantizeRows<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { format, blocks, indices, ref mut out } = *self;
        let matrix = Matrix::new(op, format, &blocks)?;
        if let Some(indices) = indices {
            check_indices(op, indices, matrix.rows)?;
        }
        let indices = indices.map(|indices| Source::<i64>::new(op, indices)).transpose()?;
        let row = |number: usize| indices.as_ref().map_or(number, |indices| indices.get(number) as usize);
        match out.dtype() {
            DType::F32 => rows::<f32>(workers, &matrix, &row, host_mut(op, out)?, &|units, out| {
                out.copy_from_slice(units);
            }),
            DType::F64 => rows::<f64>(workers, &matrix, &row, host_mut(op, out)?, &|units, out| {
                simd::zip(out, units, |out, value| *out = f64::from(value));
            }),
            DType::F16 => rows::<f16>(workers, &matrix, &row, host_mut(op, out)?, &Half::narrow),
            DType::BF16 => rows::<bf16>(workers, &matrix, &row, host_mut(op, out)?, &Half::narrow),
            dtype => return Err(unsupported(op, dtype)),
        }
        Ok(())
    }
}

/// Converts rows, in pieces on the stack.
fn rows<T: Send>(
    workers: &Workers,
    matrix: &Matrix<'_>,
    row: &(dyn Fn(usize) -> usize + Sync),
    out: &mut [T],
    convert: &(dyn Fn(&[f32], &mut [T]) + Sync),
) {
    let columns = (matrix.units * UNIT).max(1);
    workers.chunks(out, light_runs(columns) * columns, &|start, part| {
        let mut units = [[0.0; UNIT]; UNITS];
        for (number, out) in (start / columns..).zip(part.chunks_mut(columns)) {
            for (piece, out) in out.chunks_mut(LANE).enumerate() {
                let units = &mut units[..out.len() / UNIT];
                matrix.row(row(number), piece * UNITS, units);
                convert(units.as_flattened(), out);
            }
        }
    });
}

impl RunCpu for QuantizeRows<'_> {
    /// Rows have whole blocks, so that the rows are one sequence of blocks.
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { format, input, ref mut out } = *self;
        let load: &(dyn Fn(usize, &mut [f32]) + Sync) = if input.dtype() == DType::F64 {
            let source = Source::<f64>::new(op, input)?;
            &move |start, values| {
                let mut wide = [0.0; LANE];
                let wide = &mut wide[..values.len()];
                source.load(start, wide);
                simd::zip(values, wide, |value, wide| *value = wide as f32);
            }
        } else {
            let floats = Floats::new(op, input)?;
            &move |start, values| floats.load(start, values)
        };
        let (values, bytes) = (format.block_values(), format.block_bytes());
        let piece = LANE / values * bytes;
        workers.chunks(host_mut::<u8>(op, out)?, HEAVY / values * bytes, &|start, part| {
            let mut space = [0.0; LANE];
            for (number, blocks) in part.chunks_mut(piece).enumerate() {
                let count = blocks.len() / bytes * values;
                load((start + number * piece) / bytes * values, &mut space[..count]);
                format.quantize(&space[..count], blocks);
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
