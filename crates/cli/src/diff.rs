//! `highwater diff`: what changed between two recorded runs.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use highwater_tracking::table::{Table, bytes};
use highwater_tracking::{Change, Cut, Phase, Usage, UsageDiff};

use crate::exit;
use crate::files::recording::{ReadArguments, ReadError, tell_cut};
use crate::report::plain;

/// The arguments of `highwater diff`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DiffArguments {
    /// The run before; one of both may be -, standard input
    #[arg(value_name = "A.hwm")]
    before: PathBuf,

    /// The run after
    #[arg(value_name = "B.hwm")]
    after: PathBuf,

    /// How many lines a table has at most
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,

    /// Write JSON, for programs; all of it, whatever --top says
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    read: ReadArguments,
}

pub(crate) fn run(arguments: &DiffArguments) -> io::Result<ExitCode> {
    let (diff, cuts) = match compare(arguments) {
        Ok(compared) => compared,
        Err(error) => {
            writeln!(io::stderr(), "highwater: {error}")?;
            return Ok(ExitCode::from(exit::BAD_FILE));
        }
    };
    let mut stdout = io::stdout().lock();
    if arguments.json {
        serde_json::to_writer_pretty(&mut stdout, &diff)?;
        writeln!(stdout)?;
    } else {
        write!(stdout, "{}", text(&diff, arguments.top))?;
    }
    stdout.flush()?;
    for (path, cut) in [&arguments.before, &arguments.after].into_iter().zip(&cuts) {
        tell_cut(path, cut.as_ref())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The difference, and where each of the two was cut off. One recording is held at a time.
fn compare(arguments: &DiffArguments) -> Result<(UsageDiff, [Option<Cut>; 2]), ReadError> {
    let usage = |path| arguments.read.read(path).map(|run| (Usage::of(&run), run.cut().cloned()));
    let (before, before_cut) = usage(&arguments.before)?;
    let (after, after_cut) = usage(&arguments.after)?;
    Ok((UsageDiff::between(&before, &after), [before_cut, after_cut]))
}

fn text(diff: &UsageDiff, top: usize) -> String {
    if diff.is_empty() {
        return "the runs have the same figures\n".to_owned();
    }
    let peak = diff.peak_bytes;
    let mut text =
        format!("peak: {} before, {} after, {}\n", bytes(peak.before), bytes(peak.after), growth(peak));
    if !diff.categories.is_empty() {
        let mut table =
            Table::new(&["category", "at the peak before", "after", "change", "high water before", "after"]);
        for row in &diff.categories {
            let (peak, mark) = (row.peak_bytes, row.high_water_bytes);
            let figures =
                [bytes(peak.before), bytes(peak.after), growth(peak), bytes(mark.before), bytes(mark.after)];
            table.line(&row.category.replace('_', " "), figures);
        }
        text.push_str(&format!("\n{table}"));
    }
    if !diff.places.is_empty() {
        let mut table = Table::new(&["op", "at the peak before", "after", "change", "high water", "granted"]);
        for row in diff.places.iter().take(top) {
            let dot = if row.scope.is_empty() { "" } else { "." };
            let phase = if row.phase == Phase::Forward { String::new() } else { format!(":{}", row.phase) };
            let name = plain(&format!("{}{dot}{}{phase}", row.scope, row.op));
            let peak = row.peak_bytes;
            let [mark, granted] = [row.high_water_bytes, row.granted_bytes].map(growth);
            table.line(&name, [bytes(peak.before), bytes(peak.after), growth(peak), mark, granted]);
        }
        if diff.places.len() > top {
            table.line(&format!("({} more)", diff.places.len() - top), []);
        }
        text.push_str(&format!("\n{table}"));
    }
    text
}

/// A change as a cell, with its sign; none is a dash.
fn growth(change: Change) -> String {
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
        assert_eq!(text(&UsageDiff::default(), 5), "the runs have the same figures\n");
    }
}
