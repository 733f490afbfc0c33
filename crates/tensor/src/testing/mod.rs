//! Assertions about memory for tests. A failure names the ops whose memory grew.
//!
//! - [`assert_peak!`](crate::assert_peak) bounds the bytes in use while a program runs;
//! - [`assert_flat_after!`](crate::assert_flat_after) checks that memory stays constant after a warm-up;
//! - [`assert_golden!`](crate::assert_golden) compares the exact figures by op with a file.
//!
//! They measure one device's pool, so each test needs a runtime of its own. On a [dry
//! device](crate::Runtime::dry) they are fast and give the same figures:
//!
//! ```
//! use highwater::alloc::Bytes;
//! use highwater::{Runtime, Tensor, assert_flat_after, assert_peak};
//!
//! let device = Runtime::builder().build()?.dry()?;
//! let weights = Tensor::zeros(&device, [512, 512])?;
//! let step = || weights.matmul(&weights)?.relu().map(drop);
//!
//! assert_peak!(device, Bytes::mib(8), step)?;
//! assert_flat_after!(device, 1, 5, |_| step());
//! # Ok::<(), highwater::Error>(())
//! ```
//!
//! Each macro panics with the error of a function, which programs can call directly.

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
