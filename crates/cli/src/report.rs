//! `highwater report`: shows where the memory of a recorded run went, or compares the ranks of one run.

mod ranks;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bfc_core::{Bytes, printable};
use clap::{Args, ValueEnum};
use highwater_traces::{RunFile, SnapshotReport};
use highwater_tracking::{
    Report, TextOptions, TrainingLog, TrainingLogLimits, write_page, write_page_with_allocator,
};

use crate::error::CommandError;
use crate::files::input::{self, remark};
use crate::files::output::{OutputFile, print};
use crate::files::read::{ReadArguments, cut_remark};

/// How several recordings are reported.
const AFTER_HELP: &str = "\
Several recordings are the ranks of one run. The report compares their peaks and high-water marks:
  highwater report rank-*.hwm

A recording states its rank in the facts \"rank\" and \"ranks\". Without them, the order of the arguments counts.
If a file cannot be read, the report shows the other ranks, and the exit code is 1.";

/// The arguments of `highwater report`.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ReportArguments {
    /// A recording (.hwm), a file of another tool, or - for standard input; several: the ranks of one run
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,

    /// The most rows of a table
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,

    /// The rows of the first table
    #[arg(long, value_name = "WHAT", default_value = "op")]
    by: By,

    /// Show every column, however wide the table
    #[arg(long)]
    wide: bool,

    /// Write JSON, always complete
    #[arg(long)]
    json: bool,

    /// Write an offline HTML page of one recording to this file, or to -
    #[arg(long, value_name = "FILE.html", conflicts_with = "json")]
    html: Option<PathBuf>,

    /// Add the loss and other values of the run's log to the page; examples write one with --log
    #[arg(long, value_name = "FILE.jsonl", requires = "html")]
    log: Option<PathBuf>,

    #[command(flatten)]
    read: ReadArguments,
}

/// How rows are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// An op and its phase, over all modules
    Op,
    /// An op, its phase and its module
    Place,
}

impl ReportArguments {
    /// How text is printed.
    fn text_options(&self) -> TextOptions {
        TextOptions { top: self.top, by_place: self.by == By::Place, wide: self.wide }
    }
}

pub(crate) fn run(arguments: &ReportArguments) -> Result<ExitCode, CommandError> {
    match arguments.runs.as_slice() {
        [run] => report(arguments, run).map(|()| ExitCode::SUCCESS),
        runs => ranks::compare(arguments, runs),
    }
}

/// Reports one recording.
fn report(arguments: &ReportArguments, run: &Path) -> Result<(), CommandError> {
    let log = arguments.log.as_deref();
    let inputs: Vec<&Path> = [Some(run), log].into_iter().flatten().collect();
    let page = arguments.html.as_deref().map(|path| OutputFile::open(path, &inputs)).transpose()?;
    let read_log =
        |path| input::read(path, |source| TrainingLog::read(source, &TrainingLogLimits::default()));
    let log = log.map(read_log).transpose()?;
    let file = arguments.read.run(run)?;
    let recording = file.recording();
    if let (Some(path), Some(mut page)) = (&arguments.html, page) {
        let written = match &file {
            RunFile::Snapshot(snapshot) => {
                let facts = SnapshotReport::of(snapshot).allocator_facts(snapshot);
                write_page_with_allocator(recording, log.as_ref(), &facts, &mut page)
            }
            _ => write_page(recording, log.as_ref(), &mut page),
        };
        if let Some(size) = page.finish(written)? {
            writeln!(io::stdout(), "{}: {}", printable(path.display()), Bytes(size))?;
        }
    } else if let RunFile::Snapshot(snapshot) = &file {
        let report = SnapshotReport::of(snapshot);
        print(&report, arguments.json, || report.text(arguments.text_options()))?;
    } else {
        let report = Report::from_recording(recording);
        print(&report, arguments.json, || report.text(arguments.text_options()).to_string())?;
    }
    Ok(remark(run, recording.cut().map(cut_remark))?)
}
