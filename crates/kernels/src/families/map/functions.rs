//! The table of elementwise functions of one argument.

use crate::shape::Scalar;

/// Passes the table of unary functions to the macro `$expand`. A function is one row:
///
/// ```text
/// /// The documentation of the variant, and of the method of `Tensor` for a function without constants.
/// name: Variant(constant: type = value in tests) {
///     domain: a `Domain`, grad_reads: a `GradReads`,
///     smooth: [ranges of arguments where tests take differences],
///     value: cost(y from x),
///     grad: cost(gradient of x, from what it reads and the gradient g of y),
/// }
/// ```
///
/// The CPU runs `value` and `grad` for its float types `T` ([`Domain::Numbers`]: for all number types). Constants have
/// type `T` there. The cost `light` is a few instructions, `heavy` a function such as exp. `by` names a function of
/// `map/cpu.rs` with a loop of its own.
///
/// CUDA finds a function by its name: `case NAMED("name")` in `elementwise.cu` or `float.cu`, and in `derivative`.
#[doc(hidden)]
#[macro_export]
macro_rules! unary_functions {
    ($expand:ident) => {
        $expand! {
            /// Negation -x. Integers wrap.
            #[doc(alias("negative"))]
            neg: Neg {
                domain: Numbers, grad_reads: Nothing, smooth: [(-2.0, 2.0)],
                value: light(T::negative),
                grad: light(|_, g| -g),
            }
            /// Absolute value |x|. Integers wrap: the smallest one has no positive counterpart.
            abs: Abs {
                domain: Numbers, grad_reads: Argument, smooth: [(-1.7, -0.2), (0.2, 1.7)],
                value: light(T::magnitude),
                // 0 for x = 0, and NaN for NaN.
                grad: light(|x, g| if x > T::ZERO { g } else if x < T::ZERO { -g } else { x.magnitude() }),
            }
            /// Square x². Integers wrap.
            square: Square {
                domain: Numbers, grad_reads: Argument, smooth: [(-2.0, 2.0)],
                value: light(|x| x.times(x)),
                grad: light(|x, g| (T::ONE + T::ONE) * x * g),
            }
            /// Sign: 1 above 0, -1 below, 0 at 0. No gradient flows through it.
            sign: Sign {
                domain: Numbers, grad_reads: Flat, smooth: [(-1.7, -0.2), (0.2, 1.7)],
                value: light(T::sign),
                grad: light(|_, _| T::ZERO),
            }
            /// Rounds down to the next whole number. No gradient flows through it.
            floor: Floor {
                domain: Floats, grad_reads: Flat, smooth: [(-1.9, -1.1), (0.1, 0.9)],
                value: light(T::floor),
                grad: light(|_, _| T::ZERO),
            }
            /// Rounds up to the next whole number. No gradient flows through it.
            ceil: Ceil {
                domain: Floats, grad_reads: Flat, smooth: [(-1.9, -1.1), (0.1, 0.9)],
                value: light(T::ceil),
                grad: light(|_, _| T::ZERO),
            }
            /// Rounds to the nearest whole number, and ties to even, as NumPy and PyTorch. No gradient flows through it.
            round: Round {
                domain: Floats, grad_reads: Flat, smooth: [(-1.4, -0.6), (0.6, 1.4)],
                value: light(T::round_ties_even),
                grad: light(|_, _| T::ZERO),
            }
            /// Exponential eˣ.
            exp: Exp {
                domain: Floats, grad_reads: Output, smooth: [(-2.0, 2.0)],
                value: heavy(T::exp),
                grad: light(|y, g| g * y),
            }
            /// Exponential minus 1, eˣ - 1, accurate for small x.
            #[doc(alias("exp_m1"))]
            expm1: Expm1 {
                domain: Floats, grad_reads: Output, smooth: [(-2.0, 2.0)],
                value: heavy(T::exp_m1),
                grad: light(|y, g| g * (y + T::ONE)),
            }
            /// Natural logarithm ln x: NaN below 0, -∞ at 0.
            #[doc(alias("ln"))]
            log: Log {
                domain: Floats, grad_reads: Argument, smooth: [(0.5, 2.5)],
                value: heavy(T::ln),
                grad: light(|x, g| g / x),
            }
            /// Natural logarithm of 1 + x, ln(1 + x), accurate for small x: NaN below -1, -∞ at -1.
            #[doc(alias("ln_1p"))]
            log1p: Log1p {
                domain: Floats, grad_reads: Argument, smooth: [(-0.5, 2.0)],
                value: heavy(T::ln_1p),
                grad: light(|x, g| g / (T::ONE + x)),
            }
            /// Square root √x: NaN below 0.
            sqrt: Sqrt {
                domain: Floats, grad_reads: Output, smooth: [(0.5, 2.5)],
                value: light(T::sqrt),
                grad: light(|y, g| g / ((T::ONE + T::ONE) * y)),
            }
            /// Reciprocal 1 / x.
            recip: Recip {
                domain: Floats, grad_reads: Output, smooth: [(0.5, 2.5)],
                value: light(|x| T::ONE / x),
                grad: light(|y, g| -g * y * y),
            }
            /// Reciprocal square root 1 / √x: NaN below 0, ∞ at 0.
            rsqrt: Rsqrt {
                domain: Floats, grad_reads: Output, smooth: [(0.5, 2.5)],
                value: light(|x| T::ONE / x.sqrt()),
                grad: light(|y, g| T::from_f64(-0.5) * g * y * y * y),
            }
            /// Sine of x in radians.
            sin: Sin {
                domain: Floats, grad_reads: Argument, smooth: [(-2.0, 2.0)],
                value: by(sine),
                grad: by(sine_grad),
            }
            /// Cosine of x in radians.
            cos: Cos {
                domain: Floats, grad_reads: Argument, smooth: [(-2.0, 2.0)],
                value: by(cosine),
                grad: by(cosine_grad),
            }
            /// Hyperbolic tangent tanh x.
            tanh: Tanh {
                domain: Floats, grad_reads: Output, smooth: [(-2.0, 2.0)],
                value: heavy(T::tanh),
                grad: light(|y, g| g * (T::ONE - y * y)),
            }
            /// Error function 2/√π ∫₀ˣ e^(-t²) dt.
            erf: Erf {
                domain: Floats, grad_reads: Argument, smooth: [(-2.0, 2.0)],
                value: heavy(T::erf),
                grad: heavy(|x, g| g * T::from_f64(std::f64::consts::FRAC_2_SQRT_PI) * (-x * x).exp()),
            }
            /// ReLU activation max(x, 0). The derivative at 0 is 0.
            relu: Relu {
                domain: Numbers, grad_reads: Output, smooth: [(-1.7, -0.2), (0.2, 1.7)],
                value: light(T::rectified),
                // `rectify` computes the same in place.
                grad: light(|y, g| if y <= T::ZERO { T::ZERO } else { g + T::ZERO }),
            }
            /// Leaky ReLU: x for x ≥ 0, slope x for x < 0.
            leaky_relu: LeakyRelu(slope: f64 = 0.125) {
                domain: Floats, grad_reads: Argument, smooth: [(-1.7, -0.2), (0.2, 1.7)],
                value: light(move |x| x * if x < T::ZERO { slope } else { T::ONE }),
                grad: light(move |x, g| g * if x <= T::ZERO { slope } else { T::ONE }),
            }
            /// ELU: x for x > 0, alpha (eˣ - 1) for x ≤ 0.
            elu: Elu(alpha: f64 = 0.75) {
                domain: Floats, grad_reads: Argument, smooth: [(-1.7, -0.2), (0.2, 1.7)],
                value: heavy(move |x| if x > T::ZERO { x } else { alpha * exp_m1_of_negative(x) }),
                grad: heavy(move |x, g| g * if x > T::ZERO { T::ONE } else { alpha * x.exp() }),
            }
            /// GELU activation x Φ(x), with the exact normal distribution function Φ (by erf), as PyTorch's default.
            gelu: Gelu {
                domain: Floats, grad_reads: Argument, smooth: [(-2.0, 2.0)],
                value: heavy(gelu),
                grad: heavy(|x, g| g * gelu_slope(x)),
            }
            /// GELU activation in its tanh approximation, as in GPT-2: ½ x (1 + tanh(√(2/π) (x + 0.044715 x³))). See
            /// `gelu`.
            gelu_tanh: GeluTanh {
                domain: Floats, grad_reads: Argument, smooth: [(-2.0, 2.0)],
                value: heavy(gelu_tanh),
                grad: heavy(|x, g| g * gelu_tanh_slope(x)),
            }
            /// Sigmoid 1 / (1 + e⁻ˣ).
            sigmoid: Sigmoid {
                domain: Floats, grad_reads: Output, smooth: [(-2.0, 2.0)],
                value: heavy(logistic),
                grad: light(|y, g| g * y * (T::ONE - y)),
            }
            /// Logarithm of the sigmoid, ln(1 / (1 + e⁻ˣ)), which does not overflow.
            #[doc(alias("log_sigmoid"))]
            logsigmoid: LogSigmoid {
                domain: Floats, grad_reads: Argument, smooth: [(-2.0, 2.0)],
                value: heavy(|x| -softplus(-x)),
                grad: heavy(|x, g| g * logistic(-x)),
            }
            /// SiLU (swish) activation x / (1 + e⁻ˣ).
            #[doc(alias("swish"))]
            silu: Silu {
                domain: Floats, grad_reads: Argument, smooth: [(-2.0, 2.0)],
                value: heavy(silu),
                grad: heavy(|x, g| { let s = logistic(x); g * s * (T::ONE + x * (T::ONE - s)) }),
            }
            /// Softplus ln(1 + eˣ), which does not overflow.
            softplus: Softplus {
                domain: Floats, grad_reads: Argument, smooth: [(-2.0, 2.0)],
                value: heavy(softplus),
                grad: heavy(|x, g| g * logistic(x)),
            }
            /// Softsign activation x / (1 + |x|).
            softsign: Softsign {
                domain: Floats, grad_reads: Argument, smooth: [(-2.0, 2.0)],
                value: light(|x| x / (T::ONE + x.magnitude())),
                grad: light(|x, g| { let size = T::ONE + x.magnitude(); g / (size * size) }),
            }
            /// Mish activation x tanh(ln(1 + eˣ)).
            mish: Mish {
                domain: Floats, grad_reads: Argument, smooth: [(-2.0, 2.0)],
                value: heavy(|x| x * MishParts::of(x).tanh()),
                grad: heavy(|x, g| g * MishParts::of(x).slope(x)),
            }
            /// Hardswish activation x min(max(x + 3, 0), 6) / 6, as in MobileNetV3.
            hardswish: Hardswish {
                domain: Floats, grad_reads: Argument, smooth: [(-5.0, -3.1), (-2.9, 2.9), (3.1, 5.0)],
                value: light(hardswish),
                grad: light(|x, g| g * hardswish_slope(x)),
            }
            /// x to the power `exponent`; for integers, an integer ≥ 0.
            powf: Powf(exponent: f64 = -1.5) {
                domain: FloatsAndIntegers, grad_reads: Argument, smooth: [(0.5, 2.5)],
                value: by(power),
                grad: by(power_grad),
            }
            /// min(max(x, low), high)
            clamp: Clamp(low: Scalar = Scalar::Int(0), high: Scalar = Scalar::Int(1)) {
                domain: Numbers, grad_reads: Argument, smooth: [(-2.0, -0.1), (0.1, 0.9), (1.1, 2.0)],
                value: light(|x| x.clamped(low, high)),
                grad: light(|x, g| if x > low && x < high { g } else { T::ZERO }),
            }
            /// x + c
            add_scalar: AddScalar(c: Scalar = Scalar::Int(3)) {
                domain: Numbers, grad_reads: Nothing, smooth: [(-2.0, 2.0)],
                value: light(|x| x.plus(c)),
                grad: light(|_, g| g),
            }
            /// x c
            mul_scalar: MulScalar(c: Scalar = Scalar::Int(-3)) {
                domain: Numbers, grad_reads: Nothing, smooth: [(-2.0, 2.0)],
                value: light(|x| x.times(c)),
                grad: light(|_, g| g * c),
            }
            /// x / c; 0 for an integer divided by 0
            div_scalar: DivScalar(c: Scalar = Scalar::Int(3)) {
                domain: Numbers, grad_reads: Nothing, smooth: [(-2.0, 2.0)],
                value: light(|x| x.over(c)),
                grad: light(|_, g| g / c),
            }
        }
    };
}

