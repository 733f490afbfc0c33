//! The table of reductions.

/// Passes the table of reductions to the macro `$expand`. A reduction is one row: its variant, the element types, its
/// operation in `backend/cpu/fold/ops.rs`, the result without elements, and the reduction of partial results.
///
/// CUDA has a `case NAMED("name")` for each in `reduce.cu`: in `fold`, and in `element` if the operation maps elements
/// before it reduces them (`each`).
macro_rules! reduce_functions {
    ($expand:ident) => {
        $expand! {
            /// Σ x; 0 without elements.
            sum: Sum { domain: Sums, fold: Sum, empty: Zero, parts: Sum },
            /// ∏ x; 1 without elements.
            prod: Prod { domain: Sums, fold: Product, empty: One, parts: Prod },
            /// max x; NaN if any element is NaN. Requires at least one element.
            max: Max { domain: All, fold: Max, empty: Lowest, parts: Max },
            /// min x; NaN if any element is NaN. Requires at least one element.
            min: Min { domain: All, fold: Min, empty: Highest, parts: Min },
            /// Σ |x|. Requires floats.
            sum_magnitudes: SumMagnitudes { domain: Floats, fold: SumMagnitudes, empty: Zero, parts: Sum },
            /// Σ x². Requires floats.
            sum_squares: SumSquares { domain: Floats, fold: SumSquares, empty: Zero, parts: Sum },
        }
    };
}

/// Defines the enum and the properties of its reductions.
macro_rules! define {
    ($(
        $(#[$meta:meta])*
        $name:ident: $variant:ident { domain: $domain:ident, fold: $fold:ident, empty: $empty:ident, parts: $parts:ident },
    )*) => {
        /// A reduction of many elements to one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reduce {
            $($(#[$meta])* $variant,)*
        }

        impl Reduce {
            /// All reductions.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The op's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($name),)*
                }
            }

            /// The element types that the reduction supports.
            #[must_use]
            pub const fn domain(self) -> ReduceDomain {
                match self {
                    $(Self::$variant => ReduceDomain::$domain,)*
                }
            }

            /// The result without elements.
            #[must_use]
            pub const fn empty(self) -> Identity {
                match self {
                    $(Self::$variant => Identity::$empty,)*
                }
            }

            /// The reduction of partial results.
            #[must_use]
            pub const fn of_parts(self) -> Self {
                match self {
                    $(Self::$variant => Self::$parts,)*
                }
            }
        }
    };
}

reduce_functions!(define);

pub(crate) use reduce_functions;

impl Reduce {
    /// Whether the reduction requires at least one element, because its neutral element is only a bound.
    #[must_use]
    pub const fn requires_elements(self) -> bool {
        matches!(self.empty(), Identity::Lowest | Identity::Highest)
    }
}

/// The element types of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceDomain {
    /// All types.
    All,
    /// The types of sums: floats and 64-bit integers.
    Sums,
    /// Floats.
    Floats,
}

/// The neutral element of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// 0
    Zero,
    /// 1
    One,
    /// The smallest value of the type.
    Lowest,
    /// The largest value of the type.
    Highest,
}
