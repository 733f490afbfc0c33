//! The outputs of products: blocks that threads compute, biases, and the rounding of sums to 16-bit floats.
//!
//! A 16-bit output is rounded once, when its sums are complete. If the depth takes several panels, the partial sums of
//! [`SUM_ROWS`] × [`WIDE`] elements are in the workspace until then.

use std::cmp::Reverse;
use std::ops::Range;

use crate::cpu::convert::Half;
use crate::cpu::dispatch::host;
use crate::cpu::gemm::{
    self, Block, COLUMNS, DEPTH, Depth, Destination, Operand, Output, PackInto, ROWS, Tile, WIDE,
};
use crate::cpu::number::Float;
use crate::cpu::parallel::Workers;
use crate::error::Result;
use crate::families::grid::product;
use crate::shape::{DType, RawElement};
use crate::storage::View;

/// The largest number of multiplications that one thread computes alone, in about a tenth of a millisecond. On virtual
/// machines it takes 70 µs to wake another thread.
pub(super) const SMALL: usize = 8 << 20;

/// The largest number of blocks that are computed at a time. Each has its own panels in the workspace.
pub(super) const SLOTS: usize = 8;

/// The most rows whose partial sums are kept at a time: 1.5 MiB with [`WIDE`] columns. The right operand is packed once for
/// these rows.
const SUM_ROWS: usize = 4 * gemm::HIGH;

/// The parts of a workspace, of which each computes one block at a time.
#[derive(Clone, Copy)]
pub(crate) struct Slots {
    count: usize,
    /// The elements of a slot: the panels, and partial sums of 16-bit floats.
    each: usize,
}

impl Slots {
    /// The slots of products with these rows, columns and depth, and with this output type. They depend only on the sizes.
    pub(crate) fn new(out: DType, sizes @ [rows, columns, depth]: [usize; 3], matrices: usize) -> Self {
        let multiplications = product(&[rows, columns, depth, matrices]);
        let sums = if out.is_half() && depth > DEPTH { rows.min(SUM_ROWS) * columns.min(WIDE) } else { 0 };
        let count = if multiplications <= SMALL { 1 } else { SLOTS };
        Self { count, each: gemm::scratch_elements(sizes) + sums }
    }

    /// The elements of the workspace.
    pub(crate) const fn elements(self) -> usize {
        self.count * self.each
    }
}

/// The rows and columns of the blocks of a matrix of `[m, n]` elements that is split into about `parts` blocks.
pub(crate) fn block_sizes([m, n]: [usize; 2], parts: usize) -> [usize; 2] {
    let sizes = |down: usize| {
        let across = parts.div_ceil(down);
        [m.div_ceil(down).next_multiple_of(ROWS), n.div_ceil(across).next_multiple_of(COLUMNS)]
    };
    // Each block packs its rows of the left operand and its columns of the right one.
    let cost = |&[rows, columns]: &[usize; 2]| {
        let (down, across) = (m.div_ceil(rows), n.div_ceil(columns));
        (Reverse(parts.min(down * across)), down * n + across * m)
    };
    (1..=parts).map(sizes).min_by_key(cost).unwrap_or([m, n])
}

/// Splits matrices of `[m, n]` elements into blocks. Calls `multiply` with the number of the matrix, each block, and one of
/// the slots, which `scratch` holds.
pub(crate) fn for_each_block<O: Send, T: Send>(
    workers: &Workers,
    out: &mut [O],
    [m, n]: [usize; 2],
    (slots, scratch): (Slots, &mut [T]),
    multiply: impl Fn(usize, Block<'_, O>, &mut [T]) + Sync,
) {
    // The product of the sizes may then overflow.
    if out.is_empty() {
        return;
    }
    let matrices = out.len() / (m * n);
    let threads = workers.threads().min(slots.count);
    let parts = if threads == 1 { 1 } else { SLOTS.min((2 * threads).div_ceil(matrices)) };
    let size = if parts == 1 { [m, n] } else { block_sizes([m, n], parts) };
    let blocks = out
        .chunks_mut(m * n)
        .enumerate()
        .flat_map(|(number, matrix)| Block::new(matrix, n).split(size).map(move |block| (number, block)));
    if slots.count == 1 {
        blocks.for_each(|(number, block)| multiply(number, block, scratch));
    } else {
        let multiply = |(number, block): (usize, Block<'_, O>), scratch: &mut [T]| {
            multiply(number, block, scratch);
        };
        workers.share_with_scratch(blocks.collect(), slots.count, scratch, slots.each, &multiply);
    }
}

/// A vector that is added to each row of a product.
#[derive(Clone, Copy)]
pub(crate) struct Bias<'a, T> {
    values: &'a [T],
    /// Elements from one column to the next.
    stride: usize,
}

impl<'a, T: RawElement> Bias<'a, T> {
    pub(crate) fn new(op: &'static str, bias: Option<&View<'a>>) -> Result<Option<Self>> {
        let Some(bias) = bias else { return Ok(None) };
        let values = &host::<T>(op, bias)?[bias.layout().offset()..];
        Ok(Some(Self { values, stride: bias.layout().strides().first().copied().unwrap_or(0) }))
    }

    /// The values of the columns of a tile.
    fn of_tile<S: Depth + Float>(&self, columns: Range<usize>) -> [S; COLUMNS]
    where
        T: PackInto<S>,
    {
        let mut bias = [S::ZERO; COLUMNS];
        for (bias, column) in bias.iter_mut().zip(columns) {
            *bias = self.values[column * self.stride].pack(T::default());
        }
        bias
    }
}