/// Defines the enum and the properties of its functions.
macro_rules! define {
    ($(
        $(#[$meta:meta])*
        $name:ident: $variant:ident $(($($constant:ident: $type:ty = $example:expr),+))? {
            domain: $domain:ident, grad_reads: $reads:ident, smooth: [$($smooth:expr),+],
            value: $cost:ident($value:expr),
            grad: $grad_cost:ident($grad:expr),
        }
    )*) => {
        /// An elementwise function of one argument.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Unary {
            $($(#[$meta])* $variant $(($($type),+))?,)*
        }

        impl Unary {
            /// All functions, with examples of their constants, for tests.
            #[doc(hidden)]
            pub const ALL: &[Self] = &[$(Self::$variant $(($($example),+))?),*];

            /// The op's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => stringify!($name),)*
                }
            }

            /// The element types that the function supports.
            #[must_use]
            pub const fn domain(self) -> Domain {
                match self {
                    $(Self::$variant { .. } => Domain::$domain,)*
                }
            }

            /// The value that the gradient reads.
            #[must_use]
            pub const fn grad_reads(self) -> GradReads {
                match self {
                    $(Self::$variant { .. } => GradReads::$reads,)*
                }
            }

            /// The constants; 0 for missing ones.
            #[must_use]
            #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only CUDA kernels get them as data"))]
            pub(crate) fn constants(self) -> [Scalar; 2] {
                let mut all = [Scalar::Int(0); 2];
                match self {
                    $(Self::$variant $(($($constant),+))? => {
                        let given: &[Scalar] = &[$($(Scalar::from($constant)),+)?];
                        all.iter_mut().zip(given).for_each(|(constant, &given)| *constant = given);
                    })*
                }
                all
            }

            /// Whether the function takes no longer than its memory traffic.
            #[must_use]
            pub const fn is_light(self) -> bool {
                match self {
                    $(Self::$variant { .. } => is_light!($cost),)*
                }
            }

            /// Whether the gradient takes no longer than its memory traffic.
            #[must_use]
            pub const fn is_grad_light(self) -> bool {
                match self {
                    $(Self::$variant { .. } => is_light!($grad_cost),)*
                }
            }

            /// Ranges of arguments in which the function with the constants of [`ALL`](Self::ALL) is defined and smooth,
            /// for tests of gradients.
            #[doc(hidden)]
            #[must_use]
            pub const fn smooth(self) -> &'static [(f64, f64)] {
                match self {
                    $(Self::$variant { .. } => &[$($smooth),+],)*
                }
            }
        }
    };
}

