//! `highwater report`: shows where the memory of a recorded run went.

mod failures;
mod log_file;
mod page;
mod text;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use highwater_tracking::{Cut, PeakParts, Recording, RunFacts, RunSummary, Usage};
use serde::Serialize;

use crate::exit;
use crate::files::recording::{ReadArguments, tell_cut};
use failures::{Failed, failures};
pub(crate) use text::plain;

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

/// The object of `--json`.
#[derive(Debug, Serialize)]
struct Whole<'a> {
    facts: &'a RunFacts,
    events: usize,
    blocks: usize,
    skipped_events: u64,
    cut: Option<&'a Cut>,
    usage: &'a Usage,
    peak_parts: &'a PeakParts,
    failures: Vec<Failed<'a>>,
    summary: Option<&'a RunSummary>,
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
        tell_cut(&arguments.run, recording.cut())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut stdout = io::stdout().lock();
    let (usage, parts) = (Usage::of(&recording), PeakParts::of(&recording));
    if arguments.json {
        serde_json::to_writer_pretty(&mut stdout, &whole(&recording, &usage, &parts))?;
        writeln!(stdout)?;
    } else {
        let places = arguments.by == By::Place;
        write!(
            stdout,
            "{}",
            text::Text {
                recording: &recording,
                usage: &usage,
                parts: &parts,
                top: arguments.top,
                places,
                wide: arguments.wide
            }
        )?;
    }
    stdout.flush()?;
    tell_cut(&arguments.run, recording.cut())?;
    Ok(ExitCode::SUCCESS)
}

fn failed(error: page::PageError) -> io::Result<ExitCode> {
    // The reader of a pipe has closed it, which is not an error.
    if error.error.kind() == io::ErrorKind::BrokenPipe {
        return Err(error.error);
    }
    exit::fail(&error, exit::FAILED)
}

fn whole<'a>(recording: &'a Recording, usage: &'a Usage, peak_parts: &'a PeakParts) -> Whole<'a> {
    Whole {
        facts: recording.facts(),
        events: recording.events().len(),
        blocks: recording.blocks().len(),
        skipped_events: recording.skipped_events(),
        cut: recording.cut(),
        usage,
        peak_parts,
        failures: failures(recording),
        summary: recording.summary(),
    }
}
