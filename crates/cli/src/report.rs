//! `highwater report`: shows where the memory of a recorded run went.

mod log_file;
mod page;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use highwater_tracking::{Report, TextOptions};

use crate::exit;
use crate::files::recording::{ReadArguments, report_cut};

/// The arguments of `highwater report`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReportArguments {
    /// A recording, as examples write with --record, or - for standard input
    #[arg(value_name = "RUN.hwm")]
    run: PathBuf,

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

    /// Write an offline HTML page to this file, or to -
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

pub(crate) fn run(arguments: &ReportArguments) -> io::Result<ExitCode> {
    let read: Vec<&Path> =
        [Some(&arguments.run), arguments.log.as_ref()].into_iter().flatten().map(PathBuf::as_path).collect();
    let page = match arguments.html.as_deref().map(|path| page::create(path, &read)).transpose() {
        Ok(page) => page,
        Err(error) => return failed(error),
    };
    let log = match arguments.log.as_deref().map(log_file::read).transpose() {
        Ok(log) => log,
        Err(error) => {
            return exit::fail(&error, exit::BAD_FILE);
        }
    };
    let recording = match arguments.read.read(&arguments.run) {
        Ok(recording) => recording,
        Err(error) => {
            return exit::fail(&error, exit::BAD_FILE);
        }
    };
    if let (Some(path), Some(page)) = (&arguments.html, page) {
        if let Err(error) = page::write(&recording, log.as_ref(), page, path) {
            return failed(error);
        }
        report_cut(&arguments.run, recording.cut())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut stdout = io::stdout().lock();
    let report = Report::from_recording(&recording);
    if arguments.json {
        report.write_json(&mut stdout)?;
    } else {
        let (top, wide) = (arguments.top, arguments.wide);
        write!(stdout, "{}", report.text(TextOptions { top, by_place: arguments.by == By::Place, wide }))?;
    }
    stdout.flush()?;
    report_cut(&arguments.run, recording.cut())?;
    Ok(ExitCode::SUCCESS)
}

fn failed(error: page::PageError) -> io::Result<ExitCode> {
    // The reader of a pipe has closed it, which is not an error.
    if error.error.kind() == io::ErrorKind::BrokenPipe {
        return Err(error.error);
    }
    exit::fail(&error, exit::FAILED)
}