/// Whether a cost of a row is that of a few instructions.
macro_rules! is_light {
    (light) => {
        true
    };
    ($cost:ident) => {
        false
    };
}

unary_functions!(define);

/// Evaluates the first expression for functions of all numbers, and the second for others.
macro_rules! if_of_numbers {
    (Numbers, $numbers:expr, $others:expr) => {
        $numbers
    };
    ($domain:ident, $numbers:expr, $others:expr) => {
        $others
    };
}

pub(crate) use {if_of_numbers, is_light, unary_functions};

/// The element types of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// Floats.
    Floats,
    /// Floats and integers, by one implementation.
    Numbers,
    /// Floats and integers, by two implementations. The table has the one for floats.
    FloatsAndIntegers,
}

/// The value that a gradient reads besides the gradient of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradReads {
    /// The argument x.
    Argument,
    /// The function's value y.
    Output,
    /// No value: the derivative is constant.
    Nothing,
    /// No value: the function is piecewise constant, so that no gradient flows.
    Flat,
}

impl Unary {
    /// Whether the backward pass reads the function's value (true) or its argument (false).
    #[must_use]
    pub const fn grad_reads_output(self) -> bool {
        matches!(self.grad_reads(), GradReads::Output)
    }

    /// Whether the function supports integers too.
    #[must_use]
    pub const fn supports_integers(self) -> bool {
        !matches!(self.domain(), Domain::Floats)
    }
}
