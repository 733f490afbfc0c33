//! Reads traces.

use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};

use bfc_core::Bytes;
use clap::Args;
use highwater_tracking::{
    BlockProblem, HwmProblem, ReadOptions, Trace, TraceError, TraceLimits, TraceProblem,
};

use crate::files::input;

/// Limits that protect against malformed files.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Files")]
pub(crate) struct ReadArguments {
    /// The device to read from a PyTorch snapshot of several
    #[arg(long, value_name = "N")]
    device: Option<u32>,

    /// Refuse traces of more events than this
    #[arg(long, value_name = "N", default_value_t = TraceLimits::default().events)]
    max_events: u32,

    /// Refuse files of more bytes than this after decompression
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    max_input: Bytes,

    /// Refuse files that take more memory than this
    #[arg(long, value_name = "SIZE", default_value = MAX_MEMORY)]
    max_memory: Bytes,

    /// Refuse files that grow by more than this factor when decompressed
    #[arg(long, value_name = "N", default_value_t = TraceLimits::default().ratio)]
    max_ratio: u32,
}

/// The default memory limit for a file.
pub(crate) const MAX_MEMORY: &str = "1GiB";

/// Lists on standard error the contents that were skipped.
pub(crate) fn tell_skipped(path: &Path, trace: &Trace) -> io::Result<()> {
    for what in trace.skipped() {
        writeln!(io::stderr(), "highwater: {}: skipped {what}", input::name(path).display())?;
    }
    Ok(())
}

/// A trace that could not be read from a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("{}: {error}", path.display())]
    Open { path: PathBuf, error: io::Error },
    #[error("{}: {error}{}", path.display(), advice(&error.problem))]
    Trace { path: PathBuf, error: TraceError },
}

/// The option that raises an exceeded limit.
fn advice(problem: &TraceProblem) -> &'static str {
    match problem {
        TraceProblem::TooMuchHeld { .. }
        | TraceProblem::Recording(HwmProblem::Events(BlockProblem::TooMuchHeld { .. })) => {
            "; --max-memory allows more"
        }
        TraceProblem::TooMuchInput { .. } => "; --max-input allows more",
        TraceProblem::TooManyEvents { .. } => "; --max-events allows more",
        TraceProblem::TooCompressed { .. } => "; --max-ratio allows more",
        _ => "",
    }
}

impl ReadArguments {
    /// Reads the trace in a file of any format, plain or compressed.
    pub(crate) fn read(&self, path: &Path) -> Result<Trace, ReadError> {
        let name = || input::name(path);
        let source = input::open(path).map_err(|error| ReadError::Open { path: name(), error })?;
        let limits = TraceLimits {
            events: self.max_events,
            input_bytes: self.max_input.get(),
            held_bytes: self.max_memory.get(),
            ratio: self.max_ratio,
            ..TraceLimits::default()
        };
        let options = ReadOptions { limits, device: self.device };
        Trace::read(BufReader::with_capacity(1 << 16, source), &options)
            .map_err(|error| ReadError::Trace { path: name(), error })
    }
}
