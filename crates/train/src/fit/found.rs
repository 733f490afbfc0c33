//! The result of a search.

use std::fmt;

use bfc_core::Bytes;
use highwater_tensor::StepTime;
use highwater_tracking::{PlanChart, PlanRow};
use serde::Serialize;

use super::objective::Indivisible;
use super::plan::Plan;

/// A plan with its peak and the time of its step.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Candidate {
    /// The plan.
    pub plan: Plan,
    /// The peak of the device's pool, in bytes: exact for plans that fit, and without a limit for others.
    pub peak_bytes: u64,
    /// The seconds of a step: estimated, or measured if [`is_measured`](Self::is_measured).
    pub seconds: f64,
    /// The work of a step, as estimated.
    pub work: StepTime,
    /// Whether the plan fits.
    pub fits: bool,
    /// Whether the seconds were measured on the device.
    pub is_measured: bool,
    /// The smallest pool in which the plan trains, in bytes. It exceeds the peak if free memory is not in one piece at the
    /// peak. `None` for plans that neither the search nor [`Fit::find_smallest_pool`] chose.
    pub smallest_pool_bytes: Option<u64>,
}

impl Candidate {
    /// Returns the examples per second on all ranks.
    #[must_use]
    pub fn samples_per_second(&self) -> f64 {
        self.plan.batch() as f64 / self.seconds
    }
}

/// Shows the plan, its peak and its speed: `micro-batch 4 × 16: 5.95 GiB, 46.6 samples per second`.
impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (plan, peak, speed) = (&self.plan, Bytes(self.peak_bytes), self.samples_per_second());
        write!(f, "{plan}: {peak}, {speed:.1} samples per second")
    }
}

/// The plans that a search found.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Fit {
    /// The device.
    pub device: String,
    /// The limit of its pool, in bytes; `None` without a limit.
    pub limit_bytes: Option<u64>,
    /// The plans that fit and of which no other one has a lower peak and a faster step. The first is the fastest. Never empty.
    pub plans: Vec<Candidate>,
    /// Other plans that were tried: they do not fit, or one of the plans above is better.
    pub others: Vec<Candidate>,
    /// Why no plan divides the batch into micro-batches, if some would have.
    pub indivisible: Option<Indivisible>,
    /// The number of dry runs.
    pub runs: u32,
    /// The time of the search, in seconds.
    pub search_seconds: f64,
}

impl Fit {
    /// Sorts the plans of a search, at least one of which fits.
    pub(super) fn new(device: &str, limit_bytes: Option<u64>, tried: Vec<Candidate>) -> Self {
        let (plans, device, indivisible) = (Vec::new(), device.to_owned(), None);
        let (runs, search_seconds) = (0, 0.0);
        let mut fit = Self { device, limit_bytes, plans, others: tried, indivisible, runs, search_seconds };
        fit.sort();
        fit
    }

    /// Separates the front from the other plans, each the fastest first.
    pub(super) fn sort(&mut self) {
        let mut all = std::mem::take(&mut self.plans);
        all.append(&mut self.others);
        // A stable order: of equal plans, the simpler one was tried first.
        all.sort_by(|one, other| {
            one.seconds.total_cmp(&other.seconds).then(one.peak_bytes.cmp(&other.peak_bytes))
        });
        for candidate in all {
            let is_on_front = candidate.fits
                && self.plans.last().is_none_or(|faster| candidate.peak_bytes < faster.peak_bytes);
            if is_on_front { &mut self.plans } else { &mut self.others }.push(candidate);
        }
    }

    /// Returns the fastest plan that fits.
    #[must_use]
    pub fn chosen(&self) -> &Candidate {
        // The plans of a search never lack one that fits.
        &self.plans[0]
    }

    /// Returns sentences about the result: why the batch is not divided, the smallest pool of the chosen plan if it is known,
    /// and that times are estimates.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> =
            self.indivisible.iter().map(|reason| capitalized(&reason.to_string())).collect();
        if let Some(pool) = self.chosen().smallest_pool_bytes {
            notes.push(format!("The smallest pool of the chosen plan: {} ({pool} bytes).", Bytes(pool)));
        }
        if !self.chosen().is_measured {
            notes.push(
                "Step times are estimates; on a device that is present, Fit::measure times real steps."
                    .to_owned(),
            );
        }
        notes
    }

    /// Returns the rows for a [page](highwater_tracking::write_plans_page) and a table.
    #[must_use]
    pub fn chart(&self) -> PlanChart {
        let row = |candidate: &Candidate, is_on_front: bool| {
            let Candidate { plan, peak_bytes, seconds, work, fits, .. } = candidate;
            PlanRow::new(plan.to_string(), *peak_bytes, *seconds, candidate.samples_per_second())
                .with_limited_by(work.limit().to_string())
                .with_fits(*fits)
                .with_is_on_front(is_on_front)
        };
        let mut chart = PlanChart::new(&self.device).with_chosen(0);
        (chart.limit_bytes, chart.notes) = (self.limit_bytes, self.notes());
        chart.rows.extend(self.plans.iter().map(|plan| row(plan, true)));
        chart.rows.extend(self.others.iter().map(|plan| row(plan, false)));
        chart
    }
}

/// Returns a clause as a sentence.
fn capitalized(clause: &str) -> String {
    let mut letters = clause.chars();
    letters.next().map_or_else(String::new, |first| format!("{}{}.", first.to_uppercase(), letters.as_str()))
}

/// The front as a table, the fastest plan first.
impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut chart = self.chart();
        chart.rows.truncate(self.plans.len());
        chart.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(peak_bytes: u64, seconds: f64, fits: bool) -> Candidate {
        Candidate {
            plan: Plan::new(1),
            peak_bytes,
            seconds,
            work: StepTime::default(),
            fits,
            is_measured: false,
            smallest_pool_bytes: None,
        }
    }

    #[test]
    fn the_front_has_the_fastest_plan_first() {
        let tried = [
            (10, 5.0, true),
            (30, 1.0, false),
            (20, 2.0, true),
            (20, 3.0, true),
            (5, 9.0, true),
            (12, 4.0, true),
        ];
        let tried = tried.map(|(peak, seconds, fits)| candidate(peak, seconds, fits)).to_vec();
        let fit = Fit::new("cpu", None, tried);
        let peaks = |plans: &[Candidate]| plans.iter().map(|plan| plan.peak_bytes).collect::<Vec<_>>();
        assert_eq!(peaks(&fit.plans), [20, 12, 10, 5]);
        assert_eq!(peaks(&fit.others), [30, 20]);
        assert_eq!(fit.chosen().seconds, 2.0);
    }
}