/// Fills a row with the bias, or with 0.
pub(crate) fn fill<T: RawElement>(row: &mut [T], bias: Option<Bias<'_, T>>) {
    match bias {
        None => row.fill(T::default()),
        Some(Bias { values, stride }) => {
            row.iter_mut().enumerate().for_each(|(column, out)| *out = values[column * stride]);
        }
    }
}

/// A block of a product that is added to a bias.
pub(crate) struct Biased<'a, T> {
    pub(crate) block: Block<'a, T>,
    pub(crate) bias: Option<Bias<'a, T>>,
}

impl<T: Float + Depth + PackInto<T> + RawElement> Destination<T> for Biased<'_, T> {
    fn put(&mut self, rows: Range<usize>, columns: Range<usize>, tile: &Tile<T>, output: Output) {
        self.block.put(rows, columns, tile, output);
    }

    fn prefetch(&mut self, rows: Range<usize>, columns: Range<usize>) {
        self.block.prefetch(rows, columns);
    }

    fn finish(&mut self, rows: Range<usize>, columns: Range<usize>) {
        let Some(bias) = self.bias else { return };
        let bias = bias.of_tile(columns.clone());
        for row in rows {
            let out = self.block.row(row, columns.clone());
            out.iter_mut().zip(&bias).for_each(|(out, &bias)| *out += bias);
        }
    }
}

/// Multiplies matrices to a block of sums. `scratch` is one of the [`Slots`].
pub(crate) fn multiply_biased<P: Depth<Sum: Depth + PackInto<P::Sum> + RawElement>>(
    [lhs, rhs]: [&dyn Operand<P>; 2],
    depth: usize,
    block: Block<'_, P::Sum>,
    bias: Option<Bias<'_, P::Sum>>,
    scratch: &mut [P::Sum],
) {
    let (ranges, panels) = ([block.rows(), block.columns()], bytemuck::cast_slice_mut(scratch));
    gemm::product::<P>(lhs, rhs, ranges, depth, panels, &mut Biased { block, bias }, Output::Overwrite);
}

/// Multiplies matrices to a block of 16-bit floats, which are rounded once. `scratch` is one of the [`Slots`].
pub(crate) fn multiply_rounded<P: Depth<Sum = f32>, H: Half + PackInto<f32>>(
    [lhs, rhs]: [&dyn Operand<P>; 2],
    depth: usize,
    block: Block<'_, H>,
    bias: Option<Bias<'_, H>>,
    scratch: &mut [f32],
) {
    let [rows, columns] = [block.rows().len(), block.columns().len()];
    let (panels, sums) = scratch.split_at_mut(gemm::scratch_elements([rows, columns, depth]));
    let panels = bytemuck::cast_slice_mut(panels);
    let is_deep = !gemm::is_summed_at_once::<P>(depth);
    let size = if is_deep { [SUM_ROWS, WIDE] } else { [rows.max(1), columns.max(1)] };
    for block in block.split(size) {
        let ranges = [block.rows(), block.columns()];
        let elements = block.rows().len() * block.columns().len();
        let sums = is_deep.then(|| Block::at(&mut sums[..elements], ranges.clone()));
        let mut out = Rounded { block, bias, sums };
        gemm::product::<P>(lhs, rhs, ranges, depth, panels, &mut out, Output::Overwrite);
    }
}

/// A block of a product of 16-bit floats.
struct Rounded<'a, H> {
    block: Block<'a, H>,
    bias: Option<Bias<'a, H>>,
    /// The partial sums, if the depth takes several panels.
    sums: Option<Block<'a, f32>>,
}

impl<H: Half + PackInto<f32>> Rounded<'_, H> {
    /// Adds the bias to complete sums, and rounds them.
    fn store(&mut self, rows: Range<usize>, columns: Range<usize>, tile: &Tile<f32>) {
        let bias = self.bias.map(|bias| bias.of_tile::<f32>(columns.clone()));
        let (mut sums, mut rounded) = (tile.0, [[H::default(); COLUMNS]; ROWS]);
        if let Some(bias) = &bias {
            for sums in &mut sums[..rows.len()] {
                sums.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias);
            }
        }
        H::narrow(sums[..rows.len()].as_flattened(), rounded[..rows.len()].as_flattened_mut());
        for (row, rounded) in rows.zip(&rounded) {
            self.block.row(row, columns.clone()).copy_from_slice(&rounded[..columns.len()]);
        }
    }
}

impl<H: Half + PackInto<f32>> Destination<f32> for Rounded<'_, H> {
    fn put(&mut self, rows: Range<usize>, columns: Range<usize>, tile: &Tile<f32>, output: Output) {
        match &mut self.sums {
            None => self.store(rows, columns, tile),
            Some(sums) => sums.put(rows, columns, tile, output),
        }
    }

    fn prefetch(&mut self, rows: Range<usize>, columns: Range<usize>) {
        match &mut self.sums {
            None => self.block.prefetch(rows, columns),
            Some(sums) => sums.prefetch(rows, columns),
        }
    }

    fn finish(&mut self, rows: Range<usize>, columns: Range<usize>) {
        let Some(sums) = &mut self.sums else { return };
        let mut tile = Tile::ZERO;
        for (row, to) in rows.clone().zip(&mut tile.0) {
            to[..columns.len()].copy_from_slice(sums.row(row, columns.clone()));
        }
        self.store(rows, columns, &tile);
    }
}
