//! Output files that are written at the end of a run.

use std::cell::RefCell;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use highwater_tensor::error::FileError;
use highwater_tracking::AtomicFile;
use tempfile::NamedTempFile;

/// A file that is written at the end of a run, atomically, and compressed if its name ends in `.gz`.
#[derive(Debug)]
pub(super) struct OutputFile {
    path: PathBuf,
    /// Present until the file is written.
    file: RefCell<Option<AtomicFile>>,
}

impl OutputFile {
    pub(super) fn open(path: Option<&Path>) -> Result<Option<Self>, FileError> {
        let open = |path: &Path| {
            let file = AtomicFile::create(path).map_err(|error| FileError::io(path, &error))?;
            Ok(Self { path: path.to_owned(), file: RefCell::new(Some(file)) })
        };
        path.map(open).transpose()
    }

    pub(super) fn write(
        &self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), FileError> {
        let Some(mut file) = self.file.take() else { return Ok(()) };
        let written = if self.path.extension().is_some_and(|extension| extension == "gz") {
            let mut encoder = GzEncoder::new(&mut file, Compression::best());
            write(&mut encoder).and_then(|()| encoder.finish().map(drop))
        } else {
            write(&mut file)
        };
        written.and_then(|()| file.commit()).map_err(|error| FileError::io(&self.path, &error))
    }
}

/// A file that the user asked for, or one that is deleted at the end of the run.
#[derive(Debug)]
pub(super) enum Source {
    Kept(PathBuf),
    Temporary(NamedTempFile),
}

impl Source {
    /// The file at `kept`, else a temporary file if the page needs one.
    pub(super) fn new(kept: Option<&Path>, is_needed: bool) -> Result<Option<Self>, FileError> {
        if let Some(path) = kept {
            return Ok(Some(Self::Kept(path.to_owned())));
        }
        let create = || NamedTempFile::new().map_err(|error| FileError::io(&std::env::temp_dir(), &error));
        Ok(if is_needed { Some(Self::Temporary(create()?)) } else { None })
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Temporary(file) => file.path(),
        }
    }
}
