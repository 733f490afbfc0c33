//! The part of a pass that one of several processes reads.

use highwater_tensor::{Error, Result};

/// One of `size` processes ("ranks") that share a pass. In each step, rank k reads the k-th of `size` consecutive batches.
///
/// A single process that accumulates `size` micro-batches therefore sees the same batches in the same steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DataShard {
    /// The number of the process, from 0.
    pub rank: usize,
    /// The number of processes.
    pub size: usize,
}

/// The whole pass.
impl Default for DataShard {
    fn default() -> Self {
        Self { rank: 0, size: 1 }
    }
}

impl DataShard {
    /// Returns the part of rank `rank` of `size`.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if the rank is not below the size.
    pub fn new(rank: usize, size: usize) -> Result<Self> {
        if rank < size {
            return Ok(Self { rank, size });
        }
        Err(Error::BadArgument {
            op: "sharded",
            argument: "rank",
            expected: "below the number of ranks",
            got: format!("rank {rank} of {size}"),
        })
    }

    /// Returns the number of batches of each rank, of a pass of `batches`. Batches that not all ranks have are dropped.
    pub(super) const fn batches(self, batches: usize) -> usize {
        batches / self.size
    }

    /// Returns the number in the pass of a batch of this rank.
    pub(super) const fn batch(self, own: usize) -> usize {
        own.saturating_mul(self.size).saturating_add(self.rank)
    }
}
