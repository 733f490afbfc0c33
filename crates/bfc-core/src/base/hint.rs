//! Hints for the compiler.

/// Marks the calling branch as unlikely, like `std::hint::cold_path` of Rust 1.95, which this crate does not require.
#[cold]
#[inline(always)]
pub(crate) const fn cold_path() {}
