//! Matrix products, by the `gemm` crates.
//!
//! They take operands with any strides, so little is copied here. The output's rows are cut into panels by the shape
//! alone, each panel is one call on one thread, and so the number of threads changes no bit of the result.
//!
//! Memory that is not accounted for: a call packs parts of its operands into buffers of its own, one of the size of the
//! second-level cache that each thread keeps once it has multiplied, and others from the system that are freed before
//! the call returns. They belong on the line of memory outside the allocators.
//!
//! Plain loops multiply very few numbers ([`small`]) and integers ([`plain`]). They also multiply floats on a thread that
//! ends and has dropped the buffer of the `gemm` crates.

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

/// Multiplications that one thread does in about the time that sharing them out is worth, a third of a millisecond. Smaller
/// products stay whole: on virtual machines it takes the thread that asks 70 µs to wake another one.
const SMALL: usize = 16 << 20;

/// Multiplications that a panel should have.
const PANEL: usize = 1 << 20;

/// Panels to aim for in one matrix.
const PANELS: usize = 4;

/// Least and most rows of a panel. Each packs the right operand anew, which few rows do not pay for if that one is a
/// transpose: 1024 × 512 by the transpose of 128 × 512 runs at 52, 83, 110, 135, 150 GFLOP/s with panels of 32, 64, 128,
/// 256, 512 rows.
const PANEL_ROWS: (usize, usize) = (32, 256);

/// See [`Kernel::MatMul`](crate::backend::Kernel::MatMul).
pub(super) fn matmul(
    workers: &Workers,
    op: &'static str,
    bias: Option<View<'_>>,
    factors: [View<'_>; 2],
    workspace: &mut Option<ViewMut<'_>>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let small = match out.dtype() {
        DType::F32 => small::multiply::<f32>(op, bias, factors, out),
        DType::F64 => small::multiply::<f64>(op, bias, factors, out),
        _ => None,
    };
    small.unwrap_or_else(|| general(workers, op, bias, factors, workspace, out))
}

/// General case. Separate from the small case, which needs less stack.
#[inline(never)]
fn general(
    workers: &Workers,
    op: &'static str,
    bias: Option<View<'_>>,
    [lhs, rhs]: [View<'_>; 2],
    workspace: &mut Option<ViewMut<'_>>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let refused = |view: &View<'_>| {
        let shape = *view.layout().shape();
        Error::BadRank { op, expected: "at least two axes", shape }
    };
    let Some(a) = MatrixBatch::new(lhs.layout()) else { return Err(refused(&lhs)) };
    let Some(b) = MatrixBatch::new(rhs.layout()) else { return Err(refused(&rhs)) };
    let fits = match out.layout().shape().dims() {
        [leading @ .., rows, cols] => {
            a.cols == b.rows
                && (*rows, *cols) == (a.rows, b.cols)
                && a.leading() == b.leading()
                && a.leading() == leading
        }
        _ => false,
    };
    if !fits {
        return Err(Error::ShapeMismatch { op, lhs: *lhs.layout().shape(), rhs: *rhs.layout().shape() });
    }
    if let Some(bias) = bias
        && bias.layout().shape().dims() != [b.cols]
    {
        return Err(Error::ShapeMismatch { op, lhs: *rhs.layout().shape(), rhs: *bias.layout().shape() });
    }
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
    // The usual right operand: contiguous rows.
    if rhs.strides().last() == Some(&1) {
        return 0;
    }
    match (MatrixBatch::new(lhs), MatrixBatch::new(rhs)) {
        (Some(a), Some(b)) if is_packed(&a, &b) => b.rows.saturating_mul(b.cols).saturating_mul(dtype.size()),
        _ => 0,
    }
}

/// Whether the right operand is copied so that its rows lie side by side. Each panel would else rearrange it anew, which takes
/// a quarter of the time of 512 × 512 by a transposed 512 × 512, and two thirds of that of 128 × 512.
fn is_packed(a: &MatrixBatch<'_>, b: &MatrixBatch<'_>) -> bool {
    a.axes == 0 && b.col_stride != 1 && panel_rows(a.rows, a.multiplications(b)) < a.rows
}

/// Makes every row of `out` a copy of a vector.
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

/// Multiplies all matrices of the factors, panel by panel, each by one call of `product`.
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
    // A missing workspace is an error before the bias is written.
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

/// How many of `m` rows a panel of a product with so many multiplications has.
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

/// Matrices in the last two axes of a layout, one for each index into the leading axes.
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
    /// `None` for a layout of fewer than two axes.
    #[inline]
    fn new(layout: &'a Layout) -> Option<Self> {
        let ([leading @ .., rows, cols], [.., row_stride, col_stride]) =
            (layout.shape().dims(), layout.strides())
        else {
            return None;
        };
        // Along an axis of size 1 no step is ever taken, and its stride may be anything.
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

    /// The multiplications of the product of one of these with one of those.
    const fn multiplications(&self, rhs: &MatrixBatch<'_>) -> usize {
        self.rows.saturating_mul(rhs.cols).saturating_mul(self.cols)
    }

    /// The matrix that starts at a place in `data`.
    fn matrix<'d, T>(&self, data: &'d [T], start: usize) -> Matrix<'d, T> {
        let Self { rows, cols, row_stride, col_stride, .. } = *self;
        Matrix { data: &data[start..], rows, cols, row_stride, col_stride }
    }

    fn leading(&self) -> &[usize] {
        &self.layout.shape().dims()[..self.axes]
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

/// What a product does to its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// It becomes the product.
    Overwrite,
    /// The product is added to it.
    Accumulate,
}

