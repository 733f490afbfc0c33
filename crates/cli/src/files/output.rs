//! The files that commands write, or standard output for the path `-`.
//!
//! A command opens its output before it starts to work, so that it reports an unwritable path at once. Files are written atomically:
//! after an error, the old file is unchanged. A command does not overwrite its own input.

use std::fs;
use std::io::{self, BufWriter, Stdout, Write};
use std::path::{Path, PathBuf};

use bfc_core::{printable_json, printable_lines};
use highwater_tracking::AtomicFile;
use serde::Serialize;

use crate::error::{CommandError, STANDARD};

/// An output of a command. A file that is dropped without [`finish`](Self::finish) stays as it was.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
    target: Target,
    bytes: u64,
}

#[derive(Debug)]
enum Target {
    Standard(BufWriter<Stdout>),
    File(AtomicFile),
}

impl OutputFile {
    /// Opens an output. The file keeps its contents until [`finish`](Self::finish). The path must not be one of the
    /// `inputs`.
    pub(crate) fn open(path: &Path, inputs: &[&Path]) -> Result<Self, CommandError> {
        if path.as_os_str() == STANDARD {
            let target = Target::Standard(BufWriter::new(io::stdout()));
            return Ok(Self { path: "standard output".into(), target, bytes: 0 });
        }
        let created = if path.is_file() && inputs.iter().any(|input| is_same(path, input)) {
            Err(io::Error::other("this is an input file"))
        } else {
            AtomicFile::create(path)
        };
        let path = path.to_owned();
        match created {
            Ok(file) => Ok(Self { path, target: Target::File(file), bytes: 0 }),
            Err(error) => Err(CommandError::Write { path, error }),
        }
    }

    /// Completes the output after `written`, and returns the length of a file.
    pub(crate) fn finish(self, written: io::Result<()>) -> Result<Option<u64>, CommandError> {
        let (path, bytes) = (self.path, self.bytes);
        let finished = written.and_then(|()| match self.target {
            Target::Standard(mut out) => out.flush().map(|()| None),
            Target::File(file) => file.commit().map(|()| Some(bytes)),
        });
        finished.map_err(|error| CommandError::Write { path, error })
    }
}

/// Prints a result on standard output, as indented JSON or as text. Escapes control characters of names.
pub(crate) fn print(result: &impl Serialize, json: bool, text: impl FnOnce() -> String) -> io::Result<()> {
    let mut stdout = BufWriter::new(io::stdout().lock());
    if json {
        // A report may be large, so its text is not held in memory.
        serde_json::to_writer_pretty(PrintableJson(&mut stdout), result)?;
        writeln!(stdout)?;
    } else {
        write!(stdout, "{}", printable_lines(text()))?;
    }
    stdout.flush()
}

/// Escapes unprintable characters of JSON on the way to a writer. Each write is complete text, as serializers write it.
struct PrintableJson<W>(W);

impl<W: Write> Write for PrintableJson<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text =
            str::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        write!(self.0, "{}", printable_json(text))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
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
    fn json_is_escaped_on_its_way_to_the_output() {
        /// Remembers the longest write.
        struct Target(Vec<u8>, usize);

        impl Write for Target {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.1 = self.1.max(bytes.len());
                self.0.write(bytes)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        let names = vec!["é\u{202e}\u{1b}\"\u{e0001}"; 1000];
        let mut target = Target(Vec::new(), 0);
        serde_json::to_writer_pretty(PrintableJson(&mut target), &names).unwrap();
        let Target(written, longest) = target;
        let complete = printable_json(serde_json::to_string_pretty(&names).unwrap()).to_string();
        assert_eq!(String::from_utf8(written).unwrap(), complete);
        assert!(longest < 20, "{longest}");
    }

    #[test]
    fn a_file_keeps_its_contents_until_it_is_finished() {
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
            assert_eq!(output.finish(Ok(())).unwrap(), Some(3));
            assert_eq!(fs::read_to_string(path).unwrap(), "now");
        }
    }
}
