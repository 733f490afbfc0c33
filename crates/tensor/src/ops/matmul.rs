//! The matrix product.
//!
//! - Shapes: `[.., m, k]` · `[.., k, n]` = `[.., m, n]`; leading axes broadcast as in NumPy. A vector is a row on the
//!   left and a column on the right; the result omits its extra axis.
//! - Y = A·B, ∂L/∂A = ∂L/∂Y·Bᵀ, ∂L/∂B = Aᵀ·∂L/∂Y, summed over broadcast leading axes. Transposed operands are views and
//!   are not copied.
//! - Operands of different element types are promoted to one ([`DType::promote`](crate::DType::promote)).
//! - Integers are multiplied and summed in their own type and wrap, as in NumPy and PyTorch. They have no gradient.
//! - The op allocates one output. It saves A for the gradient of B, and B for the gradient of A.

use super::{if_needed, is_numeric, promoted_factors, same_dtype, supported};
use crate::autograd::apply;
use crate::backend::kernels;
use crate::error::{Error, Result, ShapeRule};
use crate::layout::Layout;
use crate::op::Saved;
use crate::op::{Buffer, Op, OpContext};
use crate::shape::{DType, MAX_RANK, Shape};
use crate::storage::View;
use crate::tensor::Tensor;

const OP: &str = "matmul";

/// The op. 16-bit factors may have a product in f32.
#[derive(Debug)]
struct MatMul {
    /// The element type of the product.
    dtype: DType,
}

/// Allocates the workspace of a product's kernel with an output of type `out`, if it needs one.
pub(super) fn workspace(
    ctx: &OpContext<'_>,
    lhs: View<'_>,
    rhs: View<'_>,
    out: DType,
) -> Result<Option<Buffer>> {
    let dtype = lhs.dtype();
    ctx.workspace(kernels::MatMulWorkspace { lhs: lhs.layout(), rhs: rhs.layout(), dtype, out })
}

impl Op for MatMul {
    fn name(&self) -> &'static str {
        OP
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let [lhs, rhs] = [inputs[0], inputs[1]];
        let operands = Operands::new(lhs, rhs)?;
        let mut out = ctx.output(&operands.product_shape()?, self.dtype)?;
        let left = operands.lhs.broadcast_to(OP, &operands.stack([operands.m, operands.k])?)?;
        let right = operands.rhs.broadcast_to(OP, &operands.stack([operands.k, operands.n])?)?;
        let (lhs_view, rhs_view) = (lhs.view().with_layout(&left), rhs.view().with_layout(&right));
        let mut workspace = workspace(ctx, lhs_view, rhs_view, self.dtype)?;
        ctx.compute(kernels::MatMul {
            bias: None,
            lhs: lhs_view,
            rhs: rhs_view,
            activation: None,
            workspace: workspace.as_mut().map(Buffer::view_mut),
            out: out.view_mut(),
        })?;
        drop(workspace);
        if rhs.requires_grad() {
            ctx.save(lhs);
        }
        if lhs.requires_grad() {
            ctx.save(rhs);
        }
        let product = out.finish();
        if !operands.lhs_is_row && !operands.rhs_is_column {
            return Ok(product);
        }
        let layout = operands.without_vector_axes(*product.layout());
        Ok(product.into_layout(layout))
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let [lhs_shape, rhs_shape] = [saved.input_shape(0), saved.input_shape(1)];
        let (lhs_is_row, rhs_is_column) = (lhs_shape.rank() == 1, rhs_shape.rank() == 1);
        // Vectors become rows and columns.
        let row = |x: &Tensor| if lhs_is_row { x.unsqueeze(-2) } else { Ok(x.clone()) };
        let column = |x: &Tensor| if rhs_is_column { x.unsqueeze(-1) } else { Ok(x.clone()) };
        // The kernel has factors of one type.
        let grad = row(&column(&grad.to_dtype(saved.input_dtype(0))?)?)?;
        let to_lhs = if_needed(saved, 0, || {
            let lhs_was_saved = saved.needs_grad(1);
            let rhs = column(saved.tensor(usize::from(lhs_was_saved))?)?;
            grad.matmul_to(&rhs.t()?, saved.gradient_dtype(0))?.sum_to(lhs_shape)
        })?;
        let to_rhs = if_needed(saved, 1, || {
            let product = row(saved.tensor(0)?)?.t()?.matmul_to(&grad, saved.gradient_dtype(1))?;
            let product = if rhs_is_column { product.squeeze(-1)? } else { product };
            product.sum_to(rhs_shape)
        })?;
        Ok(vec![to_lhs, to_rhs])
    }
}

