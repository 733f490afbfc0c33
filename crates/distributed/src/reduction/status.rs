//! The messages that ranks exchange before they sum a bucket and before they step.
//!
//! They keep the ranks together: a rank that fails tells the others instead of the data that they expect, and all ranks
//! discard the step at the same message. All messages of a run have the same length.

use std::fmt;

use super::error::ParallelError;
use crate::collective::{Collective, SliceMut, spans};

/// The next action of a rank.
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

/// The bytes of a message: the stage and 64 gradients. A bucket with more gradients sends more messages.
const MESSAGE_BYTES: usize = STAGE_BYTES + 8;

/// Tells the other ranks the stage of this rank and which gradients it has. Returns which gradients any rank has.
///
/// # Errors
///
/// A rank fails, is at another stage, or does not answer.
pub(crate) fn exchange(
    collective: &dyn Collective,
    stage: Stage,
    present: &[bool],
) -> Result<Vec<bool>, ParallelError> {
    if collective.is_rehearsal() {
        return Ok(present.to_vec());
    }
    let mut any = Vec::with_capacity(present.len());
    let parts = present.chunks(64);
    let parts: Vec<&[bool]> = if present.is_empty() { vec![&[]] } else { parts.collect() };
    for part in parts {
        let own = part
            .iter()
            .enumerate()
            .fold(0, |bits, (index, is_present)| bits | u64::from(*is_present) << index);
        let bits = exchange_bits(collective, stage, own)?;
        any.extend((0..part.len()).map(|index| bits >> index & 1 == 1));
    }
    Ok(any)
}

/// Exchanges one message. Returns the bits that any rank has set.
fn exchange_bits(collective: &dyn Collective, stage: Stage, own: u64) -> Result<u64, ParallelError> {
    let (rank, size) = (collective.rank(), collective.size());
    let mut bytes = vec![0_u8; MESSAGE_BYTES * size];
    let (messages, _) = bytes.as_chunks_mut::<MESSAGE_BYTES>();
    stage.write(&mut messages[rank]);
    messages[rank][STAGE_BYTES..].copy_from_slice(&own.to_le_bytes());
    let parts = spans(bytes.len(), size);
    collective.all_gather(SliceMut::Bytes(&mut bytes), &parts)?;
    // Every rank reads the same messages, so all return the same error.
    let (messages, _) = bytes.as_chunks::<MESSAGE_BYTES>();
    let stages = || messages.iter().map(|message| Stage::read(message)).enumerate();
    let is_failure = |stage: &Stage| matches!(stage, Stage::Failed | Stage::OutOfMemory);
    if let Some((rank, theirs)) = stages().find(|(_, theirs)| is_failure(theirs)) {
        return Err(ParallelError::Discarded { rank, out_of_memory: theirs == Stage::OutOfMemory });
    }
    let expected = stages().next().map_or(stage, |(_, first)| first);
    if let Some((rank, theirs)) = stages().find(|(_, theirs)| *theirs != expected) {
        return Err(ParallelError::OutOfStep { rank, theirs, expected });
    }
    let bits = messages.iter().filter_map(|message| message.last_chunk::<8>());
    Ok(bits.fold(0, |bits, theirs| bits | u64::from_le_bytes(*theirs)))
}
