//! `highwater report`: where the memory of a recorded run went.

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
    /// A recording, as examples write it with --record, or - for standard input
    #[arg(value_name = "RUN.hwm")]
    run: PathBuf,

    /// How many lines a table has at most
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,

    /// What the lines of the first table are
    #[arg(long, value_name = "WHAT", default_value = "op")]
    by: By,

    /// Show every figure of an op, however wide its table
    #[arg(long)]
    wide: bool,

    /// Write JSON, for programs; all of it, whatever --top says
    #[arg(long)]
    json: bool,

    /// Write one page for a browser, which needs no network, to this file or to -
    #[arg(long, value_name = "FILE.html", conflicts_with = "json")]
    html: Option<PathBuf>,

    /// Show the loss and other numbers of the run's log there too; examples write it with --log
    #[arg(long, value_name = "FILE.jsonl", requires = "html")]
    log: Option<PathBuf>,

    #[command(flatten)]
    read: ReadArguments,
}

/// What is summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// An op in a phase, over all modules
    Op,
    /// An op in a phase in a module
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
            writeln!(io::stderr(), "highwater: {error}")?;
            return Ok(ExitCode::from(exit::BAD_FILE));
        }
    };
    let recording = match arguments.read.read(&arguments.run) {
        Ok(recording) => recording,
        Err(error) => {
            writeln!(io::stderr(), "highwater: {error}")?;
            return Ok(ExitCode::from(exit::BAD_FILE));
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
    // As for every command: the reader of a pipe has seen enough.
    if error.error.kind() == io::ErrorKind::BrokenPipe {
        return Err(error.error);
    }
    writeln!(io::stderr(), "highwater: {error}")?;
    Ok(ExitCode::from(exit::FAILED))
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
