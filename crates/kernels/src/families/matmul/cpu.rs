//! Matrix products: batches, biases, and the split of the work between threads.
//!
//! [`gemm`](crate::cpu::gemm) multiplies floats. The output is split into blocks of rows and columns, and one thread computes a
//! block over the whole depth. So results do not depend on the number of threads, although the blocks do.
//!
//! Simple loops multiply very small matrices ([`small`]), [vectors](vector), whose factors are read only once, and integers
//! ([`scalar`]).

mod activation;
mod scalar;
mod small;
mod vector;

use std::cmp::Reverse;
use std::ops::Range;

use half::{bf16, f16};

use super::{MatMul, MatMulSum};
use crate::cpu::dispatch::{host, host_mut, unsupported};
use crate::cpu::gemm::{
    self, Block, COLUMNS, Depth, Destination, Output, PackInto, Pair, ROWS, Strided, Tile, Unrounded,
};
use crate::cpu::loop_nest::LoopNest;
use crate::cpu::number::{Float, Number};
use crate::cpu::parallel::Workers;
use crate::cpu::sums;
use crate::error::{KernelError, Result};
use crate::families::RunCpu;
use crate::families::grid::product;
use crate::layout::Layout;
use crate::precision::Precision;
use crate::shape::{DType, RawElement};
use crate::storage::{View, ViewMut};

/// The largest number of multiplications that one thread computes alone, in about a tenth of a millisecond. On virtual
/// machines it takes 70 µs to wake another thread.
const SMALL: usize = 8 << 20;

/// The number of multiplications with a vector that one thread computes alone. It reads the matrix once, 1 MiB of `f32` in
/// about a tenth of a millisecond.
pub(crate) const SMALL_VECTOR: usize = 1 << 18;

/// The largest number of blocks that are computed at a time. Each has its own panels in the workspace.
pub(crate) const SLOTS: usize = 8;

impl RunCpu for MatMul<'_> {
    /// Supports 16-bit floats if the product has a workspace and no activation.
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        if self.activation.is_some() {
            return activation::run(self, workers, op);
        }
        let Self { precision, bias, lhs, rhs, ref mut workspace, ref mut out, .. } = *self;
        if let Some(result) = matmul_small(op, precision, bias, [lhs, rhs], out) {
            return result;
        }
        let (Some(a), Some(b)) = (MatrixBatch::new(lhs.layout()), MatrixBatch::new(rhs.layout())) else {
            let shape = *lhs.layout().shape();
            return Err(KernelError::BadRank { op, expected: "at least two axes", shape });
        };
        let factors = Factors { op, bias, lhs, rhs, a, b, output: Output::Overwrite };
        let in_loops = uses_loops(&factors.a, &factors.b, precision);
        match out.dtype() {
            DType::F32 if in_loops => factors.multiply_in_loops::<f32>(workers, out, vector::product),
            DType::F64 if in_loops => factors.multiply_in_loops::<f64>(workers, out, vector::product),
            DType::I64 => factors.multiply_in_loops::<i64>(workers, out, scalar::product_of_integers),
            DType::I32 => factors.multiply_in_loops::<i32>(workers, out, scalar::product_of_integers),
            DType::U32 => factors.multiply_in_loops::<u32>(workers, out, scalar::product_of_integers),
            DType::U8 => factors.multiply_in_loops::<u8>(workers, out, scalar::product_of_integers),
            _ => factors.multiply_floats(precision)?(&factors, workers, workspace, out),
        }
    }
}

impl RunCpu for MatMulSum<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { precision, accumulate, lhs, rhs, ref mut workspace, ref mut out } = *self;
        let output = if accumulate { Output::Accumulate } else { Output::Overwrite };
        let (Some(a), Some(b)) = (MatrixBatch::new(lhs.layout()), MatrixBatch::new(rhs.layout())) else {
            let shape = *lhs.layout().shape();
            return Err(KernelError::BadRank { op, expected: "two axes", shape });
        };
        let factors = Factors { op, bias: None, lhs, rhs, a, b, output };
        let in_loops = sum_uses_loops(&factors.a, &factors.b, lhs.dtype(), precision);
        match lhs.dtype() {
            _ if factors.a.multiplications(&factors.b) == 0 => factors.add_nothing(out),
            DType::F32 if in_loops => factors.multiply_in_loops::<f32>(workers, out, vector::product),
            DType::F64 if in_loops => factors.multiply_in_loops::<f64>(workers, out, vector::product),
            _ => factors.multiply_floats(precision)?(&factors, workers, workspace, out),
        }
    }
}

