//! Checkpoints of a training loop: the model, the optimizer, the loss scaler and the position.

use std::path::{Path, PathBuf};

use highwater_nn::checkpoint::Checkpoint;
use highwater_nn::modules::Module;
use highwater_nn::optim::{Ema, LossScaler, Optimizer, ReduceOnPlateau};
use highwater_tensor::Result;
use highwater_tensor::error::FileError;
use serde::{Deserialize, Serialize};

use crate::position::{Every, Position};
use crate::stop::{EarlyState, EarlyStopping};

/// The note of the checkpoint that holds the [`LoopState`].
const NOTE: &str = "train";

/// Where and when a training loop saves, and the checkpoint that it continues from.
///
/// A checkpoint holds the parameters and buffers, the states of the optimizer, the averages, the loss scaler, the random
/// generators of modules, early stopping and a plateau, and the position. It is written atomically. A dry device writes none.
///
/// ```
/// use highwater::train::{Every, Saves};
/// let saves = Saves::to("run.safetensors").every(Every::Epochs(5)).best("best.safetensors");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saves {
    path: Option<PathBuf>,
    every: Option<Every>,
    best: Option<PathBuf>,
    resume: Option<PathBuf>,
}

/// The state of the loop itself, as JSON in a note.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoopState {
    pub(crate) position: Position,
    pub(crate) early_stopping: Option<EarlyState>,
    /// The figure that a plateau watches.
    pub(crate) plateau_figure: Option<String>,
}

/// The parts of a run that a checkpoint contains.
pub(crate) struct Parts<'a> {
    pub(crate) model: &'a dyn Module,
    pub(crate) optimizer: &'a dyn Optimizer,
    pub(crate) scaler: Option<&'a LossScaler>,
    pub(crate) early_stopping: Option<&'a EarlyStopping>,
    /// A plateau with the figure that it watches.
    pub(crate) plateau: Option<(&'a String, &'a ReduceOnPlateau)>,
    pub(crate) ema: Option<&'a Ema>,
    pub(crate) notes: &'a [(String, String)],
    /// Whether this process writes the file. The others only contribute their part of the optimizer's state.
    pub(crate) writes: bool,
}

impl Saves {
    /// Saves to this file at the end of the run, and on the first SIGINT or SIGTERM.
    #[must_use]
    pub fn to(path: impl Into<PathBuf>) -> Self {
        Self { path: Some(path.into()), ..Self::default() }
    }

    /// Saves to this file like [`to`](Self::to), and continues from it if it exists: a program that runs again goes on where
    /// it stopped.
    ///
    /// ```
    /// use highwater::train::Saves;
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("run.safetensors");
    /// assert_eq!(Saves::resumable(&path), Saves::to(&path));
    /// std::fs::write(&path, "")?;
    /// assert_eq!(Saves::resumable(&path), Saves::to(&path).resume(&path));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn resumable(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let resume = path.exists().then(|| path.clone());
        Self { resume, ..Self::to(path) }
    }

    /// Also saves at this interval.
    #[must_use]
    pub const fn every(mut self, every: Every) -> Self {
        self.every = Some(every);
        self
    }

    /// Keeps the checkpoint of the best evaluation in this file. It requires early stopping, which defines the best one.
    #[must_use]
    pub fn best(mut self, path: impl Into<PathBuf>) -> Self {
        self.best = Some(path.into());
        self
    }

    /// Continues from this checkpoint.
    #[must_use]
    pub fn resume(mut self, path: impl Into<PathBuf>) -> Self {
        self.resume = Some(path.into());
        self
    }

    /// Loads the checkpoint to continue from, if there is one.
    ///
    /// # Errors
    /// See [`Checkpoint::load`].
    pub fn load(&self) -> Result<Option<Checkpoint>, FileError> {
        self.resume.as_ref().map(Checkpoint::load).transpose()
    }

    /// Returns the file to save to.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Returns the file to continue from.
    #[must_use]
    pub fn resume_path(&self) -> Option<&Path> {
        self.resume.as_deref()
    }

    /// Returns the file for the best evaluation.
    #[must_use]
    pub fn best_path(&self) -> Option<&Path> {
        self.best.as_deref()
    }

    pub(crate) const fn interval(&self) -> Option<Every> {
        self.every
    }

    /// Returns whether a periodic save is due after this number of completed steps.
    #[must_use]
    pub fn is_due_after_steps(&self, steps: u64) -> bool {
        self.every.is_some_and(|every| every.is_due_after_steps(steps))
    }

    /// Returns whether a periodic save is due after this number of completed epochs.
    #[must_use]
    pub fn is_due_after_epochs(&self, epochs: u64) -> bool {
        self.every.is_some_and(|every| every.is_due_after_epochs(epochs))
    }
}

impl Parts<'_> {
    /// Writes a checkpoint.
    pub(crate) fn save(&self, path: &Path, position: Position) -> Result<()> {
        let early_stopping = self.early_stopping.map(EarlyStopping::state);
        let plateau_figure = self.plateau.map(|(figure, _)| figure.clone());
        let state = LoopState { position, early_stopping, plateau_figure };
        let checkpoint = Checkpoint::of(self.model)?.with_optimizer(self.optimizer)?.with_step(position.step);
        let checkpoint = match self.scaler {
            Some(scaler) => checkpoint.with_scaler(scaler),
            None => checkpoint,
        };
        let checkpoint = match self.plateau {
            Some((_, plateau)) => checkpoint.with_plateau(plateau),
            None => checkpoint,
        };
        let checkpoint = match self.ema {
            Some(ema) => checkpoint.with_ema(ema)?,
            None => checkpoint,
        };
        let checkpoint =
            self.notes.iter().fold(checkpoint, |checkpoint, (name, text)| checkpoint.with_note(name, text));
        if !self.writes {
            return Ok(());
        }
        // A state of numbers always has a JSON form.
        let text = serde_json::to_string(&state).unwrap_or_default();
        Ok(checkpoint.with_note(NOTE, &text).save(path)?)
    }
}

impl LoopState {
    /// Reads the state from a checkpoint, which was read from `path`.
    ///
    /// # Errors
    /// [`FileError::Absent`] without a position or a step; [`FileError::Malformed`] if they contradict each other.
    pub(crate) fn of(checkpoint: &Checkpoint, path: &Path) -> Result<Self, FileError> {
        let absent = || FileError::Absent { path: path.to_owned(), what: "position of a training loop" };
        let text = checkpoint.note(NOTE).ok_or_else(absent)?;
        let malformed =
            |problem: String| FileError::malformed(path, 8, format!("the note {NOTE:?}: {problem}"));
        let state: Self = serde_json::from_str(text).map_err(|error| malformed(error.to_string()))?;
        if let Some(contradiction) = state.position.contradiction() {
            return Err(malformed(contradiction));
        }
        let absent = || FileError::Absent { path: path.to_owned(), what: "number of completed steps" };
        let (saved, step) = (checkpoint.step().ok_or_else(absent)?, state.position.step);
        if saved == step {
            return Ok(state);
        }
        Err(malformed(format!(
            "the position is step {step}, but the checkpoint was saved after step {saved}"
        )))
    }
}
