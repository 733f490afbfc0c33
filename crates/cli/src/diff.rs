//! `highwater diff`: what changed between two recorded runs.

use std::path::{Path, PathBuf};

use clap::Args;
use highwater_traces::{AllocatorReport, GapMoment, RunFile, SnapshotReport};
use highwater_tracking::table::{Table, bytes};
use highwater_tracking::{Change, Report, ReportDiff};
use serde::Serialize;

use crate::error::CommandError;
use crate::files::input::remark;
use crate::files::output::print;
use crate::files::read::{ReadArguments, cut_remark};

/// The arguments of `highwater diff`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DiffArguments {
    /// The first run: a recording (.hwm) or a file of another tool; one of both may be -, standard input
    #[arg(value_name = "A")]
    before: PathBuf,

    /// The second run
    #[arg(value_name = "B")]
    after: PathBuf,

    /// The most rows of a table
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,

    /// Show complete names, however wide the table
    #[arg(long)]
    wide: bool,

    /// Write JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    read: ReadArguments,
}

pub(crate) fn run(arguments: &DiffArguments) -> Result<(), CommandError> {
    // Only one recording is in memory at a time.
    let before = Side::read(arguments, &arguments.before)?;
    let after = Side::read(arguments, &arguments.after)?;
    let diff = RunDiff {
        report: ReportDiff::between(&before.report, &after.report),
        pytorch: match (before.pytorch, after.pytorch) {
            (Some(before), Some(after)) => Some(AllocatorDiff::between(before, after)),
            _ => None,
        },
    };
    print(&diff, arguments.json, || diff.text(arguments.top, arguments.wide))?;
    remark(&arguments.before, before.cut)?;
    Ok(remark(&arguments.after, after.cut)?)
}

/// One of the two runs.
struct Side {
    report: Report,
    pytorch: Option<AllocatorReport>,
    cut: Option<String>,
}

impl Side {
    fn read(arguments: &DiffArguments, path: &Path) -> Result<Self, CommandError> {
        let run = arguments.read.run(path)?;
        let cut = run.recording().cut().map(cut_remark);
        Ok(match &run {
            RunFile::Snapshot(snapshot) => {
                let SnapshotReport { report, pytorch, .. } = SnapshotReport::without_replays(snapshot);
                Self { report, pytorch: Some(pytorch), cut }
            }
            _ => Self { report: Report::from_recording(run.recording()), pytorch: None, cut },
        })
    }
}

/// The changes between two runs; the object of `--json`.
#[derive(Debug, Default, Serialize)]
struct RunDiff {
    #[serde(flatten)]
    report: ReportDiff,
    /// Between two PyTorch snapshots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pytorch: Option<AllocatorDiff>,
}

impl RunDiff {
    fn text(&self, top: usize, wide: bool) -> String {
        match &self.pytorch {
            Some(pytorch) if !pytorch.is_empty() && self.report.is_empty() => pytorch.text(wide),
            Some(pytorch) if !pytorch.is_empty() => {
                format!("{}\n{}", text(&self.report, top, wide), pytorch.text(wide))
            }
            _ => text(&self.report, top, wide),
        }
    }
}

/// The changes of PyTorch's allocator between two snapshots.
#[derive(Debug, Serialize)]
struct AllocatorDiff {
    peak_reserved: Change<GapMoment>,
    largest_gap: Change<GapMoment>,
    end: Change<GapMoment>,
}

impl AllocatorDiff {
    fn between(before: AllocatorReport, after: AllocatorReport) -> Self {
        Self {
            peak_reserved: Change { before: before.peak_reserved, after: after.peak_reserved },
            largest_gap: Change { before: before.largest_gap, after: after.largest_gap },
            end: Change { before: before.end, after: after.end },
        }
    }

    fn is_empty(&self) -> bool {
        let is_equal = |moment: &Change<GapMoment>| {
            let of = |figure: fn(&GapMoment) -> u64| moment.of(figure).growth() == 0;
            of(|moment| moment.level.reserved_bytes) && moment.before.causes == moment.after.causes
        };
        [&self.peak_reserved, &self.largest_gap, &self.end].into_iter().all(is_equal)
    }

    /// Reserved bytes, and the causes of the largest difference to the requested ones.
    fn text(&self, wide: bool) -> String {
        let mut table = Table::new(&["reserved memory", "before", "after", "change"]).wide(wide);
        let mut line = |name: &str, change: Change<u64>| {
            table.line(name, [bytes(change.before), bytes(change.after), growth(change)]);
        };
        line("peak reserved", self.peak_reserved.of(|moment| moment.level.reserved_bytes));
        line("reserved at the end", self.end.of(|moment| moment.level.reserved_bytes));
        line("largest difference to requested", self.largest_gap.of(|moment| moment.gap_bytes));
        for (number, (name, _)) in self.largest_gap.before.causes.rows().into_iter().enumerate() {
            let change = self.largest_gap.of(|moment| moment.causes.rows()[number].1);
            if change.before > 0 || change.after > 0 {
                line(&format!("  {name}"), change);
            }
        }
        table.to_string()
    }
}

fn text(diff: &ReportDiff, top: usize, wide: bool) -> String {
    if diff.is_empty() {
        return "the runs have the same figures\n".to_owned();
    }
    let peak = diff.peak_bytes;
    let mut text =
        format!("peak: {} before, {} after, {}\n", bytes(peak.before), bytes(peak.after), growth(peak));
    if !diff.categories.is_empty() {
        let heading = ["category", "at peak before", "after", "change", "high water before", "after"];
        let mut table = Table::new(&heading).wide(wide);
        for row in &diff.categories {
            let (peak, mark) = (row.of(|row| row.peak_bytes), row.of(|row| row.high_water_bytes));
            let figures =
                [bytes(peak.before), bytes(peak.after), growth(peak), bytes(mark.before), bytes(mark.after)];
            table.line(&row.after.category.replace('_', " "), figures);
        }
        text.push_str(&format!("\n{table}"));
    }
    if !diff.places.is_empty() {
        let heading = ["op", "at peak before", "after", "change", "high water", "total"];
        let mut table = Table::new(&heading).wide(wide);
        for row in diff.places.iter().take(top) {
            let peak = row.of(|row| row.peak_bytes);
            let [mark, total] =
                [row.of(|row| row.high_water_bytes), row.of(|row| row.total_bytes)].map(growth);
            let figures = [bytes(peak.before), bytes(peak.after), growth(peak), mark, total];
            table.line(&row.after.path(), figures);
        }
        table.rest(diff.places.len(), top);
        text.push_str(&format!("\n{table}"));
    }
    text
}

/// A change with its sign; no change is a dash.
fn growth(change: Change<u64>) -> String {
    let growth = change.growth();
    match growth {
        0 => "-".to_owned(),
        1.. => format!("+{}", bytes(growth.unsigned_abs())),
        _ => format!("-{}", bytes(growth.unsigned_abs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_have_their_sign() {
        assert_eq!(growth(Change { before: 1024, after: 3072 }), "+2.00 KiB");
        assert_eq!(growth(Change { before: 3072, after: 1024 }), "-2.00 KiB");
        assert_eq!(growth(Change { before: 5, after: 5 }), "-");
    }

    #[test]
    fn runs_that_are_alike_say_so() {
        assert_eq!(text(&ReportDiff::default(), 5, false), "the runs have the same figures\n");
    }
}
