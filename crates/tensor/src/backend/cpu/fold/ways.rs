//! Ways to fold two numbers into one.

use super::super::number::Number;

/// A way to fold two numbers into one.
pub(in super::super) trait Fold<T>: Sync {
    /// What leaves every number as it is.
    const IDENTITY: T;

    /// What an element counts as before it is folded.
    #[inline(always)]
    fn element(element: T) -> T {
        element
    }

    /// Two numbers into one: two elements, or what other elements were folded into.
    fn fold(a: T, b: T) -> T;
}

/// [`crate::backend::Reduce::Sum`]
#[derive(Debug)]
pub(in super::super) struct Sum;

/// [`crate::backend::Reduce::Prod`]
#[derive(Debug)]
pub(in super::super) struct Product;

/// [`crate::backend::Reduce::Max`]
#[derive(Debug)]
pub(in super::super) struct Largest;

/// [`crate::backend::Reduce::Min`]
#[derive(Debug)]
pub(in super::super) struct Smallest;

/// The largest number, by a processor's own maximum: a NaN may be passed over.
#[derive(Debug)]
pub(in super::super) struct LargestNumber;

/// [`crate::backend::Reduce::SumMagnitudes`]
#[derive(Debug)]
pub(in super::super) struct SumMagnitudes;

/// [`crate::backend::Reduce::SumSquares`]
#[derive(Debug)]
pub(in super::super) struct SumSquares;

impl<T: Number> Fold<T> for SumMagnitudes {
    const IDENTITY: T = T::ZERO;

    #[inline(always)]
    fn element(element: T) -> T {
        element.magnitude()
    }

    fn fold(a: T, b: T) -> T {
        a.plus(b)
    }
}

impl<T: Number> Fold<T> for SumSquares {
    const IDENTITY: T = T::ZERO;

    #[inline(always)]
    fn element(element: T) -> T {
        element.times(element)
    }

    fn fold(a: T, b: T) -> T {
        a.plus(b)
    }
}

impl<T: Number> Fold<T> for Sum {
    const IDENTITY: T = T::ZERO;

    fn fold(a: T, b: T) -> T {
        a.plus(b)
    }
}

impl<T: Number> Fold<T> for Product {
    const IDENTITY: T = T::ONE;

    fn fold(a: T, b: T) -> T {
        a.times(b)
    }
}

impl<T: Number> Fold<T> for Largest {
    const IDENTITY: T = T::LOWEST;

    fn fold(a: T, b: T) -> T {
        a.larger(b)
    }
}

impl<T: Number> Fold<T> for LargestNumber {
    const IDENTITY: T = T::LOWEST;

    #[inline(always)]
    fn fold(a: T, b: T) -> T {
        if a > b { a } else { b }
    }
}

impl<T: Number> Fold<T> for Smallest {
    const IDENTITY: T = T::HIGHEST;

    fn fold(a: T, b: T) -> T {
        a.smaller(b)
    }
}
