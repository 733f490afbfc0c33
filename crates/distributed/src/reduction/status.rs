//! The messages that ranks exchange before each common operation: before they sum a bucket, clip, step or save.
//!
//! A rank that fails sends a failure message instead of the data that the other ranks expect. All ranks then discard the
//! same step. If ranks are at different operations or train with different settings, all of them return the same error.
//! All messages of a run have the same length:
//!
//! ```text
//! stage: 5 bytes │ fingerprint: 8 bytes │ 64 bits, such as which gradients this rank has
//! ```

use std::fmt;

use super::error::ParallelError;
use crate::agree::{Fingerprint, compare};
use crate::collective::{Collective, SliceMut, spans};

/// The next action of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// Sums the gradients of a bucket.
    Bucket(u32),
    /// Changes the parameters.
    Step,
    /// Discards the step after an error.
    Failed,
    /// Discards the step, because memory ran out.
    OutOfMemory,
    /// Wraps an optimizer.
    Wrap,
    /// Clips the gradients.
    Clip,
    /// Sums the gradients of passes without synchronization.
    Sync,
    /// Checks that all gradients are finite.
    Finite,
    /// Collects the optimizer's state.
    SaveState,
    /// Loads the optimizer's state.
    LoadState,
    /// Begins a run of steps.
    BeginRun,
    /// Weights the loss of a batch by its examples.
    Batch,
    /// Ends an epoch.
    EndEpoch,
    /// Ends a run of steps.
    EndRun,
}

/// A stage of a training loop, for [`World::agree_at`](crate::World::agree_at).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunStage {
    /// Begins a run of steps.
    Begin,
    /// Weights the loss of a batch by its examples.
    Batch,
    /// Ends an epoch.
    EndEpoch,
    /// Ends a run of steps.
    End,
}

impl From<RunStage> for Stage {
    fn from(stage: RunStage) -> Self {
        match stage {
            RunStage::Begin => Self::BeginRun,
            RunStage::Batch => Self::Batch,
            RunStage::EndEpoch => Self::EndEpoch,
            RunStage::End => Self::EndRun,
        }
    }
}

/// The stages without a number, by their code.
const STAGES: [(Stage, &str); 13] = [
    (Stage::Step, "the optimizer's step"),
    (Stage::Failed, "an error"),
    (Stage::OutOfMemory, "an out-of-memory error"),
    (Stage::Wrap, "the creation of an optimizer"),
    (Stage::Clip, "clipping"),
    (Stage::Sync, "the sum of gradients from no_sync"),
    (Stage::Finite, "the search for infinite gradients"),
    (Stage::SaveState, "the optimizer's state"),
    (Stage::LoadState, "loading the optimizer's state"),
    (Stage::BeginRun, "the start of a run"),
    (Stage::Batch, "the loss of a batch"),
    (Stage::EndEpoch, "the end of an epoch"),
    (Stage::EndRun, "the end of a run"),
];

/// The code of [`Stage::Bucket`].
const BUCKET: u8 = u8::MAX;

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bucket(number) => write!(f, "the sum of bucket {number}"),
            stage => {
                f.write_str(STAGES.iter().find(|(known, _)| known == stage).map_or("", |(_, name)| name))
            }
        }
    }
}

/// The bytes of a stage: its code and the bucket.
const STAGE_BYTES: usize = 5;

impl Stage {
    fn write(self, bytes: &mut [u8]) {
        let (code, bucket) = match self {
            Self::Bucket(number) => (BUCKET, number),
            stage => {
                let code = STAGES.iter().position(|(known, _)| *known == stage).unwrap_or(0);
                (code as u8, 0)
            }
        };
        bytes[0] = code;
        bytes[1..STAGE_BYTES].copy_from_slice(&bucket.to_le_bytes());
    }

    fn read(bytes: &[u8]) -> Self {
        match STAGES.get(usize::from(bytes[0])) {
            Some((stage, _)) => *stage,
            None => Self::Bucket(u32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]])),
        }
    }

    /// Returns whether the fingerprint of this stage has the settings of an optimizer.
    const fn is_training(self) -> bool {
        !matches!(
            self,
            Self::Wrap | Self::LoadState | Self::BeginRun | Self::Batch | Self::EndEpoch | Self::EndRun
        )
    }

    const fn is_failure(self) -> bool {
        matches!(self, Self::Failed | Self::OutOfMemory)
    }
}

