//! A learning rate that falls when a metric no longer improves.

use std::fmt;

use highwater_tensor::{Error, Result};

use super::{Optimizer, not_negative, share};

const OP: &str = "reduce_on_plateau";

/// Changes of the learning rate below this are not made (PyTorch: `eps`).
const EPS: f64 = 1e-8;

/// Reduces the learning rate when a metric, such as the validation loss, no longer improves: PyTorch's
/// `ReduceLROnPlateau` with a relative threshold.
///
/// After more than `patience` [steps](Self::step) in a row without improvement, the learning rate is multiplied by the
/// factor. By default smaller metrics are better, the factor is 0.1, the patience 10, the threshold 1e-4, and the cooldown
/// and the minimum learning rate are 0.
///
/// ```
/// use highwater::{Device, Rng};
/// use highwater::nn::{Linear, Module};
/// use highwater::optim::{Optimizer, ReduceOnPlateau, Sgd};
/// let layer = Linear::new(&Device::cpu()?, 4, 2, &Rng::new(0))?;
/// let mut optimizer = Sgd::new(layer.parameters(), 0.1)?;
/// let mut plateau = ReduceOnPlateau::new().with_factor(0.5)?.with_patience(1);
/// for validation_loss in [0.9, 0.7, 0.71, 0.72] {
///     plateau.step(validation_loss, &mut optimizer)?;
/// }
/// assert_eq!(optimizer.learning_rate(), 0.05);
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// The rate of [`Groups`](super::Groups) is that of the first group: the others keep their ratios to it, and none falls if
/// it is 0. Processes that train together must pass the same metrics, because each optimizer step compares their rates.
///
/// The learning rate is part of the optimizer's state. A [`Checkpoint`](crate::checkpoint::Checkpoint::with_plateau) saves
/// the rest.
#[derive(Clone, Debug, PartialEq)]
pub struct ReduceOnPlateau {
    factor: f64,
    patience: u64,
    threshold: f64,
    cooldown: u64,
    min_lr: f64,
    maximizes: bool,
    /// The best metric; infinite before the first one.
    best: f64,
    /// The steps in a row without improvement.
    bad_steps: u64,
    /// The steps that are left until the end of the cooldown.
    cooling: u64,
}

/// No number is NaN.
impl Eq for ReduceOnPlateau {}

impl Default for ReduceOnPlateau {
    fn default() -> Self {
        Self::new()
    }
}

