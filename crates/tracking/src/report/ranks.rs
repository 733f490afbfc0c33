//! The ranks of one run side by side: which process needs the most memory, and for which ops.
//!
//! Several processes ("ranks") train one model, and each writes its own recording. A [`RankReport`] keeps the figures of
//! one recording that a comparison needs, so that one report is in memory at a time. A [`RankComparison`] puts the ranks
//! next to each other. A rank without an op, module or category counts as 0 bytes there.
//!
//! ```text
//! rank-0.hwm → Report → RankReport ┐
//! rank-1.hwm → Report → RankReport ┴→ RankComparison → text or JSON
//! ```

mod identity;
mod text;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

pub use identity::RankError;
pub use text::RanksText;

use super::{Report, sum};
use identity::Identity;

/// The figures of one rank's report that a [`RankComparison`] needs.
#[derive(Clone, Debug)]
pub struct RankReport {
    row: RankRow,
    /// The number of ranks of the run, if the recording states it.
    world_size: Option<u64>,
    program: String,
    ops: Vec<(String, u64)>,
    places: Vec<(String, u64)>,
    scopes: Vec<(String, u64)>,
    categories: Vec<(String, u64)>,
}

impl RankReport {
    /// Reads the facts "rank" and "ranks" of a recording's report. `file` names the recording in messages. Without the
    /// fact "rank", `position` is the rank: the place of the file among all files, from 0.
    ///
    /// # Errors
    /// [`RankError`] if a fact is not a number, or the rank is not below the number of ranks.
    pub fn new(file: &str, position: u64, report: &Report) -> Result<Self, RankError> {
        let Identity { rank, world_size } = Identity::read(file, report)?;
        let peak = report.total_peak.as_ref().or(report.peak.as_ref());
        let row = RankRow {
            rank: rank.unwrap_or(position),
            is_stated: rank.is_some(),
            file: file.to_owned(),
            peak_bytes: peak.map_or(0, |peak| peak.bytes),
            reached_by: peak.map_or_else(String::new, |peak| peak.owner()),
            outside_bytes: sum(report.outside.iter().map(|row| row.bytes)),
            peak_reserved_bytes: None,
        };
        Ok(Self {
            row,
            world_size,
            program: report.run.as_ref().map_or_else(String::new, |run| run.facts.program.clone()),
            ops: report.ops.iter().map(|row| (row.path(), row.high_water_bytes)).collect(),
            places: report.places.iter().map(|row| (row.path(), row.high_water_bytes)).collect(),
            scopes: report.scopes.iter().map(|row| (row.scope.clone(), row.high_water_bytes)).collect(),
            categories: report
                .categories
                .iter()
                .map(|row| (row.category.clone(), row.high_water_bytes))
                .collect(),
        })
    }

    /// Sets the most reserved bytes of the rank, which PyTorch snapshots know.
    #[must_use]
    pub fn with_peak_reserved(mut self, bytes: u64) -> Self {
        self.row.peak_reserved_bytes = Some(bytes);
        self
    }
}

/// The ranks of one run, side by side. Tables contain high-water marks, sorted by falling maximum, then by falling
/// difference. They omit rows of 0 bytes on all ranks. Serializes with serde; [`text`](Self::text) formats tables.
///
/// ```
/// use highwater_tracking::{RankComparison, RankReport, Report, Tracker};
/// let reports = [Report::new(&Tracker::new(), &[]), Report::new(&Tracker::new(), &[])];
/// let ranks: Result<Vec<_>, _> =
///     (0..).zip(&reports).map(|(rank, report)| RankReport::new("a.hwm", rank, report)).collect();
/// assert_eq!(RankComparison::new(ranks?)?.ranks[1].rank, 1);
/// # Ok::<(), highwater_tracking::RankError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RankComparison {
    /// The program of the first rank.
    pub program: String,
    /// The number of ranks of the run; `None` if no recording states it.
    pub world_size: Option<u64>,
    /// Ranks of the run without a recording.
    pub missing_ranks: Vec<u64>,
    /// The lowest rank with the highest peak; `None` without ranks.
    pub worst_rank: Option<u64>,
    /// The ranks, in ascending order.
    pub ranks: Vec<RankRow>,
    /// Ops over all modules.
    pub ops: Vec<RankBytes>,
    /// Ops in modules.
    pub places: Vec<RankBytes>,
    /// Modules with everything below them; the name of the whole run is empty.
    pub scopes: Vec<RankBytes>,
    /// Categories.
    pub categories: Vec<RankBytes>,
}

