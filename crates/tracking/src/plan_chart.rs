//! The plans of a search for a training configuration that fits a device: each plan's peak memory and step time.
//!
//! A search fills the rows, and this crate shows them: as a text table ([`Display`](fmt::Display)), as JSON ([`Serialize`])
//! and as a chart on an HTML page ([`write_plans_page`](crate::write_plans_page)).

use std::fmt;

use bfc_core::Bytes;
use serde::Serialize;

use crate::report::table::{self, Table};

/// The plans that a search compared, and what a run with the chosen plan measured.
///
/// ```
/// use highwater_tracking::{PlanChart, PlanRow};
/// let mut chart = PlanChart::new("rtx-4090").with_limit(24 << 30).with_chosen(0);
/// let fast = PlanRow::new("micro-batch 8 × 4, bf16", 20 << 30, 0.4, 80.0);
/// let large = PlanRow::new("micro-batch 32, bf16", 60 << 30, 0.375, 85.3);
/// chart.rows = vec![
///     fast.with_limited_by("compute").with_is_on_front(true),
///     large.with_limited_by("compute").with_is_on_front(true).with_fits(false),
/// ];
/// let expected = "\
/// 2 plans for rtx-4090 with 24.0 GiB, 1 fits
///
///   plan                         peak    share      step  samples/s    limited by
/// -------------------------------------------------------------------------------
/// * micro-batch 8 × 4, bf16  20.0 GiB   83.3 %  400.0 ms      80.00       compute
///   micro-batch 32, bf16     60.0 GiB  250.0 %  375.0 ms      85.30  does not fit
///
/// * the chosen plan
/// ";
/// assert_eq!(chart.to_string(), expected);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PlanChart {
    /// The name of the device.
    pub device: String,
    /// The most bytes that a plan may use; `None` without a limit.
    pub limit_bytes: Option<u64>,
    /// The plans, in the order in which tables list them.
    pub rows: Vec<PlanRow>,
    /// The index of the chosen plan among the rows.
    pub chosen: Option<usize>,
    /// The peak of a run with the chosen plan.
    pub measured_peak_bytes: Option<u64>,
    /// The seconds per step of a run with the chosen plan.
    pub measured_seconds: Option<f64>,
    /// Sentences about the search, such as why it kept the batch in one piece.
    pub notes: Vec<String>,
}

/// One plan: its predicted peak and its estimated step time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PlanRow {
    /// A description such as `micro-batch 8 × 4, 3 blocks recomputed, bf16`.
    pub plan: String,
    /// The peak of a training step.
    pub peak_bytes: u64,
    /// The time of a training step. Tables show a dash if it is not finite.
    pub seconds: f64,
    /// The samples of a step, divided by its time.
    pub samples_per_second: f64,
    /// The resource that takes most of the step's time, such as `compute`, `memory` or `launch`.
    pub limited_by: String,
    /// Whether the peak fits the device.
    pub fits: bool,
    /// Whether no other plan has both a lower peak and a shorter step.
    pub is_on_front: bool,
}

impl PlanChart {
    /// Creates a chart without plans.
    #[must_use]
    pub fn new(device: impl Into<String>) -> Self {
        Self { device: device.into(), ..Self::default() }
    }

    /// Sets the most bytes that a plan may use.
    #[must_use]
    pub const fn with_limit(mut self, bytes: u64) -> Self {
        self.limit_bytes = Some(bytes);
        self
    }

    /// Marks the plan at this index as chosen.
    #[must_use]
    pub const fn with_chosen(mut self, index: usize) -> Self {
        self.chosen = Some(index);
        self
    }

    /// Adds the peak and, if known, the seconds per step of a run with the chosen plan.
    #[must_use]
    pub const fn with_measured(mut self, peak_bytes: u64, seconds: Option<f64>) -> Self {
        self.measured_peak_bytes = Some(peak_bytes);
        self.measured_seconds = seconds;
        self
    }

    /// Adds a sentence about the search.
    #[must_use]
    pub fn with_note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// Returns the chosen plan.
    #[must_use]
    pub fn chosen_row(&self) -> Option<&PlanRow> {
        self.chosen.and_then(|index| self.rows.get(index))
    }
}

