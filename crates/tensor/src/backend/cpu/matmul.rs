//! Matrix products with the `gemm` crates.
//!
//! The crates support operands with any strides. The output is split into panels of rows, and each panel is one call on one
//! thread. The panels depend only on the shape, so results do not depend on the number of threads.
//!
//! The allocators do not account for the packing buffers of the `gemm` crates. Each thread keeps one buffer of the size
//! of the L2 cache, and frees others before the call returns.
//!
//! Simple loops multiply very small matrices ([`small`]) and integers ([`scalar`]). They also multiply floats on a
//! thread that is exiting and has dropped its packing buffer.

mod scalar;
mod small;

use gemm_common::Parallelism;
use gemm_common::gemm::L2_SLAB;

use super::dispatch::{host, host_mut, scratch, unsupported};
use super::loop_nest::LoopNest;
use super::number::{Float, Number};
use super::operands::Source;
use super::parallel::{LIGHT, Workers};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::shape::DType;
use crate::storage::{View, ViewMut};

/// The largest number of multiplications that one thread computes alone, in about a third of a millisecond. On virtual
/// machines it takes 70 µs to wake another thread.
const SMALL: usize = 16 << 20;

/// The target number of multiplications of a panel.
const PANEL: usize = 1 << 20;

/// The target number of panels of a matrix.
const PANELS: usize = 4;

/// The minimum and maximum number of rows of a panel. Each panel packs the right operand again, which is expensive for a
/// transposed operand and few rows.
const PANEL_ROWS: (usize, usize) = (32, 256);

/// Multiplies matrices of few elements; `None` if the general case applies. Separate from it, because it needs less stack.
pub(super) fn matmul_small(
    op: &'static str,
    bias: Option<View<'_>>,
    factors: [View<'_>; 2],
    out: &mut ViewMut<'_>,
) -> Option<Result<()>> {
    match out.dtype() {
        DType::F32 => small::multiply::<f32>(op, bias, factors, out),
        DType::F64 => small::multiply::<f64>(op, bias, factors, out),
        _ => None,
    }
}

/// The general case of [`Kernel::MatMul`](crate::backend::Kernel::MatMul), without its activation.
#[inline(never)]
pub(super) fn matmul(
    workers: &Workers,
    op: &'static str,
    bias: Option<View<'_>>,
    [lhs, rhs]: [View<'_>; 2],
    workspace: &mut Option<ViewMut<'_>>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let (Some(a), Some(b)) = (MatrixBatch::new(lhs.layout()), MatrixBatch::new(rhs.layout())) else {
        let shape = *lhs.layout().shape();
        return Err(Error::BadRank { op, expected: "at least two axes", shape });
    };
    let factors = Factors { op, bias, lhs, rhs, a, b };
    match out.dtype() {
        DType::F32 => multiply::<f32>(workers, &factors, workspace, out, gemm),
        DType::F64 => multiply::<f64>(workers, &factors, workspace, out, gemm),
        DType::I64 => multiply::<i64>(workers, &factors, workspace, out, scalar::product),
        DType::I32 => multiply::<i32>(workers, &factors, workspace, out, scalar::product),
        DType::U8 => multiply::<u8>(workers, &factors, workspace, out, scalar::product),
        dtype => Err(unsupported(op, dtype)),
    }
}

/// See [`Workspace::MatMul`](crate::backend::Workspace::MatMul).
pub(super) fn workspace(lhs: &Layout, rhs: &Layout, dtype: DType) -> usize {
    // The rows of the right operand usually are contiguous.
    if rhs.strides().last() == Some(&1) {
        return 0;
    }
    match (MatrixBatch::new(lhs), MatrixBatch::new(rhs)) {
        (Some(a), Some(b)) if is_packed(&a, &b) => b.rows.saturating_mul(b.cols).saturating_mul(dtype.size()),
        _ => 0,
    }
}

/// Whether the right operand is first copied to row-major order. Otherwise each panel would transpose it again, which
/// takes a quarter of the time of a 512 × 512 product, and more for fewer rows.
fn is_packed(a: &MatrixBatch<'_>, b: &MatrixBatch<'_>) -> bool {
    a.axes == 0 && b.col_stride != 1 && panel_rows(a.rows, a.multiplications(b)) < a.rows
}

/// Broadcasts a vector to the rows of `out`.
#[inline]
fn broadcast_rows<T: Copy>(vector: &[T], layout: &Layout, out: &mut [T]) {
    let (&[columns], &[stride]) = (layout.shape().dims(), layout.strides()) else { return };
    if columns == 0 || out.is_empty() {
        return;
    }
    let (first, others) = out.split_at_mut(columns);
    let from = &vector[layout.offset()..];
    first.iter_mut().enumerate().for_each(|(column, to)| *to = from[column * stride]);
    others.chunks_exact_mut(columns).for_each(|row| row.copy_from_slice(first));
}

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
}

