//! Scattered addition, the counterpart of `gather`.
//!
//! y = x, then `y[.., indices[.., i, ..], ..] += source[.., i, ..]`. ∂L/∂x = ∂L/∂y; ∂L/∂source = `gather`(∂L/∂y,
//! indices). The op allocates one output, in which it sums, and saves the indices.

use super::index::{INDICES, expect_indices, scatter_add};
use super::{if_needed, is_numeric, same_dtype, supported};
use crate::autograd::apply;
use crate::backend::{Binary, kernels};
use crate::error::{Error, Result, ShapeRule};
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::tensor::Tensor;

#[derive(Debug)]
struct ScatterAdd {
    axis: usize,
}

impl Op for ScatterAdd {
    fn name(&self) -> &'static str {
        "scatter_add"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let (op, [x, indices, source]) = (ctx.op(), [inputs[0], inputs[1], inputs[2]]);
        expect_indices(op, "indices", indices, x)?;
        same_dtype(op, x, source)?;
        supported(op, x.dtype(), is_numeric)?;
        if indices.shape() != source.shape() {
            return Err(Error::ShapeMismatch {
                op,
                lhs: *indices.shape(),
                rhs: *source.shape(),
                rule: &ShapeRule::Same,
            });
        }
        let fits = indices.rank() == x.rank()
            && (0..x.rank()).all(|axis| axis == self.axis || indices.dims()[axis] <= x.dims()[axis]);
        if !fits {
            return Err(Error::ShapeMismatch { op, lhs: *x.shape(), rhs: *indices.shape(), rule: INDICES });
        }
        let mut out = ctx.output(x.shape(), x.dtype())?;
        scatter_add(ctx, source, indices, self.axis, &mut out)?;
        ctx.compute(kernels::Accumulate { f: Binary::Add, input: x.view(), acc: out.view_mut() })?;
        ctx.save(indices);
        Ok(out.finish())
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let to_source = if_needed(saved, 2, || grad.gather(self.axis as isize, saved.tensor(0)?))?;
        Ok(vec![Some(grad), None, to_source])
    }
}

/// # Scatter
impl Tensor {
    /// Adds each element of `source` to the element with its index (u8, i32, u32 or i64) along `axis`, as PyTorch's
    /// `scatter_add`.
    ///
    /// `indices` and `source` have one shape. Except along `axis`, it must not exceed this tensor's. Every device sums
    /// in the order of the indices and adds this tensor's element last.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let device = Device::cpu()?;
    /// let indices = Tensor::from_slice(&device, &[2i64, 0, 2], [3])?;
    /// let counts = Tensor::zeros(&device, [3])?.scatter_add(0, &indices, &Tensor::ones(&device, [3])?)?;
    /// assert_eq!(counts.to_vec::<f32>()?, [1.0, 0.0, 2.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`], [`Error::BadArgument`] unless `indices` is u8, i32, u32 or
    /// i64, [`Error::DTypeMismatch`], [`Error::UnsupportedDType`] for booleans, [`Error::IndexOutOfRange`] for an index
    /// outside of the axis, also a negative one, [`Error::Allocation`] if there is no memory.
    #[doc(alias("scatter_add_", "index_add"))]
    pub fn scatter_add(&self, axis: isize, indices: &Self, source: &Self) -> Result<Self> {
        let axis = self.shape().axis("scatter_add", axis)?;
        apply(ScatterAdd { axis }, &[self, indices, source])
    }
}
