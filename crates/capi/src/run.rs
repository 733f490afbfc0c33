//! The tracker of a set of pools, and its recording.
//!
//! All pools with memory share one run, so that one report shows the program. Each dry pool has its own run: predicted
//! figures do not mix with measured ones.

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};

use bfc_core::Allocator;
use bfc_core::sync::lock;
use highwater_tracking::{RunFacts, Tracker};

use crate::error::Error;

static SHARED: LazyLock<Arc<TrackedRun>> = LazyLock::new(TrackedRun::new);

/// A tracker, and the file that it records into.
#[derive(Debug)]
pub(crate) struct TrackedRun {
    tracker: Arc<Tracker>,
    recording: Mutex<Option<String>>,
}

impl TrackedRun {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { tracker: Tracker::new(), recording: Mutex::default() })
    }

    /// Returns the run of all pools with memory.
    pub(crate) fn shared() -> &'static Arc<Self> {
        &SHARED
    }

    pub(crate) const fn tracker(&self) -> &Arc<Tracker> {
        &self.tracker
    }

    /// Returns the path of the recording that runs.
    pub(crate) fn recording(&self) -> Option<String> {
        lock(&self.recording).clone()
    }

    /// Starts a recording into a new file.
    pub(crate) fn start_recording(&self, path: &str) -> Result<(), Error> {
        let mut recording = lock(&self.recording);
        if let Some(path) = &*recording {
            return Err(Error::Recording { path: path.clone() });
        }
        let io = |error| Error::Io { path: path.to_owned(), error };
        let program = std::env::args_os().next().unwrap_or_default();
        let program = Path::new(&program).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let file = File::create(path).map_err(io)?;
        self.tracker.start_recording(file, &RunFacts::new(program)).map_err(io)?;
        *recording = Some(path.to_owned());
        Ok(())
    }

    /// Ends the recording with a summary of these pools.
    pub(crate) fn stop_recording(&self, pools: &[Arc<dyn Allocator>]) -> Result<(), Error> {
        let mut recording = lock(&self.recording);
        let path = recording.take().ok_or(Error::NoRecording)?;
        self.tracker.finish_recording(pools).map(drop).map_err(|error| Error::Io { path, error })
    }
}
