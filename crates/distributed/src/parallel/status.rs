//! The messages that ranks exchange before they sum a bucket and before they step.
//!
//! They keep the ranks together: a rank that fails tells the others instead of the data that they expect, and all ranks
//! discard the step at the same message. All messages of a run have the same length.

use std::fmt;

use crate::collective::{SliceMut, spans};
use crate::parallel::error::ParallelError;
use crate::world::World;

/// What a rank does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Sums the gradients of a bucket.
    Bucket(u32),
    /// Changes the parameters.
    Step,
    /// Discards the step after an error.
    Failed,
    /// Discards the step, because memory ran out.
    OutOfMemory,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bucket(number) => write!(f, "the sum of bucket {number}"),
            Self::Step => f.write_str("the optimizer's step"),
            Self::Failed => f.write_str("an error"),
            Self::OutOfMemory => f.write_str("an out-of-memory error"),
        }
    }
}

/// The bytes of a stage: its kind and the bucket.
const STAGE_BYTES: usize = 5;

impl Stage {
    fn write(self, bytes: &mut [u8]) {
        let (kind, bucket) = match self {
            Self::Bucket(number) => (0, number),
            Self::Step => (1, 0),
            Self::Failed => (2, 0),
            Self::OutOfMemory => (3, 0),
        };
        bytes[0] = kind;
        bytes[1..STAGE_BYTES].copy_from_slice(&bucket.to_le_bytes());
    }

    fn read(bytes: &[u8]) -> Self {
        match bytes[0] {
            0 => Self::Bucket(u32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]])),
            1 => Self::Step,
            2 => Self::Failed,
            _ => Self::OutOfMemory,
        }
    }
}

/// Tells the other ranks the stage of this rank and which gradients it has. Returns which gradients any rank has.
///
/// # Errors
///
/// A rank fails, is at another stage, or does not answer.
pub(crate) fn exchange(
    world: &World,
    stage: Stage,
    present: &[bool],
    most: usize,
) -> Result<Vec<bool>, ParallelError> {
    let length = STAGE_BYTES + most.div_ceil(8);
    let mut bytes = vec![0_u8; length * world.size()];
    let own = &mut bytes[length * world.rank()..][..length];
    stage.write(own);
    for (index, _) in present.iter().enumerate().filter(|(_, is_present)| **is_present) {
        own[STAGE_BYTES + index / 8] |= 1 << (index % 8);
    }
    let parts = spans(bytes.len(), world.size());
    world.collective().all_gather(SliceMut::Bytes(&mut bytes), &parts)?;
    // Every rank reads the same messages, so all return the same error.
    let stages = || bytes.chunks_exact(length).map(Stage::read).enumerate();
    if world.is_rehearsal() {
        return Ok(present.to_vec());
    }
    for (rank, theirs) in stages() {
        if matches!(theirs, Stage::Failed | Stage::OutOfMemory) {
            return Err(ParallelError::Discarded { rank, out_of_memory: theirs == Stage::OutOfMemory });
        }
    }
    let expected = stages().next().map_or(stage, |(_, first)| first);
    if let Some((rank, theirs)) = stages().find(|(_, theirs)| *theirs != expected) {
        return Err(ParallelError::OutOfStep { rank, theirs, expected });
    }
    let is_present = |index: usize| {
        bytes.chunks_exact(length).any(|rank| rank[STAGE_BYTES + index / 8] & (1 << (index % 8)) != 0)
    };
    Ok((0..present.len()).map(is_present).collect())
}
