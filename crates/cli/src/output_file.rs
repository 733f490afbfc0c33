//! Files that commands write, or standard output where one is called `-`: opened before the work begins, so that a path that cannot be written is said at once, and
//! emptied only when there is something to write. What a command reads is no place for what it writes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::input_file::STANDARD;

/// How what is written is called in errors.
pub(crate) fn name(path: &Path) -> PathBuf {
    if path.as_os_str() == STANDARD { PathBuf::from("standard output") } else { path.to_owned() }
}

/// What is to be written.
#[derive(Debug)]
pub(crate) enum OutputFile {
    Standard,
    File(NewFile),
}

/// A file to be written. Dropped before it is kept, it is removed if it was not there before, or is half written.
#[derive(Debug)]
pub(crate) struct NewFile {
    path: PathBuf,
    file: File,
    remove: bool,
}

impl OutputFile {
    /// Opens a file without changing it, unless it is one of those that are read.
    pub(crate) fn open(path: &Path, read: &[&Path]) -> io::Result<Self> {
        if path.as_os_str() == STANDARD {
            return Ok(Self::Standard);
        }
        let is_new =
            matches!(fs::symlink_metadata(path), Err(error) if error.kind() == io::ErrorKind::NotFound);
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        let output = NewFile { path: path.to_owned(), file, remove: is_new };
        if output.file.metadata()?.is_file() && read.iter().any(|read| is_same(path, read)) {
            return Err(io::Error::other("this is a file to be read, and writing would destroy it"));
        }
        Ok(Self::File(output))
    }

    /// Empties the file, and returns where its contents go.
    pub(crate) fn begin(&mut self) -> io::Result<Box<dyn Write + '_>> {
        let output = match self {
            Self::Standard => return Ok(Box::new(io::stdout().lock())),
            Self::File(output) => output,
        };
        // Devices and pipes cannot be emptied, and need not be.
        if output.file.metadata()?.is_file() {
            output.file.set_len(0)?;
            output.remove = true;
        }
        Ok(Box::new(&mut output.file))
    }

    /// Says that all is written; returns the length of a file.
    pub(crate) fn keep(self) -> io::Result<Option<u64>> {
        match self {
            Self::Standard => io::stdout().flush().map(|()| None),
            Self::File(mut output) => {
                output.remove = false;
                output.file.metadata().map(|file| Some(file.len()))
            }
        }
    }
}

/// Whether two paths lead to one place.
fn is_same(path: &Path, other: &Path) -> bool {
    matches!((fs::canonicalize(path), fs::canonicalize(other)), (Ok(path), Ok(other)) if path == other)
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if self.remove && self.file.metadata().is_ok_and(|found| found.is_file()) {
            // Why there is no file is more important than that half of it could not be removed.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    #[test]
    fn a_file_is_as_it_was_until_there_is_something_to_write() {
        let directory = TempDir::new().unwrap();
        let (old, new) = (directory.path().join("old"), directory.path().join("new"));
        fs::write(&old, "before").unwrap();
        drop([&old, &new].map(|path| OutputFile::open(path, &[]).unwrap()));
        assert_eq!(fs::read_to_string(&old).unwrap(), "before");
        assert!(!new.exists());

        let mut output = OutputFile::open(&old, &[&new]).unwrap();
        output.begin().unwrap().write_all(b"now").unwrap();
        assert_eq!(output.keep().unwrap(), Some(3));
        assert_eq!(fs::read_to_string(&old).unwrap(), "now");

        let mut output = OutputFile::open(&old, &[&new]).unwrap();
        output.begin().unwrap().write_all(b"half").unwrap();
        drop(output);
        assert!(!old.exists());
    }

    #[test]
    fn what_is_no_plain_file_is_written_and_stays() {
        let mut output = OutputFile::open(Path::new("/dev/null"), &[Path::new("/dev/null")]).unwrap();
        output.begin().unwrap().write_all(b"gone").unwrap();
        drop(output);
        assert!(Path::new("/dev/null").exists());
    }
}