/// Multiplies matrices of few elements; `None` if the general case applies.
fn matmul_small(
    op: &'static str,
    precision: Precision,
    bias: Option<View<'_>>,
    factors: [View<'_>; 2],
    out: &mut ViewMut<'_>,
) -> Option<Result<()>> {
    match (out.dtype(), precision) {
        (DType::F32, Precision::Full) => small::multiply::<f32>(op, bias, factors, out),
        (DType::F64, _) => small::multiply::<f64>(op, bias, factors, out),
        _ => None,
    }
}

/// See [`MatMulWorkspace`](crate::families::MatMulWorkspace).
pub(crate) fn workspace(lhs: &Layout, rhs: &Layout, dtype: DType, precision: Precision) -> usize {
    let (Some(a), Some(b)) = (MatrixBatch::new(lhs), MatrixBatch::new(rhs)) else { return 0 };
    if !dtype.is_float() || uses_loops(&a, &b, precision) {
        return 0;
    }
    let multiplications = a.multiplications(&b);
    let matrices: usize = a.layout.shape().dims()[..a.axes].iter().product();
    let panels = gemm::scratch_elements([a.rows, b.cols, a.cols]) * slots(multiplications, matrices);
    let sums = sums::elements(dtype, product(&[matrices, a.rows, b.cols]));
    panels.saturating_add(sums).saturating_mul(dtype.computed_as().size())
}

/// See [`MatMulSumWorkspace`](crate::families::MatMulSumWorkspace).
pub(crate) fn workspace_of_sum(lhs: &Layout, rhs: &Layout, dtype: DType, precision: Precision) -> usize {
    let (Some(a), Some(b)) = (MatrixBatch::new(lhs), MatrixBatch::new(rhs)) else { return 0 };
    let multiplications = a.multiplications(&b);
    if !dtype.is_float() || multiplications == 0 || sum_uses_loops(&a, &b, dtype, precision) {
        return 0;
    }
    let panels = gemm::scratch_elements([a.rows, b.cols, a.cols]) * slots(multiplications, 1);
    panels.saturating_mul(dtype.computed_as().size())
}

/// Whether simple loops compute a sum of products. The loops read no 16-bit floats.
const fn sum_uses_loops(
    a: &MatrixBatch<'_>,
    b: &MatrixBatch<'_>,
    dtype: DType,
    precision: Precision,
) -> bool {
    !dtype.is_half() && uses_loops(a, b, precision)
}

/// Whether simple loops compute a product of floats.
const fn uses_loops(a: &MatrixBatch<'_>, b: &MatrixBatch<'_>, precision: Precision) -> bool {
    let multiplications = a.multiplications(b);
    let in_loops = a.rows == 1 || b.cols == 1 || small::has_few(multiplications);
    multiplications == 0 || matches!(precision, Precision::Full) && in_loops
}

/// The number of blocks that are computed at a time, for this many matrices.
pub(crate) const fn slots(multiplications: usize, matrices: usize) -> usize {
    if multiplications.saturating_mul(matrices) <= SMALL { 1 } else { SLOTS }
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

/// A product with the given workers, workspace and output.
type Multiply<'a> = fn(&Factors<'a>, &Workers, &mut Option<ViewMut<'_>>, &mut ViewMut<'_>) -> Result<()>;

/// The factors of a product and its bias.
struct Factors<'a> {
    op: &'static str,
    bias: Option<View<'a>>,
    lhs: View<'a>,
    rhs: View<'a>,
    /// The matrices of `lhs`.
    a: MatrixBatch<'a>,
    /// The matrices of `rhs`.
    b: MatrixBatch<'a>,
    /// Whether the product is added to the output; then without a bias.
    output: Output,
}

