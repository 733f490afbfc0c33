//! Early stopping.

use highwater_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

/// Whether smaller or larger values are better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// Smaller values are better, as for losses.
    #[default]
    Minimize,
    /// Larger values are better, as for accuracies.
    Maximize,
}

/// Early stopping: ends training once a figure has not improved for a number of evaluations.
///
/// ```
/// use highwater::train::EarlyStopping;
/// let mut stopping = EarlyStopping::new("validation_loss").patience(2);
/// let decisions: Vec<bool> =
///     [0.9, 0.7, 0.8, f64::NAN].iter().map(|loss| { stopping.update(*loss); stopping.is_over() }).collect();
/// assert_eq!(decisions, [false, false, false, true]);
/// assert_eq!(stopping.best(), Some(0.7));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct EarlyStopping {
    figure: String,
    direction: Direction,
    patience: u64,
    min_delta: f64,
    restores: bool,
    state: EarlyState,
}

/// The part of early stopping that a checkpoint contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EarlyState {
    #[serde(with = "bits")]
    best: Option<f64>,
    since_best: u64,
}

/// Writes a float as its bits: JSON readers may round.
mod bits {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
        value.map(f64::to_bits).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(f64::from_bits))
    }
}

impl EarlyStopping {
    /// Writes the options, which all ranks of a run must share.
    pub(crate) fn options(&self) -> String {
        let Self { figure, direction, patience, min_delta, .. } = self;
        let direction = match direction {
            Direction::Minimize => "minimize",
            Direction::Maximize => "maximize",
        };
        format!("{direction} {figure}, patience {patience}, min_delta {min_delta}")
    }

    /// Creates early stopping on this figure of the evaluations: smaller values are better, patience 3.
    #[must_use]
    pub fn new(figure: impl Into<String>) -> Self {
        Self {
            figure: figure.into(),
            direction: Direction::Minimize,
            patience: 3,
            min_delta: 0.0,
            restores: false,
            state: EarlyState::default(),
        }
    }

    /// Sets which values are better.
    #[must_use]
    pub const fn direction(mut self, direction: Direction) -> Self {
        self.direction = direction;
        self
    }

    /// Sets the number of evaluations in a row without improvement after which training ends; at least 1.
    #[must_use]
    pub const fn patience(mut self, evaluations: u64) -> Self {
        self.patience = if evaluations == 0 { 1 } else { evaluations };
        self
    }

    /// Sets the smallest change that counts as an improvement.
    #[must_use]
    pub const fn min_delta(mut self, min_delta: f64) -> Self {
        self.min_delta = min_delta;
        self
    }

    /// Lets the trainer restore the parameters of the best evaluation at the end. It keeps a copy in host memory.
    #[must_use]
    pub const fn restore_best(mut self) -> Self {
        self.restores = true;
        self
    }

    /// Checks the smallest change that counts.
    pub(crate) fn check(&self) -> Result<()> {
        if self.min_delta.is_finite() && self.min_delta >= 0.0 {
            return Ok(());
        }
        let (argument, expected) = ("min_delta", "finite and not negative");
        let got = self.min_delta.to_string();
        Err(Error::BadArgument { op: "early_stopping", argument, expected, got })
    }

    /// Returns the name of the figure.
    #[must_use]
    pub fn figure(&self) -> &str {
        &self.figure
    }

    /// Returns the best value so far.
    #[must_use]
    pub const fn best(&self) -> Option<f64> {
        self.state.best
    }

    /// Adds the value of an evaluation and returns whether it is the best so far. NaN never is.
    pub fn update(&mut self, value: f64) -> bool {
        let improves = match (self.state.best, self.direction) {
            (None, _) => !value.is_nan(),
            (Some(best), Direction::Minimize) => value < best - self.min_delta,
            (Some(best), Direction::Maximize) => value > best + self.min_delta,
        };
        if improves {
            self.state = EarlyState { best: Some(value), since_best: 0 };
        } else {
            self.state.since_best = self.state.since_best.saturating_add(1);
        }
        improves
    }

    /// Returns whether training should end.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.state.since_best >= self.patience
    }

    pub(crate) const fn restores_best(&self) -> bool {
        self.restores
    }

    pub(crate) const fn state(&self) -> EarlyState {
        self.state
    }

    pub(crate) const fn resume(&mut self, state: EarlyState) {
        self.state = state;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_changes_and_the_wrong_direction_do_not_count() {
        let mut stopping =
            EarlyStopping::new("accuracy").direction(Direction::Maximize).min_delta(0.1).patience(3);
        let improved: Vec<bool> =
            [0.5, 0.55, 0.4, 0.65, 0.7, 0.6].iter().map(|value| stopping.update(*value)).collect();
        assert_eq!(improved, [true, false, false, true, false, false]);
        assert!(!stopping.is_over() && stopping.best() == Some(0.65));
        stopping.update(0.75);
        assert!(stopping.is_over());
    }
}
