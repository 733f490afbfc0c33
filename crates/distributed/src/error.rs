//! The errors of collective operations and of worlds.

use std::io;
use std::ops::Range;
use std::time::Duration;

use bfc_core::{debug_as_message, printable};
use thiserror::Error;

use crate::launch::{LaunchError, Launcher};
use crate::operation::CollectiveOperation;

#[cfg(feature = "cuda")]
mod nccl;

#[cfg(feature = "cuda")]
pub use nccl::NcclConnectError;

/// The reason for which a collective operation failed.
///
/// After [`TimedOut`](Self::TimedOut), [`Length`](Self::Length), [`Early`](Self::Early), [`Left`](Self::Left) and
/// [`Library`](Self::Library) the ranks are out of step, and the contents of the data are unspecified. All later operations
/// fail with [`Ended`](Self::Ended). The other errors leave the data unchanged.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// Other ranks did not answer within the time limit: they died, hang, or run another operation.
    #[error(
        "{operation} on rank {rank}: no answer from {} within {limit:?}; look for their errors, or raise the time limit",
        peer_list(peers)
    )]
    TimedOut {
        /// The operation.
        operation: CollectiveOperation,
        /// The rank of this process.
        rank: usize,
        /// The ranks that did not answer; empty if the MPI library does not tell.
        peers: Vec<usize>,
        /// The time limit of an operation.
        limit: Duration,
    },
    /// Another rank runs the same operation with data of another length.
    #[error(
        "{operation} on rank {rank}: rank {peer} sent {} instead of {expected} bytes; \
         pass data of the same length on all ranks",
        received.map_or_else(|| "more".into(), |bytes| bytes.to_string())
    )]
    Length {
        /// The operation.
        operation: CollectiveOperation,
        /// The rank of this process.
        rank: usize,
        /// The other rank.
        peer: usize,
        /// The bytes that this rank expects.
        expected: usize,
        /// The bytes that arrived; `None` if they are more.
        received: Option<usize>,
    },
    /// This rank disconnects while another rank still runs operations.
    #[error(
        "{operation} on rank {rank}: rank {peer} still runs another operation; all ranks must run the same ones"
    )]
    Early {
        /// The operation.
        operation: CollectiveOperation,
        /// The rank of this process.
        rank: usize,
        /// The other rank.
        peer: usize,
    },
    /// Another rank has dropped its [`World`](crate::World) while this rank runs an operation.
    #[error(
        "{operation} on rank {rank}: rank {peer} has already ended; all ranks must run the same operations"
    )]
    Left {
        /// The operation.
        operation: CollectiveOperation,
        /// The rank of this process.
        rank: usize,
        /// The other rank.
        peer: usize,
    },
    /// The MPI library reported an error.
    #[error("{operation} on rank {rank}, with {}: {message}", peer_list(peers), message = printable(message))]
    Library {
        /// The operation.
        operation: CollectiveOperation,
        /// The rank of this process.
        rank: usize,
        /// The other rank; empty if the MPI library does not tell.
        peers: Vec<usize>,
        /// The message of the MPI library.
        message: String,
    },
    /// An earlier operation failed.
    #[error("{operation} on rank {rank}: not started, because an earlier operation failed: {cause}", cause = printable(cause))]
    Ended {
        /// The operation.
        operation: CollectiveOperation,
        /// The rank of this process.
        rank: usize,
        /// The message of the earlier error.
        cause: String,
    },
    /// The workspace is too small or not aligned to the elements.
    #[error(
        "{operation}: the workspace has {given} bytes at address {address:#x}; \
         it must have at least {needed} bytes, aligned to {align}"
    )]
    Workspace {
        /// The operation.
        operation: CollectiveOperation,
        /// The required bytes.
        needed: usize,
        /// The required alignment.
        align: usize,
        /// The bytes of the workspace.
        given: usize,
        /// The address of the workspace.
        address: usize,
    },
    /// The parts of the data do not fit: one per rank is required, in ascending order and within the data.
    #[error(
        "{operation}: {parts:?} are no parts of {elements} elements for {size} ranks; \
         pass one range per rank, in ascending order"
    )]
    Parts {
        /// The operation.
        operation: CollectiveOperation,
        /// The parts that the caller passed.
        parts: Vec<Range<usize>>,
        /// The elements of the data.
        elements: usize,
        /// The number of ranks.
        size: usize,
    },
    /// Bytes cannot be summed.
    #[error("{operation}: bytes have no sum; pass f32, f64, f16 or bf16")]
    Bytes {
        /// The operation.
        operation: CollectiveOperation,
    },
    /// The root of a broadcast is no rank of this world.
    #[error("broadcast: there is no rank {root}; ranks are 0 to {}", size - 1)]
    Root {
        /// The root that the caller passed.
        root: usize,
        /// The number of ranks.
        size: usize,
    },
}

debug_as_message!(CollectiveError);

/// `rank 3`, `ranks 1, 3`, or `other ranks`.
fn peer_list(peers: &[usize]) -> String {
    match peers {
        [] => "other ranks".into(),
        [peer] => format!("rank {peer}"),
        _ => format!("ranks {}", peers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// The reason for which a program has no [`World`](crate::World).
#[derive(Error)]
#[non_exhaustive]
pub enum WorldError {
    /// A variable of a launcher is missing or invalid.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// This build cannot connect the ranks that a launcher started.
    #[error(
        "{launcher} started {size} ranks, which this build cannot connect: \
         build with the feature `mpi`, and start with `mpiexec -n {size}` or `srun`"
    )]
    NoTransport {
        /// The launcher.
        launcher: Launcher,
        /// The number of ranks.
        size: usize,
    },
    /// This build cannot connect GPUs.
    #[error("this build cannot connect GPUs: build with the feature `cuda`")]
    NoCuda,
    /// The ranks' GPUs could not connect.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Nccl(#[from] NcclConnectError),
    /// MPI connected other ranks than the launcher announced.
    #[error(
        "{launcher} started rank {rank} of {size}, but MPI connected it as rank {mpi_rank} of {mpi_size}: \
         use the launcher of the MPI that this program was built with"
    )]
    OtherMpi {
        /// The launcher.
        launcher: Launcher,
        /// The rank in the launcher's variables.
        rank: usize,
        /// The number of ranks in the launcher's variables.
        size: usize,
        /// The rank in MPI.
        mpi_rank: usize,
        /// The number of ranks in MPI.
        mpi_size: usize,
    },
    /// MPI was initialized before, and it can be initialized only once.
    #[error("MPI is already in use by this process: create one `World`, and clone it")]
    Initialized,
    /// The MPI library cannot be called from the communication thread.
    #[error("the MPI library does not support threads (MPI_THREAD_FUNNELED): use an MPI that does")]
    Threads,
    /// The system started no communication thread.
    #[error("cannot start the communication thread: {}", printable(.0))]
    Spawn(io::Error),
    /// The rank of a rehearsal is not below the number of ranks.
    #[error("there is no rank {rank} among {size} ranks: ranks are counted from 0")]
    Rank {
        /// The rank that the caller passed.
        rank: usize,
        /// The number of ranks that the caller passed.
        size: usize,
    },
}

debug_as_message!(WorldError);
