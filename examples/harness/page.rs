//! `--html`: renders the recording and the log of a run as one page. If they were not requested, they are temporary
//! files.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::Context;
use highwater::tracking::{Recording, RecordingLimits, TrainingLog, TrainingLogLimits, write_page};
use tempfile::NamedTempFile;

use super::output::{Output, name};

/// The page and its sources.
pub(super) struct Page {
    output: Output,
    pub(super) recording: Source,
    pub(super) log: Source,
}

/// A permanent file, or one that is deleted with the page.
pub(super) enum Source {
    Kept(PathBuf),
    Passing(NamedTempFile),
}

impl Source {
    fn new(kept: Option<&Path>) -> anyhow::Result<Self> {
        match kept {
            Some(path) => Ok(Self::Kept(path.to_owned())),
            None => Ok(Self::Passing(NamedTempFile::new().context("a file for the page")?)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Passing(file) => file.path(),
        }
    }

    fn open(&self) -> anyhow::Result<BufReader<File>> {
        Ok(BufReader::new(File::open(self.path()).with_context(|| name(self.path()))?))
    }
}

impl Page {
    /// The page at `path`, if requested, with the permanent files that are given.
    pub(super) fn open(
        path: Option<&Path>,
        recording: Option<&Path>,
        log: Option<&Path>,
    ) -> anyhow::Result<Option<Self>> {
        let Some(output) = Output::open(path)? else { return Ok(None) };
        Ok(Some(Self { output, recording: Source::new(recording)?, log: Source::new(log)? }))
    }

    /// Writes the page after both files are complete.
    pub(super) fn write(&self) -> anyhow::Result<()> {
        // The program wrote the file itself.
        let limits = RecordingLimits { held_bytes: u64::MAX, ..RecordingLimits::default() };
        let recording = Recording::read(self.recording.open()?, &limits);
        let recording = recording.with_context(|| name(self.recording.path()))?;
        let log = TrainingLog::read(self.log.open()?, &TrainingLogLimits::default());
        let log = log.with_context(|| name(self.log.path()))?;
        self.output.write(|out| write_page(&recording, Some(&log), out))
    }
}
