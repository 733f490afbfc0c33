//! Multi-head self-attention on adjacent queries, keys and values.
//!
//! - x `[.., len, 3·width]` is the output of one linear map: the queries of all heads, then the keys, then the values.
//!   y `[.., len, width]` holds `width / heads` elements of each head, one head after another.
//! - The op equals [`attention`](super::attention) on three parts of x. It writes the three parts of the gradient into
//!   one tensor, instead of adding three gradients that are mostly 0.
//! - It allocates the result, and copies of x and the result ordered by head. It saves the copy of x, the result and one
//!   value per query. Backward copies the result by head again, because the layer that follows keeps it anyway.

use super::attention::ScaledDotProduct;
use super::reduce::reshaped;
use super::{AttentionOptions, supported};
use crate::autograd::apply;
use crate::backend::kernels;
use crate::error::{Error, Result};
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::shape::{DType, Shape};
use crate::tensor::Tensor;

const OP: &str = "self_attention";

/// The op on x of shape `[n, len, 3·heads·width]`, where `width` is that of one head.
#[derive(Debug)]
struct SelfAttention {
    of: ScaledDotProduct,
    heads: usize,
}

/// The sizes of x; `width` is that of one head.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    n: usize,
    len: usize,
    heads: usize,
    width: usize,
}

impl Sizes {
    /// Returns the shape of one part of x, or of y.
    fn part(self) -> Result<Shape> {
        Ok(Shape::new(&[self.n, self.len, self.heads, self.width])?)
    }

    /// Returns the shape of x, divided into parts and heads.
    fn cut(self) -> Result<Shape> {
        Ok(Shape::new(&[self.n, self.len, 3, self.heads, self.width])?)
    }

    /// Returns the shape of one part, ordered by head.
    fn by_head(self) -> Result<Shape> {
        Ok(Shape::new(&[self.n, self.heads, self.len, self.width])?)
    }

    /// Returns the shape of one part as a stack of matrices.
    fn stack(self) -> Result<Shape> {
        Ok(Shape::new(&[self.n.saturating_mul(self.heads), self.len, self.width])?)
    }
}

impl SelfAttention {
    fn sizes(&self, x: Shape) -> Result<Sizes> {
        let [n, len, wide] = *x.dims() else {
            return Err(Error::BadRank { op: OP, expected: "three axes", shape: x });
        };
        Ok(Sizes { n, len, heads: self.heads, width: wide / 3 / self.heads })
    }
}

/// Returns views of query, key and value, which follow one another.
fn three(parts: &Tensor, sizes: Sizes) -> Result<[Tensor; 3]> {
    let stack = sizes.stack()?;
    let part = |index: usize| {
        let layout = parts.layout().sliced(OP, 0, index..index + 1, 1)?;
        reshaped(parts.with_layout(layout), stack)
    };
    Ok([part(0)?, part(1)?, part(2)?])
}

/// Views a stack of matrices as a part of x: position by position, with all heads side by side.
fn by_position(stack: &Tensor, sizes: Sizes) -> Result<Tensor> {
    let by_head = reshaped(stack.clone(), sizes.by_head()?)?;
    let layout = by_head.layout().permuted(OP, &[0, 2, 1, 3])?;
    Ok(by_head.with_layout(layout))
}

/// Copies a part of x, or of y, to a stack of matrices.
fn stacked(ctx: &OpContext<'_>, part: Tensor, sizes: Sizes) -> Result<Tensor> {
    let by_head = part.layout().permuted(OP, &[0, 2, 1, 3])?;
    let mut stack = ctx.temp(by_head.shape(), part.dtype())?;
    ctx.compute(kernels::Copy { input: part.view().with_layout(&by_head), out: stack.view_mut() })?;
    reshaped(stack.finish(), sizes.stack()?)
}

