//! What a program will take, found out without running it.
//!
//! On a dry device every op makes byte for byte the requests of the real one, from a pool that decides as the real one does,
//! and nothing is computed. So a run's peak is known in milliseconds, for this machine or for a GPU that is not here:
//!
//! - [`DeviceProfile`](crate::DeviceProfile) is what a dry run has to know of a device;
//! - [`dry_run`] runs a program on one, and [`DryRun`] is what it took;
//! - [`largest_fit`] finds the largest batch, or any other number, that a memory has room for;
//! - [`smallest_pool`] finds the least memory that a program runs in.
//!
//! A prediction is exact for the same profile, one issuing thread and one stream, as long as no request depends on data.

mod dry_run;
mod largest_fit;
mod smallest_pool;

pub use dry_run::{DryPeak, DryRun, DryRunOptions, dry_run};
pub use largest_fit::{LargestFit, Refused, largest_fit};
pub use smallest_pool::{SmallestPool, smallest_pool};
