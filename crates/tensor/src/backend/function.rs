//! The functions that kernels apply: unary, binary, comparisons, reductions and distributions.

use crate::shape::Scalar;

/// An elementwise function of one argument.
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
    /// 1 for x > 0, 0 for x = 0, -1 for x < 0
    Sign,
    /// ⌊x⌋
    Floor,
    /// ⌈x⌉
    Ceil,
    /// x rounded to the nearest integer, ties to even
    Round,
    /// sin x
    Sin,
    /// cos x
    Cos,
    /// x σ(x) with σ the logistic function
    Silu,
    /// ln(1 + eˣ)
    Softplus,
    /// x Φ(x), approximated by ½ x (1 + tanh(√(2/π) (x + 0.044715 x³)))
    GeluTanh,
    /// x for x ≥ 0, c x for x < 0
    LeakyRelu(f64),
    /// x for x > 0, c (eˣ - 1) for x ≤ 0
    Elu(f64),
    /// x tanh(ln(1 + eˣ))
    Mish,
    /// x min(max(x + 3, 0), 6) / 6
    Hardswish,
    /// xᶜ; for integers, c is an integer ≥ 0
    Powf(f64),
    /// min(max(x, low), high)
    Clamp(Scalar, Scalar),
    /// x + c
    AddScalar(Scalar),
    /// x c
    MulScalar(Scalar),
    /// x / c; 0 for an integer divided by 0
    DivScalar(Scalar),
}

impl Unary {
    /// Whether the backward pass reads the function's value (true) or its argument (false).
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
            Self::Elu(_) => "elu",
            Self::Mish => "mish",
            Self::Hardswish => "hardswish",
            Self::Powf(_) => "powf",
            Self::Clamp(..) => "clamp",
            Self::AddScalar(_) => "add_scalar",
            Self::MulScalar(_) => "mul_scalar",
            Self::DivScalar(_) => "div_scalar",
        }
    }

    /// Whether the function is piecewise constant, so that its gradient is 0.
    #[must_use]
    pub const fn is_flat(self) -> bool {
        matches!(self, Self::Sign | Self::Floor | Self::Ceil | Self::Round)
    }

    /// Whether the function supports integers too.
    #[must_use]
    pub const fn supports_integers(self) -> bool {
        self.is_arithmetic() || matches!(self, Self::Powf(_))
    }

    /// Whether integers and floats share one implementation of the function.
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

/// An elementwise function of two arguments. Integer arithmetic wraps; integer division by 0 returns 0.
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
    /// max(a, b); NaN if either argument is NaN
    Maximum,
    /// min(a, b); NaN if either argument is NaN
    Minimum,
    /// aᵇ; for integers and b < 0, 1 / a⁻ᵇ truncated towards 0
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

/// A reduction of many elements to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// Σ x; 0 without elements.
    Sum,
    /// ∏ x; 1 without elements.
    Prod,
    /// max x; NaN if any element is NaN. Requires at least one element.
    Max,
    /// min x; NaN if any element is NaN. Requires at least one element.
    Min,
    /// Σ |x|. Requires floats.
    SumMagnitudes,
    /// Σ x². Requires floats.
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
