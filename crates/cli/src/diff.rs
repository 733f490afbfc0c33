//! `highwater diff`: what changed between two recorded runs.

use std::path::PathBuf;

use clap::Args;
use highwater_tracking::table::{Table, bytes};
use highwater_tracking::{Change, Report, ReportDiff};

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
    let report = |path| {
        let run = arguments.read.recording(path)?;
        Ok::<_, CommandError>((Report::from_recording(&run), run.cut().map(cut_remark)))
    };
    let (before, before_cut) = report(&arguments.before)?;
    let (after, after_cut) = report(&arguments.after)?;
    let diff = ReportDiff::between(&before, &after);
    print(&diff, arguments.json, || text(&diff, arguments.top, arguments.wide))?;
    remark(&arguments.before, before_cut)?;
    Ok(remark(&arguments.after, after_cut)?)
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