/// Computes a batched product, with one call of `product` per panel.
fn multiply<T: Number>(
    workers: &Workers,
    factors: &Factors<'_>,
    workspace: &mut Option<ViewMut<'_>>,
    out: &mut ViewMut<'_>,
    product: impl Fn(Matrix<'_, T>, Matrix<'_, T>, &mut [T], Output) + Sync,
) -> Result<()> {
    let Factors { op, bias, lhs, rhs, a, b } = factors;
    let op = *op;
    let (left, right) = (host::<T>(op, lhs)?, host::<T>(op, rhs)?);
    let out = host_mut::<T>(op, out)?;
    // Fails for a missing workspace before it writes the bias.
    let packed = if is_packed(a, b) { b.rows * b.cols } else { 0 };
    let rows = scratch::<T>(op, workspace, packed)?;
    let target = match bias {
        Some(bias) => {
            broadcast_rows(host::<T>(op, bias)?, bias.layout(), out);
            Output::Accumulate
        }
        None => Output::Overwrite,
    };
    let (m, n, k) = (a.rows, b.cols, a.cols);
    // Without an output, m·n may overflow.
    if out.is_empty() || k == 0 {
        if target == Output::Overwrite {
            out.fill(T::ZERO);
        }
        return Ok(());
    }
    let row_major = Layout::contiguous(op, *rhs.layout().shape(), rhs.dtype())?;
    let copied = MatrixBatch::new(&row_major);
    let (b, right) = match &copied {
        Some(copied) if packed > 0 => {
            let source = Source::<T>::new(op, *rhs)?;
            workers.chunks(rows, LIGHT, &|start, part| source.load(start, part));
            (copied, &*rows)
        }
        _ => (b, right),
    };
    let leading = a.layout.shape().dims()[..a.axes].iter().enumerate();
    let stack = LoopNest::from_axes(
        leading.map(|(axis, &size)| (size, [a.layout.strides()[axis], b.layout.strides()[axis]])),
        [a.layout.offset(), b.layout.offset()],
    );
    let panel = |number: usize, start: usize, part: &mut [T]| {
        let [from_a, from_b] = stack.at(number);
        let first = start / n;
        let lhs = Matrix { rows: part.len() / n, ..a.matrix(left, from_a + first * a.row_stride) };
        product(lhs, b.matrix(right, from_b), part, target);
    };
    let multiplications = a.multiplications(b);
    if multiplications.saturating_mul(stack.len()) > SMALL {
        workers.parts(out, [m * n, panel_rows(m, multiplications) * n], &panel);
    } else {
        out.chunks_mut(m * n).enumerate().for_each(|(number, matrix)| panel(number, 0, matrix));
    }
    Ok(())
}

/// The number of rows of a panel, for a product of `m` rows.
const fn panel_rows(m: usize, multiplications: usize) -> usize {
    if multiplications <= SMALL {
        return m;
    }
    let (least, most) = PANEL_ROWS;
    let balanced = m.div_ceil(PANELS);
    let balanced = if balanced > most { most } else { balanced };
    let worthwhile = PANEL.div_ceil(multiplications.div_ceil(m));
    let rows = if balanced > worthwhile { balanced } else { worthwhile };
    let rows = if rows > least { rows } else { least };
    rows.next_multiple_of(8)
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
pub(super) struct Matrix<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

/// Whether a product overwrites its output or adds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// `out = lhs · rhs`.
    Overwrite,
    /// `out += lhs · rhs`.
    Accumulate,
}

impl<'a, T> Matrix<'a, T> {
    /// Creates a contiguous row-major matrix.
    pub(super) const fn rows(data: &'a [T], rows: usize, cols: usize) -> Self {
        Self { data, rows, cols, row_stride: cols, col_stride: 1 }
    }

    /// The number of rows.
    pub(super) const fn row_count(&self) -> usize {
        self.rows
    }

    /// The transposed matrix.
    pub(super) const fn transposed(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    /// `cols` columns, starting at column `first`.
    fn columns(&self, first: usize, cols: usize) -> Self {
        Self { data: &self.data[first * self.col_stride..], cols, ..*self }
    }

    /// The data up to the last element. Panics if the strides exceed the data.
    fn extent(&self) -> &'a [T] {
        let last = (self.rows - 1) * self.row_stride + (self.cols - 1) * self.col_stride;
        &self.data[..=last]
    }
}

