//! An op of this project: the dot product of each row of one matrix with the same row of another.

use highwater::prelude::*;
use highwater::{Op, OpContext, Saved, Shape, apply};

/// Computes `out[i] = Σ left[i, j] · right[i, j]` for matrices of one shape, in f32 on the CPU.
///
/// `left.mul(right)?.sum(1)` computes the same, but needs memory for the products, which the gradient does not need.
///
/// # Errors
/// For other shapes and element types, for GPUs, and if there is no memory.
pub fn row_dot(left: &Tensor, right: &Tensor) -> Result<Tensor> {
    apply(RowDot, &[left, right])
}

#[derive(Debug)]
struct RowDot;

impl Op for RowDot {
    fn name(&self) -> &'static str {
        "row_dot"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let [left, right] = inputs else { return Err(unsupported("needs two matrices")) };
        let (rows, width) = match (left.dims(), right.dims()) {
            (&[rows, width], other) if other == [rows, width] => (rows, width),
            (left, right) => {
                return Err(unsupported(&format!("needs equal matrices, got {left:?} and {right:?}")));
            }
        };
        if (left.dtype(), right.dtype()) != (DType::F32, DType::F32) {
            return Err(unsupported("needs f32"));
        }
        // The gradient of each input is computed from the other input.
        ctx.save(left);
        ctx.save(right);
        let (left, right) = (left.contiguous()?, right.contiguous()?);
        let mut out = ctx.output(&Shape::new(&[rows])?, DType::F32)?;
        // A dry device has the same requests for memory, but no values.
        if !ctx.backend().is_dry() {
            let values = (left.view().host_contiguous::<f32>(), right.view().host_contiguous::<f32>());
            let ((Some(left), Some(right)), Some(out)) = (values, out.host_mut::<f32>()) else {
                return Err(unsupported("needs the CPU"));
            };
            let pairs = left.chunks(width.max(1)).zip(right.chunks(width.max(1)));
            for (out, (left, right)) in out.iter_mut().zip(pairs) {
                *out = left.iter().zip(right).map(|(left, right)| left * right).sum();
            }
        }
        Ok(out.finish())
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let grad = grad.unsqueeze(1)?;
        let gradient = |input: usize, other: usize| {
            saved.needs_grad(input).then(|| saved.tensor(other)?.mul(&grad)).transpose()
        };
        Ok(vec![gradient(0, 1)?, gradient(1, 0)?])
    }
}

fn unsupported(message: &str) -> Error {
    Error::Custom { op: "row_dot", message: message.to_owned() }
}
