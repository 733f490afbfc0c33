//! The text that a run prints.

use std::error::Error as StdError;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;

use bfc_core::{printable_json, printable_lines};
use highwater_nn::io::write_atomically;
use highwater_tensor::error::FileError;
use highwater_tensor::{Error, StepCounts};
use highwater_tracking::{Report, TextOptions, oom_page};

use super::run::RunError;
use crate::fit::FitError;

/// The rows of a table in the short report, and the tables that it omits.
const TOP: usize = 10;
const OMITTED: &[&str] = &["phase ", "category ", "pool", "thread "];

/// Prints to standard output, with escaped control characters. A closed pipe, as in `... | head`, is not an error.
pub(super) fn say(text: &str) -> Result<(), FileError> {
    let mut stdout = io::stdout().lock();
    match write!(stdout, "{}", printable_lines(text)).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(FileError::io(Path::new("standard output"), &error))
        }
        _ => Ok(()),
    }
}

/// The tables of a report: all rows and columns, or the first rows of the most important tables and a hint.
pub(super) fn tables(report: &Report, full: bool) -> String {
    if full {
        return report
            .text(TextOptions { top: usize::MAX, wide: true, ..TextOptions::default() })
            .to_string();
    }
    let text = report.text(TextOptions { top: TOP, ..TextOptions::default() }).to_string();
    let parts = text.split("\n\n").filter(|part| !OMITTED.iter().any(|table| part.starts_with(table)));
    let mut short = String::new();
    parts.for_each(|part| short += &format!("{}\n\n", part.trim_end()));
    short + "Use --full for all tables and rows, or --html FILE.html for a page.\n"
}

/// The counts of a step as graphs.
pub(super) fn graphs(counts: &StepCounts, device: &str) -> String {
    if counts.runs == 0 {
        return format!("\ngraphs: {device} has none\n");
    }
    let mut text = format!(
        "\ngraphs: {} kernels in {} launches of {} graphs, {} with new arguments; {} kernels one by one",
        counts.in_graphs, counts.graphs, counts.prepared, counts.replaced, counts.singly
    );
    if let Some(reason) = &counts.refused {
        let _ = write!(text, "; refused: {reason}");
    }
    text + "\n"
}

/// Prints the error in one line, and the whole report if memory ran out, also to a file if requested.
pub(super) fn complain(error: &(dyn StdError + 'static), file: Option<&Path>) -> io::Result<()> {
    let mut stderr = io::stderr().lock();
    writeln!(stderr, "error: {}", printable_lines(with_causes(error)))?;
    let Some(report) = causes(error).find_map(highwater_error).and_then(Error::out_of_memory) else {
        return Ok(());
    };
    writeln!(stderr, "\n{}", report.details())?;
    let Some(file) = file else { return Ok(()) };
    let html = file.extension().is_some_and(|extension| extension == "html");
    let text = if html {
        oom_page(report)
    } else {
        printable_json(serde_json::to_string_pretty(report)?).to_string()
    };
    let written = write_atomically(file, |out| out.write_all(text.as_bytes()));
    written.or_else(|error| writeln!(stderr, "error: {error}"))
}

fn highwater_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Error> {
    match error.downcast_ref::<RunError>() {
        Some(RunError::Highwater(error)) => Some(error),
        Some(RunError::Fit(FitError::NothingFits(nothing))) => Some(&nothing.error),
        _ => error.downcast_ref(),
    }
}

/// An error, and its causes.
fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn StdError + 'static)| (*error).source())
}

/// An error with its causes in one line. Skips a cause that the text already contains, as with some libraries.
fn with_causes(error: &(dyn StdError + 'static)) -> String {
    causes(error).map(ToString::to_string).fold(String::new(), |text, cause| match text.as_str() {
        "" => cause,
        before if before.contains(&cause) => text,
        before => format!("{before}: {cause}"),
    })
}
