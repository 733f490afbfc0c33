//! Initial values of parameters.

use bfc_core::Category;

use super::parameter::Parameter;
use crate::device::Place;
use crate::dtype::DType;
use crate::error::Result;
use crate::rng::Rng;
use crate::shape::IntoShape;
use crate::tensor::Tensor;

/// How initial values are drawn.
///
/// Xavier's (Glorot and Bengio 2010) keep the variance of values and gradients through layers without a bend, or with
/// tanh; Kaiming's (He et al. 2015) keep it through layers that are followed by ReLU.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Init {
    /// All zero.
    Zeros,
    /// All the same.
    Constant(f64),
    /// Uniform in [low, high).
    Uniform {
        /// The least value.
        low: f64,
        /// The bound above.
        high: f64,
    },
    /// Normal.
    Normal {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        std: f64,
    },
    /// Uniform with variance 2 / (inputs + outputs).
    XavierUniform,
    /// Normal with variance 2 / (inputs + outputs).
    XavierNormal,
    /// Uniform with variance 2 / inputs.
    KaimingUniform,
    /// Normal with variance 2 / inputs.
    KaimingNormal,
}

/// How many numbers each output is computed from, and how many outputs each input goes into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fans {
    /// Inputs of each output.
    pub inputs: usize,
    /// Outputs of each input.
    pub outputs: usize,
}

impl Init {
    /// A parameter with initial values, in memory that was a parameter's from the start.
    ///
    /// # Errors
    /// [`crate::Error::Allocation`] if there is no memory, [`crate::Error::UnsupportedDType`] unless `dtype` is a
    /// floating-point type, [`crate::Error::BadArgument`] for bounds or deviations that are none.
    pub fn parameter(
        self,
        place: &impl Place,
        shape: impl IntoShape,
        dtype: DType,
        fans: Fans,
        rng: &Rng,
    ) -> Result<Parameter> {
        Parameter::new(self.tensor(place, shape, dtype, fans, rng)?.with_category(Category::Parameter))
    }

    /// A tensor with initial values.
    ///
    /// # Errors
    /// As [`parameter`](Self::parameter).
    pub fn tensor(
        self,
        place: &impl Place,
        shape: impl IntoShape,
        dtype: DType,
        fans: Fans,
        rng: &Rng,
    ) -> Result<Tensor> {
        let uniform = |variance: f64| {
            let bound = (3.0 * variance).sqrt();
            Self::Uniform { low: -bound, high: bound }
        };
        let normal = |variance: f64| Self::Normal { mean: 0.0, std: variance.sqrt() };
        match self {
            Self::Zeros => Tensor::zeros_of(place, shape, dtype),
            Self::Constant(value) => Tensor::full_of(place, shape, value, dtype),
            Self::Uniform { low, high } => Tensor::uniform_of(place, shape, low, high, dtype, rng),
            Self::Normal { mean, std } => Tensor::normal_of(place, shape, mean, std, dtype, rng),
            Self::XavierUniform => uniform(fans.xavier()).tensor(place, shape, dtype, fans, rng),
            Self::XavierNormal => normal(fans.xavier()).tensor(place, shape, dtype, fans, rng),
            Self::KaimingUniform => uniform(fans.kaiming()).tensor(place, shape, dtype, fans, rng),
            Self::KaimingNormal => normal(fans.kaiming()).tensor(place, shape, dtype, fans, rng),
        }
    }
}

impl Fans {
    /// Xavier's variance. Layers without inputs have no weights to draw; counting one keeps the formula finite.
    fn xavier(self) -> f64 {
        2.0 / self.inputs.saturating_add(self.outputs).max(1) as f64
    }

    /// Kaiming's variance, for ReLU.
    fn kaiming(self) -> f64 {
        2.0 / self.inputs.max(1) as f64
    }
}
