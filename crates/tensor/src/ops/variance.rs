//! Variance and standard deviation along axes.
//!
//! | op | y | ∂y/∂x |
//! |---|---|---|
//! | `var` | Σ (x - μ)² / (n - c) | 2 (x - μ) / (n - c) |
//! | `std` | its root | (x - μ) / ((n - c) y), 0 where y is |
//!
//! μ is the mean of the n elements, c the correction: 1 for a sample, 0 for a population. With n ≤ c the sum is divided
//! by 0: the result is infinite, or NaN if all elements are equal or there are none. Saves x, and `std` saves y (in f32 for
//! 16-bit floats). Forward allocates a temporary of the size of x.
//!
//! A computed mean m differs from μ by its rounding, which is large beside the deviation if the mean is. With d = x - m, the
//! sum Σ (x - μ)² is Σ d² - (Σ d)² / n, whose second term is small (Chan, Golub and LeVeque 1983).

use super::axes::Axes;
use super::create::constant_like;
use super::reduce::Target;
use super::supported;
use crate::autograd::apply;
use crate::backend::Reduce;
use crate::error::Result;
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::shape::{DType, Shape};
use crate::tensor::Tensor;

#[derive(Debug)]
struct Variance {
    /// Whether the result is the standard deviation.
    root: bool,
    correction: usize,
    target: Target,
}

impl Variance {
    /// Returns n - c, but at least 0.
    fn freedom(&self, shape: &Shape) -> f64 {
        self.target.axes.count(shape).saturating_sub(self.correction) as f64
    }

    /// Returns the deviations from the computed mean.
    fn deviation(&self, x: &Tensor) -> Result<Tensor> {
        x.sub(&x.mean_over(self.target.kept())?)
    }
}

impl Op for Variance {
    fn name(&self) -> &'static str {
        if self.root { "std" } else { "var" }
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        supported(ctx.op(), inputs[0].dtype(), DType::is_float)?;
        let x = &inputs[0].upcast()?;
        let f = (Reduce::SumSquares, self.freedom(x.shape()));
        let deviation = self.deviation(x)?;
        let squares = deviation.folded_shares(f, self.target.kept())?;
        let mean = deviation.mean_over(self.target.kept())?;
        drop(deviation);
        // n / (n - c)
        let share = self.target.axes.count(x.shape()) as f64 / self.freedom(x.shape());
        let variance =
            if share.is_finite() { squares.sub(&mean.square()?.mul_scalar(share)?)? } else { squares };
        let result = if self.root { variance.sqrt()? } else { variance };
        ctx.save(inputs[0]);
        if self.root {
            ctx.save(&result);
        }
        self.target.finish(result.to_dtype(inputs[0].dtype())?, x.shape())
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let x = &saved.tensor(0)?.upcast()?;
        let grad = self.target.restore(&grad)?.upcast()?;
        let scale = if self.root {
            let (y, zero) = (saved.tensor(1)?, constant_like(x, 0)?);
            y.eq(&zero)?.where_(&zero, &grad.div(y)?)?
        } else {
            grad.mul_scalar(2.0)?
        };
        let scale = scale.div_scalar(self.freedom(x.shape()))?;
        let deviation = self.deviation(x)?;
        let mean = deviation.mean_over(self.target.kept())?;
        Ok(vec![Some(((deviation - &mean)? * &scale)?.to_dtype(saved.input_dtype(0))?)])
    }
}

/// # Variance and standard deviation
impl Tensor {
    fn variance(&self, root: bool, correction: usize, target: Target) -> Result<Self> {
        apply(Variance { root, correction, target }, &[self])
    }

    /// Variance of the elements along axes, which vanish: the sum of squared deviations from the mean, divided by the
    /// number of elements minus `correction`.
    ///
    /// Use a correction of 1 for a sample (Bessel's correction) and 0 for a population. With at most `correction`
    /// elements the result is infinite, or NaN if all elements are equal or there are none.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[1.0f32, 2.0, 3.0, 6.0], [4])?;
    /// assert_eq!(x.var(0, 0)?.item::<f32>()?, 3.5);
    /// assert_eq!(x.var(0, 2)?.item::<f32>()?, 7.0);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::mean`].
    #[doc(alias("variance"))]
    pub fn var(&self, axes: impl Axes, correction: usize) -> Result<Self> {
        self.variance(false, correction, self.target("var", &axes, false)?)
    }

    /// Variance of the elements along axes, which stay with size 1.
    ///
    /// # Errors
    /// See [`Tensor::mean`].
    pub fn var_keepdim(&self, axes: impl Axes, correction: usize) -> Result<Self> {
        self.variance(false, correction, self.target("var", &axes, true)?)
    }

    /// Variance of all elements.
    ///
    /// # Errors
    /// See [`Tensor::mean`].
    pub fn var_all(&self, correction: usize) -> Result<Self> {
        self.variance(false, correction, self.all_axes())
    }

    /// Standard deviation of the elements along axes, which vanish: the square root of [`Tensor::var`]. Where it is 0,
    /// its gradient is 0.
    ///
    /// # Errors
    /// See [`Tensor::mean`].
    #[doc(alias("stddev"))]
    pub fn std(&self, axes: impl Axes, correction: usize) -> Result<Self> {
        self.variance(true, correction, self.target("std", &axes, false)?)
    }

    /// Standard deviation of the elements along axes, which stay with size 1.
    ///
    /// # Errors
    /// See [`Tensor::mean`].
    pub fn std_keepdim(&self, axes: impl Axes, correction: usize) -> Result<Self> {
        self.variance(true, correction, self.target("std", &axes, true)?)
    }

    /// Standard deviation of all elements.
    ///
    /// # Errors
    /// See [`Tensor::mean`].
    pub fn std_all(&self, correction: usize) -> Result<Self> {
        self.variance(true, correction, self.all_axes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Runtime;

    #[test]
    fn a_mean_that_is_large_beside_the_deviation_costs_no_accuracy() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let values: Vec<f64> = (0..3000).map(|i| 1e4 + f64::from(i * 7919 % 1000) / 500.0 - 1.0).collect();
        let x = Tensor::from_slice(&device, &values, [3, 1000]).unwrap();
        for (dtype, tolerance) in
            [(DType::F32, 2e-6), (DType::F64, 1e-10), (DType::F16, 1e-3), (DType::BF16, 1e-2)]
        {
            let rounded = x.to_dtype(dtype).unwrap();
            let exact = rounded.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
            let var = rounded.var(1, 1).unwrap().to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
            let std = rounded.std(1, 1).unwrap().to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
            for (row, (var, std)) in exact.chunks(1000).zip(var.into_iter().zip(std)) {
                let mean = row.iter().sum::<f64>() / 1000.0;
                let expected = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 999.0;
                assert!((var - expected).abs() <= tolerance * expected, "{dtype}: {var} and {expected}");
                let expected = expected.sqrt();
                assert!((std - expected).abs() <= tolerance * expected, "{dtype}: {std} and {expected}");
            }
        }
    }
}
