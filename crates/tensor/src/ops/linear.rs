//! The linear map x·W + b in one op.
//!
//! - Shapes: `[.., k]` · `[k, n]` + `[n]` = `[.., n]`.
//! - ∂L/∂x = ∂L/∂y·Wᵀ, ∂L/∂W = xᵀ·∂L/∂y, ∂L/∂b = ∂L/∂y summed over all rows.
//! - One output is taken, whose rows start as b. Saves W for the gradient of x, and x for that of W.

use super::axes::AxisSet;
use super::matmul::multiply;
use super::{reduce, same_dtype, supported, wanted};
use crate::autograd::Saved;
use crate::backend::Reduce;
use crate::context::OpContext;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::op::{Op, apply};
use crate::shape::Shape;
use crate::storage::View;
use crate::tensor::Tensor;

const OP: &str = "linear";

/// On a matrix of rows, W, and b.
#[derive(Debug)]
struct Linear;

impl Op for Linear {
    fn name(&self) -> &'static str {
        OP
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let [x, weight, bias] = [inputs[0], inputs[1], inputs[2]];
        let shape = Shape::new(&[x.dims()[0], weight.dims()[1]])?;
        let mut out = ctx.output(&shape, x.dtype())?;
        multiply(ctx, Some(bias.view()), x.view(), weight.view(), &mut out)?;
        if weight.requires_grad() {
            ctx.save(x);
        }
        if x.requires_grad() {
            ctx.save(weight);
        }
        Ok(out.finish())
    }

    // By kernels alone, not by other ops: a small model spends its steps on beginning ops.
    fn backward(&self, ctx: &OpContext<'_>, saved: &Saved, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let product = |lhs: View<'_>, rhs: View<'_>| {
            let shape = Shape::new(&[lhs.layout().shape()[0], rhs.layout().shape()[1]])?;
            let mut out = ctx.output(&shape, grad.dtype())?;
            multiply(ctx, None, lhs, rhs, &mut out)?;
            Ok(out.finish())
        };
        let to_x = wanted(saved, 0, || {
            let x_was_saved = saved.needs_grad(1);
            let weight = saved.tensor(usize::from(x_was_saved))?;
            product(grad.view(), weight.view().with_layout(&transposed(weight)?))
        })?;
        let to_weight = wanted(saved, 1, || {
            let x = saved.tensor(0)?;
            product(x.view().with_layout(&transposed(x)?), grad.view())
        })?;
        let to_bias = wanted(saved, 2, || {
            let mut rows = AxisSet::none(2);
            rows.insert(0);
            let mut out = ctx.output(&rows.folded_shape(grad.shape()), grad.dtype())?;
            reduce::fold(ctx, Reduce::Sum, grad.view(), &rows, &mut out)?;
            reduce::reshaped(out.finish(), saved.input_shape(2))
        })?;
        Ok(vec![to_x, to_weight, to_bias])
    }
}

/// A matrix, seen with its axes exchanged.
fn transposed(matrix: &Tensor) -> Result<Layout> {
    matrix.layout().permuted(OP, &[1, 0])
}

