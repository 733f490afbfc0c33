//! Inverted dropout (Srivastava et al. 2014): surviving elements are scaled, so evaluation needs no change.

use super::random::check;
use super::supported;
use crate::autograd::apply;
use crate::backend::{Binary, Distribution, RandomKey, kernels};
use crate::error::Result;
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::shape::DType;
use crate::tensor::{Rng, Tensor};

/// y = x m, where each element of the mask m is 1/(1-p) with probability 1-p, else 0; ∂y/∂x = m. Saves the mask.
#[derive(Debug)]
struct Dropout {
    p: f64,
    key: RandomKey,
}

impl Op for Dropout {
    fn name(&self) -> &'static str {
        OP
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let (x, keep) = (inputs[0], 1.0 - self.p);
        let mut out = ctx.output(x.shape(), x.dtype())?;
        let mut mask = ctx.temp_saved(x.shape(), x.dtype())?;
        let coin = Distribution::Bernoulli { p: keep, value: 1.0 / keep };
        ctx.compute(kernels::Random { distribution: coin, key: self.key, out: mask.view_mut() })?;
        ctx.compute(kernels::Zip { f: Binary::Mul, lhs: x.view(), rhs: mask.view(), out: out.view_mut() })?;
        ctx.save(&mask.finish());
        Ok(out.finish())
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(grad.mul(saved.tensor(0)?)?)])
    }
}

const OP: &str = "dropout";

/// Applies dropout with a drawn key, for a checked `p` above 0.
pub(super) fn dropped(x: &Tensor, p: f64, key: RandomKey) -> Result<Tensor> {
    apply(Dropout { p, key }, &[x])
}

/// # Dropout
impl Tensor {
    /// Dropout: sets each element to 0 with probability `p` and divides the others by 1 - p, which preserves the mean.
    ///
    /// With p = 0 it returns the tensor itself and draws no random values.
    ///
    /// # Errors
    /// [`Error::BadArgument`](crate::Error::BadArgument) unless 0 ≤ p < 1,
    /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) unless the elements are floats,
    /// [`Error::Allocation`](crate::Error::Allocation) if there is no memory.
    pub fn dropout(&self, p: f64, rng: &Rng) -> Result<Self> {
        check(OP, "p", "at least 0 and below 1", p, |p| (0.0..1.0).contains(&p))?;
        supported(OP, self.dtype(), DType::is_float)?;
        if p == 0.0 {
            return Ok(self.unchanged());
        }
        rng.with_keys(|[key]| dropped(self, p, key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Runtime;
    use crate::error::Error;

    #[test]
    fn dropout_scales_kept_elements_and_masks_the_gradient() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let x = Tensor::full(&device, [100, 100], 3.0).unwrap().requiring_grad().unwrap();
        let y = x.dropout(0.25, &Rng::new(5)).unwrap();
        let values = y.to_vec::<f32>().unwrap();
        assert!(values.iter().all(|&value| value == 0.0 || value == 4.0));
        let survivors = values.iter().filter(|&&value| value != 0.0).count();
        assert!((7300..7700).contains(&survivors), "{survivors} of 10000 at p = 1/4");
        let gradients = y.sum_all().unwrap().backward().unwrap();
        let expected: Vec<f32> = values.iter().map(|value| value / 3.0).collect();
        assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>().unwrap(), expected);
    }

    #[test]
    fn without_dropping_the_tensor_is_passed_on() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let (x, rng) = (Tensor::ones(&device, 2).unwrap(), Rng::new(5));
        assert!(x.dropout(0.0, &rng).unwrap().shares_buffer_with(&x));
        for p in [1.0, -0.1, f64::NAN] {
            assert!(matches!(x.dropout(p, &rng), Err(Error::BadArgument { op: "dropout", .. })));
        }
        assert_eq!(rng.state(), Rng::new(5).state());
    }

    #[test]
    fn dropping_without_memory_draws_nothing() {
        let pool = bfc_core::Bytes::mib(1);
        let device = Runtime::builder().pool(pool).threads(1).build().unwrap().cpu().unwrap();
        let (x, rng) = (Tensor::ones(&device, 100_000).unwrap(), Rng::new(5));
        assert!(x.dropout(0.5, &rng).unwrap_err().out_of_memory().is_some());
        assert_eq!(rng.state(), Rng::new(5).state());
    }
}
