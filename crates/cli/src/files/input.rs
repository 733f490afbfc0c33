//! What commands read: a file, or standard input where it is called `-`.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// The path that stands for standard input and output.
pub(crate) const STANDARD: &str = "-";

/// Whether standard input was opened: who reads it a second time finds nothing.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Opens what is to be read. Whoever reads it bounds how much.
pub(crate) fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    if path.as_os_str() == STANDARD {
        if IS_TAKEN.swap(true, Ordering::Relaxed) {
            return Err(io::Error::other("it can be read once, and was asked for twice"));
        }
        return Ok(Box::new(io::stdin()));
    }
    Ok(Box::new(open_file(path)?))
}

/// Opens a file that is no folder: one can be opened, and says so only when it is read.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() { Err(ErrorKind::IsADirectory.into()) } else { Ok(file) }
}

/// How an error calls what is read.
pub(crate) fn name(path: &Path) -> PathBuf {
    if path.as_os_str() == STANDARD { PathBuf::from("standard input") } else { path.to_owned() }
}
