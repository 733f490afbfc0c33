//! The linear map x·W + b as one op, optionally with an activation: y = f(x·W + b).
//!
//! - Shapes: `[.., k]` · `[k, n]` + `[n]` = `[.., n]`.
//! - With g = ∂L/∂y, times f' at x·W + b: ∂L/∂x = g·Wᵀ, ∂L/∂W = xᵀ·g, ∂L/∂b = g summed over all rows.
//! - The op allocates one output, in which it sums the products and computes f. It saves W for the gradient of x, and x
//!   for the gradient of W. For f' it saves y; if f' needs x·W + b, it allocates and saves that too.

use super::axes::AxisSet;
use super::{if_needed, is_numeric, matmul, promote, promoted_factors, reduce, supported};
use crate::autograd::apply;
use crate::backend::{Activation, Reduce, kernels};
use crate::error::{Error, Result, ShapeRule};
use crate::op::Saved;
use crate::op::{Buffer, Op, OpContext};
use crate::shape::Shape;
use crate::storage::View;
use crate::tensor::Tensor;

const OP: &str = "linear";

/// The op on a matrix of rows, W, and b.
#[derive(Debug)]
struct Linear {
    activation: Option<Activation>,
}

impl Op for Linear {
    fn name(&self) -> &'static str {
        match self.activation {
            None => OP,
            Some(Activation::Relu) => "linear_relu",
            Some(Activation::Gelu) => "linear_gelu",
            Some(Activation::GeluTanh) => "linear_gelu_tanh",
            Some(Activation::Silu) => "linear_silu",
        }
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let [x, weight, bias] = [inputs[0], inputs[1], inputs[2]];
        let shape = Shape::matrix(x.dims()[0], weight.dims()[1]);
        let reads_output = self.activation.is_some_and(|f| f.function().grad_reads_output());
        let reads_sums = self.activation.is_some() && !reads_output && ctx.is_recording();
        let mut out =
            if reads_output { ctx.output_saved(&shape, x.dtype())? } else { ctx.output(&shape, x.dtype())? };
        let mut sums = reads_sums.then(|| ctx.temp_saved(&shape, x.dtype())).transpose()?;
        let arguments = sums.as_mut().map(Buffer::view_mut);
        let activation = self.activation.map(|function| kernels::Activated { function, arguments });
        let mut workspace = matmul::workspace(ctx, x.view(), weight.view(), x.dtype())?;
        ctx.compute(kernels::MatMul {
            bias: Some(bias.view()),
            lhs: x.view(),
            rhs: weight.view(),
            activation,
            workspace: workspace.as_mut().map(Buffer::view_mut),
            out: out.view_mut(),
        })?;
        drop(workspace);
        if weight.requires_grad() {
            ctx.save(x);
        }
        if x.requires_grad() {
            ctx.save(weight);
        }
        let y = out.finish();
        match sums {
            Some(sums) => ctx.save(&sums.finish()),
            None if reads_output => ctx.save(&y),
            None => {}
        }
        Ok(y)
    }

    fn backward(
        &self,
        ctx: &OpContext<'_>,
        saved: &mut Saved,
        mut grad: Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        if let Some(f) = self.activation {
            // In place, unless another handle shares the gradient.
            match grad.view_mut() {
                Some(out) => {
                    let (f, saved) = (f.function(), before_activation(saved)?.view());
                    ctx.compute(kernels::MapGrad { f, saved, grad: None, out })?;
                }
                None => grad = of_sums(ctx, f, saved, &grad)?,
            }
            drop(saved.take_last());
        }
        self.gradients(ctx, saved, &grad)
    }
}

/// Returns the input of f', which is saved last, after the inputs of the product's gradients.
fn before_activation(saved: &Saved) -> Result<&Tensor> {
    saved.tensor(usize::from(saved.needs_grad(0)) + usize::from(saved.needs_grad(1)))
}