impl Op for SelfAttention {
    fn name(&self) -> &'static str {
        OP
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0].contiguous()?;
        let sizes = self.sizes(*x.shape())?;
        let cut = reshaped(x, sizes.cut()?)?;
        let by_head = cut.layout().permuted(OP, &[2, 0, 3, 1, 4])?;
        let mut parts = ctx.temp_saved(by_head.shape(), cut.dtype())?;
        let mixed = ctx.temp(&sizes.stack()?, cut.dtype())?;
        let mut out = ctx.output_saved(&sizes.part()?, cut.dtype())?;
        ctx.compute(kernels::Copy { input: cut.view().with_layout(&by_head), out: parts.view_mut() })?;
        let parts = parts.finish();
        let [query, key, value] = three(&parts, sizes)?;
        let [mixed, log_sums] = self.of.attend(ctx, [&query, &key, &value], None, mixed)?;
        ctx.compute(kernels::Copy { input: by_position(&mixed, sizes)?.view(), out: out.view_mut() })?;
        let out = out.finish();
        for kept in [&parts, &log_sums, &out] {
            ctx.save(kept);
        }
        reshaped(out, Shape::new(&[sizes.n, sizes.len, sizes.heads * sizes.width])?)
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let shape = saved.input_shape(0);
        let sizes = self.sizes(shape)?;
        // Frees the result and its gradient if no other tensor shares them.
        let mixed = stacked(ctx, saved.take_last()?, sizes)?;
        let grad = stacked(ctx, grad.reshape(sizes.part()?)?, sizes)?;
        let (parts, log_sums) = (saved.tensor(0)?, saved.tensor(1)?);
        let [query, key, value] = three(parts, sizes)?;
        let allocate = |_, part: &Tensor| ctx.output(part.shape(), part.dtype());
        let made =
            self.of.gradients(ctx, [&query, &key, &value], None, [&mixed, log_sums], &grad, allocate)?;
        drop((grad, mixed));
        let mut out = ctx.gradient(0, &sizes.cut()?, parts.dtype())?;
        for (start, part) in made.iter().enumerate() {
            let part = by_position(part, sizes)?;
            let layout = part.layout().with_axis(2)?;
            let input = part.view().with_layout(&layout);
            ctx.compute(kernels::CopyInto { input, axis: 2, start, step: 1, out: out.view_mut() })?;
        }
        Ok(vec![Some(reshaped(out.finish(), shape)?)])
    }
}

