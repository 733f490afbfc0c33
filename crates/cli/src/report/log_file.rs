//! The log of `--log`.

use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use highwater_tracking::{TrainingLog, TrainingLogError, TrainingLogLimits};

use crate::files::input;

/// A log that could not be read from a file.
#[derive(Debug, thiserror::Error)]
pub(super) enum LogFileError {
    #[error("{}: {error}", path.display())]
    Open { path: PathBuf, error: io::Error },
    #[error("{}: {error}", path.display())]
    Log { path: PathBuf, error: TrainingLogError },
}

/// Reads the log in a file.
pub(super) fn read(path: &Path) -> Result<TrainingLog, LogFileError> {
    let name = || input::name(path);
    let source = input::open(path).map_err(|error| LogFileError::Open { path: name(), error })?;
    TrainingLog::read(BufReader::new(source), &TrainingLogLimits::default())
        .map_err(|error| LogFileError::Log { path: name(), error })
}
