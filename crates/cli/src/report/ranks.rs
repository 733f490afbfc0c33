//! Several recordings: the ranks of one run side by side.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bfc_core::printable;
use highwater_traces::{RunFile, SnapshotReport};
use highwater_tracking::{RankComparison, RankReport, Report};

use super::ReportArguments;
use crate::error::{CommandError, FAILED, input_name};
use crate::files::input::remark;
use crate::files::output::print;
use crate::files::read::cut_remark;

/// Compares the ranks that can be read. The others are errors at the end.
pub(super) fn compare(arguments: &ReportArguments, runs: &[PathBuf]) -> Result<ExitCode, CommandError> {
    if arguments.html.is_some() {
        let problem = "--html shows one recording; pass one file, or compare ranks as text or with --json";
        return Err(CommandError::Usage(problem.to_owned()));
    }
    let (mut ranks, mut cuts, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    for (position, path) in (0..).zip(runs) {
        match read(arguments, path, position) {
            Ok((rank, cut)) => {
                ranks.push(rank);
                cuts.push((path, cut));
            }
            Err(error) => errors.push(error),
        }
    }
    // Without any rank, the last error is the error of the command.
    if ranks.is_empty()
        && let Some(last) = errors.pop()
    {
        tell(errors.iter().map(ToString::to_string))?;
        return Err(last);
    }
    let comparison = RankComparison::new(ranks);
    if let Ok(ranks) = &comparison {
        print(ranks, arguments.json, || ranks.text(arguments.text_options()).to_string())?;
        tell(ranks.warnings())?;
        cuts.into_iter().try_for_each(|(path, cut)| remark(path, cut))?;
    }
    tell(errors.iter().map(ToString::to_string))?;
    comparison?;
    Ok(if errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// Reads one rank, and a remark if its file is cut. Only one recording is in memory at a time.
fn read(
    arguments: &ReportArguments,
    path: &Path,
    position: u64,
) -> Result<(RankReport, Option<String>), CommandError> {
    let run = arguments.read.run(path)?;
    let file = input_name(path).display().to_string();
    let rank = match &run {
        RunFile::Snapshot(snapshot) => {
            let SnapshotReport { report, pytorch, .. } = SnapshotReport::without_replays(snapshot);
            let reserved = pytorch.peak_reserved.level.reserved_bytes;
            RankReport::new(&file, position, &report)?.with_peak_reserved(reserved)
        }
        _ => RankReport::new(&file, position, &Report::from_recording(run.recording()))?,
    };
    Ok((rank, run.recording().cut().map(cut_remark)))
}

/// Prints lines on standard error.
fn tell(lines: impl IntoIterator<Item = String>) -> io::Result<()> {
    lines.into_iter().try_for_each(|line| writeln!(io::stderr(), "highwater: {}", printable(line)))
}
