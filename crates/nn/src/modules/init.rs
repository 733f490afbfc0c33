//! Initialization of parameters.

use bfc_core::Category;
use highwater_tensor::{
    DType, Error, IntoShape, OpContext, Parameter, Place, PlacementReason, Result, Rng, Scalar,
    backend::{Distribution, kernels},
};

/// The op to which the memory of a new parameter is charged.
const OP: &str = "init";

/// Initialization method of a parameter.
///
/// Xavier initialization (Glorot and Bengio 2010) preserves the variance of values and gradients in linear layers, also
/// with tanh. Kaiming initialization (He et al. 2015) preserves it in layers followed by ReLU.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Init {
    /// All zeros.
    Zeros,
    /// A constant.
    Constant(f64),
    /// Uniform in [low, high).
    Uniform {
        /// The lower bound.
        low: f64,
        /// The upper bound (exclusive).
        high: f64,
    },
    /// Normal distribution.
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

/// Fan-in and fan-out of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fans {
    /// Number of inputs of each output.
    pub inputs: usize,
    /// Number of outputs of each input.
    pub outputs: usize,
}

impl Init {
    /// Creates a parameter with initial values. Its memory has the category parameter from the start.
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory, [`Error::UnsupportedDType`] unless `dtype` is a float type,
    /// [`Error::BadArgument`] for invalid constants, bounds and deviations.
    pub fn parameter(
        self,
        place: &impl Place,
        shape: impl IntoShape,
        dtype: DType,
        fans: Fans,
        rng: &Rng,
    ) -> Result<Parameter> {
        if !dtype.is_float() {
            return Err(Error::UnsupportedDType { op: OP, dtype });
        }
        let shape = shape.into_shape().map_err(|error| error.in_op(OP))?;
        let (fill, device) = (self.fill(fans)?, place.device());
        device.log_placement(OP, PlacementReason::Requested);
        let ctx = OpContext::create(OP, device, place.memory()?, Category::Parameter);
        let mut values = ctx.output(&shape, dtype)?;
        match fill {
            Fill::Constant(value) => {
                ctx.compute(kernels::Fill { value: Scalar::Float(value), out: values.view_mut() })?
            }
            Fill::Random(distribution) => rng.with_keys(|[key]| {
                ctx.compute(kernels::Random { distribution, key, out: values.view_mut() })
            })?,
        }
        Parameter::new(values.finish())
    }

    /// Checks the arguments and returns the distribution.
    fn fill(self, fans: Fans) -> Result<Fill> {
        let uniform = |variance: f64| {
            let bound = (3.0 * variance).sqrt();
            Distribution::Uniform { low: -bound, high: bound }
        };
        let normal = |variance: f64| Distribution::Normal { mean: 0.0, std: variance.sqrt() };
        let check = |argument, expected, value: f64, holds| {
            if holds {
                Ok(())
            } else {
                Err(Error::BadArgument { op: OP, argument, expected, got: value.to_string() })
            }
        };
        Ok(Fill::Random(match self {
            Self::Zeros => return Ok(Fill::Constant(0.0)),
            Self::Constant(value) => {
                check("value", "finite", value, value.is_finite())?;
                return Ok(Fill::Constant(value));
            }
            Self::Uniform { low, high } => {
                check("low", "finite", low, low.is_finite())?;
                check("high", "finite and above low", high, high > low && (high - low).is_finite())?;
                Distribution::Uniform { low, high }
            }
            Self::Normal { mean, std } => {
                check("mean", "finite", mean, mean.is_finite())?;
                check("std", "finite and not negative", std, std.is_finite() && std >= 0.0)?;
                Distribution::Normal { mean, std }
            }
            Self::XavierUniform => uniform(fans.xavier()),
            Self::XavierNormal => normal(fans.xavier()),
            Self::KaimingUniform => uniform(fans.kaiming()),
            Self::KaimingNormal => normal(fans.kaiming()),
        }))
    }
}

/// A checked distribution.
enum Fill {
    Constant(f64),
    Random(Distribution),
}

impl Fans {
    /// Returns Xavier's variance. Counts at least one input plus output, so that the formula stays finite.
    fn xavier(self) -> f64 {
        2.0 / self.inputs.saturating_add(self.outputs).max(1) as f64
    }

    /// Returns Kaiming's variance for ReLU.
    fn kaiming(self) -> f64 {
        2.0 / self.inputs.max(1) as f64
    }
}
