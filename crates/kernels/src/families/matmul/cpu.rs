//! Matrix products: batches, biases, and the split of the work between threads.
//!
//! [`gemm`](crate::cpu::gemm) multiplies floats. The output is split into blocks of rows and columns, and one thread computes a
//! block over the whole depth. So results do not depend on the number of threads, although the blocks do.
//!
//! Simple loops multiply very small matrices ([`small`]), [vectors](vector), whose factors are read only once, and integers
//! ([`scalar`]).

mod activation;
mod output;
mod scalar;
mod small;
mod vector;

use half::{bf16, f16};

pub(crate) use self::output::{
    Bias, Slots, block_sizes, fill, for_each_block, multiply_biased, multiply_rounded,
};
use self::output::{Biased, SMALL};
use super::{MatMul, MatMulSum};
use crate::cpu::convert::Half;
use crate::cpu::dispatch::{host, host_mut, scratch, unsupported};
use crate::cpu::gemm::{self, Block, COLUMNS, Depth, Output, PackInto, Pair, Strided};
use crate::cpu::loop_nest::LoopNest;
use crate::cpu::number::Float;
use crate::cpu::parallel::Workers;
use crate::error::{KernelError, Result};
use crate::families::RunCpu;
use crate::layout::Layout;
use crate::shape::{DType, RawElement};
use crate::storage::{View, ViewMut};

/// The number of multiplications with a vector that one thread computes alone. It reads the matrix once, 1 MiB of `f32` in
/// about a tenth of a millisecond.
pub(crate) const SMALL_VECTOR: usize = 1 << 18;

impl RunCpu for MatMul<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        if self.activation.is_some() {
            return activation::run(self, workers, op);
        }
        let Self { bias, lhs, rhs, ref mut workspace, ref mut out, .. } = *self;
        if let Some(result) = matmul_small(op, bias, [lhs, rhs], out) {
            return result;
        }
        let (Some(a), Some(b)) = (MatrixBatch::new(lhs.layout()), MatrixBatch::new(rhs.layout())) else {
            let shape = *lhs.layout().shape();
            return Err(KernelError::BadRank { op, expected: "at least two axes", shape });
        };
        let factors = Factors { op, bias, lhs, rhs, a, b, output: Output::Overwrite };
        factors.function(out.dtype())?(&factors, workers, workspace, out)
    }
}

impl RunCpu for MatMulSum<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { accumulate, lhs, rhs, ref mut workspace, ref mut out } = *self;
        let output = if accumulate { Output::Accumulate } else { Output::Overwrite };
        let (Some(a), Some(b)) = (MatrixBatch::new(lhs.layout()), MatrixBatch::new(rhs.layout())) else {
            let shape = *lhs.layout().shape();
            return Err(KernelError::BadRank { op, expected: "two axes", shape });
        };
        let factors = Factors { op, bias: None, lhs, rhs, a, b, output };
        factors.function(out.dtype())?(&factors, workers, workspace, out)
    }
}