/// The bytes of a message: the stage, the fingerprint and 64 bits. More bits need more messages.
const MESSAGE_BYTES: usize = STAGE_BYTES + 8 + 8;

/// A message of a rank.
struct Message {
    stage: Stage,
    fingerprint: u64,
    bits: u64,
}

impl Message {
    fn write(&self, bytes: &mut [u8; MESSAGE_BYTES]) {
        self.stage.write(bytes);
        bytes[STAGE_BYTES..][..8].copy_from_slice(&self.fingerprint.to_le_bytes());
        bytes[STAGE_BYTES + 8..].copy_from_slice(&self.bits.to_le_bytes());
    }

    fn read(bytes: &[u8; MESSAGE_BYTES]) -> Self {
        let (numbers, _) = bytes[STAGE_BYTES..].as_chunks();
        let number = |at: usize| numbers.get(at).map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Self { stage: Stage::read(bytes), fingerprint: number(0), bits: number(1) }
    }
}

/// Sends the stage and the flags of this rank to all ranks, such as one flag for each gradient. Returns for each flag
/// whether at least one rank has set it.
///
/// # Errors
///
/// Fails if a rank failed, is at another stage, has another fingerprint, or does not answer.
pub(crate) fn exchange(
    collective: &dyn Collective,
    stage: Stage,
    fingerprint: &Fingerprint,
    flags: &[bool],
) -> Result<Vec<bool>, ParallelError> {
    if collective.is_rehearsal() {
        return Ok(flags.to_vec());
    }
    let mut any = Vec::with_capacity(flags.len());
    let parts = flags.chunks(64);
    let parts: Vec<&[bool]> = if flags.is_empty() { vec![&[]] } else { parts.collect() };
    for part in parts {
        let own = part.iter().enumerate().fold(0, |bits, (index, flag)| bits | u64::from(*flag) << index);
        let all = exchange_bits(collective, stage, fingerprint, own)?;
        let bits = all.iter().fold(0, |any, bits| any | bits);
        any.extend((0..part.len()).map(|index| bits >> index & 1 == 1));
    }
    Ok(any)
}

/// Exchanges one message. Returns the bits of all ranks.
///
/// # Errors
///
/// As [`exchange`].
pub(crate) fn exchange_bits(
    collective: &dyn Collective,
    stage: Stage,
    fingerprint: &Fingerprint,
    bits: u64,
) -> Result<Vec<u64>, ParallelError> {
    let (rank, size) = (collective.rank(), collective.size());
    let mut bytes = vec![0_u8; MESSAGE_BYTES * size];
    let (messages, _) = bytes.as_chunks_mut();
    Message { stage, fingerprint: fingerprint.hash(), bits }.write(&mut messages[rank]);
    let parts = spans(bytes.len(), size);
    collective.all_gather(SliceMut::Bytes(&mut bytes), &parts)?;
    // Every rank reads the same messages, so all return the same error.
    let (messages, _) = bytes.as_chunks();
    let messages: Vec<Message> = messages.iter().map(Message::read).collect();
    let stages = || messages.iter().map(|message| message.stage).enumerate();
    if let Some((rank, theirs)) = stages().find(|(_, theirs)| theirs.is_failure()) {
        return Err(ParallelError::Discarded { rank, out_of_memory: theirs == Stage::OutOfMemory });
    }
    let Some(first) = messages.first() else { return Ok(Vec::new()) };
    let expected = first.stage;
    let out_of_step = stages()
        .find(|(_, theirs)| *theirs != expected)
        .map(|(rank, theirs)| ParallelError::OutOfStep { rank, theirs, expected });
    let differs = messages.iter().any(|message| message.fingerprint != first.fingerprint);
    let is_comparable = messages.iter().all(|message| message.stage.is_training());
    if differs && (is_comparable || out_of_step.is_none()) {
        // A collective operation, which all ranks enter: all have read the same messages.
        compare(collective, &fingerprint.entries())?;
    }
    match out_of_step {
        Some(error) => Err(error),
        None => Ok(messages.iter().map(|message| message.bits).collect()),
    }
}
