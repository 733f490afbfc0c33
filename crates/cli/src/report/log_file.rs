//! The log of `--log`.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use highwater_tracking::{TrainingLog, TrainingLogError, TrainingLogLimits};

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
    let file = File::open(path).map_err(|error| LogFileError::Open { path: path.to_owned(), error })?;
    TrainingLog::read(BufReader::new(file), &TrainingLogLimits::default())
        .map_err(|error| LogFileError::Log { path: path.to_owned(), error })
}
