//! The page of `--html`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bfc_core::Bytes;
use highwater_tracking::{Recording, TrainingLog, write_page, write_page_with_log};

use crate::files::output::{self, OutputFile};

/// A page that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", path.display())]
pub(super) struct PageError {
    path: PathBuf,
    pub(super) error: io::Error,
}

/// Opens the page's file, which must not be one of the inputs.
pub(super) fn create(path: &Path, read: &[&Path]) -> Result<OutputFile, PageError> {
    OutputFile::open(path, read).map_err(|error| PageError { path: output::name(path), error })
}

/// Writes the page of a recording and its log, and prints the size of the file.
pub(super) fn write(
    recording: &Recording,
    log: Option<&TrainingLog>,
    mut output: OutputFile,
    path: &Path,
) -> Result<(), PageError> {
    let at = |error| PageError { path: output::name(path), error };
    let written = match log {
        Some(log) => write_page_with_log(recording, log, &mut output),
        None => write_page(recording, &mut output),
    };
    match written.and_then(|()| output.commit()).map_err(at)? {
        Some(size) => writeln!(io::stdout(), "{}: {}", path.display(), Bytes(size)).map_err(at),
        None => Ok(()),
    }
}
