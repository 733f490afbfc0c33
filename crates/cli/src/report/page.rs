//! The page of `--html`.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use bfc_core::Bytes;
use highwater_tracking::{Recording, write_page};

/// A page that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", path.display())]
pub(super) struct PageError {
    path: PathBuf,
    error: io::Error,
}

/// Writes the page of a recording to a file, and says how large it became.
pub(super) fn write(recording: &Recording, path: &Path, out: &mut impl Write) -> Result<(), PageError> {
    let at = |error| PageError { path: path.to_owned(), error };
    let mut file = BufWriter::new(File::create(path).map_err(at)?);
    write_page(recording, &mut file).map_err(at)?;
    let file = file.into_inner().map_err(|error| at(error.into_error()))?;
    let size = file.metadata().map_err(at)?.len();
    writeln!(out, "{}: {}", path.display(), Bytes(size)).map_err(at)
}
