//! Learning rates that change in the course of a training run.

use std::f64::consts::PI;

/// A learning rate for each step, as a function of the step's number alone: a run that resumes needs nothing but the
/// number. Steps count from 0.
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
    /// Always the same.
    Constant(f64),
    /// Multiplied by a factor after every so many steps.
    Step {
        /// The rate of the first steps.
        start: f64,
        /// What it is multiplied by.
        factor: f64,
        /// After how many steps each time; 0 is as 1.
        every: u64,
    },
    /// From one rate to another along half a cosine (Loshchilov and Hutter 2017), which then stays.
    Cosine {
        /// The rate of the first step.
        start: f64,
        /// The rate after `steps` steps.
        end: f64,
        /// How many steps it takes.
        steps: u64,
    },
    /// Up to a rate along half a cosine, and down to almost none along another (Smith and Topin 2019, with the shape and
    /// the numbers of PyTorch's `OneCycleLR`): from `max` / 25 to `max` to `max` / 250,000.
    OneCycle {
        /// The highest rate.
        max: f64,
        /// How many steps it takes.
        steps: u64,
        /// The share of the steps in which it rises, from 0 to 1; 0.3 is usual.
        rising: f64,
    },
    /// First up in a straight line to where another schedule starts, which then begins.
    WarmUp {
        /// How many steps it takes: step i has the share (i + 1) / steps.
        steps: u64,
        /// What follows.
        then: Box<Schedule>,
    },
}

impl Schedule {
    /// This schedule, after `steps` steps in which the rate rises in a straight line to its first one.
    #[must_use]
    pub fn after_warm_up(self, steps: u64) -> Self {
        Self::WarmUp { steps, then: Box::new(self) }
    }

    /// The rate of a step.
    #[must_use]
    pub fn learning_rate(&self, step: u64) -> f64 {
        match *self {
            Self::Constant(rate) => rate,
            Self::Step { start, factor, every } => {
                // No product of so many factors is other than 0, 1 or infinite.
                let times = i32::try_from(step / every.max(1)).unwrap_or(i32::MAX);
                start * factor.powi(times)
            }
            Self::Cosine { start, end, steps } => half_cosine(start, end, step as f64 / steps as f64),
            Self::OneCycle { max, steps, rising } => {
                let (first, last) = (max / 25.0, max / 25.0 / 1e4);
                // The last step has the last rate: the peak lies at a share of the steps between.
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

/// From `start` to `end` along half a cosine, at the share `done` of the way; of a way of no length, its end.
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