/// Multiplies matrices of few elements; `None` if the general case applies.
fn matmul_small(
    op: &'static str,
    bias: Option<View<'_>>,
    factors: [View<'_>; 2],
    out: &mut ViewMut<'_>,
) -> Option<Result<()>> {
    match factors[0].dtype() {
        DType::F32 => small::multiply::<f32>(op, bias, factors, out),
        DType::F64 => small::multiply::<f64>(op, bias, factors, out),
        _ => None,
    }
}

/// See [`MatMulWorkspace`](crate::families::MatMulWorkspace).
pub(crate) fn workspace(lhs: &Layout, rhs: &Layout, dtype: DType, out: DType) -> usize {
    let (Some(a), Some(b)) = (MatrixBatch::new(lhs), MatrixBatch::new(rhs)) else { return 0 };
    if uses_loops(&a, &b, dtype, out) {
        return 0;
    }
    let matrices: usize = a.layout.shape().dims()[..a.axes].iter().product();
    let slots = Slots::new(out, [a.rows, b.cols, a.cols], matrices);
    slots.elements().saturating_mul(dtype.computed_as().size())
}

/// Whether simple loops compute a product with these factor and output types.
const fn uses_loops(a: &MatrixBatch<'_>, b: &MatrixBatch<'_>, dtype: DType, out: DType) -> bool {
    let multiplications = a.multiplications(b);
    let is_vector = a.rows == 1 || b.cols == 1;
    let has_loop = match dtype.is_half() {
        true => is_vector && out.is_half(),
        false => is_vector || small::has_few(multiplications) || !dtype.is_float(),
    };
    multiplications == 0 || has_loop
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

    /// The function that multiplies in simple loops or on panels, to an output of type `out`.
    fn function(&self, out: DType) -> Result<Multiply<'a>> {
        macro_rules! in_loops {
            ($type:ty, $product:expr) => {
                |factors, workers, _, out| factors.multiply_in_loops::<$type>(workers, out, $product)
            };
        }
        let dtype = self.lhs.dtype();
        if uses_loops(&self.a, &self.b, dtype, out) {
            return Ok(match out {
                DType::F32 => in_loops!(f32, vector::product),
                DType::F64 => in_loops!(f64, vector::product),
                DType::F16 => in_loops!(f16, vector::product_of_halves),
                DType::BF16 => in_loops!(bf16, vector::product_of_halves),
                DType::I64 => in_loops!(i64, scalar::product_of_integers),
                DType::I32 => in_loops!(i32, scalar::product_of_integers),
                DType::U32 => in_loops!(u32, scalar::product_of_integers),
                DType::U8 => in_loops!(u8, scalar::product_of_integers),
                DType::Bool => return Err(unsupported(self.op, out)),
            });
        }
        Ok(match (dtype, out) {
            (DType::F32, _) => Self::multiply::<f32, f32>,
            (DType::F64, _) => Self::multiply::<f64, f64>,
            (DType::BF16, DType::F32) if Pair::is_supported() => Self::multiply::<Pair, bf16>,
            (DType::BF16, DType::F32) => Self::multiply::<f32, bf16>,
            (DType::F16, DType::F32) => Self::multiply::<f32, f16>,
            (DType::BF16, _) if Pair::is_supported() => Self::multiply_halves::<Pair, bf16>,
            (DType::BF16, _) => Self::multiply_halves::<f32, bf16>,
            (DType::F16, _) => Self::multiply_halves::<f32, f16>,
            _ => return Err(unsupported(self.op, dtype)),
        })
    }

    /// Multiplies panels of `P` to an output of the sums' type. The factors are stored as `S`. Not inlined, so that small
    /// products need less stack.
    #[inline(never)]
    fn multiply<P, S>(
        &self,
        workers: &Workers,
        workspace: &mut Option<ViewMut<'_>>,
        out: &mut ViewMut<'_>,
    ) -> Result<()>
    where
        P: Depth<Sum: RawElement + Depth + PackInto<P::Sum>>,
        S: PackInto<P> + RawElement,
    {
        let bias = Bias::<P::Sum>::new(self.op, self.bias.as_ref())?;
        let (factors, stack, k) = (self.elements::<S>()?, self.stack(), self.a.cols);
        let (sizes, slots) = self.slots(&stack, out.dtype());
        let scratch = scratch::<P::Sum>(self.op, workspace, slots.elements())?;
        let out = host_mut::<P::Sum>(self.op, out)?;
        for_each_block(workers, out, sizes, (slots, scratch), |number, block, scratch| {
            let [lhs, rhs] = self.operands(stack.at(number), factors);
            let (ranges, panels) = ([block.rows(), block.columns()], bytemuck::cast_slice_mut(scratch));
            let mut out = Biased { block, bias };
            gemm::product::<P>(&lhs, &rhs, ranges, k, panels, &mut out, self.output);
        });
        Ok(())
    }

    /// Multiplies panels of `P` to an output of 16-bit floats, which have the factors' type.
    #[inline(never)]
    fn multiply_halves<P, S>(
        &self,
        workers: &Workers,
        workspace: &mut Option<ViewMut<'_>>,
        out: &mut ViewMut<'_>,
    ) -> Result<()>
    where
        P: Depth<Sum = f32>,
        S: Half + PackInto<P> + PackInto<f32>,
    {
        let bias = Bias::<S>::new(self.op, self.bias.as_ref())?;
        let (factors, stack, k) = (self.elements::<S>()?, self.stack(), self.a.cols);
        let (sizes, slots) = self.slots(&stack, out.dtype());
        let scratch = scratch::<f32>(self.op, workspace, slots.elements())?;
        let out = host_mut::<S>(self.op, out)?;
        for_each_block(workers, out, sizes, (slots, scratch), |number, block, scratch| {
            let [lhs, rhs] = self.operands(stack.at(number), factors);
            multiply_rounded::<P, S>([&lhs, &rhs], k, block, bias, scratch);
        });
        Ok(())
    }

    /// The elements of both factors.
    fn elements<S: RawElement>(&self) -> Result<[&'a [S]; 2]> {
        Ok([host::<S>(self.op, &self.lhs)?, host::<S>(self.op, &self.rhs)?])
    }

    /// The matrices at these offsets.
    fn operands<'d, S>(&self, [lhs, rhs]: [usize; 2], [left, right]: [&'d [S]; 2]) -> [Strided<'d, S>; 2] {
        [self.a.matrix(left, lhs).lhs(), self.b.matrix(right, rhs).rhs()]
    }

    /// The rows and columns of each product, and the blocks that are computed at a time.
    fn slots(&self, stack: &LoopNest<2>, out: DType) -> ([usize; 2], Slots) {
        let Self { a, b, .. } = self;
        ([a.rows, b.cols], Slots::new(out, [a.rows, b.cols, a.cols], stack.len()))
    }

    /// Multiplies in simple loops, those of `product`.
    #[inline(never)]
    fn multiply_in_loops<T: RawElement>(
        &self,
        workers: &Workers,
        out: &mut ViewMut<'_>,
        product: fn(Matrix<'_, T>, Matrix<'_, T>, &mut [T], Output),
    ) -> Result<()> {
        let Self { op, a, b, .. } = self;
        let (bias, out) = (Bias::<T>::new(op, self.bias.as_ref())?, host_mut::<T>(op, out)?);
        let (m, n) = (a.rows, b.cols);
        if self.output == Output::Overwrite {
            out.chunks_mut(n.max(1)).for_each(|row| fill(row, bias));
        }
        if out.is_empty() || a.cols == 0 {
            return Ok(());
        }
        let (left, right) = (host::<T>(op, &self.lhs)?, host::<T>(op, &self.rhs)?);
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
