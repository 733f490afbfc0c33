//! Cumulative sums and products along an axis.
//!
//! | op | y | ∂L/∂x | saved |
//! |---|---|---|---|
//! | `cumsum` | `y[.., i, ..] = Σ x[.., j, ..]` over j ≤ i | the reverse cumulative sum of ∂L/∂y | |
//! | `cumprod` | `y[.., i, ..] = Π x[.., j, ..]` over j ≤ i | see [`Cumprod`] | x |
//!
//! An op allocates one output. Element types are those of `sum`. Floats are computed in f64 and each result is rounded once,
//! as in PyTorch. So long sums lose no small elements.

use super::create::constant_like;
use super::reduce::summed_as;
use crate::autograd::apply;
use crate::backend::kernels::{self, ScanFunction};
use crate::error::Result;
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::tensor::Tensor;

/// Runs a cumulative function along an axis, from the last element to the first if `reverse` is true.
fn scan(ctx: &OpContext<'_>, f: ScanFunction, x: &Tensor, axis: usize, reverse: bool) -> Result<Tensor> {
    let mut out = ctx.output(x.shape(), summed_as(x.dtype()))?;
    ctx.compute(kernels::Copy { input: x.view(), out: out.view_mut() })?;
    ctx.compute(kernels::Scan { f, axis, reverse, out: out.view_mut() })?;
    Ok(out.finish())
}

#[derive(Debug)]
struct Cumsum {
    axis: usize,
    /// Whether the sums run from the last element to the first.
    reverse: bool,
}

impl Op for Cumsum {
    fn name(&self) -> &'static str {
        "cumsum"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        scan(ctx, ScanFunction::Sum, inputs[0], self.axis, self.reverse)
    }

    fn backward(&self, _: &OpContext<'_>, _: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(apply(Self { reverse: !self.reverse, ..*self }, &[&grad])?)])
    }
}

/// With the gradient g of y, the gradient of an element before the first zero of its line is Σ gₖ yₖ / xᵢ over k ≥ i. That of the
/// first zero is Σ gₖ Pₖ, where the products P leave this zero out. Later elements have the gradient 0.
#[derive(Debug)]
struct Cumprod {
    axis: usize,
}

impl Op for Cumprod {
    fn name(&self) -> &'static str {
        "cumprod"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        ctx.save(inputs[0]);
        scan(ctx, ScanFunction::Product, inputs[0], self.axis, false)
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let x = &saved.tensor(0)?.upcast()?;
        let axis = self.axis as isize;
        let (zero, one) = (constant_like(x, 0)?, constant_like(x, 1)?);
        let is_zero = x.eq(&zero)?;
        let zeros = is_zero.cumsum(axis)?;
        let is_before = zeros.eq(0)?;
        let is_first_zero = is_zero.logical_and(&zeros.eq(1)?)?;
        let factors = is_first_zero.where_(&one, x)?;
        let terms = factors.cumprod(axis)?.mul(&grad.upcast()?)?;
        let sums = |terms: &Tensor| apply(Cumsum { axis: self.axis, reverse: true }, &[terms]);
        let of_zero = is_first_zero.where_(&sums(&terms)?, &zero)?;
        let of_others = sums(&is_before.where_(&terms, &zero)?)?.div(&factors)?;
        let gradient = is_before.where_(&of_others, &of_zero)?;
        Ok(vec![Some(gradient.to_dtype(saved.input_dtype(0))?)])
    }
}

/// # Cumulative sums and products
impl Tensor {
    /// Cumulative sum of the elements along an axis. Integers and booleans are summed as i64, which wraps. Floats are
    /// summed in f64, and each sum is rounded once.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[1.0f32, 2.0, 3.0], [3])?;
    /// assert_eq!(x.cumsum(0)?.to_vec::<f32>()?, [1.0, 3.0, 6.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::sum`].
    #[doc(alias("cumulative_sum"))]
    pub fn cumsum(&self, axis: isize) -> Result<Self> {
        let axis = self.shape().axis("cumsum", axis)?;
        apply(Cumsum { axis, reverse: false }, &[self])
    }

    /// Cumulative product of the elements along an axis. Integers and booleans are multiplied as i64, which wraps. Floats
    /// are multiplied in f64, and each product is rounded once. The gradient is correct also where elements are 0.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[2.0f32, 3.0, 4.0], [3])?;
    /// assert_eq!(x.cumprod(0)?.to_vec::<f32>()?, [2.0, 6.0, 24.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::sum`].
    #[doc(alias("cumulative_product"))]
    pub fn cumprod(&self, axis: isize) -> Result<Self> {
        let axis = self.shape().axis("cumprod", axis)?;
        apply(Cumprod { axis }, &[self])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, Runtime};

    fn cpu() -> Device {
        Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
    }

    #[test]
    fn products_accumulate_along_any_axis_and_wrap() {
        let x = Tensor::from_slice(&cpu(), &[1i32, 2, 3, -4, 5, 6], [2, 3]).unwrap();
        let values = |axis| x.cumprod(axis).unwrap().to_vec::<i64>().unwrap();
        assert_eq!(values(0), [1, 2, 3, -4, 10, 18]);
        assert_eq!(values(-1), [1, 2, 6, -4, -20, -120]);
        let large = Tensor::from_slice(&cpu(), &[i64::MAX, 2, 1], 3).unwrap();
        assert_eq!(large.cumprod(0).unwrap().to_vec::<i64>().unwrap(), [i64::MAX, -2, -2]);
        // In f64: the product of the first two is above the range of f32.
        let large = 2f32.powi(100);
        let floats = Tensor::from_slice(&cpu(), &[large, large, 1.0 / large], 3).unwrap();
        assert_eq!(floats.cumprod(0).unwrap().to_vec::<f32>().unwrap(), [large, f32::INFINITY, large]);
        assert_eq!(
            x.cumprod(2).unwrap_err().to_string(),
            x.cumsum(2).unwrap_err().to_string().replace("cumsum", "cumprod")
        );
    }

    #[test]
    fn gradients_of_products_are_exact_at_zeros() {
        // Each line: no zero, one, two, and zeros at both ends.
        let lines = [2.0f32, -3.0, 4.0, 5.0, 2.0, 0.0, 3.0, 5.0, 2.0, 0.0, 3.0, 0.0, 0.0, 3.0, 5.0, 0.0];
        let x = Tensor::from_slice(&cpu(), &lines, [4, 4]).unwrap().requiring_grad().unwrap();
        let gradient = x.cumprod(1).unwrap().sum_all().unwrap().backward().unwrap().take(&x).unwrap();
        // The sums of the products without the element, over all products that contain it.
        let expected: Vec<f32> = (0..16)
            .map(|place| {
                let (line, i) = (&lines[place / 4 * 4..][..4], place % 4);
                let without = |k: usize| (0..=k).filter(|&j| j != i).map(|j| line[j]).product::<f32>();
                (i..4).map(without).sum()
            })
            .collect();
        assert_eq!(gradient.to_vec::<f32>().unwrap(), expected);
        let narrow = x.detach().to_dtype(crate::shape::DType::F16).unwrap().requiring_grad().unwrap();
        let gradient =
            narrow.cumprod(1).unwrap().sum_all().unwrap().backward().unwrap().take(&narrow).unwrap();
        assert_eq!(gradient.to_dtype(crate::shape::DType::F32).unwrap().to_vec::<f32>().unwrap(), expected);
    }
}