impl Tensor {
    /// This tensor's rows, along its last axis, times `weight` of shape `[inputs, outputs]`, plus `bias` of shape
    /// `[outputs]`: as `matmul` and `add`, without the product in between.
    ///
    /// ```
    /// use highwater_tensor::{Device, Tensor};
    /// let device = Device::cpu()?;
    /// let weight = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
    /// let bias = Tensor::from_slice(&device, &[0.5f32, -0.5], [2])?;
    /// let x = Tensor::ones(&device, [1, 2])?;
    /// assert_eq!(x.linear(&weight, &bias)?.to_vec::<f32>()?, [4.5, 5.5]);
    /// # Ok::<(), highwater_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadRank`] for a scalar, and unless `weight` is a matrix and `bias` a vector; [`Error::ShapeMismatch`] if
    /// sizes do not fit; [`Error::DTypeMismatch`], [`Error::UnsupportedDType`] except for floats, [`Error::Allocation`] if
    /// there is no memory.
    pub fn linear(&self, weight: &Self, bias: &Self) -> Result<Self> {
        same_dtype(OP, self, weight)?;
        supported(OP, self.dtype(), DType::is_float)?;
        let of_rank = |tensor: &Self, rank: usize, expected: &'static str| {
            let fits = tensor.rank() == rank;
            if fits { Ok(()) } else { Err(Error::BadRank { op: OP, expected, shape: *tensor.shape() }) }
        };
        of_rank(weight, 2, "a weight of 2 axes")?;
        of_rank(bias, 1, "a bias of 1 axis")?;
        let [leading @ .., inputs] = self.dims() else {
            return Err(Error::BadRank { op: OP, expected: "at least one axis", shape: *self.shape() });
        };
        let mismatch =
            |lhs: &Self, rhs: &Self| Error::ShapeMismatch { op: OP, lhs: *lhs.shape(), rhs: *rhs.shape() };
        let outputs = weight.dims()[1];
        if *inputs != weight.dims()[0] {
            return Err(mismatch(self, weight));
        }
        if outputs != bias.dims()[0] {
            return Err(mismatch(weight, bias));
        }
        // Rows of no elements may be more than can be counted. Rows under several axes that do not lie in order are
        // multiplied as they lie, as a stack of matrices, rather than copied. And a bias of another type makes the sum one
        // of the type that both promote to.
        match Shape::new(leading)?.checked_elements() {
            Some(rows)
                if bias.dtype() == self.dtype() && (leading.len() == 1 || self.layout().is_contiguous()) =>
            {
                if leading.len() == 1 {
                    return apply(Linear, &[self, weight, bias]);
                }
                let result = apply(Linear, &[&self.reshape([rows, *inputs])?, weight, bias])?;
                result.reshape([leading, &[outputs]].concat())
            }
            _ => self.matmul(weight)?.add(bias),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::runtime::Runtime;

    fn cpu() -> Device {
        Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
    }

    fn counting(device: &Device, dims: &[usize]) -> Tensor {
        let numbers = Tensor::arange(device, dims.iter().product::<usize>()).unwrap();
        numbers.to_dtype(DType::F32).unwrap().reshape(dims).unwrap()
    }

    #[test]
    fn it_is_a_product_and_a_sum_for_rows_under_any_axes() {
        let device = cpu();
        let (weight, bias) = (counting(&device, &[3, 5]), counting(&device, &[5]));
        for dims in [&[3][..], &[2, 3], &[4, 2, 3], &[0, 3], &[2, 1, 2, 3]] {
            let x = counting(&device, dims);
            let expected = x.matmul(&weight).unwrap().add(&bias).unwrap();
            let result = x.linear(&weight, &bias).unwrap();
            assert_eq!(result.dims(), expected.dims());
            assert_eq!(result.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap(), "{dims:?}");
        }
        let turned = counting(&device, &[3, 2, 4]).permute(&[2, 1, 0]).unwrap();
        let expected = turned.contiguous().unwrap().linear(&weight, &bias).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(turned.linear(&weight, &bias).unwrap().to_vec::<f32>().unwrap(), expected);
    }

    #[test]
    fn the_product_takes_no_memory_beside_the_result() {
        let device = cpu();
        let (x, weight) = (counting(&device, &[64, 8, 16]), counting(&device, &[16, 32]));
        let bias = counting(&device, &[32]);
        let memory = device.default_allocator().unwrap();
        memory.clear_stats();
        let before = memory.stats().bytes_in_use;
        let result = x.linear(&weight, &bias).unwrap();
        let stats = memory.stats();
        assert_eq!(stats.peak_bytes_in_use - before, (result.elements() * 4) as u64);
    }

    #[test]
    fn operands_that_do_not_fit_are_named() {
        let device = cpu();
        let of = |dims: &[usize]| Tensor::ones(&device, dims).unwrap();
        let message = |x: &[usize], weight: &[usize], bias: &[usize]| {
            of(x).linear(&of(weight), &of(bias)).unwrap_err().to_string()
        };
        assert_eq!(message(&[2, 3], &[4, 5], &[5]), "linear: shapes [2, 3] and [4, 5] do not match");
        assert_eq!(message(&[2, 3], &[3, 5], &[4]), "linear: shapes [3, 5] and [4] do not match");
        for (x, weight, bias) in
            [(&[][..], &[3, 5][..], &[5][..]), (&[2, 3], &[3], &[5]), (&[2, 3], &[3, 5], &[1, 5])]
        {
            let error = of(x).linear(&of(weight), &of(bias)).unwrap_err();
            assert!(matches!(error, Error::BadRank { op: OP, .. }), "{error}");
        }
        let integers = of(&[2, 3]).to_dtype(DType::I64).unwrap();
        let error = integers.linear(&of(&[3, 5]), &of(&[5])).unwrap_err();
        assert!(matches!(error, Error::DTypeMismatch { op: OP, .. }), "{error}");
    }

    #[test]
    fn a_wider_bias_widens_the_sum() {
        let device = cpu();
        let (x, weight) = (counting(&device, &[2, 3]), counting(&device, &[3, 5]));
        let bias = counting(&device, &[5]).to_dtype(DType::F64).unwrap();
        assert_eq!(x.linear(&weight, &bias).unwrap().dtype(), DType::F64);
    }
}
