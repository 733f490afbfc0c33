//! The error of a command, and its exit code.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use bfc_core::printable;
use highwater_tracking::RankError;

/// A replay failed, one of several ranks is missing from the result, or the result could not be written.
pub(crate) const FAILED: u8 = 1;
/// The command line is invalid, or a file cannot be read; clap uses the same code.
pub(crate) const BAD_FILE: u8 = 2;

/// The path of standard input and output.
pub(crate) const STANDARD: &str = "-";

/// The name of an input in messages.
pub(crate) fn input_name(path: &Path) -> PathBuf {
    if path.as_os_str() == STANDARD { PathBuf::from("standard input") } else { path.to_owned() }
}

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// The arguments are invalid.
    #[error("{}", printable(.0))]
    Usage(String),
    /// An input cannot be read.
    #[error("{}: {problem}", printable(path.display()), problem = printable(problem))]
    Read { path: PathBuf, problem: String },
    /// The inputs are not the ranks of one run.
    #[error(transparent)]
    Ranks(#[from] RankError),
    /// An input has no such result.
    #[error("{}: {problem}", printable(path.display()), problem = printable(problem))]
    NoResult { path: PathBuf, problem: String },
    /// An output cannot be written.
    #[error("{}: {error}", printable(path.display()), error = printable(error))]
    Write { path: PathBuf, error: io::Error },
    /// Standard output or standard error cannot be written.
    #[error(transparent)]
    Stream(#[from] io::Error),
}

impl CommandError {
    /// An input that cannot be read.
    pub(crate) fn read(path: &Path, problem: &dyn Display) -> Self {
        Self::Read { path: input_name(path), problem: problem.to_string() }
    }

    /// An input without a result.
    pub(crate) fn no_result(path: &Path, problem: &dyn Display) -> Self {
        Self::NoResult { path: input_name(path), problem: problem.to_string() }
    }

    /// Returns the exit code.
    pub(crate) const fn code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Read { .. } | Self::Ranks(_) => BAD_FILE,
            Self::NoResult { .. } | Self::Write { .. } | Self::Stream(_) => FAILED,
        }
    }

    /// Returns whether the reader of an output has closed it: `highwater devices | head -1`. This is not an error.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        let (Self::Write { error, .. } | Self::Stream(error)) = self else { return false };
        error.kind() == ErrorKind::BrokenPipe
    }
}
