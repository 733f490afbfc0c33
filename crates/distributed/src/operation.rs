//! The names of collective operations.

use std::fmt;

/// A collective operation, for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CollectiveOperation {
    /// [`Collective::all_reduce`](crate::Collective::all_reduce).
    AllReduce,
    /// [`Collective::reduce_scatter`](crate::Collective::reduce_scatter).
    ReduceScatter,
    /// [`Collective::all_gather`](crate::Collective::all_gather).
    AllGather,
    /// [`Collective::broadcast`](crate::Collective::broadcast).
    Broadcast,
    /// [`Collective::barrier`](crate::Collective::barrier).
    Barrier,
    /// The barrier before a rank disconnects.
    Disconnect,
}

impl fmt::Display for CollectiveOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AllReduce => "all-reduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllGather => "all-gather",
            Self::Broadcast => "broadcast",
            Self::Barrier => "barrier",
            Self::Disconnect => "disconnect",
        })
    }
}
