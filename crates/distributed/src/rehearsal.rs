//! One rank of a world whose other ranks do not exist.

use std::ops::Range;

use crate::collective::{
    Collective, SliceMut, SumOrder, check_parts, check_reduction, check_root, check_scatter,
};
use crate::error::CollectiveError;
use crate::operation::CollectiveOperation;

/// A rank without other processes. It checks arguments and moves no data.
///
/// A dry run of a rank makes the same requests for memory as the rank, since workspaces depend on sizes only. In a world
/// of one rank, all operations leave the data unchanged, and so this is also the implementation for a single process.
#[derive(Clone, Copy, Debug)]
pub struct Rehearsal {
    rank: usize,
    size: usize,
}

impl Rehearsal {
    /// The caller has checked that the rank is below the size.
    pub(crate) const fn new(rank: usize, size: usize) -> Self {
        Self { rank, size }
    }
}

impl Collective for Rehearsal {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn is_rehearsal(&self) -> bool {
        self.size > 1
    }

    fn all_reduce(
        &self,
        data: SliceMut<'_>,
        reduce: SumOrder,
        workspace: &mut [u8],
    ) -> Result<(), CollectiveError> {
        check_reduction(CollectiveOperation::AllReduce, &data, reduce, self.size, workspace)
    }

    fn reduce_scatter(
        &self,
        data: SliceMut<'_>,
        parts: &[Range<usize>],
        workspace: &mut [u8],
    ) -> Result<(), CollectiveError> {
        check_scatter(&data, parts, self.rank, self.size, workspace)
    }

    fn all_gather(&self, data: SliceMut<'_>, parts: &[Range<usize>]) -> Result<(), CollectiveError> {
        check_parts(CollectiveOperation::AllGather, data.len(), parts, self.size)
    }

    fn broadcast(&self, _data: SliceMut<'_>, root: usize) -> Result<(), CollectiveError> {
        check_root(root, self.size)
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn abort(&self, code: i32) -> ! {
        std::process::exit(code)
    }
}