impl<'a, T> Matrix<'a, T> {
    /// Rows that lie one after the other from the start of `data` on.
    pub(super) const fn rows(data: &'a [T], rows: usize, cols: usize) -> Self {
        Self { data, rows, cols, row_stride: cols, col_stride: 1 }
    }

    /// How many rows there are.
    pub(super) const fn row_count(&self) -> usize {
        self.rows
    }

    /// The same elements with rows and columns exchanged.
    pub(super) const fn transposed(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    /// So many columns from number `first` on.
    fn columns(&self, first: usize, cols: usize) -> Self {
        Self { data: &self.data[first * self.col_stride..], cols, ..*self }
    }

    /// The data up to the last element, checked against the strides.
    fn extent(&self) -> &'a [T] {
        let last = (self.rows - 1) * self.row_stride + (self.cols - 1) * self.col_stride;
        &self.data[..=last]
    }
}

/// `out`, row by row without gaps, becomes the product, or the product is added to it. No size may be 0.
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

/// Whether this thread has the buffer that the `gemm` crates pack operands into. They panic without it, which aborts the process
/// in the destructor of a thread-local value: there a thread may have dropped its buffer already.
fn has_pack_buffer() -> bool {
    L2_SLAB.try_with(|_| ()).is_ok()
}

/// How deep a product is at most that is made at once: what the kernels read then stays in the caches (a quarter to a third
/// faster at a depth of 512, where they would take it whole).
const DEPTH: usize = 256;

/// As [`gemm`], by the kernels of the `gemm` crates.
fn gemm_block<T: Gemm>(lhs: Matrix<'_, T>, rhs: Matrix<'_, T>, out: &mut [T], target: Output) {
    let (m, n, k) = (lhs.rows, rhs.cols, lhs.cols);
    // Once per panel, which costs nothing beside the product, and what the kernel is allowed to touch rests on it.
    assert_eq!((rhs.rows, out.len()), (k, m * n));
    let (left, right) = (lhs.extent(), rhs.extent());
    // The kernels want columns of the output to be contiguous. So they are given the transposed product
    // outᵀ = rhsᵀ lhsᵀ, which is the same numbers in the same places.
    let kernel = T::kernel();
    // The kernel was chosen for the instructions that this processor has. It reads element (i, j) of an operand at
    // `i * row_stride + j * col_stride` from its start, and writes the n × m elements of outᵀ at `i + j * n`.
    // SAFETY: the places read are in the slices that `extent` gave, whose lengths were checked; those written are the
    // elements of `out`, as asserted, which is borrowed exclusively, so it overlaps neither operand.
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

/// dst ← alpha·dst + beta·lhs·rhs for dst of m × n elements and lhs of m × k: the sizes m, n, k; dst with its column
/// and row stride and whether it is read; lhs and rhs, each with column and row stride; alpha and beta; whether to
/// conjugate dst, lhs, rhs; how many threads.
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
    /// The fastest kernel for this processor, chosen at the first call.
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
