//! The functions that kernels apply: of one number, of two, of many, and the steps of optimizers.

use crate::shape::Scalar;

/// A function of one number, with what its backward reads.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Unary {
    /// -x
    Neg,
    /// |x|
    Abs,
    /// x²
    Square,
    /// eˣ
    Exp,
    /// ln x
    Log,
    /// √x
    Sqrt,
    /// max(x, 0)
    Relu,
    /// x Φ(x) with Φ the normal distribution function, by erf
    Gelu,
    /// tanh x
    Tanh,
    /// 1 / (1 + e⁻ˣ)
    Sigmoid,
    /// 1 / x
    Recip,
    /// 1 / √x
    Rsqrt,
    /// 1, 0 or -1 as x is above, at or below 0
    Sign,
    /// The largest whole number that is not above x
    Floor,
    /// The least whole number that is not below x
    Ceil,
    /// The whole number nearest to x; halfway between two, the even one
    Round,
    /// sin x
    Sin,
    /// cos x
    Cos,
    /// x σ(x) with σ the logistic function
    Silu,
    /// ln(1 + eˣ)
    Softplus,
    /// x Φ(x) by way of tanh: ½ x (1 + tanh(√(2/π) (x + 0.044715 x³)))
    GeluTanh,
    /// x, but c x below 0
    LeakyRelu(f64),
    /// xᶜ, of integers for whole numbers c from 0 on
    Powf(f64),
    /// x, but at least the first number and at most the second
    Clamp(Scalar, Scalar),
    /// x + c
    AddScalar(Scalar),
    /// x c
    MulScalar(Scalar),
    /// x / c; 0 for an integer divided by 0
    DivScalar(Scalar),
}

impl Unary {
    /// Whether the derivative is computed from the function's value (true) or from its argument (false).
    #[must_use]
    pub const fn grad_reads_output(self) -> bool {
        matches!(
            self,
            Self::Exp | Self::Sqrt | Self::Relu | Self::Tanh | Self::Sigmoid | Self::Recip | Self::Rsqrt
        )
    }

    /// The op's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Neg => "neg",
            Self::Abs => "abs",
            Self::Square => "square",
            Self::Exp => "exp",
            Self::Log => "log",
            Self::Sqrt => "sqrt",
            Self::Relu => "relu",
            Self::Gelu => "gelu",
            Self::Tanh => "tanh",
            Self::Sigmoid => "sigmoid",
            Self::Recip => "recip",
            Self::Rsqrt => "rsqrt",
            Self::Sign => "sign",
            Self::Floor => "floor",
            Self::Ceil => "ceil",
            Self::Round => "round",
            Self::Sin => "sin",
            Self::Cos => "cos",
            Self::Silu => "silu",
            Self::Softplus => "softplus",
            Self::GeluTanh => "gelu_tanh",
            Self::LeakyRelu(_) => "leaky_relu",
            Self::Powf(_) => "powf",
            Self::Clamp(..) => "clamp",
            Self::AddScalar(_) => "add_scalar",
            Self::MulScalar(_) => "mul_scalar",
            Self::DivScalar(_) => "div_scalar",
        }
    }

    /// Whether the function is constant but for jumps, so that no gradient flows through it.
    #[must_use]
    pub const fn is_flat(self) -> bool {
        matches!(self, Self::Sign | Self::Floor | Self::Ceil | Self::Round)
    }

    /// Whether the function is defined for integers too.
    #[must_use]
    pub const fn takes_integers(self) -> bool {
        self.is_arithmetic() || matches!(self, Self::Powf(_))
    }

    /// Whether it is the same arithmetic for integers and floats.
    #[must_use]
    pub const fn is_arithmetic(self) -> bool {
        matches!(
            self,
            Self::Neg
                | Self::Abs
                | Self::Square
                | Self::Relu
                | Self::Sign
                | Self::Clamp(..)
                | Self::AddScalar(_)
                | Self::MulScalar(_)
                | Self::DivScalar(_)
        )
    }
}

/// A function that follows a linear map, and may be computed in the same pass over its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// As [`Unary::Relu`].
    Relu,
    /// As [`Unary::Gelu`].
    Gelu,
    /// As [`Unary::GeluTanh`].
    GeluTanh,
    /// As [`Unary::Silu`].
    Silu,
}

impl Activation {
    /// All of them.
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
}

