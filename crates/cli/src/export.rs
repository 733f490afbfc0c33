//! `highwater export`: converts a recorded run for other tools.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use bfc_core::{Bytes, printable};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use highwater_traces::{ExportError, ExportFormat, export};

use crate::error::{CommandError, STANDARD};
use crate::files::input::remark;
use crate::files::output::OutputFile;
use crate::files::read::{ReadArguments, cut_remark};

/// The arguments of `highwater export`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExportArguments {
    /// A recording (.hwm), a file of another tool, or - for standard input
    #[arg(value_name = "RUN")]
    run: PathBuf,

    /// The output format
    #[arg(long, value_name = "FORMAT", value_parser = formats())]
    format: ExportFormat,

    /// The file to write, or - for standard output, even if that is a terminal
    ///
    /// Default: standard output, unless that is a terminal and the format is binary.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    #[command(flatten)]
    read: ReadArguments,
}

fn formats() -> impl TypedValueParser<Value = ExportFormat> {
    let values = ExportFormat::ALL.map(|format| PossibleValue::new(format.name()).help(format.about()));
    PossibleValuesParser::new(values).try_map(|name| ExportFormat::named(&name).ok_or("unknown format"))
}

pub(crate) fn run(arguments: &ExportArguments) -> Result<(), CommandError> {
    let format = arguments.format;
    let path = arguments.output.as_deref().unwrap_or(Path::new(STANDARD));
    let mut output = OutputFile::open(path, &[&arguments.run])?;
    if arguments.output.is_none() && !format.is_text() && io::stdout().is_terminal() {
        let problem = format!(
            "{format} is not text, and this is a terminal: name a file with --output, or - to force it"
        );
        return output.finish(Err(io::Error::other(problem))).map(drop);
    }
    let recording = arguments.read.recording(&arguments.run)?;
    let start = Instant::now();
    let written = match export(&recording, format, &mut output) {
        Ok(_) => Ok(()),
        Err(ExportError::Io(error)) => Err(error),
        Err(error) => return Err(CommandError::no_result(&arguments.run, &error)),
    };
    if let Some(bytes) = output.finish(written)? {
        let (events, seconds) = (recording.events().len(), start.elapsed().as_secs_f64());
        let sentence =
            format!("{}: {} from {events} events in {seconds:.3} s", printable(path.display()), Bytes(bytes));
        writeln!(io::stdout(), "{sentence}")?;
    }
    Ok(remark(&arguments.run, recording.cut().map(cut_remark))?)
}