/// A product of two tensors as stacks of matrices.
struct Operands {
    lhs: Layout,
    rhs: Layout,
    /// The leading axes of the result.
    leading: Shape,
    m: usize,
    k: usize,
    n: usize,
    lhs_is_row: bool,
    rhs_is_column: bool,
}

impl Operands {
    /// # Errors
    /// For unsupported types, and for shapes that do not match.
    fn new(lhs: &Tensor, rhs: &Tensor) -> Result<Self> {
        same_dtype(OP, lhs, rhs)?;
        supported(OP, lhs.dtype(), is_numeric)?;
        for operand in [lhs, rhs] {
            if operand.rank() == 0 {
                let expected = "operands with at least one axis";
                return Err(Error::BadRank { op: OP, expected, shape: *operand.shape() });
            }
        }
        let (lhs_shape, rhs_shape) = (lhs.shape(), rhs.shape());
        let mismatch =
            || Error::ShapeMismatch { op: OP, lhs: *lhs_shape, rhs: *rhs_shape, rule: &ShapeRule::Product };
        let (lhs_is_row, rhs_is_column) = (lhs.rank() == 1, rhs.rank() == 1);
        let lhs = if lhs_is_row { lhs.layout().with_axis(0)? } else { *lhs.layout() };
        let rhs = if rhs_is_column { rhs.layout().with_axis(1)? } else { *rhs.layout() };
        let ([.., m, k], [.., inner, n]) = (lhs.shape().dims(), rhs.shape().dims()) else {
            return Err(mismatch());
        };
        if k != inner {
            return Err(mismatch());
        }
        let leading = |layout: &Layout| Shape::new(&layout.shape().dims()[..layout.shape().rank() - 2]);
        let leading = Shape::broadcast(OP, &leading(&lhs)?, &leading(&rhs)?).map_err(|_| mismatch())?;
        let (m, k, n) = (*m, *k, *n);
        Ok(Self { lhs, rhs, leading, m, k, n, lhs_is_row, rhs_is_column })
    }

    /// Returns the shape of a stack: the leading axes, then those of a matrix.
    fn stack(&self, matrix: [usize; 2]) -> Result<Shape> {
        // The rank is at most MAX_RANK: the leading axes come from operands that have two more axes.
        let (mut dims, rank) = ([0; MAX_RANK], self.leading.rank());
        dims[..rank].copy_from_slice(self.leading.dims());
        dims[rank..rank + 2].copy_from_slice(&matrix);
        Ok(Shape::new(&dims[..rank + 2])?)
    }

    fn product_shape(&self) -> Result<Shape> {
        self.stack([self.m, self.n])
    }

    /// Returns the result's layout without the axes that vectors were given.
    fn without_vector_axes(&self, mut layout: Layout) -> Layout {
        if self.rhs_is_column {
            layout = layout.without_axis(layout.shape().rank() - 1);
        }
        if self.lhs_is_row {
            layout = layout.without_axis(self.leading.rank());
        }
        layout
    }
}

