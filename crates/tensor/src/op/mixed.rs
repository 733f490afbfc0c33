//! The element type of mixed precision on this thread, and how it changes the promotion of element types.
//!
//! Only the methods of tensors read it. Ops do not: their inputs have the final types, and what they compute within does not
//! depend on the mode. So a backward pass is the same under a guard as without one.

use bfc_core::{ThreadScopedGuard, ThreadVariable, thread_scoped};

use crate::shape::DType;

thread_scoped! {
    /// The 16-bit type of mixed precision on this thread.
    pub(crate) static MIXED: Option<DType> = None;
}

/// Returns the 16-bit type of [mixed precision](crate::mixed()) on this thread; `None` without a guard.
#[must_use]
pub fn mixed_dtype() -> Option<DType> {
    MIXED.get()
}

/// Sets the type of mixed precision until the guard is dropped. Does nothing if it is the present one, which is the usual case.
#[must_use]
#[inline]
pub(crate) fn within(dtype: Option<DType>) -> Option<ThreadScopedGuard<MIXED>> {
    (MIXED.get() != dtype).then(|| MIXED.enter(dtype))
}

/// Runs a function without mixed precision, for products whose values become parameters.
pub fn without_mixed<T>(run: impl FnOnce() -> T) -> T {
    let _none = within(None);
    run()
}

/// Returns the type in which an op combines elements of two types. In mixed precision, f32 and the 16-bit type become the
/// 16-bit type.
pub(crate) fn promote(lhs: DType, rhs: DType) -> DType {
    let promoted = lhs.promote(rhs);
    match mixed_dtype() {
        Some(half) if promoted == DType::F32 && (lhs == half || rhs == half) => half,
        _ => promoted,
    }
}

/// Returns the type in which a product combines elements of two types. In mixed precision, it is 16-bit for f32 too.
pub(crate) fn promote_factors(lhs: DType, rhs: DType) -> DType {
    match (promote(lhs, rhs), mixed_dtype()) {
        (DType::F32, Some(half)) => half,
        (promoted, _) => promoted,
    }
}
