//! Learning rate schedules.

use std::f64::consts::PI;

use highwater_tensor::{Error, Result};

use super::{check, not_negative};

const OP: &str = "schedule";

/// A learning rate schedule: the rate as a function of the step number. A resumed run needs only that number. Steps
/// count from 0.
///
/// ```
/// use highwater::optim::Schedule;
/// let schedule = Schedule::Cosine { start: 0.1, end: 0.0, steps: 100 }.after_warm_up(10);
/// assert_eq!(schedule.learning_rate(0), 0.01);
/// assert_eq!(schedule.learning_rate(10), 0.1);
/// assert!((schedule.learning_rate(60) - 0.05).abs() < 1e-12);
/// assert_eq!(schedule.learning_rate(500), 0.0);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Schedule {
    /// A constant rate.
    Constant(f64),
    /// Multiplies the rate by a factor after every `every` steps.
    Step {
        /// The initial rate.
        start: f64,
        /// The factor.
        factor: f64,
        /// The number of steps between changes; at least 1.
        every: u64,
    },
    /// Multiplies the rate by a factor at each milestone (PyTorch: `MultiStepLR`).
    MultiStep {
        /// The initial rate.
        start: f64,
        /// The factor.
        factor: f64,
        /// The steps from which on the rate is multiplied once more, in ascending order.
        milestones: Vec<u64>,
    },
    /// Multiplies the rate by a factor after each step (PyTorch: `ExponentialLR`).
    Exponential {
        /// The initial rate.
        start: f64,
        /// The factor.
        factor: f64,
    },
    /// Cosine annealing from one rate to another (Loshchilov and Hutter 2017), which then stays constant.
    Cosine {
        /// The rate of the first step.
        start: f64,
        /// The rate after `steps` steps.
        end: f64,
        /// The number of steps.
        steps: u64,
    },
    /// One-cycle schedule (Smith and Topin 2019) with the shape and the constants of PyTorch's `OneCycleLR`: along
    /// cosines from `max` / 25 to `max` to `max` / 250,000.
    OneCycle {
        /// The highest rate.
        max: f64,
        /// The number of steps.
        steps: u64,
        /// The share of the steps in which the rate rises, from 0 to 1; usually 0.3.
        rising: f64,
    },
    /// Linear warm-up to the initial rate of another schedule, which follows.
    WarmUp {
        /// The number of warm-up steps: step i has the share (i + 1) / steps.
        steps: u64,
        /// The schedule after the warm-up.
        then: Box<Schedule>,
    },
}

impl Schedule {
    /// Prepends a linear warm-up of `steps` steps to this schedule.
    #[must_use]
    pub fn after_warm_up(self, steps: u64) -> Self {
        Self::WarmUp { steps, then: Box::new(self) }
    }

    /// Checks the numbers of the schedule. `Trainer` does so before the first step.
    ///
    /// # Errors
    /// [`Error::BadArgument`] for rates and factors that are negative or not finite, a share outside of 0 to 1, an interval
    /// of 0 steps, and milestones that are not in ascending order.
    pub fn check(&self) -> Result<()> {
        let mut schedule = self;
        while let Self::WarmUp { then, .. } = schedule {
            schedule = then;
        }
        let both = |(one, a), (other, b)| not_negative(OP, one, a).and_then(|_| not_negative(OP, other, b));
        match *schedule {
            Self::Constant(rate) => not_negative(OP, "rate", rate)?,
            Self::Step { start, factor, every } => {
                check(OP, "every", every as f64, "at least 1", every > 0)?;
                both(("start", start), ("factor", factor))?
            }
            Self::MultiStep { start, factor, ref milestones } => {
                if !milestones.is_sorted() {
                    let (expected, got) = ("in ascending order", format!("{milestones:?}"));
                    return Err(Error::BadArgument { op: OP, argument: "milestones", expected, got });
                }
                both(("start", start), ("factor", factor))?
            }
            Self::Exponential { start, factor } => both(("start", start), ("factor", factor))?,
            Self::Cosine { start, end, .. } => both(("start", start), ("end", end))?,
            Self::OneCycle { max, rising, .. } => {
                check(OP, "rising", rising, "from 0 to 1", (0.0..=1.0).contains(&rising))?;
                not_negative(OP, "max", max)?
            }
            Self::WarmUp { .. } => 0.0,
        };
        Ok(())
    }

    /// Returns the learning rate of a step.
    #[must_use]
    pub fn learning_rate(&self, step: u64) -> f64 {
        match *self {
            Self::Constant(rate) => rate,
            Self::Step { start, factor, every } => start * power(factor, step / every.max(1)),
            Self::MultiStep { start, factor, ref milestones } => {
                let passed = milestones.iter().filter(|milestone| **milestone <= step).count();
                start * power(factor, passed as u64)
            }
            Self::Exponential { start, factor } => start * power(factor, step),
            Self::Cosine { start, end, steps } => half_cosine(start, end, step as f64 / steps as f64),
            Self::OneCycle { max, steps, rising } => {
                let (first, last) = (max / 25.0, max / 25.0 / 1e4);
                // The last step has the last rate, so the peak is a share of the intervals between steps.
                let (peak, last_step) = (rising * steps as f64 - 1.0, steps as f64 - 1.0);
                let step = step as f64;
                if step <= peak {
                    half_cosine(first, max, step / peak)
                } else {
                    half_cosine(max, last, (step - peak) / (last_step - peak))
                }
            }
            Self::WarmUp { steps, ref then } => match step.checked_sub(steps) {
                None => then.learning_rate(0) * (step + 1) as f64 / steps as f64,
                Some(step) => then.learning_rate(step),
            },
        }
    }
}

