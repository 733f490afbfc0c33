//! Files that commands write: opened before the work begins, so that a path that cannot be written is said at once, and
//! emptied only when there is something to write. What a command reads is no place for what it writes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file to be written. Dropped before [`keep`](Self::keep), it is removed if it was not there before, or is half written.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
    file: File,
    remove: bool,
}

impl OutputFile {
    /// Opens a file without changing it, unless it is one of those that are read.
    pub(crate) fn open(path: &Path, read: &[&Path]) -> io::Result<Self> {
        let is_new =
            matches!(fs::symlink_metadata(path), Err(error) if error.kind() == io::ErrorKind::NotFound);
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        let output = Self { path: path.to_owned(), file, remove: is_new };
        if output.file.metadata()?.is_file() && read.iter().any(|read| is_same(path, read)) {
            return Err(io::Error::other("this is a file to be read, and writing would destroy it"));
        }
        Ok(output)
    }

    /// Empties the file, and returns where its contents go.
    pub(crate) fn begin(&mut self) -> io::Result<impl Write + '_> {
        // Devices and pipes cannot be emptied, and need not be.
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
            self.remove = true;
        }
        Ok(&mut self.file)
    }

    /// Says that the file is whole; returns its length.
    pub(crate) fn keep(mut self) -> io::Result<u64> {
        self.remove = false;
        Ok(self.file.metadata()?.len())
    }
}

/// Whether two paths lead to one place.
fn is_same(path: &Path, other: &Path) -> bool {
    matches!((fs::canonicalize(path), fs::canonicalize(other)), (Ok(path), Ok(other)) if path == other)
}

impl Drop for OutputFile {
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
        assert_eq!(output.keep().unwrap(), 3);
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