/// Computes the gradient of the sums from the gradient of the activation's result.
fn of_sums(ctx: &OpContext<'_>, f: Activation, saved: &Saved, grad: &Tensor) -> Result<Tensor> {
    let mut out = ctx.temp(grad.shape(), grad.dtype())?;
    let (f, saved) = (f.function(), before_activation(saved)?.view());
    ctx.compute(kernels::MapGrad { f, saved, grad: Some(grad.view()), out: out.view_mut() })?;
    Ok(out.finish())
}

impl Linear {
    /// Computes the gradients of x, W and b from the gradient of the sums.
    fn gradients(&self, ctx: &OpContext<'_>, saved: &Saved, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let product = |input: usize, lhs: View<'_>, rhs: View<'_>| {
            let shape = Shape::matrix(lhs.layout().shape()[0], rhs.layout().shape()[1]);
            let dtype = saved.gradient_dtype(input);
            let mut out = ctx.gradient(input, &shape, dtype)?;
            let mut workspace = matmul::workspace(ctx, lhs, rhs, dtype)?;
            ctx.compute(kernels::MatMul {
                bias: None,
                lhs,
                rhs,
                activation: None,
                workspace: workspace.as_mut().map(Buffer::view_mut),
                out: out.view_mut(),
            })?;
            Ok(out.finish())
        };
        let to_x = if_needed(saved, 0, || {
            let x_was_saved = saved.needs_grad(1);
            let weight = saved.tensor(usize::from(x_was_saved))?;
            product(0, grad.view(), weight.view().with_layout(&weight.layout().transposed()))
        })?;
        let to_weight = if_needed(saved, 1, || {
            let x = saved.tensor(0)?;
            product(1, x.view().with_layout(&x.layout().transposed()), grad.view())
        })?;
        let to_bias = if_needed(saved, 2, || {
            let mut rows = AxisSet::none(2);
            rows.insert(0);
            let out = ctx.gradient(2, &saved.input_shape(2), saved.gradient_dtype(2))?;
            reduce::share_into(ctx, (Reduce::Sum, 1.0), grad.view(), &rows, out)
        })?;
        Ok(vec![to_x, to_weight, to_bias])
    }
}

/// # Linear map
impl Tensor {
    /// Linear map x·W + b over the last axis, in one op without an intermediate product.
    ///
    /// Shapes: x (`self`) `[.., inputs]`, `weight` `[inputs, outputs]`, `bias` `[outputs]`. PyTorch's weight is the
    /// transpose. Integers wrap. Operands of different types are promoted (see [`DType`](crate::DType)).
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let device = Device::cpu()?;
    /// let weight = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
    /// let bias = Tensor::from_slice(&device, &[0.5f32, -0.5], [2])?;
    /// let x = Tensor::ones(&device, [1, 2])?;
    /// assert_eq!(x.linear(&weight, &bias)?.to_vec::<f32>()?, [4.5, 5.5]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadRank`] for a scalar, and unless `weight` has two axes and `bias` has one; [`Error::ShapeMismatch`]
    /// if sizes differ; [`Error::UnsupportedDType`] for booleans, [`Error::Allocation`] if there is no memory.
    #[doc(alias("addmm"))]
    pub fn linear(&self, weight: &Self, bias: &Self) -> Result<Self> {
        self.linear_with(weight, bias, None)
    }

    /// Linear map followed by an activation, in one op: f(x·W + b). The result equals [`linear`](Self::linear) followed
    /// by the activation.
    ///
    /// The activation runs in place if no gradient needs the sums. On a GPU it runs in the pass that adds the bias.
    ///
    /// ```
    /// use highwater::{Activation, Device, Tensor};
    /// let device = Device::cpu()?;
    /// let weight = Tensor::from_slice(&device, &[1.0f32, -2.0], [1, 2])?;
    /// let y = Tensor::ones(&device, [1, 1])?.linear_activation(&weight, &Tensor::ones(&device, [2])?, Activation::Relu)?;
    /// assert_eq!(y.to_vec::<f32>()?, [2.0, 0.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`linear`](Self::linear); [`Error::UnsupportedDType`] unless the elements are floats.
    pub fn linear_activation(&self, weight: &Self, bias: &Self, activation: Activation) -> Result<Self> {
        self.linear_with(weight, bias, Some(activation))
    }

