//! Random elements.

use super::Computation;
use crate::backend::check::{Rules, fast};
use crate::backend::cost::{Class, Work};
use crate::backend::cpu::{self, Workers};
#[cfg(feature = "cuda")]
use crate::backend::cuda::{self, Launcher};
use crate::backend::operands::operands;
use crate::backend::{Distribution, RandomKey};
use crate::error::Result;
use crate::shape::DType;
use crate::storage::ViewMut;

/// `out[i] = random(key, i)`: random elements from the Philox generator. Element i depends only on the key and i.
#[derive(Debug)]
pub struct Random<'a> {
    /// The distribution.
    pub distribution: Distribution,
    /// The position in the stream of random bits.
    pub key: RandomKey,
    /// The output.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for Random<'a> {
    operands!(Write out);

    fn check(&self, _: &Rules<'_>) -> Result<()> {
        Ok(())
    }

    #[inline(always)]
    fn fast_check(&mut self, device: u32) -> Option<DType> {
        fast::equal_operands(self, device)
    }

    fn work(&self) -> Work {
        // Normal numbers need a logarithm and a cosine besides random bits.
        let weight = if matches!(self.distribution, Distribution::Normal { .. }) { 2 } else { 1 };
        let elements = self.out.layout().shape().elements() as u64;
        Work::per_element(Class::Random, elements.saturating_mul(weight))
    }

    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        cpu::random::random(workers, op, self.distribution, self.key, &mut self.out)
    }

    #[cfg(feature = "cuda")]
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        cuda::random::random(device, op, self.distribution, self.key, &self.out)
    }
}
