//! Random elements.

pub(super) mod cpu;
#[cfg(feature = "cuda")]
pub(super) mod cuda;

use super::Computation;
use crate::cost::{Class, Work};
use crate::error::Result;
use crate::families::fast;
use crate::operands::{Rules, operands};
use crate::shape::DType;
use crate::storage::ViewMut;

/// The distribution of random elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Uniform in [low, high).
    Uniform {
        /// The smallest value.
        low: f64,
        /// The upper bound, which is excluded.
        high: f64,
    },
    /// Normal, computed with the Box-Muller transform.
    Normal {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        std: f64,
    },
    /// `value` with probability `p`, otherwise 0.
    Bernoulli {
        /// The probability of `value`.
        p: f64,
        /// The value of a success.
        value: f64,
    },
}

impl Distribution {
    /// The name of the distribution.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uniform { .. } => "uniform",
            Self::Normal { .. } => "normal",
            Self::Bernoulli { .. } => "bernoulli",
        }
    }
}

/// The position in the stream of random bits at which a random kernel starts. See `Rng` of `highwater-tensor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomKey {
    /// The generator's seed.
    pub seed: u64,
    /// The number of random kernels that the generator started before.
    pub sequence: u64,
}

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

    fn supports_half_on_cpu(&self) -> bool {
        true
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
}
