//! Assertions about memory, for tests of programs that compute with tensors: a failing one names who grew.
//!
//! - [`assert_peak!`](crate::assert_peak) bounds what is in use while something runs;
//! - [`assert_flat_after!`](crate::assert_flat_after) says that steps leave nothing behind once they are warmed up;
//! - [`assert_golden!`](crate::assert_golden) compares the figures by op with a file, to the byte.
//!
//! They look at one device's pool, so a test has a runtime of its own, or other tests would be seen too. On a
//! [dry device](crate::Runtime::dry) they take no time and give the same figures:
//!
//! ```
//! use highwater::alloc::Bytes;
//! use highwater::{Runtime, Tensor, assert_flat_after, assert_peak};
//!
//! let device = Runtime::builder().build()?.dry()?;
//! let weights = Tensor::zeros(&device, [512, 512])?;
//! let step = || weights.matmul(&weights)?.relu().map(drop);
//!
//! assert_peak!(device, Bytes::mib(3), step)?;
//! assert_flat_after!(device, 1, 5, |_| step());
//! # Ok::<(), highwater::Error>(())
//! ```
//!
//! Each macro panics with the error that the function behind it returns, for programs that want to go on.

mod flat;
mod golden;
mod growth;
mod peak;

pub use flat::{NotFlat, check_flat_after};
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use golden::difference;
pub use golden::{GoldenError, Update, check_golden};
pub use growth::{Growth, Holder};
pub use peak::{MeasuredPeak, PeakExceeded, measure_peak};