impl<'a> Factors<'a> {
    /// The loop over the leading axes, with the offsets of both matrices.
    fn stack(&self) -> LoopNest<2> {
        let (a, b) = (&self.a, &self.b);
        let leading = a.layout.shape().dims()[..a.axes].iter().enumerate();
        LoopNest::from_axes(
            leading.map(|(axis, &size)| (size, [a.layout.strides()[axis], b.layout.strides()[axis]])),
            [a.layout.offset(), b.layout.offset()],
        )
    }

    /// The bias as a vector.
    fn bias<T: RawElement>(&self) -> Result<Option<Bias<'_, T>>> {
        Bias::new(self.op, self.bias.as_ref())
    }

    /// The function that multiplies panels of the type for the factors' elements and this precision.
    fn multiply_floats(&self, precision: Precision) -> Result<Multiply<'a>> {
        Ok(match (self.lhs.dtype(), precision) {
            (DType::F32, Precision::Full) => Self::multiply::<f32, f32, f32>,
            (DType::F32, Precision::BF16) if Pair::is_supported() => Self::multiply::<Pair, f32, f32>,
            (DType::F32, Precision::BF16) => Self::multiply::<f32, Unrounded, f32>,
            (DType::F64, _) => Self::multiply::<f64, f64, f64>,
            (DType::BF16, _) if Pair::is_supported() => Self::multiply::<Pair, bf16, bf16>,
            (DType::BF16, _) => Self::multiply::<f32, bf16, bf16>,
            (DType::F16, _) => Self::multiply::<f32, f16, f16>,
            (dtype, _) => return Err(unsupported(self.op, dtype)),
        })
    }

    /// Multiplies panels of `P`. The factors' elements are stored as `S` and packed as `A`. Not inlined, so that small
    /// products need less stack.
    #[inline(never)]
    fn multiply<P, A, S>(
        &self,
        workers: &Workers,
        workspace: &mut Option<ViewMut<'_>>,
        out: &mut ViewMut<'_>,
    ) -> Result<()>
    where
        P: Depth<Sum: RawElement + Depth>,
        A: PackInto<P> + bytemuck::Pod,
        S: PackInto<P::Sum> + RawElement,
    {
        let Self { op, a, b, .. } = self;
        let factors = [host::<S>(op, &self.lhs)?, host::<S>(op, &self.rhs)?];
        let [left, right]: [&[A]; 2] = factors.map(bytemuck::cast_slice);
        let bias = self.bias::<S>()?;
        if out.layout().shape().elements() == 0 {
            return Ok(());
        }
        let ([m, n, k], stack) = ([a.rows, b.cols, a.cols], self.stack());
        let (matrices, slots) = (stack.len(), slots(a.multiplications(b), stack.len()));
        let per_slot = gemm::scratch_elements([m, n, k]);
        let threads = workers.threads().min(slots);
        let parts = if threads == 1 { 1 } else { SLOTS.min((2 * threads).div_ceil(matrices)) };
        let size = if parts == 1 { [m, n] } else { block_sizes([m, n], parts) };
        let multiply = |(number, block): (usize, Block<'_, P::Sum>), panels: &mut [P::Sum]| {
            let [from_a, from_b] = stack.at(number);
            let (lhs, rhs) = (a.matrix(left, from_a).lhs(), b.matrix(right, from_b).rhs());
            let ranges = [block.rows(), block.columns()];
            let panels = bytemuck::cast_slice_mut(panels);
            let mut out = Biased { block, bias };
            gemm::product::<P>(&lhs, &rhs, ranges, k, panels, &mut out, self.output);
        };
        sums::with_sums::<P::Sum>(workers, op, workspace, slots * per_slot, out, |out, panels| {
            let blocks = out.chunks_mut(m * n).enumerate().flat_map(|(number, matrix)| {
                Block::new(matrix, n).split(size).map(move |block| (number, block))
            });
            if slots == 1 {
                blocks.for_each(|block| multiply(block, panels));
            } else {
                workers.share_with_scratch(blocks.collect(), slots, panels, per_slot, &multiply);
            }
        })
    }

    /// Stores the sums of no products.
    fn add_nothing(&self, out: &mut ViewMut<'_>) -> Result<()> {
        if self.output == Output::Overwrite {
            match out.dtype() {
                DType::F64 => host_mut::<f64>(self.op, out)?.fill(0.0),
                _ => host_mut::<f32>(self.op, out)?.fill(0.0),
            }
        }
        Ok(())
    }

    /// Multiplies in simple loops, those of `product`.
    #[inline(never)]
    fn multiply_in_loops<T: Number>(
        &self,
        workers: &Workers,
        out: &mut ViewMut<'_>,
        product: fn(Matrix<'_, T>, Matrix<'_, T>, &mut [T], Output),
    ) -> Result<()> {
        let Self { op, a, b, .. } = self;
        let (left, right) = (host::<T>(op, &self.lhs)?, host::<T>(op, &self.rhs)?);
        let (bias, out) = (self.bias::<T>()?, host_mut::<T>(op, out)?);
        let (m, n) = (a.rows, b.cols);
        if self.output == Output::Overwrite {
            out.chunks_mut(n.max(1)).for_each(|row| fill(row, bias));
        }
        if out.is_empty() || a.cols == 0 {
            return Ok(());
        }
        let stack = self.stack();
        // A single row is split into columns, other matrices into rows.
        let small = if m == 1 || n == 1 { SMALL_VECTOR } else { SMALL };
        let part = match small.div_ceil(a.cols) {
            columns if m == 1 => columns.next_multiple_of(COLUMNS).min(n),
            elements => elements.div_ceil(n).min(m) * n,
        };
        let multiply = |number: usize, start: usize, part: &mut [T]| {
            let [from_a, from_b] = stack.at(number);
            let (row, column) = (start / n, start % n);
            let lhs = Matrix { rows: part.len().div_ceil(n), ..a.matrix(left, from_a + row * a.row_stride) };
            let rhs = b.matrix(right, from_b + column * b.col_stride);
            product(lhs, Matrix { cols: part.len().min(n), ..rhs }, part, Output::Accumulate);
        };
        if a.multiplications(b).saturating_mul(stack.len()) > small {
            workers.parts(out, [m * n, part], &multiply);
        } else {
            out.chunks_mut(m * n).enumerate().for_each(|(number, matrix)| multiply(number, 0, matrix));
        }
        Ok(())
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
}

