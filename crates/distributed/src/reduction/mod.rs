//! Sums of gradients in the background: the memory of a bucket, the messages before a sum, and the thread that sums.

mod error;
mod reducer;
mod region;
mod status;

pub use error::ParallelError;
pub(crate) use reducer::{Done, Job, JobData, Ranks, Reducer};
pub(crate) use region::Region;
pub use status::{RunStage, Stage};
pub(crate) use status::{exchange, exchange_bits};