/// # Self-attention
impl Tensor {
    /// Multi-head self-attention of a sequence. The last axis holds the queries of all heads, then the keys, then the
    /// values.
    ///
    /// Shapes: `[.., len, 3·width]` gives `[.., len, width]`, with the heads side by side. The default scale is
    /// 1/√(width / heads). See [`attention`](Tensor::attention).
    ///
    /// ```
    /// use highwater::{AttentionOptions, Device, Tensor};
    /// let device = Device::cpu()?;
    /// // Two positions, two heads of width 1.
    /// let x = Tensor::from_slice(&device, &[1.0f32, 0.0, 1.0, 0.0, 3.0, 5.0, 1.0, 0.0, 1.0, 0.0, 4.0, 7.0], [2, 6])?;
    /// let causal = AttentionOptions { causal: true, ..AttentionOptions::default() };
    /// // The first position sees itself alone; the second sees both alike.
    /// assert_eq!(x.self_attention(2, causal)?.to_vec::<f32>()?, [3.0, 5.0, 3.5, 6.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadRank`] below two axes, [`Error::BadArgument`] unless 3 · `heads` divides the size of the last axis,
    /// which must not be 0; [`Error::UnsupportedDType`] unless the elements are floats, [`Error::Allocation`] if there
    /// is no memory.
    pub fn self_attention(&self, heads: usize, options: AttentionOptions) -> Result<Self> {
        supported(OP, self.dtype(), DType::is_float)?;
        let [leading @ .., len, wide] = self.dims() else {
            return Err(Error::BadRank { op: OP, expected: "at least two axes", shape: *self.shape() });
        };
        let parts = heads.saturating_mul(3);
        if parts == 0 || *wide == 0 || !wide.is_multiple_of(parts) {
            let expected = "such that 3 · heads divides the last axis, which must not be empty";
            let got = format!("{heads} for shape {}", self.shape());
            return Err(Error::BadArgument { op: OP, argument: "heads", expected, got });
        }
        let n = Shape::new(leading)?.elements();
        let scale = options.scale.unwrap_or(1.0 / ((wide / parts) as f64).sqrt());
        let op = SelfAttention { of: ScaledDotProduct { scale, causal: options.causal }, heads };
        let result = apply(op, &[&self.reshape([n, *len, *wide])?])?;
        result.reshape([leading, &[*len, wide / 3]].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, Runtime};

    fn cpu() -> Device {
        Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
    }

    /// Numbers between -1 and 1.
    fn numbers(device: &Device, dims: &[usize]) -> Tensor {
        let count: usize = dims.iter().product();
        let values: Vec<f64> = (0..count).map(|i| ((i * 61 % 127) as f64 - 63.0) / 63.0).collect();
        Tensor::from_slice(device, &values, dims).unwrap()
    }

    /// The same of parts.
    fn of_parts(x: &Tensor, heads: usize, options: AttentionOptions) -> Tensor {
        let [n, len, wide] = *x.dims() else { panic!("three axes") };
        let cut = x.reshape([n, len, 3, heads, wide / 3 / heads]).unwrap().permute([2, 0, 3, 1, 4]).unwrap();
        let part = |index: usize| cut.narrow(0, index, 1).unwrap().squeeze(0).unwrap();
        let mixed = part(0).attention(&part(1), &part(2), None, options).unwrap();
        mixed.permute([0, 2, 1, 3]).unwrap().reshape([n, len, wide / 3]).unwrap()
    }

    #[test]
    fn values_and_gradients_are_those_of_attention_of_the_parts() {
        let device = cpu();
        for (causal, scale) in [(false, None), (true, Some(0.7))] {
            let options = AttentionOptions { causal, scale };
            let x = numbers(&device, &[2, 70, 18]).requiring_grad().unwrap();
            let upstream = numbers(&device, &[2, 70, 6]);
            let (whole, parts) = (x.self_attention(3, options).unwrap(), of_parts(&x, 3, options));
            assert_eq!(whole.to_vec::<f64>().unwrap(), parts.to_vec::<f64>().unwrap());
            let [whole, parts] = [whole, parts].map(|y| {
                let gradients = y.mul(&upstream).unwrap().sum_all().unwrap().backward().unwrap();
                gradients.get(&x).unwrap().to_vec::<f64>().unwrap()
            });
            assert_eq!(whole, parts);
        }
    }

    #[test]
    fn backward_takes_fewer_bytes_in_all_than_that_of_the_parts() {
        let runtime = Runtime::builder().threads(1).build().unwrap();
        let device = runtime.cpu().unwrap();
        let taken = |attend: fn(&Tensor, usize, AttentionOptions) -> Tensor| {
            let x = numbers(&device, &[4, 32, 96]).requiring_grad().unwrap();
            let loss = attend(&x, 4, AttentionOptions::default()).sum_all().unwrap();
            runtime.tracker().reset();
            drop(loss.backward().unwrap());
            runtime.tracker().op_totals().iter().map(|row| row.totals.total_bytes()).sum::<u64>()
        };
        let whole = taken(|x, heads, options| x.self_attention(heads, options).unwrap());
        let parts = taken(of_parts);
        // The parts also share one gradient of the whole, but copy each part's gradient into it. The op copies its result by head.
        assert!(whole <= 1_343_744, "{whole}");
        assert!(whole < parts, "{whole} instead of {parts}");
    }

    #[test]
    fn sequences_under_any_axes_and_empty_ones() {
        let device = cpu();
        let options = AttentionOptions::default();
        let x = numbers(&device, &[4, 5, 12]);
        let whole = x.self_attention(2, options).unwrap();
        let cut = x.reshape([2, 2, 5, 12]).unwrap().self_attention(2, options).unwrap();
        assert_eq!(cut.dims(), [2, 2, 5, 4]);
        assert_eq!(cut.to_vec::<f64>().unwrap(), whole.to_vec::<f64>().unwrap());
        for dims in [&[0, 5, 12][..], &[2, 0, 12]] {
            let empty = Tensor::zeros(&device, dims).unwrap().requiring_grad().unwrap();
            let y = empty.self_attention(2, options).unwrap();
            assert_eq!(y.dims(), [dims[0], dims[1], 4]);
            assert_eq!(y.sum_all().unwrap().backward().unwrap().get(&empty).unwrap().dims(), dims);
        }
    }

    #[test]
    fn heads_that_do_not_divide_the_width_are_refused() {
        let device = cpu();
        let x = numbers(&device, &[2, 12]);
        assert!(matches!(
            numbers(&device, &[12]).self_attention(1, AttentionOptions::default()),
            Err(Error::BadRank { .. })
        ));
        assert_eq!(
            x.self_attention(3, AttentionOptions::default()).unwrap_err().to_string(),
            "self_attention: heads must be such that 3 · heads divides the last axis, which must not be empty, got 3 for shape [2, 12]"
        );
        for heads in [0, usize::MAX] {
            assert!(x.self_attention(heads, AttentionOptions::default()).is_err());
        }
        let empty = Tensor::zeros(&device, [2, 0]).unwrap();
        assert!(empty.self_attention(1, AttentionOptions::default()).is_err());
    }
}