/// # Matrix products
impl Tensor {
    /// Matrix product, as NumPy's `matmul`.
    ///
    /// Shapes: `[.., m, k]` times `[.., k, n]` gives `[.., m, n]`; leading axes broadcast. Vectors are rows on the left
    /// and columns on the right. Integers wrap in their own type. Operands of different types are promoted (see
    /// [`DType`](crate::DType)).
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let device = Device::cpu()?;
    /// let a = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
    /// let x = Tensor::from_slice(&device, &[1.0f32, 10.0], [2])?;
    /// assert_eq!(a.matmul(&x)?.to_vec::<f32>()?, [21.0, 43.0]);
    /// assert_eq!(x.matmul(&a)?.to_vec::<f32>()?, [31.0, 42.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if the inner sizes differ or leading axes do not broadcast, [`Error::BadRank`] for a
    /// scalar, [`Error::UnsupportedDType`] for booleans, [`Error::Allocation`] if there is no memory.
    #[doc(alias("mm", "bmm", "dot"))]
    pub fn matmul(&self, rhs: &Self) -> Result<Self> {
        if let Some([lhs, rhs]) = promoted_factors(self, rhs)? {
            return lhs.matmul(&rhs);
        }
        match self.matmul_of_rows(rhs, self.dtype())? {
            Some(product) => Ok(product),
            None => apply(MatMul { dtype: self.dtype() }, &[self, rhs]),
        }
    }

    /// The product of tensors of one element type in `dtype`: their type, or f32 for 16-bit floats.
    fn matmul_to(&self, rhs: &Self, dtype: DType) -> Result<Self> {
        match self.matmul_of_rows(rhs, dtype)? {
            Some(product) => Ok(product),
            None => apply(MatMul { dtype }, &[self, rhs]),
        }
    }

    /// The product of a stack of matrices with one matrix or vector, as a single product with more rows; `None` for other
    /// operands. Its backward is then a single product too, instead of a sum over a stack, and rounds 16-bit floats once.
    fn matmul_of_rows(&self, rhs: &Self, dtype: DType) -> Result<Option<Self>> {
        let is_stack = self.rank() > 2 && matches!(rhs.rank(), 1 | 2) && self.layout().is_contiguous();
        if !is_stack || self.device() != rhs.device() {
            return Ok(None);
        }
        let operands = Operands::new(self, rhs)?;
        // The number of rows without elements may overflow.
        let rows = operands.leading.checked_elements().and_then(|count| count.checked_mul(operands.m));
        let Some(rows) = rows else { return Ok(None) };
        let product = self.reshape([rows, operands.k])?.matmul_to(rhs, dtype)?;
        let layout = operands.without_vector_axes(Layout::row_major(&operands.product_shape()?));
        product.reshape(*layout.shape()).map(Some)
    }
}

#[cfg(test)]
#[path = "../../tests/frames/mod.rs"]
mod frames;

#[cfg(test)]
mod tests {
    use std::backtrace::Backtrace;

    use super::*;
    use crate::device::{Device, Runtime};
    use highwater_kernels::backend::cpu::GEMM_CALL;

    fn cpu() -> Device {
        Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
    }

    #[test]
    fn the_result_has_the_shape_that_numpy_gives() {
        let device = cpu();
        let cases: &[(&[usize], &[usize], &[usize])] = &[
            (&[2, 3], &[3, 4], &[2, 4]),
            (&[3], &[3, 4], &[4]),
            (&[2, 3], &[3], &[2]),
            (&[3], &[3], &[]),
            (&[5, 2, 3], &[3, 4], &[5, 2, 4]),
            (&[5, 1, 2, 3], &[6, 3, 4], &[5, 6, 2, 4]),
            (&[5, 2, 3], &[3], &[5, 2]),
            (&[3], &[5, 3, 4], &[5, 4]),
            (&[0, 2, 3], &[3, 0], &[0, 2, 0]),
        ];
        for &(lhs, rhs, expected) in cases {
            let product = Tensor::ones(&device, lhs).unwrap().matmul(&Tensor::ones(&device, rhs).unwrap());
            let product = product.unwrap();
            assert_eq!(product.dims(), expected, "{lhs:?} · {rhs:?}");
            assert!(product.to_vec::<f32>().unwrap().iter().all(|&value| value == 3.0));
        }
    }