impl RankComparison {
    /// Compares ranks, given in any order.
    ///
    /// # Errors
    /// [`RankError`] if two recordings have the same rank, or state different numbers of ranks.
    pub fn new(mut reports: Vec<RankReport>) -> Result<Self, RankError> {
        reports.sort_by_key(|report| report.row.rank);
        let world_size = identity::check(&reports)?;
        let known: BTreeSet<u64> = reports.iter().map(|report| report.row.rank).collect();
        let rows = |named: fn(&RankReport) -> &[(String, u64)]| rows(&reports, named);
        Ok(Self {
            program: reports.first().map_or_else(String::new, |report| report.program.clone()),
            world_size,
            missing_ranks: (0..world_size.unwrap_or(0)).filter(|rank| !known.contains(rank)).collect(),
            worst_rank: worst(&reports).map(|row| row.rank),
            ops: rows(|report| &report.ops),
            places: rows(|report| &report.places),
            scopes: rows(|report| &report.scopes),
            categories: rows(|report| &report.categories),
            ranks: reports.into_iter().map(|report| report.row).collect(),
        })
    }
}

/// A rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RankRow {
    /// The rank.
    pub rank: u64,
    /// Whether the recording states the rank; otherwise it is the place of the file among all files.
    pub is_stated: bool,
    /// The name of the recording.
    pub file: String,
    /// The peak, over all pools.
    pub peak_bytes: u64,
    /// The path of the owner whose allocation reached the peak; empty outside of ops and modules.
    pub reached_by: String,
    /// Bytes outside the pools. The peak does not include them.
    pub outside_bytes: u64,
    /// The most reserved bytes; `None` if the file does not state them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_reserved_bytes: Option<u64>,
}

/// The high-water marks of an op, module or category on each rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RankBytes {
    /// The path of the op or module, or the name of the category.
    pub name: String,
    /// The lowest of [`bytes`](Self::bytes).
    pub min_bytes: u64,
    /// The highest of [`bytes`](Self::bytes).
    pub max_bytes: u64,
    /// The lowest rank with the maximum.
    pub max_rank: u64,
    /// The bytes of each rank, in the order of [`RankComparison::ranks`]. 0 if the rank has no such row.
    pub bytes: Vec<u64>,
}

impl RankBytes {
    /// The maximum less the minimum.
    #[must_use]
    pub const fn difference(&self) -> u64 {
        self.max_bytes - self.min_bytes
    }
}

/// The rank with the highest peak, the lowest one of several.
fn worst(reports: &[RankReport]) -> Option<&RankRow> {
    reports.iter().map(|report| &report.row).min_by_key(|row| (Reverse(row.peak_bytes), row.rank))
}

/// One table: the rows of all ranks by name.
fn rows(reports: &[RankReport], named: fn(&RankReport) -> &[(String, u64)]) -> Vec<RankBytes> {
    let mut by_name: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (index, report) in reports.iter().enumerate() {
        for (name, bytes) in named(report) {
            let row = by_name.entry(name).or_insert_with(|| vec![0; reports.len()]);
            row[index] = row[index].max(*bytes);
        }
    }
    let row = |(name, bytes): (&str, Vec<u64>)| {
        let (min_bytes, max_bytes) = (bytes.iter().copied().min()?, bytes.iter().copied().max()?);
        let index = bytes.iter().position(|&bytes| bytes == max_bytes)?;
        let max_rank = reports[index].row.rank;
        Some(RankBytes { name: name.to_owned(), min_bytes, max_bytes, max_rank, bytes })
    };
    let mut rows: Vec<RankBytes> = by_name.into_iter().filter_map(row).collect();
    rows.retain(|row| row.max_bytes > 0);
    rows.sort_by_key(|row| Reverse((row.max_bytes, row.difference())));
    rows
}

#[cfg(test)]
mod tests;
