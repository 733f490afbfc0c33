//! Random tensors from a seeded generator, independent of the number of threads.
//!
//! Each fill draws one key from the generator, and returns it on failure. Element i depends only on the key and on i.

use super::create::{TensorOptions, create};
use super::supported;
use crate::backend::{Distribution, kernels};
use crate::device::Place;
use crate::error::{Error, Result};
use crate::layout::IntoShape;
use crate::shape::DType;
use crate::tensor::{Rng, Tensor};

fn drawn(
    op: &'static str,
    place: &impl Place,
    shape: impl IntoShape,
    distribution: Distribution,
    rng: &Rng,
    dtype: DType,
) -> Result<Tensor> {
    supported(op, dtype, DType::is_float)?;
    let options = TensorOptions { dtype, ..TensorOptions::default() };
    create(op, place, shape, options, |ctx, out| {
        rng.with_keys(|[key]| ctx.compute(kernels::Random { distribution, key, out }))
    })
}

/// Fails with [`Error::BadArgument`] unless `good` accepts the argument.
pub(super) fn check(
    op: &'static str,
    argument: &'static str,
    expected: &'static str,
    value: f64,
    good: impl FnOnce(f64) -> bool,
) -> Result<()> {
    if good(value) {
        return Ok(());
    }
    Err(Error::BadArgument { op, argument, expected, got: value.to_string() })
}

/// # Random tensors
///
/// Values drawn from an [`Rng`](crate::Rng).
impl Tensor {
    /// Creates a tensor of uniform random values in `[low, high)` (`f32`), as PyTorch's `rand`.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless low < high and both are finite; otherwise see [`Tensor::new`].
    #[doc(alias("rand"))]
    pub fn uniform(
        place: &impl Place,
        shape: impl IntoShape,
        low: f64,
        high: f64,
        rng: &Rng,
    ) -> Result<Self> {
        Self::uniform_of(place, shape, low, high, rng, DType::F32)
    }

    /// Creates a tensor of uniform random values in `[low, high)`, of a float type.
    ///
    /// # Errors
    /// See [`Tensor::uniform`], and [`Error::UnsupportedDType`] unless the elements are floats.
    #[doc(alias("rand"))]
    pub fn uniform_of(
        place: &impl Place,
        shape: impl IntoShape,
        low: f64,
        high: f64,
        rng: &Rng,
        dtype: DType,
    ) -> Result<Self> {
        const OP: &str = "uniform";
        check(OP, "low", "finite", low, f64::is_finite)?;
        check(OP, "high", "finite and above low", high, |high| high > low && (high - low).is_finite())?;
        drawn(OP, place, shape, Distribution::Uniform { low, high }, rng, dtype)
    }

    /// Creates a tensor of random values with mean 0 and standard deviation 1 (`f32`), as PyTorch's `randn`.
    ///
    /// ```
    /// use highwater::{Device, Rng, Tensor};
    /// let x = Tensor::randn(&Device::cpu()?, [64, 784], &Rng::new(0))?;
    /// assert!(x.mean_all()?.item::<f32>()?.abs() < 0.02);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::new`].
    pub fn randn(place: &impl Place, shape: impl IntoShape, rng: &Rng) -> Result<Self> {
        drawn("randn", place, shape, Distribution::Normal { mean: 0.0, std: 1.0 }, rng, DType::F32)
    }

    /// Creates a tensor of normally distributed random values (`f32`). [`randn`](Self::randn) has mean 0 and deviation 1.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless both arguments are finite and `std` is not negative; otherwise see [`Tensor::new`].
    pub fn normal(place: &impl Place, shape: impl IntoShape, mean: f64, std: f64, rng: &Rng) -> Result<Self> {
        Self::normal_of(place, shape, mean, std, rng, DType::F32)
    }

    /// Creates a tensor of normally distributed random values, of a float type.
    ///
    /// The values are `mean + std z`, rounded. Every device computes z from the same random bits with the same formulas
    /// for logarithm and cosine. Between CPU and GPU, z differs by at most 4e-6, in `f64` by 1e-14. In 16-bit floats it
    /// may also round to the neighboring value.
    ///
    /// # Errors
    /// See [`Tensor::normal`], and [`Error::UnsupportedDType`] unless the elements are floats.
    #[doc(alias("randn"))]
    pub fn normal_of(
        place: &impl Place,
        shape: impl IntoShape,
        mean: f64,
        std: f64,
        rng: &Rng,
        dtype: DType,
    ) -> Result<Self> {
        const OP: &str = "normal";
        check(OP, "mean", "finite", mean, f64::is_finite)?;
        check(OP, "std", "finite and not negative", std, |std| std.is_finite() && std >= 0.0)?;
        drawn(OP, place, shape, Distribution::Normal { mean, std }, rng, dtype)
    }

