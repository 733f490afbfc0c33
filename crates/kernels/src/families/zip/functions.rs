//! The tables of elementwise functions of two arguments and of comparisons.

use crate::families::Domain;
use crate::families::map::functions::is_light;

/// Passes the table of binary functions to the macro `$expand`. A function is one row:
///
/// ```text
/// /// The documentation of the method of `Tensor`.
/// name: Variant {
///     domain: a `Domain`, booleans: whether the function of booleans is a boolean,
///     smooth: [ranges of a] and [ranges of b] where tests take differences,
///     value: cost(c from a and b),
/// }
/// ```
///
/// The CPU runs `value` for its float types `T` ([`Domain::Numbers`]: for all number types). The costs `light` and `heavy`
/// are those of `unary_functions`. `by` names a function of `zip/cpu.rs` that replaces a chunk of a by the results.
///
/// Gradients consist of other ops: see `ops/binary.rs`. CUDA has a `case NAMED("name")` in the kernel `binary` of
/// `elementwise.cu`, within `#ifdef T_IS_FLOAT` for [`Domain::Floats`].
#[doc(hidden)]
#[macro_export]
macro_rules! binary_functions {
    ($expand:ident) => { $expand! {
        /// Adds two tensors element by element: a + b. Integers wrap.
        ///
        /// ```
        /// use highwater::{Device, Tensor};
        /// let device = Device::cpu()?;
        /// let rows = Tensor::from_slice(&device, &[10.0f32, 20.0], [2, 1])?;
        /// let columns = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0], [3])?;
        /// let sums = rows.add(&columns)?; // or (&rows + &columns)?
        /// assert_eq!(sums.to_vec::<f32>()?, [11.0, 12.0, 13.0, 21.0, 22.0, 23.0]);
        /// # Ok::<(), highwater::Error>(())
        /// ```
        add: Add {
            domain: Numbers, booleans: false, smooth: [(-2.0, 2.0)] and [(-2.0, 2.0)],
            value: light(T::plus),
        }
        /// Subtracts two tensors element by element: a - b. Integers wrap.
        sub: Sub {
            domain: Numbers, booleans: false, smooth: [(-2.0, 2.0)] and [(-2.0, 2.0)],
            value: light(T::minus),
        }
        /// Multiplies two tensors element by element: a b. Integers wrap.
        mul: Mul {
            domain: Numbers, booleans: true, smooth: [(-2.0, 2.0)] and [(-2.0, 2.0)],
            value: light(T::times),
        }
        /// Divides two tensors element by element: a / b. Integer division truncates towards zero, and division by 0
        /// gives 0.
        div: Div {
            domain: Numbers, booleans: false, smooth: [(-2.0, 2.0)] and [(0.5, 2.5)],
            value: light(T::over),
        }
        /// Elementwise maximum of two tensors; NaN if either element is NaN. At ties each side gets half of the
        /// gradient.
        #[doc(alias("fmax"))]
        maximum: Maximum {
            domain: Numbers, booleans: true, smooth: [(-2.0, -1.5), (0.0, 0.5)] and [(-1.0, -0.5), (1.0, 1.5)],
            value: light(T::larger),
        }
        /// Elementwise minimum of two tensors; NaN if either element is NaN. At ties each side gets half of the
        /// gradient.
        #[doc(alias("fmin"))]
        minimum: Minimum {
            domain: Numbers, booleans: true, smooth: [(-2.0, -1.5), (0.0, 0.5)] and [(-1.0, -0.5), (1.0, 1.5)],
            value: light(T::smaller),
        }
        /// Raises a to the power b, element by element.
        ///
        /// For floats, a negative a gives NaN unless b is a whole number. Integers wrap. A negative integer power gives
        /// 1 / aⁿ truncated towards zero, as in PyTorch: 0 except for a = 1 and a = -1. NumPy rejects this case.
        ///
        /// ```
        /// use highwater::{Device, Tensor};
        /// let device = Device::cpu()?;
        /// let [bases, powers] = [[2i64, -3, 7, -1], [10, 3, -2, -3]];
        /// let [a, b] = [bases, powers].map(|values| Tensor::from_slice(&device, &values, [4]));
        /// assert_eq!(a?.pow(&b?)?.to_vec::<i64>()?, [1024, -27, 0, -1]);
        /// # Ok::<(), highwater::Error>(())
        /// ```
        #[doc(alias("power"))]
        pow: Pow {
            domain: FloatsAndIntegers, booleans: false, smooth: [(0.5, 2.5)] and [(-2.0, 2.0)],
            value: by(raise),
        }
        /// Angle in radians from the positive x-axis to the point (x, y) with y = `self` and x = `rhs`, from -π to π.
        atan2: Atan2 {
            domain: Floats, booleans: false, smooth: [(-2.0, -0.5), (0.5, 2.0)] and [(-2.5, -0.5), (0.5, 2.5)],
            value: heavy(T::atan2),
        }
        /// SiLU of a, times b: a / (1 + e⁻ᵃ) · b, as the gate a of a SwiGLU layer scales b. Keeps a and b for the gradients, and
        /// not the SiLU, which a product of [`silu`](Self::silu) would keep too.
        ///
        /// ```
        /// use highwater::{Device, Tensor};
        /// let device = Device::cpu()?;
        /// let (gate, up) = (Tensor::ones(&device, [2, 3])?, Tensor::full(&device, [2, 3], 4.0)?);
        /// let y = gate.silu_mul(&up)?;
        /// assert_eq!(y.to_vec::<f32>()?, gate.silu()?.mul(&up)?.to_vec::<f32>()?);
        /// # Ok::<(), highwater::Error>(())
        /// ```
        #[doc(alias("swiglu"))]
        silu_mul: SiluMul {
            domain: Floats, booleans: false, smooth: [(-2.0, 2.0)] and [(-2.0, 2.0)],
            value: heavy(|a, b| silu(a) * b),
        }
    } };
}

