//! The errors of NCCL.

use std::time::Duration;

use crate::compute::{ComputeError, TriedLibrary, listed};
use bfc_core::printable;

/// The reason why ranks could not connect, or why a collective operation failed.
///
/// After [`Call`](Self::Call), [`TimedOut`](Self::TimedOut) and [`Device`](Self::Device) of an operation, the
/// communicator is aborted, and all later calls fail with [`Ended`](Self::Ended).
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NcclError {
    /// NCCL is not installed, or is too old.
    #[error(
        "no library for several GPUs (NCCL 2.14 or newer): {}; install the package libnccl2, or nvidia-nccl-cu13 from \
         PyPI, or set HIGHWATER_NCCL to the file libnccl.so.2",
        listed(tried)
    )]
    Missing {
        /// The libraries that were tried, with the reasons.
        tried: Vec<TriedLibrary>,
    },
    /// A function of NCCL failed.
    #[error("{call}{}: NCCL result {code}, {reason}{}", on_rank(*rank), after_colon(detail), reason = printable(reason))]
    Call {
        /// The function.
        call: &'static str,
        /// The rank of this process; `None` before it connects.
        rank: Option<usize>,
        /// NCCL's result.
        code: i32,
        /// NCCL's text for the result, which says how to get details.
        reason: String,
        /// NCCL's last message; may be empty.
        detail: String,
    },
    /// The other ranks did not take part within the time limit.
    #[error(
        "{call} on rank {rank} of {size}: not finished within {limit:?}; another rank has ended, hangs, or runs other \
         operations: look for its error, or raise the time limit"
    )]
    TimedOut {
        /// The function.
        call: &'static str,
        /// The rank of this process.
        rank: usize,
        /// The number of ranks.
        size: usize,
        /// The time limit.
        limit: Duration,
    },
    /// The communicator was aborted before.
    #[error("{call} on rank {rank}: not started, because the communicator has ended: {cause}", cause = printable(cause))]
    Ended {
        /// The function.
        call: &'static str,
        /// The rank of this process.
        rank: usize,
        /// The message of the first error.
        cause: String,
    },
    /// The device is unusable.
    #[error(transparent)]
    Device(#[from] ComputeError),
    /// A rank is not below the number of ranks, or NCCL does not support so many.
    #[error(
        "there is no rank {rank} among {size} ranks: ranks are counted from 0, and NCCL has at most {}",
        i32::MAX
    )]
    Rank {
        /// The rank that the caller passed.
        rank: usize,
        /// The number of ranks.
        size: usize,
    },
}

bfc_core::debug_as_message!(NcclError);

fn on_rank(rank: Option<usize>) -> String {
    rank.map_or_else(String::new, |rank| format!(" on rank {rank}"))
}

fn after_colon(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(": {}", printable(detail)) }
}
