//! Inputs of commands: a file, or standard input for the path `-`.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// The path of standard input and output.
pub(crate) const STANDARD: &str = "-";

/// Whether standard input was opened: a second reader would find nothing.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Opens an input. The reader limits its size.
pub(crate) fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    if path.as_os_str() == STANDARD {
        if IS_TAKEN.swap(true, Ordering::Relaxed) {
            return Err(io::Error::other("it can be read only once"));
        }
        return Ok(Box::new(io::stdin()));
    }
    Ok(Box::new(open_file(path)?))
}

/// Opens a file. A folder would fail only when read.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() { Err(ErrorKind::IsADirectory.into()) } else { Ok(file) }
}

/// The name of the input in errors.
pub(crate) fn name(path: &Path) -> PathBuf {
    if path.as_os_str() == STANDARD { PathBuf::from("standard input") } else { path.to_owned() }
}
