//! Inputs of commands: a file, or standard input for the path `-`.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{CommandError, STANDARD, input_name};
use bfc_core::printable;

/// Whether standard input was opened: a second reader would find nothing.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Reads an input with `read`, which limits its size.
pub(crate) fn read<T, E: Display>(
    path: &Path,
    read: impl FnOnce(BufReader<Box<dyn Read>>) -> Result<T, E>,
) -> Result<T, CommandError> {
    let source = open(path).map_err(|error| CommandError::read(path, &error))?;
    read(BufReader::with_capacity(1 << 16, source)).map_err(|error| CommandError::read(path, &error))
}

fn open(path: &Path) -> io::Result<Box<dyn Read>> {
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

/// Prints remarks about an input on standard error.
pub(crate) fn remark(path: &Path, remarks: impl IntoIterator<Item = String>) -> io::Result<()> {
    for remark in remarks {
        let path = input_name(path);
        writeln!(io::stderr(), "highwater: {}: {}", printable(path.display()), printable(remark))?;
    }
    Ok(())
}