/// Defines the enum and the properties of its functions.
macro_rules! define_binary {
    ($(
        $(#[$_meta:meta])*
        $name:ident: $variant:ident {
            domain: $domain:ident, booleans: $booleans:literal, smooth: [$($a:expr),+] and [$($b:expr),+],
            value: $cost:ident($value:expr),
        }
    )*) => {
        /// An elementwise function of two arguments. Integer arithmetic wraps; integer division by 0 returns 0.
        // Exhaustive, so that the compiler names the gradients that a new function needs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Binary {
            $(
                #[doc = concat!("The function of the tensor method `", stringify!($name), "`.")]
                $variant,
            )*
        }

        impl Binary {
            /// All functions.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The op's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($name),)*
                }
            }

            /// The element types that the function supports.
            #[must_use]
            pub const fn domain(self) -> Domain {
                match self {
                    $(Self::$variant => Domain::$domain,)*
                }
            }

            /// Whether the function of booleans is a boolean.
            #[must_use]
            pub const fn supports_booleans(self) -> bool {
                match self {
                    $(Self::$variant => $booleans,)*
                }
            }

            /// Whether the function takes no longer than its memory traffic.
            #[must_use]
            pub const fn is_light(self) -> bool {
                match self {
                    $(Self::$variant => is_light!($cost),)*
                }
            }

            /// Ranges of both arguments in which the function is defined and smooth, for tests of gradients.
            #[doc(hidden)]
            #[must_use]
            pub const fn smooth(self) -> [&'static [(f64, f64)]; 2] {
                match self {
                    $(Self::$variant => [&[$($a),+], &[$($b),+]],)*
                }
            }
        }
    };
}

binary_functions!(define_binary);

/// Passes the table of comparisons to the macro `$expand`. CUDA has a `case NAMED("name")` for each in the kernel
/// `compare` of `elementwise.cu`.
#[doc(hidden)]
#[macro_export]
macro_rules! comparisons {
    ($expand:ident) => {
        $expand! {
            /// Elementwise a = b, as booleans. NaN equals nothing.
            #[doc(alias("equal"))]
            eq: Eq(|a, b| a == b),
            /// Elementwise a ≠ b, as booleans. NaN differs from everything.
            #[doc(alias("not_equal"))]
            ne: Ne(|a, b| a != b),
            /// Elementwise a < b, as booleans.
            #[doc(alias("less"))]
            lt: Lt(|a, b| a < b),
            /// Elementwise a ≤ b, as booleans.
            #[doc(alias("less_equal"))]
            le: Le(|a, b| a <= b),
            /// Elementwise a > b, as booleans.
            #[doc(alias("greater"))]
            gt: Gt(|a, b| a > b),
            /// Elementwise a ≥ b, as booleans.
            #[doc(alias("greater_equal"))]
            ge: Ge(|a, b| a >= b),
        }
    };
}

/// Defines the enum and the names.
macro_rules! define_comparisons {
    ($($(#[$meta:meta])* $name:ident: $variant:ident($holds:expr),)*) => {
        /// A comparison; the result is [`DType::Bool`](crate::shape::DType::Bool).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Compare {
            $($(#[$meta])* $variant,)*
        }

        impl Compare {
            /// All comparisons.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The op's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($name),)*
                }
            }
        }
    };
}

comparisons!(define_comparisons);

pub(crate) use {binary_functions, comparisons};