/// A function of two numbers. Integer arithmetic wraps; integer division by zero gives zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Binary {
    /// a + b
    Add,
    /// a - b
    Sub,
    /// a b
    Mul,
    /// a / b
    Div,
    /// the larger; NaN if either is
    Maximum,
    /// the smaller; NaN if either is
    Minimum,
    /// aᵇ; of integers to a power below 0 it is 1 by a power, cut towards zero
    Pow,
}

impl Binary {
    /// The op's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Sub => "sub",
            Self::Mul => "mul",
            Self::Div => "div",
            Self::Maximum => "maximum",
            Self::Minimum => "minimum",
            Self::Pow => "pow",
        }
    }
}

/// A comparison; the result is [`DType::Bool`](crate::DType::Bool).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// a = b
    Eq,
    /// a ≠ b
    Ne,
    /// a < b
    Lt,
    /// a ≤ b
    Le,
    /// a > b
    Gt,
    /// a ≥ b
    Ge,
}

impl Compare {
    /// The op's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eq => "eq",
            Self::Ne => "ne",
            Self::Lt => "lt",
            Self::Le => "le",
            Self::Gt => "gt",
            Self::Ge => "ge",
        }
    }
}

/// How to fold elements into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// Their sum; 0 for none.
    Sum,
    /// Their product; 1 for none.
    Prod,
    /// The largest; NaN if any is. Not for no elements.
    Max,
    /// The smallest; NaN if any is. Not for no elements.
    Min,
    /// The sum of their magnitudes. For floats.
    SumMagnitudes,
    /// The sum of their squares. For floats.
    SumSquares,
}

impl Reduce {
    /// The op's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::SumMagnitudes => "sum_magnitudes",
            Self::SumSquares => "sum_squares",
        }
    }
}

/// How random elements are distributed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Uniform in [low, high).
    Uniform {
        /// The least value.
        low: f64,
        /// One past the largest value.
        high: f64,
    },
    /// Normal, by the Box-Muller transform.
    Normal {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        std: f64,
    },
    /// `value` with probability `p`, else 0.
    Bernoulli {
        /// The probability of `value`.
        p: f64,
        /// The value when it hits.
        value: f64,
    },
}

/// Where in the stream of random bits a fill starts. See [`crate::Rng`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomKey {
    /// The generator's seed.
    pub seed: u64,
    /// The number of this fill among those of the generator.
    pub sequence: u64,
}

/// One step of stochastic gradient descent with momentum:
/// g ← g + weight_decay·p; m ← momentum·m + g; p ← p - lr·m (or lr·(g + momentum·m) with Nesterov).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdStep {
    /// The learning rate.
    pub lr: f64,
    /// The share of the last step that is kept; without it no state is needed.
    pub momentum: f64,
    /// The pull of parameters towards zero.
    pub weight_decay: f64,
    /// Nesterov's variant.
    pub nesterov: bool,
}

/// One step of Adam (Kingma and Ba 2015), or AdamW (Loshchilov and Hutter 2019) with decoupled decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamStep {
    /// The learning rate.
    pub lr: f64,
    /// The decay of the mean of gradients.
    pub beta1: f64,
    /// The decay of the mean of squared gradients.
    pub beta2: f64,
    /// Keeps the denominator from zero.
    pub epsilon: f64,
    /// The pull of parameters towards zero.
    pub weight_decay: f64,
    /// Whether the decay acts on the parameter directly (AdamW) or through the gradient (Adam).
    pub decoupled: bool,
    /// The number of this step, from 1: for the correction of the means' bias.
    pub step: u64,
}

/// One step of RmsProp (Tieleman and Hinton 2012): g ← g + weight_decay·p; v ← smoothing·v + (1 - smoothing)·g²;
/// m ← momentum·m + g / (√v + epsilon); p ← p - lr·m.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsPropStep {
    /// The learning rate.
    pub lr: f64,
    /// The share of the mean of squares that is kept.
    pub smoothing: f64,
    /// Keeps the denominator from zero.
    pub epsilon: f64,
    /// The share of the last step that is kept; without it no m is needed.
    pub momentum: f64,
    /// The pull of parameters towards zero.
    pub weight_decay: f64,
}

/// One step of Lion (Chen et al. 2023): p ← (1 - lr·weight_decay)·p - lr·sign(beta1·m + (1 - beta1)·g);
/// m ← beta2·m + (1 - beta2)·g.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LionStep {
    /// The learning rate.
    pub lr: f64,
    /// How much of the mean goes into the direction of the step.
    pub beta1: f64,
    /// The share of the mean that is kept.
    pub beta2: f64,
    /// The pull of parameters towards zero.
    pub weight_decay: f64,
}