impl PlanRow {
    /// Creates a plan that fits and is not on the front.
    #[must_use]
    pub fn new(plan: impl Into<String>, peak_bytes: u64, seconds: f64, samples_per_second: f64) -> Self {
        Self { plan: plan.into(), peak_bytes, seconds, samples_per_second, fits: true, ..Self::default() }
    }

    /// Sets the resource that takes most of the step's time.
    #[must_use]
    pub fn with_limited_by(mut self, resource: impl Into<String>) -> Self {
        self.limited_by = resource.into();
        self
    }

    /// Sets whether the plan fits the device.
    #[must_use]
    pub const fn with_fits(mut self, fits: bool) -> Self {
        self.fits = fits;
        self
    }

    /// Sets whether the plan is on the Pareto front of peak memory and step time.
    #[must_use]
    pub const fn with_is_on_front(mut self, is_on_front: bool) -> Self {
        self.is_on_front = is_on_front;
        self
    }
}

/// A text table of all plans with complete names.
impl fmt::Display for PlanChart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (plans, fitting) = (self.rows.len(), self.rows.iter().filter(|row| row.fits).count());
        let noun = if plans == 1 { "plan" } else { "plans" };
        let verb = if fitting == 1 { "fits" } else { "fit" };
        let limit =
            self.limit_bytes.map_or_else(String::new, |limit| format!(" with {}", table::bytes(limit)));
        writeln!(f, "{plans} {noun} for {}{limit}, {fitting} {verb}", table::plain(&self.device))?;
        if plans > 0 {
            writeln!(f, "\n{}", self.table())?;
        }
        if let Some(chosen) = self.chosen_row() {
            writeln!(f, "* the chosen plan")?;
            self.write_measured(chosen, f)?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "{}", table::plain(note)))
    }
}

impl PlanChart {
    fn table(&self) -> Table {
        let heading = ["  plan", "peak", "share", "step", "samples/s", "limited by"];
        let mut table = Table::new(&heading).wide(true);
        for (index, row) in self.rows.iter().enumerate() {
            let mark = if self.chosen == Some(index) { "*" } else { " " };
            let share = self.limit_bytes.map_or(0.0, |limit| row.peak_bytes as f64 / limit.max(1) as f64);
            let limited_by = if row.fits { table::plain(&row.limited_by) } else { "does not fit".to_owned() };
            let figures = [
                table::bytes(row.peak_bytes),
                table::share(share),
                duration(row.seconds),
                rate(row.samples_per_second),
                limited_by,
            ];
            table.line(&format!("{mark} {}", row.plan), figures);
        }
        table.without_empty_columns()
    }

    /// Compares the measured figures with the prediction.
    fn write_measured(&self, chosen: &PlanRow, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(peak) = self.measured_peak_bytes {
            let difference = match peak.cmp(&chosen.peak_bytes) {
                std::cmp::Ordering::Equal => "exactly as predicted".to_owned(),
                std::cmp::Ordering::Less => {
                    format!("{} less than predicted", Bytes(chosen.peak_bytes - peak))
                }
                std::cmp::Ordering::Greater => {
                    format!("{} more than predicted", Bytes(peak - chosen.peak_bytes))
                }
            };
            writeln!(f, "measured peak: {}, {difference}", Bytes(peak))?;
        }
        if let Some(seconds) = self.measured_seconds {
            let estimated = duration(chosen.seconds);
            writeln!(f, "measured step: {}, estimated {estimated}", duration(seconds))?;
        }
        Ok(())
    }
}

/// Formats seconds as a cell; a dash if they are no time.
fn duration(seconds: f64) -> String {
    match seconds {
        0.0..1e9 => table::duration((seconds * 1e9) as u64),
        1e9..f64::INFINITY => format!("{seconds:.2e} s"),
        _ => "-".to_owned(),
    }
}

/// Formats a rate with four significant digits as a cell; a dash if it is no rate.
fn rate(rate: f64) -> String {
    match rate {
        0.0..9.9995 => format!("{rate:.3}"),
        9.9995..99.995 => format!("{rate:.2}"),
        99.995..999.95 => format!("{rate:.1}"),
        999.95..1e9 => format!("{rate:.0}"),
        1e9..f64::INFINITY => format!("{rate:.2e}"),
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests;
