//! Positions in a training run.

use serde::{Deserialize, Serialize};

/// A position in a training run. All numbers count from 0 and name the next step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Position {
    /// The step, over all epochs.
    pub step: u64,
    /// The epoch.
    pub epoch: u64,
    /// The batch within the epoch, over all ranks. With gradient accumulation or several ranks, several batches make up a
    /// step.
    pub batch: u64,
}

/// An interval between evaluations or saves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Every {
    /// After every so many epochs.
    Epochs(u64),
    /// After every so many steps.
    Steps(u64),
}

impl Every {
    /// Returns whether the interval ends after this number of completed steps.
    pub(crate) const fn is_due_after_steps(self, steps: u64) -> bool {
        matches!(self, Self::Steps(every) if steps.is_multiple_of(every))
    }

    /// Returns whether the interval ends after this number of completed epochs.
    pub(crate) const fn is_due_after_epochs(self, epochs: u64) -> bool {
        matches!(self, Self::Epochs(every) if epochs.is_multiple_of(every))
    }
}
