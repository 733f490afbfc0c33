//! The associative operations of reductions.

use super::super::number::Number;
use super::GROUP;

/// An operation that reduces two values to one.
pub(crate) trait ReduceOp<T>: Sync {
    /// The neutral element.
    const IDENTITY: T;

    /// Maps an element before its reduction.
    #[inline(always)]
    fn element(element: T) -> T {
        element
    }

    /// Combines two mapped elements or partial results.
    fn fold(a: T, b: T) -> T;

    /// Whether results do not depend on the order of elements.
    const ANY_ORDER: bool = false;

    /// Combines a partial result and four mapped elements.
    #[inline(always)]
    fn fold_group(total: T, [a, b, c, d]: [T; GROUP]) -> T {
        Self::fold(total, Self::fold(Self::fold(a, b), Self::fold(c, d)))
    }
}

/// Defines operations by their neutral element, their function of two elements, and a function that maps each element.
macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident: $identity:ident, $fold:expr $(, each $element:expr)? $(, group $group:expr)?;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name;

        impl<T: Number> ReduceOp<T> for $name {
            const IDENTITY: T = T::$identity;

            $(
                #[inline(always)]
                fn element(element: T) -> T {
                    let map: fn(T) -> T = $element;
                    map(element)
                }
            )?

            #[inline(always)]
            fn fold(a: T, b: T) -> T {
                let fold: fn(T, T) -> T = $fold;
                fold(a, b)
            }

            $(
                const ANY_ORDER: bool = true;

                #[inline(always)]
                fn fold_group(total: T, group: [T; GROUP]) -> T {
                    extreme_of_group(total, group, $group)
                }
            )?
        }
    )*};
}

/// The maximum or minimum of a partial result and four elements; NaN if any of them is NaN. Checks the elements for NaN
/// beside the comparisons, so that the next group need not wait for it.
#[inline(always)]
fn extreme_of_group<T: Number>(total: T, [a, b, c, d]: [T; GROUP], better: fn(T, T) -> T) -> T {
    let any_nan = a.is_nan() | b.is_nan() | c.is_nan() | d.is_nan();
    // Returns its second argument, the total, if that is NaN.
    let best = better(better(better(a, b), better(c, d)), total);
    if any_nan { T::NAN } else { best }
}

reductions! {
    /// [`crate::families::Reduce::Sum`]
    Sum: ZERO, T::plus;
    /// [`crate::families::Reduce::Prod`]
    Product: ONE, T::times;
    /// [`crate::families::Reduce::Max`]
    Max: LOWEST, T::larger, group |a, b| if a > b { a } else { b };
    /// [`crate::families::Reduce::Min`]
    Min: HIGHEST, T::smaller, group |a, b| if a < b { a } else { b };
    /// The maximum with one processor instruction; may ignore NaN.
    FastMax: LOWEST, |a, b| if a > b { a } else { b };
    /// [`crate::families::Reduce::SumMagnitudes`]
    SumMagnitudes: ZERO, T::plus, each T::magnitude;
    /// [`crate::families::Reduce::SumSquares`]
    SumSquares: ZERO, T::plus, each |element: T| element.times(element);
}
