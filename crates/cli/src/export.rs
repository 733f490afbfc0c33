//! `highwater export`: converts a recorded run for other tools.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use bfc_core::Bytes;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use highwater_tracking::{Cut, ExportError, ExportFormat, Recording, export};

use crate::exit;
use crate::files::input::{self, STANDARD};
use crate::files::output::{self, OutputFile};
use crate::files::recording::{ReadArguments, ReadError, report_cut};

/// The arguments of `highwater export`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExportArguments {
    /// A recording, as examples write with --record, or - for standard input
    #[arg(value_name = "RUN.hwm")]
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
    let values = ExportFormat::ALL.map(|format| PossibleValue::new(format.name()).help(purpose(format)));
    PossibleValuesParser::new(values).try_map(|name| name.parse::<ExportFormat>())
}

/// The description of a format for `--help`.
const fn purpose(format: ExportFormat) -> &'static str {
    match format {
        ExportFormat::MemoryViz => "A snapshot for PyTorch's memory viewer, as a pickle",
        ExportFormat::MemoryVizJson => "A snapshot for PyTorch's memory viewer, as JSON",
        ExportFormat::Chrome => "A trace for Perfetto and chrome://tracing",
        ExportFormat::Pprof => "What was live at the peak, for pprof and speedscope",
        ExportFormat::Folded => "What was live at the peak, for flame graphs",
        ExportFormat::Svg => "A chart of live bytes by category over time",
        _ => "",
    }
}

/// The reason why there is no export.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("{}: {error}", path.display())]
    Export { path: PathBuf, error: ExportError },
    #[error("{}: {error}", path.display())]
    Write { path: PathBuf, error: ExportError },
    #[error(
        "{format} is not text, and standard output is a terminal: name a file with --output, or - to force it"
    )]
    Terminal { format: ExportFormat },
}

pub(crate) fn run(arguments: &ExportArguments) -> io::Result<ExitCode> {
    match write(arguments) {
        Ok(cut) => {
            report_cut(&arguments.run, cut.as_ref())?;
            Ok(ExitCode::SUCCESS)
        }
        // The reader of a pipe has closed it, which is not an error.
        Err(Failed::Write { error: ExportError::Io(error), .. })
            if error.kind() == io::ErrorKind::BrokenPipe =>
        {
            Err(error)
        }
        Err(error) => {
            writeln!(io::stderr(), "highwater: {error}")?;
            let code = if matches!(error, Failed::Read(_)) { exit::BAD_FILE } else { exit::FAILED };
            Ok(ExitCode::from(code))
        }
    }
}

/// Exports a recording; returns where it was cut off, if it was.
fn write(arguments: &ExportArguments) -> Result<Option<Cut>, Failed> {
    let format = arguments.format;
    if arguments.output.is_none() && !format.is_text() && io::stdout().is_terminal() {
        return Err(Failed::Terminal { format });
    }
    let path = arguments.output.as_deref().unwrap_or(Path::new(STANDARD));
    let failed = |error: ExportError| told(&arguments.run, path, error);
    let output = OutputFile::open(path, &[&arguments.run]).map_err(|error| failed(error.into()))?;
    let recording = arguments.read.read(&arguments.run)?;
    let start = Instant::now();
    if let Some(bytes) = to_output(&recording, format, output).map_err(failed)? {
        let (events, seconds) = (recording.events().len(), start.elapsed().as_secs_f64());
        let sentence = format!("{}: {} from {events} events in {seconds:.3} s", path.display(), Bytes(bytes));
        writeln!(io::stdout(), "{sentence}").map_err(|error| failed(error.into()))?;
    }
    Ok(recording.cut().cloned())
}

/// Writes an export, and returns the length of a file.
fn to_output(
    recording: &Recording,
    format: ExportFormat,
    mut output: OutputFile,
) -> Result<Option<u64>, ExportError> {
    export(recording, format, &mut output)?;
    Ok(output.commit()?)
}

/// Adds the file to an error.
fn told(run: &Path, output: &Path, error: ExportError) -> Failed {
    match error {
        ExportError::Io(_) => Failed::Write { path: output::name(output), error },
        _ => Failed::Export { path: input::name(run), error },
    }
}
