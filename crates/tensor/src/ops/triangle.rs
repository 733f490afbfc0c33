//! Triangles of matrices: `tril` and `triu`.
//!
//! `tril`: `y[.., i, j] = x[.., i, j]` for j - i ≤ diagonal, else 0; `triu`: for j - i ≥ diagonal. ∂L/∂x is the same
//! triangle of ∂L/∂y. The op allocates one output, and a boolean per element of one matrix. Nothing is saved.

use super::create::constant_like;
use crate::autograd::apply;
use crate::backend::{Compare, kernels};
use crate::error::{Error, Result};
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::shape::{DType, Scalar, Shape};
use crate::tensor::Tensor;

#[derive(Clone, Copy, Debug)]
struct Triangle {
    lower: bool,
    diagonal: isize,
}

impl Triangle {
    /// Returns a mask of one matrix: whether j - i is at most (`tril`) or at least (`triu`) the diagonal.
    fn keeps(&self, ctx: &OpContext<'_>, rows: usize, columns: usize) -> Result<Tensor> {
        let (op, shape) = (ctx.op(), Shape::new(&[rows, columns])?);
        // Diagonals outside of the matrix have the same effect as its corners. Clamping prevents an overflow.
        let corners = [rows, columns].map(|size| i64::try_from(size).unwrap_or(i64::MAX));
        let diagonal = (self.diagonal as i64).clamp(-corners[0], corners[1]);
        let (mut ends, mut places) = (
            ctx.temp(&Shape::new(&[rows, 1])?, DType::I64)?,
            ctx.temp(&Shape::new(&[columns])?, DType::I64)?,
        );
        let step = Scalar::Int(1);
        ctx.compute(kernels::Arange { start: Scalar::Int(diagonal), step, out: ends.view_mut() })?;
        ctx.compute(kernels::Arange { start: Scalar::Int(0), step, out: places.view_mut() })?;
        let mut keeps = ctx.temp(&shape, DType::Bool)?;
        let across = places.view().layout().broadcast_to(op, &shape)?;
        let down = ends.view().layout().broadcast_to(op, &shape)?;
        ctx.compute(kernels::Comparison {
            f: if self.lower { Compare::Le } else { Compare::Ge },
            lhs: places.view().with_layout(&across),
            rhs: ends.view().with_layout(&down),
            out: keeps.view_mut(),
        })?;
        Ok(keeps.finish())
    }
}

impl Op for Triangle {
    fn name(&self) -> &'static str {
        if self.lower { "tril" } else { "triu" }
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        let [.., rows, columns] = *x.dims() else {
            let expected = "at least two axes";
            return Err(Error::BadRank { op: ctx.op(), expected, shape: *x.shape() });
        };
        self.keeps(ctx, rows, columns)?.where_(x, &constant_like(x, 0)?)
    }

    fn backward(&self, _: &OpContext<'_>, _: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(apply(*self, &[&grad])?)])
    }
}

/// # Triangles
impl Tensor {
    /// Lower triangle of a matrix, or of each matrix of a stack: 0 above the diagonal. `diagonal` counts upwards from
    /// the main diagonal.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let ones = Tensor::ones(&Device::cpu()?, [2, 3])?;
    /// assert_eq!(ones.tril(0)?.to_vec::<f32>()?, [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
    /// assert_eq!(ones.triu(1)?.to_vec::<f32>()?, [0.0, 1.0, 1.0, 0.0, 0.0, 1.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadRank`] for fewer than two axes; [`Error::Allocation`] if there is no memory.
    pub fn tril(&self, diagonal: isize) -> Result<Self> {
        apply(Triangle { lower: true, diagonal }, &[self])
    }

    /// Upper triangle of a matrix, or of each matrix of a stack: 0 below the diagonal. `diagonal` counts upwards from
    /// the main diagonal.
    ///
    /// # Errors
    /// See [`Tensor::tril`].
    pub fn triu(&self, diagonal: isize) -> Result<Self> {
        apply(Triangle { lower: false, diagonal }, &[self])
    }
}
