//! `highwater export`: a recorded run in the forms that other tools open.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use bfc_core::Bytes;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use highwater_tracking::{Cut, ExportError, ExportFormat, Recording, export};

use crate::exit;
use crate::output_file::OutputFile;
use crate::recording_file::{ReadArguments, ReadError, tell_cut};

/// The arguments of `highwater export`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExportArguments {
    /// A recording, as examples write it with --record
    #[arg(value_name = "RUN.hwm")]
    run: PathBuf,

    /// What to write
    #[arg(long, value_name = "FORMAT", value_parser = formats())]
    format: ExportFormat,

    /// The file to write, or - for standard output, also where that is a terminal
    ///
    /// Without it, standard output, unless that is a terminal and the format is not text.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    #[command(flatten)]
    read: ReadArguments,
}

fn formats() -> impl TypedValueParser<Value = ExportFormat> {
    let values = ExportFormat::ALL.map(|format| PossibleValue::new(format.name()).help(purpose(format)));
    PossibleValuesParser::new(values).try_map(|name| name.parse::<ExportFormat>())
}

/// What a format is good for, in the words of `--help`.
const fn purpose(format: ExportFormat) -> &'static str {
    match format {
        ExportFormat::MemoryViz => "A snapshot for PyTorch's memory viewer, as a pickle",
        ExportFormat::MemoryVizJson => "The same as JSON",
        ExportFormat::Chrome => "A trace for Perfetto and chrome://tracing",
        ExportFormat::Pprof => "What was live at the peak, for pprof and speedscope",
        ExportFormat::Folded => "What was live at the peak, for flame graphs",
        ExportFormat::Svg => "A picture of the live bytes by category over time",
        _ => "",
    }
}

/// Why there is no export.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("{}: {error}", path.display())]
    Export { path: PathBuf, error: ExportError },
    #[error("{}: {error}", path.display())]
    Write { path: PathBuf, error: ExportError },
    #[error(
        "{format} is not text, and standard output is a terminal: name a file with --output, or - if it is meant"
    )]
    Terminal { format: ExportFormat },
}

pub(crate) fn run(arguments: &ExportArguments) -> io::Result<ExitCode> {
    match write(arguments) {
        Ok(cut) => {
            tell_cut(&arguments.run, cut.as_ref())?;
            Ok(ExitCode::SUCCESS)
        }
        // As for every command: the reader of a pipe has seen enough.
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

/// Exports, and returns where a recording was cut off.
fn write(arguments: &ExportArguments) -> Result<Option<Cut>, Failed> {
    let format = arguments.format;
    if arguments.output.is_none() && !format.is_text() && io::stdout().is_terminal() {
        return Err(Failed::Terminal { format });
    }
    let unwritable = |path: &PathBuf, error: io::Error| told(&arguments.run, path.clone(), error.into());
    let open =
        |path: &PathBuf| OutputFile::open(path, &[&arguments.run]).map_err(|error| unwritable(path, error));
    let file = arguments.output.as_ref().filter(|path| path.as_os_str() != "-");
    let output = file.map(|path| open(path).map(|file| (path, file))).transpose()?;
    let recording = arguments.read.read(&arguments.run)?;
    let start = Instant::now();
    match output {
        None => {
            let path = PathBuf::from("standard output");
            export(&recording, format, io::stdout().lock())
                .map_err(|error| told(&arguments.run, path, error))?;
        }
        Some((path, file)) => {
            let bytes = to_file(&recording, format, file)
                .map_err(|error| told(&arguments.run, path.clone(), error))?;
            let (events, seconds) = (recording.events().len(), start.elapsed().as_secs_f64());
            let sentence =
                format!("{}: {} from {events} events in {seconds:.3} s", path.display(), Bytes(bytes));
            writeln!(io::stdout(), "{sentence}").map_err(|error| unwritable(path, error))?;
        }
    }
    Ok(recording.cut().cloned())
}

/// Writes a file, or leaves none.
fn to_file(recording: &Recording, format: ExportFormat, mut file: OutputFile) -> Result<u64, ExportError> {
    let bytes = export(recording, format, file.begin()?)?;
    file.keep()?;
    Ok(bytes)
}

/// Names the file that an error is about.
fn told(run: &Path, output: PathBuf, error: ExportError) -> Failed {
    match error {
        ExportError::Io(_) => Failed::Write { path: output, error },
        _ => Failed::Export { path: run.to_owned(), error },
    }
}