/// Fills a row with the bias, or with 0.
fn fill<T: Number>(row: &mut [T], bias: Option<Bias<'_, T>>) {
    match bias {
        None => row.fill(T::ZERO),
        Some(Bias { values, stride }) => {
            row.iter_mut().enumerate().for_each(|(column, out)| *out = values[column * stride]);
        }
    }
}

/// A block of a product that is added to a bias.
pub(crate) struct Biased<'a, T, S> {
    pub(crate) block: Block<'a, T>,
    pub(crate) bias: Option<Bias<'a, S>>,
}

impl<T: Float + Depth, S: PackInto<T>> Destination<T> for Biased<'_, T, S> {
    fn put(&mut self, rows: Range<usize>, columns: Range<usize>, tile: &Tile<T>, output: Output) {
        self.block.put(rows, columns, tile, output);
    }

    fn prefetch(&mut self, rows: Range<usize>, columns: Range<usize>) {
        self.block.prefetch(rows, columns);
    }

    fn finish(&mut self, rows: Range<usize>, columns: Range<usize>) {
        let Some(Bias { values, stride }) = self.bias else { return };
        let mut bias = [T::ZERO; COLUMNS];
        bias.iter_mut()
            .zip(columns.clone())
            .for_each(|(bias, column)| *bias = values[column * stride].pack(S::default()));
        for row in rows {
            let out = self.block.row(row, columns.clone());
            out.iter_mut().zip(&bias).for_each(|(out, &bias)| *out += bias);
        }
    }
}

