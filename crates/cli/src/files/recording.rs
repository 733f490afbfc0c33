//! Reads recordings.

use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};

use bfc_core::Bytes;
use clap::Args;
use highwater_tracking::{BlockProblem, Cut, HwmError, HwmProblem, Recording, RecordingLimits};

use crate::files::input;
use crate::files::trace::MAX_MEMORY;

/// Limits that protect against malformed files.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReadArguments {
    /// Refuse recordings of more events than this
    #[arg(long, value_name = "N", default_value_t = RecordingLimits::default().events)]
    max_events: u32,

    /// Refuse files of more bytes than this
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    max_input: Bytes,

    /// Refuse recordings that take more memory than this
    #[arg(long, value_name = "SIZE", default_value = MAX_MEMORY)]
    max_memory: Bytes,
}

/// A recording that could not be read from a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("{}: {error}", path.display())]
    Open { path: PathBuf, error: io::Error },
    #[error("{}: {error}{}", path.display(), advice(&error.problem))]
    Recording { path: PathBuf, error: HwmError },
}

/// The option that raises an exceeded limit.
const fn advice(problem: &HwmProblem) -> &'static str {
    match problem {
        HwmProblem::Events(BlockProblem::TooMuchHeld { .. }) => "; --max-memory allows more",
        HwmProblem::TooMuchInput { .. } => "; --max-input allows more",
        _ => "",
    }
}

/// Reports where a damaged recording ends: the results cover only its beginning.
pub(crate) fn report_cut(path: &Path, cut: Option<&Cut>) -> io::Result<()> {
    match cut {
        None => Ok(()),
        Some(cut) => writeln!(
            io::stderr(),
            "highwater: {}: read up to byte {}: {}",
            input::name(path).display(),
            cut.offset,
            cut.reason
        ),
    }
}

impl ReadArguments {
    pub(crate) fn read(&self, path: &Path) -> Result<Recording, ReadError> {
        let name = || input::name(path);
        let source = input::open(path).map_err(|error| ReadError::Open { path: name(), error })?;
        let limits = RecordingLimits {
            events: self.max_events,
            input_bytes: self.max_input.get(),
            held_bytes: self.max_memory.get(),
            ..RecordingLimits::default()
        };
        Recording::read(BufReader::with_capacity(1 << 16, source), &limits)
            .map_err(|error| ReadError::Recording { path: name(), error })
    }
}