    #[test]
    fn a_product_over_no_elements_is_zero() {
        let device = cpu();
        let product = Tensor::ones(&device, [2, 0]).unwrap().matmul(&Tensor::ones(&device, [0, 3]).unwrap());
        assert_eq!(product.unwrap().to_vec::<f32>().unwrap(), [0.0; 6]);
    }

    #[test]
    fn empty_operands_of_huge_axes_do_not_overflow() {
        const HUGE: usize = 1 << 40;
        let device = cpu();
        let product = |lhs: &[usize], rhs: &[usize]| {
            Tensor::zeros(&device, lhs).unwrap().matmul(&Tensor::zeros(&device, rhs).unwrap())
        };
        assert_eq!(product(&[0, HUGE, 1], &[0, 1, HUGE]).unwrap().dims(), [0, HUGE, HUGE]);
        assert_eq!(product(&[HUGE, HUGE, 0], &[0, 0]).unwrap().dims(), [HUGE, HUGE, 0]);
        let error = product(&[HUGE, HUGE, 0], &[0, 3]).unwrap_err();
        assert!(matches!(error, Error::TooManyElements { op: "matmul", .. }), "{error}");
    }

    #[test]
    fn shapes_that_do_not_fit_are_named_as_they_were_given() {
        let device = cpu();
        let leading = "the axes before the last two must broadcast";
        let cases: &[(&[usize], &[usize], &str)] = &[
            (&[2, 3], &[4, 5], "the inner sizes 3 and 4 must be equal"),
            (&[3], &[4, 3], "the inner sizes 3 and 4 must be equal"),
            (&[2, 3], &[2], "the inner sizes 3 and 2 must be equal"),
            (&[2, 2, 3], &[3, 3, 4], leading),
            (&[2, 2, 3], &[4, 3], "the inner sizes 3 and 4 must be equal"),
        ];
        for &(lhs, rhs, rule) in cases {
            let error = Tensor::ones(&device, lhs).unwrap().matmul(&Tensor::ones(&device, rhs).unwrap());
            let expected = format!("matmul: shapes {lhs:?} and {rhs:?} do not match: {rule}");
            assert_eq!(error.unwrap_err().to_string(), expected);
        }
        let scalar = Tensor::scalar(&device, 1.0f32).unwrap();
        assert!(matches!(scalar.matmul(&scalar), Err(Error::BadRank { op: "matmul", .. })));
    }

    #[test]
    fn a_stack_times_a_matrix_gets_its_gradient_from_one_product() {
        let device = cpu();
        let x = Tensor::ones(&device, [64, 8, 16]).unwrap();
        let w = Tensor::ones(&device, [16, 32]).unwrap().requiring_grad().unwrap();
        let loss = x.matmul(&w).unwrap().sum_all().unwrap();
        let before = device.default_allocator().unwrap().stats();
        device.default_allocator().unwrap().clear_stats();
        let gradients = loss.backward().unwrap();
        assert_eq!(gradients.get(&w).unwrap().to_vec::<f32>().unwrap(), [512.0; 16 * 32]);
        let extra = device.default_allocator().unwrap().stats().peak_bytes_in_use - before.bytes_in_use;
        // The gradient of the product, repeated from one number, is made whole to be folded; a stack of gradients of
        // the matrix would be twice that.
        assert!(extra < 2 * 64 * 8 * 32 * 4, "{extra}");
    }

    #[test]
    fn a_product_reaches_gemm_in_eight_calls() {
        let device = cpu();
        let x = Tensor::ones(&device, [64, 64]).unwrap();
        GEMM_CALL.set(Some(Backtrace::disabled()));
        x.matmul(&x).unwrap();
        let calls = frames::calls(&GEMM_CALL.take().unwrap(), "matmul in ops/matmul.rs");
        assert!((4..=8).contains(&calls.len()), "{calls:#?}");
    }
}