impl ReduceOnPlateau {
    /// Creates it with the defaults, for a metric of which smaller values are better.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            factor: 0.1,
            patience: 10,
            threshold: 1e-4,
            cooldown: 0,
            min_lr: 0.0,
            maximizes: false,
            best: f64::INFINITY,
            bad_steps: 0,
            cooling: 0,
        }
    }

    /// Makes larger metrics better, as for an accuracy (PyTorch: `mode="max"`). Forgets the best metric so far.
    #[must_use]
    pub const fn maximize(mut self) -> Self {
        (self.maximizes, self.best) = (true, f64::NEG_INFINITY);
        self
    }

    /// Sets the factor of the learning rate.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless it is at least 0 and below 1.
    pub fn with_factor(mut self, factor: f64) -> Result<Self> {
        self.factor = share(OP, "factor", factor)?;
        Ok(self)
    }

    /// Sets the number of steps without improvement that do not yet change the learning rate.
    #[must_use]
    pub const fn with_patience(mut self, steps: u64) -> Self {
        self.patience = steps;
        self
    }

    /// Sets the share of the best metric by which a metric must be better than it.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless it is at least 0 and below 1.
    pub fn with_threshold(mut self, threshold: f64) -> Result<Self> {
        self.threshold = share(OP, "threshold", threshold)?;
        Ok(self)
    }

    /// Sets the number of steps after a change of the learning rate in which the patience does not count.
    #[must_use]
    pub const fn with_cooldown(mut self, steps: u64) -> Self {
        self.cooldown = steps;
        self
    }

    /// Sets the minimum learning rate.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless it is finite and not negative.
    pub fn with_min_lr(mut self, min_lr: f64) -> Result<Self> {
        self.min_lr = not_negative(OP, "min_lr", min_lr)?;
        Ok(self)
    }

    /// Returns the best metric so far.
    #[must_use]
    pub fn best(&self) -> Option<f64> {
        self.best.is_finite().then_some(self.best)
    }

    /// Continues from the state of another one, such as that of a
    /// [checkpoint](crate::checkpoint::Checkpoint::plateau): its best metric, its steps without improvement and its cooldown.
    /// The options do not change.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if larger metrics are better for one of them only. Nothing has changed then.
    pub fn resume(&mut self, saved: &Self) -> Result<()> {
        if self.maximizes != saved.maximizes {
            let (argument, expected) = ("mode", "that of the saved state");
            let got = format!("{:?} for a state of {:?}", self.mode(), saved.mode());
            return Err(Error::BadArgument { op: OP, argument, expected, got });
        }
        (self.best, self.bad_steps) = (saved.best, saved.bad_steps);
        self.cooling = saved.cooling.min(self.cooldown);
        Ok(())
    }

    /// Adds the metric of an evaluation. Returns whether it has reduced the learning rate. NaN is no improvement.
    ///
    /// # Errors
    /// See [`Optimizer::set_learning_rate`].
    pub fn step(&mut self, metric: f64, optimizer: &mut (impl Optimizer + ?Sized)) -> Result<bool> {
        let mut next = self.clone();
        if !next.is_due(metric) {
            *self = next;
            return Ok(false);
        }
        let old = optimizer.learning_rate();
        let new = (old * self.factor).max(self.min_lr);
        let changes = old - new > EPS;
        if changes {
            optimizer.set_learning_rate(new)?;
        }
        *self = next;
        Ok(changes)
    }

    /// Adds a metric. Returns whether the learning rate should fall.
    fn is_due(&mut self, metric: f64) -> bool {
        let improves = if self.maximizes {
            metric > self.best * (1.0 + self.threshold)
        } else {
            metric < self.best * (1.0 - self.threshold)
        };
        if improves {
            (self.best, self.bad_steps) = (metric, 0);
        } else {
            self.bad_steps = self.bad_steps.saturating_add(1);
        }
        if self.cooling > 0 {
            (self.cooling, self.bad_steps) = (self.cooling - 1, 0);
        }
        let is_due = self.bad_steps > self.patience;
        if is_due {
            (self.cooling, self.bad_steps) = (self.cooldown, 0);
        }
        is_due
    }

    /// The name of the direction, as in PyTorch.
    const fn mode(&self) -> &'static str {
        if self.maximizes { "max" } else { "min" }
    }

    /// Formats options and state for checkpoints: the mode and eight numbers.
    pub(crate) fn to_text(&self) -> String {
        let Self { factor, patience, threshold, cooldown, min_lr, best, bad_steps, cooling, .. } = self;
        let mode = self.mode();
        format!("{mode} {factor} {patience} {threshold} {cooldown} {min_lr} {best} {bad_steps} {cooling}")
    }

    /// Parses the text; `None` if it is invalid.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split(' ').collect();
        let [mode, factor, patience, threshold, cooldown, min_lr, best, bad_steps, cooling] = parts[..]
        else {
            return None;
        };
        let new = match mode {
            "min" => Self::new(),
            "max" => Self::new().maximize(),
            _ => return None,
        };
        let new = new.with_factor(factor.parse().ok()?).ok()?.with_threshold(threshold.parse().ok()?).ok()?;
        let new = new.with_min_lr(min_lr.parse().ok()?).ok()?;
        let best = best.parse().ok().filter(|best: &f64| !best.is_nan())?;
        let [patience, cooldown] = [patience, cooldown].map(|count| count.parse().ok());
        let [bad_steps, cooling] = [bad_steps, cooling].map(|count| count.parse().ok());
        Some(Self {
            patience: patience?,
            cooldown: cooldown?,
            best,
            bad_steps: bad_steps?,
            cooling: cooling?,
            ..new
        })
    }
}