    fn linear_with(&self, weight: &Self, bias: &Self, activation: Option<Activation>) -> Result<Self> {
        if let Some([x, weight]) = promoted_factors(self, weight)? {
            return x.linear_with(&weight, bias, activation);
        }
        // A narrower bias is converted. A wider bias promotes the sum, but not the product.
        if bias.dtype() != self.dtype() && promote(bias.dtype(), self.dtype()) == self.dtype() {
            return self.linear_with(weight, &bias.to_dtype(self.dtype())?, activation);
        }
        supported(OP, self.dtype(), |dtype| dtype.is_float() || activation.is_none() && is_numeric(dtype))?;
        let of_rank = |tensor: &Self, rank: usize, expected: &'static str| {
            let fits = tensor.rank() == rank;
            if fits { Ok(()) } else { Err(Error::BadRank { op: OP, expected, shape: *tensor.shape() }) }
        };
        of_rank(weight, 2, "a weight of 2 axes")?;
        of_rank(bias, 1, "a bias of 1 axis")?;
        let [leading @ .., inputs] = self.dims() else {
            return Err(Error::BadRank { op: OP, expected: "at least one axis", shape: *self.shape() });
        };
        let mismatch = |lhs: &Self, rhs: &Self, rule| Error::ShapeMismatch {
            op: OP,
            lhs: *lhs.shape(),
            rhs: *rhs.shape(),
            rule,
        };
        let outputs = weight.dims()[1];
        if *inputs != weight.dims()[0] {
            return Err(mismatch(self, weight, &ShapeRule::Product));
        }
        if outputs != bias.dims()[0] {
            let rule = &ShapeRule::Other("the bias must have one element per column of the weight");
            return Err(mismatch(weight, bias, rule));
        }
        // The number of rows without elements may overflow. Rows over several non-contiguous axes are multiplied as a
        // stack of matrices, without a copy. A bias of another type promotes the sum.
        let rows = match leading {
            [rows] => Some(*rows),
            _ => Shape::new(leading)?.checked_elements(),
        };
        match rows {
            Some(rows)
                if bias.dtype() == self.dtype() && (leading.len() == 1 || self.layout().is_contiguous()) =>
            {
                if leading.len() == 1 {
                    return apply(Linear { activation }, &[self, weight, bias]);
                }
                let rows = self.reshape([rows, *inputs])?;
                let result = apply(Linear { activation }, &[&rows, weight, bias])?;
                result.reshape([leading, &[outputs]].concat())
            }
            _ => self.matmul(weight)?.add(bias)?.activated(activation),
        }
    }

    /// Applies an optional activation.
    ///
    /// # Errors
    /// See the op of the activation.
    pub fn activated(self, activation: Option<Activation>) -> Result<Self> {
        match activation {
            None => Ok(self),
            Some(Activation::Relu) => self.relu(),
            Some(Activation::Gelu) => self.gelu(),
            Some(Activation::GeluTanh) => self.gelu_tanh(),
            Some(Activation::Silu) => self.silu(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, Runtime};
    use crate::op::no_grad;
    use crate::shape::DType;
    use crate::tensor::Rng;

    fn cpu() -> Device {
        Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
    }

    fn counting(device: &Device, dims: &[usize]) -> Tensor {
        let numbers = Tensor::arange(device, 0, dims.iter().product::<usize>()).unwrap();
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
        let turned = counting(&device, &[3, 2, 4]).permute([2, 1, 0]).unwrap();
        let expected = turned.contiguous().unwrap().linear(&weight, &bias).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(turned.linear(&weight, &bias).unwrap().to_vec::<f32>().unwrap(), expected);
    }

    #[test]
    fn with_an_activation_it_gives_what_two_ops_give_to_the_bit() {
        let device = cpu();
        let rng = Rng::new(3);
        let leaf = |dims: &[usize], dtype| {
            let leaf = Tensor::uniform(&device, dims, -2.0, 2.0, &rng).unwrap().to_dtype(dtype).unwrap();
            leaf.requiring_grad().unwrap()
        };
        let bits = |tensor: &Tensor| {
            let values = tensor.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
            values.into_iter().map(f64::to_bits).collect::<Vec<_>>()
        };
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            let (weight, bias) = (leaf(&[7, 33], dtype), leaf(&[33], dtype));
            for (dims, f) in [&[9, 7][..], &[2, 5, 7], &[0, 7]]
                .into_iter()
                .flat_map(|dims| Activation::ALL.into_iter().map(move |f| (dims, f)))
            {
                let x = leaf(dims, dtype);
                let run = |layer: &dyn Fn() -> Result<Tensor>| {
                    let y = layer().unwrap();
                    let gradients = y.square().unwrap().sum_all().unwrap().backward().unwrap();
                    let leaves = [&x, &weight, &bias].map(|leaf| gradients.get(leaf).unwrap().clone());
                    [&y, &leaves[0], &leaves[1], &leaves[2]].map(bits)
                };
                let apart = || x.linear(&weight, &bias)?.activated(Some(f));
                let together = || x.linear_activation(&weight, &bias, f);
                assert_eq!(run(&apart), run(&together), "{f:?} of {dims:?} in {dtype}");
                let unrecorded = bits(&no_grad(together).unwrap());
                assert_eq!(unrecorded, bits(&together().unwrap()), "{f:?} of {dims:?} in {dtype}");
            }
        }
    }

    #[test]
    fn linear_saves_sums_only_if_a_gradient_reads_them() {
        let device = cpu();
        let (x, weight) = (counting(&device, &[512, 16]), counting(&device, &[16, 32]));
        let bias = counting(&device, &[32]);
        let memory = device.default_allocator().unwrap();
        let taken = |x: &Tensor, f| {
            memory.clear_stats();
            let before = memory.stats().bytes_in_use;
            let y = x.linear_activation(&weight, &bias, f).unwrap();
            (memory.stats().peak_bytes_in_use - before) / (y.elements() * 4) as u64
        };
        let leaf = x.clone().requiring_grad().unwrap();
        for (f, recorded) in Activation::ALL.into_iter().zip([1, 2, 2, 2]) {
            assert_eq!((taken(&x, f), taken(&leaf, f)), (1, recorded), "{f:?}");
        }
    }

    #[test]
    fn backward_changes_only_unshared_gradients_in_place() {
        let device = cpu();
        let rng = Rng::new(4);
        let leaf = |dims: &[usize]| {
            Tensor::uniform(&device, dims, -1.0, 1.0, &rng).unwrap().requiring_grad().unwrap()
        };
        for f in Activation::ALL {
            let x = Tensor::uniform(&device, [40, 8], -1.0, 1.0, &rng).unwrap();
            let leaves = [leaf(&[8, 24]), leaf(&[24]), leaf(&[8, 24]), leaf(&[24])];
            let [weight1, bias1, weight2, bias2] = &leaves;
            // The sum hands one gradient to both.
            let gradients = |one: Tensor, other: Tensor| {
                let gradients =
                    one.add(&other).unwrap().square().unwrap().sum_all().unwrap().backward().unwrap();
                leaves.each_ref().map(|leaf| gradients.get(leaf).unwrap().to_vec::<f32>().unwrap())
            };
            let apart = |weight, bias| x.linear(weight, bias).unwrap().activated(Some(f)).unwrap();
            let together = |weight, bias| x.linear_activation(weight, bias, f).unwrap();
            assert_eq!(
                gradients(together(weight1, bias1), together(weight2, bias2)),
                gradients(apart(weight1, bias1), apart(weight2, bias2)),
                "{f:?}"
            );
        }
    }

    #[test]
    fn backward_through_an_activation_reuses_the_gradient() {
        let device = cpu();
        let memory = device.default_allocator().unwrap();
        let x = counting(&device, &[512, 4]);
        let weight = counting(&device, &[4, 256]).requiring_grad().unwrap();
        let bias = counting(&device, &[256]).requiring_grad().unwrap();
        let y = x.linear_activation(&weight, &bias, Activation::Relu).unwrap();
        let bytes = (y.elements() * 4) as u64;
        let loss = y.sum_all().unwrap();
        drop(y);
        memory.clear_stats();
        let before = memory.stats().bytes_in_use;
        drop(loss.backward().unwrap());
        // That of the sum is one number, repeated; it cannot be changed in place, and what is made of it is all.
        let taken = memory.stats().peak_bytes_in_use - before;
        assert!((bytes..bytes + bytes / 4).contains(&taken), "{taken} of {bytes}");
        let z = x.linear_activation(&weight, &bias, Activation::Relu).unwrap();
        let loss = z.square().unwrap().sum_all().unwrap();
        drop(z);
        memory.clear_stats();
        let before = memory.stats().bytes_in_use;
        drop(loss.backward().unwrap());
        // The gradient of the square, which that of the sums takes the place of.
        let taken = memory.stats().peak_bytes_in_use - before;
        assert!((bytes..bytes + bytes / 4).contains(&taken), "{taken} of {bytes}");
    }

    #[test]
    fn the_product_takes_only_panels_beside_the_result() {
        let device = cpu();
        let (x, weight) = (counting(&device, &[64, 8, 16]), counting(&device, &[16, 32]));
        let bias = counting(&device, &[32]);
        let memory = device.default_allocator().unwrap();
        memory.clear_stats();
        let before = memory.stats().bytes_in_use;
        let result = x.linear(&weight, &bias).unwrap();
        let stats = memory.stats();
        // Panels of 192 rows and 32 columns, of depth 16.
        let panels = 16 * (192 + 32);
        assert_eq!(stats.peak_bytes_in_use - before, ((result.elements() + panels) * 4) as u64);
    }

    #[test]
    fn operands_that_do_not_fit_are_named() {
        let device = cpu();
        let of = |dims: &[usize]| Tensor::ones(&device, dims).unwrap();
        let message = |x: &[usize], weight: &[usize], bias: &[usize]| {
            of(x).linear(&of(weight), &of(bias)).unwrap_err().to_string()
        };
        assert_eq!(
            message(&[2, 3], &[4, 5], &[5]),
            "linear: shapes [2, 3] and [4, 5] do not match: the inner sizes 3 and 4 must be equal"
        );
        assert_eq!(
            message(&[2, 3], &[3, 5], &[4]),
            "linear: shapes [3, 5] and [4] do not match: the bias must have one element per column of the weight"
        );
        for (x, weight, bias) in
            [(&[][..], &[3, 5][..], &[5][..]), (&[2, 3], &[3], &[5]), (&[2, 3], &[3, 5], &[1, 5])]
        {
            let error = of(x).linear(&of(weight), &of(bias)).unwrap_err();
            assert!(matches!(error, Error::BadRank { op: OP, .. }), "{error}");
        }
        let booleans = of(&[2, 3]).to_dtype(DType::Bool).unwrap();
        let weight = of(&[3, 5]).to_dtype(DType::Bool).unwrap();
        let error = booleans.linear(&weight, &of(&[5])).unwrap_err();
        assert!(matches!(error, Error::UnsupportedDType { op: OP, dtype: DType::Bool }), "{error}");
    }

    #[test]
    fn a_wider_bias_widens_the_sum() {
        let device = cpu();
        let (x, weight) = (counting(&device, &[2, 3]), counting(&device, &[3, 5]));
        let bias = counting(&device, &[5]).to_dtype(DType::F64).unwrap();
        assert_eq!(x.linear(&weight, &bias).unwrap().dtype(), DType::F64);
    }
}
