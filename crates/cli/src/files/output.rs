//! The files that commands write, or standard output for the path `-`.
//!
//! A command opens its output before it starts to work, so that it reports an unwritable path at once. Files are written atomically:
//! after an error, the old file is unchanged. A command does not overwrite its own input.

use std::fs;
use std::io::{self, BufWriter, Stdout, Write};
use std::path::{Path, PathBuf};

use highwater_tracking::AtomicFile;

use crate::files::input::STANDARD;

/// The name of the output in errors.
pub(crate) fn name(path: &Path) -> PathBuf {
    if path.as_os_str() == STANDARD { PathBuf::from("standard output") } else { path.to_owned() }
}

/// An output of a command. A file that is dropped without [`commit`](Self::commit) stays as it was.
#[derive(Debug)]
pub(crate) struct OutputFile {
    target: Target,
    bytes: u64,
}

#[derive(Debug)]
enum Target {
    Standard(BufWriter<Stdout>),
    File(AtomicFile),
}

impl OutputFile {
    /// Opens an output. The file keeps its contents until [`commit`](Self::commit).
    ///
    /// # Errors
    /// I/O errors, and a path that is one of the `inputs`.
    pub(crate) fn open(path: &Path, inputs: &[&Path]) -> io::Result<Self> {
        if path.as_os_str() == STANDARD {
            return Ok(Self { target: Target::Standard(BufWriter::new(io::stdout())), bytes: 0 });
        }
        if path.is_file() && inputs.iter().any(|input| is_same(path, input)) {
            return Err(io::Error::other("this is an input file"));
        }
        Ok(Self { target: Target::File(AtomicFile::create(path)?), bytes: 0 })
    }

    /// Completes the output, and returns the length of a file.
    pub(crate) fn commit(self) -> io::Result<Option<u64>> {
        match self.target {
            Target::Standard(mut out) => out.flush().map(|()| None),
            Target::File(file) => file.commit().map(|()| Some(self.bytes)),
        }
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match &mut self.target {
            Target::Standard(out) => out.write(bytes),
            Target::File(file) => file.write(bytes),
        }?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.target {
            Target::Standard(out) => out.flush(),
            Target::File(file) => file.flush(),
        }
    }
}

/// Whether two paths lead to one file.
fn is_same(path: &Path, other: &Path) -> bool {
    matches!((fs::canonicalize(path), fs::canonicalize(other)), (Ok(path), Ok(other)) if path == other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    #[test]
    fn a_file_keeps_its_contents_until_the_commit() {
        let directory = TempDir::new().unwrap();
        let (old, new) = (directory.path().join("old"), directory.path().join("new"));
        fs::write(&old, "before").unwrap();
        for path in [&old, &new] {
            let mut output = OutputFile::open(path, &[]).unwrap();
            output.write_all(b"half").unwrap();
            output.flush().unwrap();
            drop(output);
        }
        assert_eq!(fs::read_to_string(&old).unwrap(), "before");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);

        for path in [&old, &new] {
            let mut output = OutputFile::open(path, &[]).unwrap();
            output.write_all(b"now").unwrap();
            assert_eq!(output.commit().unwrap(), Some(3));
            assert_eq!(fs::read_to_string(path).unwrap(), "now");
        }
    }
}