/// `max, factor 0.5, patience 2, threshold 0.0001, cooldown 0, min_lr 0`.
impl fmt::Display for ReduceOnPlateau {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self { factor, patience, threshold, cooldown, min_lr, .. }, mode) = (self, self.mode());
        write!(
            f,
            "{mode}, factor {factor}, patience {patience}, threshold {threshold}, cooldown {cooldown}, min_lr {min_lr}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::{Linear, Module};
    use crate::optim::Sgd;
    use highwater_tensor::{Device, Rng};

    /// The learning rates after each metric. Continues from the text form in the middle.
    fn rates(mut plateau: ReduceOnPlateau, metrics: &[f64]) -> Vec<f64> {
        let layer = Linear::new(&Device::cpu().unwrap(), 1, 1, &Rng::new(0)).unwrap();
        let mut sgd = Sgd::new(layer.parameters(), 1.0).unwrap();
        let step = |metric: &f64| {
            plateau.step(*metric, &mut sgd).unwrap();
            plateau = ReduceOnPlateau::from_text(&plateau.to_text()).unwrap();
            sgd.learning_rate()
        };
        metrics.iter().map(step).collect()
    }

    // The expected rates are those of torch.optim.lr_scheduler.ReduceLROnPlateau for the same metrics.

    #[test]
    fn a_rate_falls_after_more_than_the_patience() {
        let plateau = ReduceOnPlateau::new().with_factor(0.5).unwrap().with_patience(2);
        let found = rates(plateau, &[1.0, 1.1, 0.99995, 1.0, 1.0, 0.5, 0.6, f64::NAN, 0.6, 0.7]);
        assert_eq!(found, [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25]);
    }

    #[test]
    fn bad_steps_do_not_count_in_a_cooldown_and_rates_stop_at_the_minimum() {
        let plateau = ReduceOnPlateau::new().with_factor(0.1).unwrap().with_patience(0).with_cooldown(2);
        let found = rates(plateau.with_min_lr(0.05).unwrap(), &[1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!(found, [1.0, 0.1, 0.1, 0.1, 0.05, 0.05]);
    }

    #[test]
    fn larger_metrics_are_better_on_request() {
        let plateau = ReduceOnPlateau::new().maximize().with_patience(0).with_threshold(0.1).unwrap();
        let found = rates(plateau, &[0.5, 0.56, 0.6, 0.62]);
        assert_eq!(found, [1.0, 1.0, 0.1, 0.1]);
    }

    #[test]
    fn a_resumed_one_has_its_own_options_and_the_saved_state() {
        let layer = Linear::new(&Device::cpu().unwrap(), 1, 1, &Rng::new(0)).unwrap();
        let mut sgd = Sgd::new(layer.parameters(), 1.0).unwrap();
        let mut saved = ReduceOnPlateau::new().with_patience(10);
        for metric in [1.0, 2.0, 2.0] {
            saved.step(metric, &mut sgd).unwrap();
        }
        let mut plateau = ReduceOnPlateau::new().with_patience(2).with_factor(0.5).unwrap();
        plateau.resume(&saved).unwrap();
        assert_eq!(plateau.best(), Some(1.0));
        // The third step without improvement is above the new patience.
        assert!(plateau.step(2.0, &mut sgd).unwrap() && sgd.learning_rate() == 0.5);
        let mut other = ReduceOnPlateau::new().maximize();
        let refused = other.resume(&saved);
        assert!(matches!(refused, Err(Error::BadArgument { argument: "mode", .. })));
        assert_eq!(other, ReduceOnPlateau::new().maximize());
    }

    #[test]
    fn other_texts_are_none() {
        for text in [
            "",
            "min",
            "mid 0.1 1 0.1 0 0 inf 0 0",
            "min 1.5 1 0.1 0 0 inf 0 0",
            "min 0.1 -1 0.1 0 0 inf 0 0",
            "min 0.1 1 0.1 0 0 NaN 0 0",
            "min 0.1 1 0.1 0 0 inf 0 0 0",
        ] {
            assert_eq!(ReduceOnPlateau::from_text(text), None, "{text:?}");
        }
    }

    #[test]
    fn options_out_of_range_are_refused() {
        assert!(ReduceOnPlateau::new().with_factor(1.0).is_err());
        assert!(ReduceOnPlateau::new().with_threshold(f64::NAN).is_err());
        assert!(ReduceOnPlateau::new().with_min_lr(-1.0).is_err());
    }
}
