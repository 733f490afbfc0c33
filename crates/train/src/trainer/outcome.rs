//! The result of training.

use std::fmt;

use crate::figures::Figures;

/// The result of a training run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[must_use = "the run may have ended early"]
pub struct Outcome {
    /// The reason for the end.
    pub ended: Ended,
    /// The first step of this run: the number of steps that earlier runs completed.
    pub first_step: u64,
    /// The number of completed steps, including those of earlier runs.
    pub steps: u64,
    /// The number of completed epochs.
    pub epochs: u64,
    /// The loss of the last step of this run; `None` on a dry device.
    pub loss: Option<f64>,
    /// The figures of the last evaluation.
    pub figures: Figures,
    /// The best value of the figure that early stopping watches.
    pub best: Option<f64>,
    /// Whether the run computed no values.
    pub is_dry: bool,
}

/// The number of steps, and the reason for an early end: `920 steps`, `46 steps, dry run`.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} steps", self.steps)?;
        if self.is_dry {
            write!(f, ", dry run")?;
        }
        match self.ended {
            Ended::Completed => Ok(()),
            early => write!(f, ", {early}"),
        }
    }
}

/// The reason for which a run ended.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Ended {
    /// All epochs or steps are done.
    Completed,
    /// The figure that early stopping watches no longer improved.
    StoppedEarly,
    /// A signal arrived. The run saved its state, if it saves.
    Interrupted,
    /// The loss became NaN or infinite. The run saved nothing after that step.
    Diverged {
        /// The loss.
        loss: f64,
        /// The number of the step, counted from 1.
        step: u64,
        /// The number of the epoch, counted from 1.
        epoch: u64,
    },
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completed => write!(f, "completed"),
            Self::StoppedEarly => write!(f, "stopped early: the evaluation no longer improves"),
            Self::Interrupted => write!(f, "interrupted by a signal"),
            Self::Diverged { loss, step, epoch } => {
                write!(f, "the loss is {loss} at step {step}, epoch {epoch}")
            }
        }
    }
}
