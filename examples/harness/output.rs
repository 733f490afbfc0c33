//! Output of the examples.

use std::cell::Cell;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use flate2::Compression;
use flate2::write::GzEncoder;
use highwater::tracking::AtomicFile;
use serde_json::Value;

/// Prints to standard output. A closed pipe, as in `... | head`, is not an error.
pub(super) fn say(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("standard output"),
        _ => Ok(()),
    }
}

/// Merges the fields of one JSON object into another.
pub(super) fn merge(into: &mut Value, from: Value) {
    if let (Some(into), Value::Object(from)) = (into.as_object_mut(), from) {
        into.extend(from);
    }
}

/// The display name of a path.
pub(super) fn name(path: &Path) -> String {
    path.display().to_string()
}

/// A file that is written at the end of a run, atomically, and compressed if its name ends in `.gz`.
pub(super) struct Output {
    path: PathBuf,
    /// Present until the file is written.
    file: Cell<Option<AtomicFile>>,
}

impl Output {
    pub(super) fn open(path: Option<&Path>) -> anyhow::Result<Option<Self>> {
        let open = |path: &Path| {
            let file = AtomicFile::create(path).with_context(|| name(path))?;
            Ok(Self { path: path.to_owned(), file: Cell::new(Some(file)) })
        };
        path.map(open).transpose()
    }

    pub(super) fn write(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
        let Some(mut file) = self.file.take() else { return Ok(()) };
        let written = if self.path.extension().is_some_and(|extension| extension == "gz") {
            let mut encoder = GzEncoder::new(&mut file, Compression::best());
            write(&mut encoder).and_then(|()| encoder.finish().map(drop))
        } else {
            write(&mut file)
        };
        written.and_then(|()| file.commit()).with_context(|| name(&self.path))
    }
}