/// `out = lhs · rhs` or `out += lhs · rhs` for a contiguous `out`. No size may be 0.
pub(super) fn gemm<T: Gemm>(lhs: Matrix<'_, T>, rhs: Matrix<'_, T>, out: &mut [T], target: Output) {
    #[cfg(test)]
    GEMM_CALL.with_borrow_mut(|call| {
        if call.is_some() {
            *call = Some(std::backtrace::Backtrace::force_capture());
        }
    });
    let (m, n, k) = (lhs.rows, rhs.cols, lhs.cols);
    assert_eq!((rhs.rows, out.len()), (k, m * n));
    if small::is_small(&lhs, &rhs) {
        small::product(lhs, rhs, out, target.into());
        return;
    }
    if !has_pack_buffer() {
        scalar::product(lhs, rhs, out, target);
        return;
    }
    let piece = k.div_ceil(k.div_ceil(DEPTH));
    for start in (0..k).step_by(piece) {
        let depth = piece.min(k - start);
        let (lhs, rhs) = (lhs.columns(start, depth), rhs.transposed().columns(start, depth).transposed());
        gemm_block(lhs, rhs, out, if start == 0 { target } else { Output::Accumulate });
    }
}

/// Whether this thread has a packing buffer of the `gemm` crates. An exiting thread may have dropped it before the
/// destructors of other thread-local values run. The crates would panic then, and abort the process.
fn has_pack_buffer() -> bool {
    L2_SLAB.try_with(|_| ()).is_ok()
}

/// The largest depth of one call. The operands then stay in the caches, which is a quarter faster at a depth of 512.
const DEPTH: usize = 256;

/// Like [`gemm`], with one call of the `gemm` crates.
fn gemm_block<T: Gemm>(lhs: Matrix<'_, T>, rhs: Matrix<'_, T>, out: &mut [T], target: Output) {
    let (m, n, k) = (lhs.rows, rhs.cols, lhs.cols);
    // The safety of the call depends on these sizes.
    assert_eq!((rhs.rows, out.len()), (k, m * n));
    let (left, right) = (lhs.extent(), rhs.extent());
    // The kernels expect contiguous columns of the output, so they compute the transposed product outᵀ = rhsᵀ lhsᵀ.
    let kernel = T::kernel();
    // `T::kernel` selects a kernel that this processor supports. It reads element (i, j) of an operand at offset
    // `i * row_stride + j * col_stride`, and writes the n × m elements of outᵀ at offsets `i + j * n`.
    // SAFETY: `extent` has checked that all offsets read are within its slices. The assertion checks that all offsets
    // written are within `out`, which is borrowed exclusively and therefore overlaps neither operand.
    unsafe {
        kernel(
            n,
            m,
            k,
            out.as_mut_ptr(),
            n as isize,
            1,
            target == Output::Accumulate,
            right.as_ptr(),
            rhs.row_stride as isize,
            rhs.col_stride as isize,
            left.as_ptr(),
            lhs.row_stride as isize,
            lhs.col_stride as isize,
            if target == Output::Accumulate { T::ONE } else { T::ZERO },
            T::ONE,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// A kernel for dst = alpha·dst + beta·lhs·rhs. The arguments are:
///
/// - the sizes m, n and k,
/// - dst with its column and row stride, and whether to read it,
/// - lhs and rhs, each with column and row stride,
/// - alpha and beta,
/// - whether to conjugate dst, lhs and rhs,
/// - the number of threads.
pub(super) type Product<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    Parallelism,
);

/// A float type that a `gemm` crate supports.
pub(super) trait Gemm: Float {
    /// The fastest kernel for this processor, selected at the first call.
    fn kernel() -> Product<Self>;
}

impl Gemm for f32 {
    fn kernel() -> Product<Self> {
        gemm_f32::gemm::f32::get_gemm_fn()
    }
}

impl Gemm for f64 {
    fn kernel() -> Product<Self> {
        gemm_f64::gemm::f64::get_gemm_fn()
    }
}

#[cfg(test)]
thread_local! {
    /// The stack of the latest call to [`gemm`] on this thread, once a test has set it.
    pub(crate) static GEMM_CALL: std::cell::RefCell<Option<std::backtrace::Backtrace>> =
        const { std::cell::RefCell::new(None) };
}

#[cfg(test)]
mod tests;
