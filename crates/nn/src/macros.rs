//! Names in the code that `#[derive(Module)]` and `#[module]` write. The crate `highwater` has them under the same path.

use highwater_tensor::{Result, Tensor};
use highwater_tracking::ModuleGuard;

use crate::modules::outputs::output;
pub use crate::modules::{Module, ModulePart, PartVisitor, Parts};

/// Enters the path of a module until the guard is dropped.
#[inline]
pub fn enter<M: Module + ?Sized>(module: &M) -> ModuleGuard {
    module.enter()
}

/// Runs the body of a method. A `return` or `?` ends only the body.
#[inline]
pub fn run<R>(body: impl FnOnce() -> R) -> R {
    body()
}

/// Selects how a method ends by the type of its result: `Kind(&result).of().finish(result)`. The compiler prefers an
/// inherent method to one of a trait, and that to a method of a reference.
#[derive(Debug)]
pub struct Kind<'a, R>(pub &'a R);

/// Notes the output, or adds the path to the error.
#[derive(Clone, Copy, Debug)]
pub struct OfTensor;

/// Adds the path to the error.
#[derive(Clone, Copy, Debug)]
pub struct OfResult;

/// Does nothing.
#[derive(Clone, Copy, Debug)]
pub struct OfAny;

impl Kind<'_, Result<Tensor>> {
    /// A tensor.
    #[inline]
    pub fn of(&self) -> OfTensor {
        OfTensor
    }
}

/// The kind of other results.
pub trait ResultKind {
    /// A result with an error of this library.
    #[inline]
    fn of(&self) -> OfResult {
        OfResult
    }
}

impl<T> ResultKind for Kind<'_, Result<T>> {}

/// The kind of all other values.
pub trait AnyKind {
    /// A value without an error of this library.
    #[inline]
    fn of(&self) -> OfAny {
        OfAny
    }
}

impl<R> AnyKind for &Kind<'_, R> {}

impl OfTensor {
    /// Ends the method.
    #[inline]
    pub fn finish(self, result: Result<Tensor>) -> Result<Tensor> {
        output(result)
    }
}

impl OfResult {
    /// Ends the method.
    #[inline]
    pub fn finish<T>(self, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.in_module())
    }
}

impl OfAny {
    /// Ends the method.
    #[inline]
    pub fn finish<R>(self, result: R) -> R {
        result
    }
}
