//! The associative operations of reductions.

use super::super::number::Number;

/// An operation that reduces two values to one.
pub(in super::super) trait ReduceOp<T>: Sync {
    /// The neutral element.
    const IDENTITY: T;

    /// Maps an element before its reduction.
    #[inline(always)]
    fn element(element: T) -> T {
        element
    }

    /// Combines two mapped elements or partial results.
    fn fold(a: T, b: T) -> T;
}

/// Defines operations by their neutral element, their function of two elements, and a function that maps each element.
macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident: $identity:ident, $fold:expr $(, each $element:expr)?;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub(in super::super) struct $name;

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
        }
    )*};
}

reductions! {
    /// [`crate::backend::Reduce::Sum`]
    Sum: ZERO, T::plus;
    /// [`crate::backend::Reduce::Prod`]
    Product: ONE, T::times;
    /// [`crate::backend::Reduce::Max`]
    Max: LOWEST, T::larger;
    /// [`crate::backend::Reduce::Min`]
    Min: HIGHEST, T::smaller;
    /// The maximum with one processor instruction; may ignore NaN.
    FastMax: LOWEST, |a, b| if a > b { a } else { b };
    /// [`crate::backend::Reduce::SumMagnitudes`]
    SumMagnitudes: ZERO, T::plus, each T::magnitude;
    /// [`crate::backend::Reduce::SumSquares`]
    SumSquares: ZERO, T::plus, each |element: T| element.times(element);
}
