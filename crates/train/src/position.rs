//! Positions in a training run.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A position in a training run. All numbers count from 0 and name the next step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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

/// The largest number of a position: JSON readers may round larger ones.
const MAX: u64 = 1 << 53;

impl Position {
    /// Finds a contradiction between the numbers of a position from a file. A step uses at least one batch, and an epoch has
    /// at least one step.
    pub(crate) fn contradiction(self) -> Option<String> {
        let Self { step, epoch, batch } = self;
        let least = epoch.saturating_add(u64::from(batch > 0));
        let problem = if step.max(epoch).max(batch) > MAX {
            format!("a number above {MAX}")
        } else if step < least {
            format!("less than the {least} steps that a run has until then")
        } else if epoch == 0 && step > batch {
            format!("more steps than the {batch} batches of epoch 0 until then")
        } else {
            return None;
        };
        Some(format!("the position is step {step}, epoch {epoch}, batch {batch}: {problem}"))
    }
}

/// An interval between evaluations or saves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Every {
    /// After every so many epochs.
    Epochs(u64),
    /// After every so many steps.
    Steps(u64),
}

/// Writes `2 epochs`.
impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Epochs(epochs) => write!(f, "{epochs} epochs"),
            Self::Steps(steps) => write!(f, "{steps} steps"),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_that_no_run_reaches_are_contradictions() {
        let of = |step, epoch, batch| Position { step, epoch, batch }.contradiction();
        // The begin, steps of one and of four batches, the begin of an epoch, and the middle of one.
        for (step, epoch, batch) in
            [(0, 0, 0), (3, 0, 3), (3, 0, 12), (3, 1, 0), (7, 2, 1), (7, 2, 400), (MAX, 0, MAX)]
        {
            assert_eq!(of(step, epoch, batch), None, "{step} {epoch} {batch}");
        }
        for (step, epoch, batch, expected) in [
            (0, 0, 1, "less than the 1 steps"),
            (0, 1, 0, "less than the 1 steps"),
            (1, 1, 1, "less than the 2 steps"),
            (3, 4, 0, "less than the 4 steps"),
            (4, 0, 3, "more steps than the 3 batches"),
            (4, 0, 0, "more steps than the 0 batches"),
            (3, 1, u64::MAX, "a number above 9007199254740992"),
            (u64::MAX, 1, 0, "a number above"),
            (u64::MAX, u64::MAX, u64::MAX, "a number above"),
        ] {
            let found = of(step, epoch, batch).unwrap_or_default();
            assert!(found.contains(expected), "{step} {epoch} {batch}: {found}");
        }
    }
}