    /// Creates a tensor of random values that are 1 with probability `p`, else 0 (`f32`), as PyTorch's `bernoulli`.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless 0 ≤ p ≤ 1; otherwise see [`Tensor::new`].
    pub fn bernoulli(place: &impl Place, shape: impl IntoShape, p: f64, rng: &Rng) -> Result<Self> {
        Self::bernoulli_of(place, shape, p, rng, DType::F32)
    }

    /// Creates a tensor of random values that are 1 with probability `p`, else 0, of a float type.
    ///
    /// # Errors
    /// See [`Tensor::bernoulli`], and [`Error::UnsupportedDType`] unless the elements are floats.
    pub fn bernoulli_of(
        place: &impl Place,
        shape: impl IntoShape,
        p: f64,
        rng: &Rng,
        dtype: DType,
    ) -> Result<Self> {
        const OP: &str = "bernoulli";
        check(OP, "p", "between 0 and 1", p, |p| (0.0..=1.0).contains(&p))?;
        drawn(OP, place, shape, Distribution::Bernoulli { p, value: 1.0 }, rng, dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, Runtime};

    fn cpu(threads: usize) -> Device {
        Runtime::builder().threads(threads).build().unwrap().cpu().unwrap()
    }

    fn moments(values: &[f64]) -> (f64, f64) {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
        (mean, variance.sqrt())
    }

    #[test]
    fn samples_have_the_moments_of_their_distribution() {
        let (device, rng, n) = (cpu(1), Rng::new(3), 40_000);
        let draw = |sample: Result<Tensor>| sample.unwrap().to_vec::<f64>().unwrap();
        let uniform = draw(Tensor::uniform_of(&device, n, -1.0, 3.0, &rng, DType::F64));
        assert!(uniform.iter().all(|value| (-1.0..3.0).contains(value)));
        let normal = draw(Tensor::normal_of(&device, n, 2.0, 0.5, &rng, DType::F64));
        let coins = draw(Tensor::bernoulli_of(&device, n, 0.25, &rng, DType::F64));
        assert!(coins.iter().all(|&value| value == 0.0 || value == 1.0));
        for (values, mean, std) in
            [(uniform, 1.0, 4.0 / 12f64.sqrt()), (normal, 2.0, 0.5), (coins, 0.25, (0.25f64 * 0.75).sqrt())]
        {
            let found = moments(&values);
            assert!((found.0 - mean).abs() < 0.03, "mean {} of {mean}", found.0);
            assert!((found.1 - std).abs() < 0.03, "deviation {} of {std}", found.1);
        }
    }

    #[test]
    fn a_seed_gives_the_same_tensors_for_any_number_of_threads() {
        let draw = |threads| {
            let (device, rng) = (cpu(threads), Rng::new(11));
            let first = Tensor::normal(&device, [301, 257], 0.0, 1.0, &rng).unwrap();
            let second = Tensor::uniform(&device, [70_000], 0.0, 1.0, &rng).unwrap();
            (first.to_vec::<f32>().unwrap(), second.to_vec::<f32>().unwrap())
        };
        assert_eq!(draw(1), draw(2));
    }

    #[test]
    fn fills_that_fail_draw_no_key() {
        let device =
            Runtime::builder().pool(bfc_core::Bytes::mib(1)).threads(1).build().unwrap().cpu().unwrap();
        let rng = Rng::new(0);
        let before = rng.state();
        for bad in [
            Tensor::uniform(&device, 2, 1.0, 1.0, &rng),
            Tensor::uniform(&device, 2, f64::NEG_INFINITY, 1.0, &rng),
            Tensor::uniform(&device, 2, 0.0, f64::NAN, &rng),
            Tensor::normal(&device, 2, 0.0, -1.0, &rng),
            Tensor::normal(&device, 2, f64::NAN, 1.0, &rng),
            Tensor::bernoulli(&device, 2, 1.5, &rng),
            Tensor::bernoulli(&device, 2, f64::NAN, &rng),
        ] {
            assert!(matches!(bad, Err(Error::BadArgument { .. })), "{bad:?}");
        }
        assert!(matches!(
            Tensor::uniform_of(&device, 2, 0.0, 1.0, &rng, DType::I64),
            Err(Error::UnsupportedDType { op: "uniform", .. })
        ));
        assert!(Tensor::normal(&device, [1 << 20], 0.0, 1.0, &rng).unwrap_err().out_of_memory().is_some());
        let halves = Tensor::normal_of(&device, [1 << 20], 0.0, 1.0, &rng, DType::F16);
        assert!(halves.unwrap_err().out_of_memory().is_some());
        assert_eq!(rng.state(), before);
    }
}