/// Returns the factor to the power of `times`.
fn power(factor: f64, times: u64) -> f64 {
    // With more factors, the product is 0, 1 or infinite, unless the factor is very close to 1.
    factor.powi(i32::try_from(times).unwrap_or(i32::MAX))
}

/// Returns the point at the share `done` of a half cosine from `start` to `end`; NaN counts as the end.
fn half_cosine(start: f64, end: f64, done: f64) -> f64 {
    if done < 1.0 { end + (start - end) * 0.5 * (1.0 + (PI * done).cos()) } else { end }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(schedule: &Schedule, steps: u64) -> Vec<f64> {
        (0..steps).map(|step| schedule.learning_rate(step)).collect()
    }

    fn assert_close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        let close = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9);
        assert!(close, "{found:?} instead of {expected:?}");
    }

    #[test]
    fn a_step_schedule_falls_after_every_so_many_steps() {
        let schedule = Schedule::Step { start: 1.0, factor: 0.5, every: 2 };
        assert_close(&rates(&schedule, 5), &[1.0, 1.0, 0.5, 0.5, 0.25]);
        assert_eq!(schedule.learning_rate(u64::MAX), 0.0);
    }

    #[test]
    fn milestones_and_exponential_decay_are_those_of_pytorch() {
        let milestones = vec![2, 3, 3];
        let schedule = Schedule::MultiStep { start: 1.0, factor: 0.5, milestones };
        assert_close(&rates(&schedule, 5), &[1.0, 1.0, 0.5, 0.125, 0.125]);
        let schedule = Schedule::Exponential { start: 2.0, factor: 0.9 };
        assert_close(&rates(&schedule, 4), &[2.0, 1.8, 1.62, 1.458]);
        assert_eq!(schedule.learning_rate(u64::MAX), 0.0);
    }

    #[test]
    fn numbers_that_are_no_schedule_are_refused_by_name() {
        let milestones = vec![3, 2];
        for (schedule, expected) in [
            (Schedule::Constant(f64::NAN), "rate"),
            (Schedule::Constant(-0.1).after_warm_up(3), "rate"),
            (Schedule::Step { start: 0.1, factor: 0.5, every: 0 }, "every"),
            (Schedule::MultiStep { start: 0.1, factor: 0.5, milestones }, "milestones"),
            (Schedule::Exponential { start: 0.1, factor: f64::INFINITY }, "factor"),
            (Schedule::Cosine { start: 0.1, end: -1.0, steps: 3 }, "end"),
            (Schedule::OneCycle { max: 0.1, steps: 3, rising: 1.5 }, "rising"),
        ] {
            let refused = schedule.check().unwrap_err();
            assert!(
                matches!(&refused, Error::BadArgument { argument, .. } if *argument == expected),
                "{refused}"
            );
        }
        Schedule::Cosine { start: 0.1, end: 0.0, steps: 0 }.after_warm_up(0).check().unwrap();
    }

    #[test]
    fn a_cosine_goes_from_start_to_end_and_stays() {
        let schedule = Schedule::Cosine { start: 1.0, end: 0.2, steps: 4 };
        let quarter = 0.2 + 0.4 * (1.0 + 0.5_f64.sqrt());
        assert_close(&rates(&schedule, 6), &[1.0, quarter, 0.6, 1.2 - quarter, 0.2, 0.2]);
        assert_eq!(Schedule::Cosine { start: 1.0, end: 0.2, steps: 0 }.learning_rate(0), 0.2);
    }

    #[test]
    fn a_warm_up_ends_where_the_schedule_begins() {
        let schedule = Schedule::Constant(2.0).after_warm_up(4);
        assert_close(&rates(&schedule, 6), &[0.5, 1.0, 1.5, 2.0, 2.0, 2.0]);
        assert_close(&rates(&Schedule::Constant(2.0).after_warm_up(0), 2), &[2.0, 2.0]);
    }

    #[test]
    fn one_cycle_rises_to_the_peak_and_ends_near_nothing() {
        let schedule = Schedule::OneCycle { max: 1.0, steps: 10, rising: 0.3 };
        assert_close(&rates(&schedule, 3), &[0.04, 0.52, 1.0]);
        assert!(rates(&schedule, 10)[2..].is_sorted_by(|a, b| a > b));
        assert_close(&[schedule.learning_rate(9), schedule.learning_rate(99)], &[4e-6, 4e-6]);
        for steps in [0, 1] {
            assert!(Schedule::OneCycle { max: 1.0, steps, rising: 0.0 }.learning_rate(0).is_finite());
        }
    }
}
