//! The reasons why ranks could not connect over NCCL.

use std::io;
use std::time::Duration;

use bfc_core::{SourceError, printable};
use bfc_cuda::{CudaUnavailable, NcclError};
use thiserror::Error;

use super::CollectiveError;
use crate::launch::LaunchError;

/// The reason for which a program has no [`Nccl`](crate::Nccl).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NcclConnectError {
    /// NCCL is not installed, or fails.
    #[error(transparent)]
    Nccl(#[from] NcclError),
    /// This rank has no GPU.
    #[error(transparent)]
    Device(#[from] CudaUnavailable),
    /// The GPU has no stream, or no memory for messages.
    #[error("stream and memory for messages between ranks: {0}")]
    Driver(SourceError),
    /// The world could not broadcast the id of the communicator.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// `MASTER_ADDR` or `MASTER_PORT` is missing or invalid.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Rank 0 has no id for the communicator.
    #[error("rank {rank} got no id from rank 0, whose NCCL did not start: look for the error of rank 0")]
    NoId {
        /// The rank of this process.
        rank: usize,
    },
    /// The rank is not below the number of ranks, or there are more than 2³² ranks.
    #[error("there is no rank {rank} among {size} ranks: ranks are counted from 0")]
    Rank {
        /// The rank that the caller passed.
        rank: usize,
        /// The number of ranks that the caller passed.
        size: usize,
    },
    /// Rank 0 cannot listen.
    #[error(
        "rank 0 cannot listen at {address}: {cause}; start with another port, such as `torchrun --master-port`", address = printable(address), cause = printable(cause)
    )]
    Listen {
        /// The host and port.
        address: String,
        /// The system's error.
        cause: io::Error,
    },
    /// Some ranks did not connect to rank 0 in time.
    #[error(
        "{} did not connect to rank 0 at {address} within {limit:?}{}; look for their errors, or raise the time limit",
        listed(missing),
        refusals(refused), address = printable(address)
    )]
    Missing {
        /// The ranks that did not connect.
        missing: Vec<usize>,
        /// The host and port.
        address: String,
        /// The time limit.
        limit: Duration,
        /// Why rank 0 refused connections, if it did.
        refused: Vec<String>,
    },
    /// This rank did not reach rank 0 in time.
    #[error(
        "rank {rank} got no answer from rank 0 at {address} within {limit:?}: {cause}; look for the error of rank 0, and \
         check that this machine reaches the address and that no other program uses the port", address = printable(address), cause = printable(cause)
    )]
    Unreachable {
        /// The rank of this process.
        rank: usize,
        /// The host and port.
        address: String,
        /// The time limit.
        limit: Duration,
        /// The last error.
        cause: io::Error,
    },
    /// Another program answers at the address of rank 0.
    #[error(
        "rank {rank}: another program than rank 0 answers at {address}; start with another port, such as `torchrun \
         --master-port`", address = printable(address)
    )]
    OtherProgram {
        /// The rank of this process.
        rank: usize,
        /// The host and port.
        address: String,
    },
    /// Rank 0 runs in a world of another size.
    #[error(
        "rank {rank} was started among {size} ranks, but rank 0 at {address} among {expected}: start all ranks alike", address = printable(address)
    )]
    OtherSize {
        /// The rank of this process.
        rank: usize,
        /// The number of ranks of this process.
        size: usize,
        /// The number of ranks of rank 0.
        expected: usize,
        /// The host and port.
        address: String,
    },
    /// Another process is this rank.
    #[error(
        "another process has connected to rank 0 at {address} as rank {rank} already: give each process its own rank", address = printable(address)
    )]
    SameRank {
        /// The rank of this process.
        rank: usize,
        /// The host and port.
        address: String,
    },
}

/// `rank 3`, or `ranks 1, 3`.
fn listed(ranks: &[usize]) -> String {
    match ranks {
        [rank] => format!("rank {rank}"),
        _ => format!("ranks {}", ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    }
}

fn refusals(refused: &[String]) -> String {
    if refused.is_empty() { String::new() } else { format!(" (refused: {})", printable(refused.join(", "))) }
}
