//! The functions that kernels apply: unary, binary, comparisons, reductions, distributions and optimizer steps.

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

/// One step of stochastic gradient descent with momentum:
/// g ← g + weight_decay·p; m ← momentum·m + g; p ← p - lr·m (or lr·(g + momentum·m) with Nesterov).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdStep {
    /// The learning rate.
    pub lr: f64,
    /// The momentum factor; 0 requires no state.
    pub momentum: f64,
    /// The weight decay (L2 penalty).
    pub weight_decay: f64,
    /// Whether to use Nesterov momentum.
    pub nesterov: bool,
}

/// One step of Adam (Kingma and Ba 2015), or AdamW (Loshchilov and Hutter 2019) with decoupled decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamStep {
    /// The learning rate.
    pub lr: f64,
    /// The decay of the running mean of gradients.
    pub beta1: f64,
    /// The decay of the running mean of squared gradients.
    pub beta2: f64,
    /// Added to the denominator, so that it is not 0.
    pub epsilon: f64,
    /// The weight decay (L2 penalty).
    pub weight_decay: f64,
    /// Whether the decay acts on the parameter directly (AdamW) or through the gradient (Adam).
    pub decoupled: bool,
    /// Whether to divide by the largest running mean of squares so far (AMSGrad, Reddi et al. 2018).
    pub amsgrad: bool,
    /// The number of this step, starting at 1. The bias correction of the means reads it.
    pub step: u64,
}

/// One step of RmsProp (Tieleman and Hinton 2012): g ← g + weight_decay·p; v ← smoothing·v + (1 - smoothing)·g²;
/// m ← momentum·m + g / (√v + epsilon); p ← p - lr·m.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsPropStep {
    /// The learning rate.
    pub lr: f64,
    /// The decay of the running mean of squared gradients.
    pub smoothing: f64,
    /// Added to the denominator, so that it is not 0.
    pub epsilon: f64,
    /// The momentum factor; 0 requires no m.
    pub momentum: f64,
    /// The weight decay (L2 penalty).
    pub weight_decay: f64,
}

/// One step of Lion (Chen et al. 2023): p ← (1 - lr·weight_decay)·p - lr·sign(beta1·m + (1 - beta1)·g);
/// m ← beta2·m + (1 - beta2)·g.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LionStep {
    /// The learning rate.
    pub lr: f64,
    /// The weight of the running mean in the direction of the step.
    pub beta1: f64,
    /// The decay of the running mean.
    pub beta2: f64,
    /// The weight decay (L2 penalty).
    pub weight_decay: f64,
}