/// A batch of matrices: the last two axes of a layout, for each index of the leading axes.
#[derive(Debug)]
struct MatrixBatch<'a> {
    layout: &'a Layout,
    /// The number of leading axes.
    axes: usize,
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> MatrixBatch<'a> {
    /// Returns `None` for a layout with fewer than two axes.
    #[inline]
    fn new(layout: &'a Layout) -> Option<Self> {
        let ([leading @ .., rows, cols], [.., row_stride, col_stride]) =
            (layout.shape().dims(), layout.strides())
        else {
            return None;
        };
        // The stride of an axis of size 1 is arbitrary.
        let stride = |size: usize, stride: usize| if size == 1 { 1 } else { stride };
        Some(Self {
            layout,
            axes: leading.len(),
            rows: *rows,
            cols: *cols,
            row_stride: stride(*rows, *row_stride),
            col_stride: stride(*cols, *col_stride),
        })
    }

    /// The number of multiplications of one product with a matrix of `rhs`.
    const fn multiplications(&self, rhs: &MatrixBatch<'_>) -> usize {
        self.rows.saturating_mul(rhs.cols).saturating_mul(self.cols)
    }

    /// The matrix at offset `start` of `data`.
    fn matrix<'d, T>(&self, data: &'d [T], start: usize) -> Matrix<'d, T> {
        let Self { rows, cols, row_stride, col_stride, .. } = *self;
        Matrix { data: &data[start..], rows, cols, row_stride, col_stride }
    }
}

/// A matrix that starts at the start of `data`. Not empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// Creates a contiguous row-major matrix.
    pub(crate) const fn rows(data: &'a [T], rows: usize, cols: usize) -> Self {
        Self { data, rows, cols, row_stride: cols, col_stride: 1 }
    }

    /// The number of rows.
    pub(crate) const fn row_count(&self) -> usize {
        self.rows
    }

    /// The transposed matrix.
    pub(crate) const fn transposed(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    /// The matrix as a left operand, whose lanes are its rows.
    const fn lhs(self) -> Strided<'a, T> {
        let Self { data, rows, row_stride, col_stride, .. } = self;
        Strided { data, lanes: rows, lane_stride: row_stride, depth_stride: col_stride }
    }

    /// The matrix as a right operand, whose lanes are its columns.
    const fn rhs(self) -> Strided<'a, T> {
        self.transposed().lhs()
    }
}

/// `out = lhs · rhs` or `out += lhs · rhs` for a contiguous `out`, on this thread. No size may be 0. `scratch` has at least
/// [`gemm::scratch_elements`].
pub(crate) fn multiply<T: Gemm>(
    lhs: Matrix<'_, T>,
    rhs: Matrix<'_, T>,
    out: &mut [T],
    output: Output,
    scratch: &mut [T],
) {
    if small::has_few(lhs.rows.saturating_mul(rhs.cols).saturating_mul(lhs.cols)) {
        return scalar::product(lhs, rhs, out, output);
    }
    let ranges = [0..lhs.rows, 0..rhs.cols];
    let mut block = Block::new(out, rhs.cols);
    gemm::product::<T>(&lhs.lhs(), &rhs.rhs(), ranges, lhs.cols, scratch, &mut block, output);
}

/// Like [`multiply`], for factors that are packed as `P`.
pub(crate) fn multiply_as<P: Depth<Sum: Float>, A: PackInto<P>, B: PackInto<P>>(
    lhs: Matrix<'_, A>,
    rhs: Matrix<'_, B>,
    out: &mut [P::Sum],
    output: Output,
    scratch: &mut [P],
) {
    let ranges = [0..lhs.rows, 0..rhs.cols];
    let mut block = Block::new(out, rhs.cols);
    gemm::product::<P>(&lhs.lhs(), &rhs.rhs(), ranges, lhs.cols, scratch, &mut block, output);
}

/// A float type whose packed elements and sums have that type.
pub(crate) trait Gemm: Float + Depth<Sum = Self> + PackInto<Self> {}

impl<T: Float + Depth<Sum = Self> + PackInto<Self>> Gemm for T {}

#[cfg(test)]
mod tests;
