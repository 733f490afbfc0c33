//! The end of a recording: the figures of the whole run.

use serde::{Deserialize, Serialize};

use crate::report::{ProcessMemory, Report};

/// The figures of a whole run: the end of a `.hwm` file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RunSummary {
    /// The duration of the recording in nanoseconds.
    pub duration_ns: u64,
    /// Number of events recorded.
    pub events: u64,
    /// The report of the tracker and its pools at the end.
    pub report: Report,
    /// The memory of the process at the end.
    pub outside: ProcessMemory,
}
