//! The HTML page of a run.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use highwater_tensor::error::FileError;
use highwater_tensor::{Error, Result};
use highwater_tracking::{
    AtomicFile, Recording, RecordingLimits, TrainingLog, TrainingLogLimits, write_page,
};

/// Writes a page with the curves and the memory of a run, from its recording and its [`JsonLog`](crate::JsonLog). The
/// page needs no network. The file is written atomically.
///
/// # Errors
/// [`FileError`] if a file cannot be read or the page cannot be written.
pub fn write_run_page(recording: &Path, log: Option<&Path>, page: &Path) -> Result<()> {
    let (recording, log) = read_run(recording, log)?;
    let write = || {
        let mut file = AtomicFile::create(page)?;
        write_page(&recording, log.as_ref(), &mut file)?;
        file.commit()
    };
    Ok(write().map_err(|error| FileError::io(page, &error))?)
}

/// Reads the sources of a page.
pub(crate) fn read_run(recording: &Path, log: Option<&Path>) -> Result<(Recording, Option<TrainingLog>)> {
    // The program wrote the file itself.
    let limits = RecordingLimits { held_bytes: u64::MAX, ..RecordingLimits::default() };
    let recorded =
        Recording::read(open(recording)?, &limits).map_err(|error| malformed(recording, &error))?;
    let read = |path: &Path| {
        TrainingLog::read(open(path)?, &TrainingLogLimits::default()).map_err(|error| malformed(path, &error))
    };
    Ok((recorded, log.map(read).transpose()?))
}

fn open(path: &Path) -> Result<BufReader<File>> {
    Ok(BufReader::new(File::open(path).map_err(|error| FileError::io(path, &error))?))
}

fn malformed(path: &Path, error: &dyn std::error::Error) -> Error {
    FileError::malformed(path, 0, error.to_string()).into()
}
