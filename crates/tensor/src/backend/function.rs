//! The functions that kernels apply: unary, binary, comparisons, reductions and distributions.

#[macro_use]
mod unary;
mod binary;
mod reduce;

pub use binary::{Binary, Compare};
pub(crate) use binary::{binary_functions, comparisons};
pub(crate) use reduce::reduce_functions;
pub use reduce::{Identity, Reduce, ReduceDomain};
pub(crate) use unary::unary_functions;
pub use unary::{Domain, GradReads, Unary};

/// An activation that a matrix product can apply to its result in the same pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// [`Unary::Relu`].
    Relu,
    /// [`Unary::Gelu`].
    Gelu,
    /// [`Unary::GeluTanh`].
    GeluTanh,
    /// [`Unary::Silu`].
    Silu,
}

impl Activation {
    /// All activations.
    pub const ALL: [Self; 4] = [Self::Relu, Self::Gelu, Self::GeluTanh, Self::Silu];

    /// The function.
    #[must_use]
    pub const fn function(self) -> Unary {
        match self {
            Self::Relu => Unary::Relu,
            Self::Gelu => Unary::Gelu,
            Self::GeluTanh => Unary::GeluTanh,
            Self::Silu => Unary::Silu,
        }
    }

    /// Returns the function's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.function().name()
    }
}

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

/// The position in the stream of random bits at which a random kernel starts. See [`crate::Rng`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomKey {
    /// The generator's seed.
    pub seed: u64,
    /// The number of random kernels that the generator started before.
    pub sequence: u64,
}
