//! Traces from files.

use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use bfc_core::Bytes;
use clap::Args;
use highwater_tracking::{ReadOptions, Trace, TraceError, TraceLimits};

use crate::input_file;

/// Limits on what is read, which guard against files that are not what they seem.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Files")]
pub(crate) struct ReadArguments {
    /// The device of a PyTorch snapshot, if it has those of several
    #[arg(long, value_name = "N")]
    device: Option<u32>,

    /// Refuse traces of more events than this
    #[arg(long, value_name = "N", default_value_t = TraceLimits::default().events)]
    max_events: u32,

    /// Refuse files of more bytes than this, once decompressed
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    max_input: Bytes,

    /// Refuse snapshots whose objects take more memory than this
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    max_memory: Bytes,
}

/// A trace that could not be read from a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("{}: {error}", path.display())]
    Open { path: PathBuf, error: io::Error },
    #[error("{}: {error}", path.display())]
    Trace { path: PathBuf, error: TraceError },
}

impl ReadArguments {
    /// Reads the trace in a file of any format, plain or compressed.
    pub(crate) fn read(&self, path: &Path) -> Result<Trace, ReadError> {
        let name = || input_file::name(path);
        let source = input_file::open(path).map_err(|error| ReadError::Open { path: name(), error })?;
        let limits = TraceLimits {
            events: self.max_events,
            input_bytes: self.max_input.get(),
            held_bytes: self.max_memory.get(),
            ..TraceLimits::default()
        };
        let options = ReadOptions { limits, device: self.device };
        Trace::read(BufReader::with_capacity(1 << 16, source), &options)
            .map_err(|error| ReadError::Trace { path: name(), error })
    }
}
