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

/// [`crate::backend::Reduce::Sum`]
#[derive(Debug)]
pub(in super::super) struct Sum;

/// [`crate::backend::Reduce::Prod`]
#[derive(Debug)]
pub(in super::super) struct Product;

/// [`crate::backend::Reduce::Max`]
#[derive(Debug)]
pub(in super::super) struct Max;

/// [`crate::backend::Reduce::Min`]
#[derive(Debug)]
pub(in super::super) struct Min;

/// The maximum with one processor instruction; may ignore NaN.
#[derive(Debug)]
pub(in super::super) struct FastMax;

/// [`crate::backend::Reduce::SumMagnitudes`]
#[derive(Debug)]
pub(in super::super) struct SumMagnitudes;

/// [`crate::backend::Reduce::SumSquares`]
#[derive(Debug)]
pub(in super::super) struct SumSquares;

impl<T: Number> ReduceOp<T> for SumMagnitudes {
    const IDENTITY: T = T::ZERO;

    #[inline(always)]
    fn element(element: T) -> T {
        element.magnitude()
    }

    fn fold(a: T, b: T) -> T {
        a.plus(b)
    }
}

impl<T: Number> ReduceOp<T> for SumSquares {
    const IDENTITY: T = T::ZERO;

    #[inline(always)]
    fn element(element: T) -> T {
        element.times(element)
    }

    fn fold(a: T, b: T) -> T {
        a.plus(b)
    }
}

impl<T: Number> ReduceOp<T> for Sum {
    const IDENTITY: T = T::ZERO;

    fn fold(a: T, b: T) -> T {
        a.plus(b)
    }
}

impl<T: Number> ReduceOp<T> for Product {
    const IDENTITY: T = T::ONE;

    fn fold(a: T, b: T) -> T {
        a.times(b)
    }
}

impl<T: Number> ReduceOp<T> for Max {
    const IDENTITY: T = T::LOWEST;

    fn fold(a: T, b: T) -> T {
        a.larger(b)
    }
}

impl<T: Number> ReduceOp<T> for FastMax {
    const IDENTITY: T = T::LOWEST;

    #[inline(always)]
    fn fold(a: T, b: T) -> T {
        if a > b { a } else { b }
    }
}

impl<T: Number> ReduceOp<T> for Min {
    const IDENTITY: T = T::HIGHEST;

    fn fold(a: T, b: T) -> T {
        a.smaller(b)
    }
}
