//! Predicts the memory of a program with dry runs.
//!
//! On a dry device every op makes the same requests as on the real one, to a pool that makes the same
//! decisions. Nothing is computed. So a run's peak is known in milliseconds, for this machine or for a GPU
//! that it does not have:
//!
//! - [`DeviceProfile`](crate::DeviceProfile) describes the device;
//! - [`dry_run`] runs a program and returns a [`DryRun`] with its memory;
//! - [`largest_fit`] finds the largest batch, or another number, that fits into memory;
//! - [`smallest_pool`] finds the smallest pool in which a program runs.
//!
//! A prediction is exact for the same profile, one issuing thread and one stream, if no request depends on
//! data.

mod dry_run;
mod largest_fit;
mod measure;
mod smallest_pool;

pub use dry_run::{DryPeak, DryRun, DryRunOptions, dry_run};
pub use largest_fit::{FitFailure, LargestFit, largest_fit};
pub use smallest_pool::{SmallestPool, smallest_pool};
