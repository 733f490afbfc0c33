//! The peak of a run, and its parts.

use serde::{Deserialize, Serialize};

use super::rows::op_path;
use crate::scope::Phase;

/// The moment at which most bytes were in use, in one pool or in all pools together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct PeakRow {
    /// The pool's name; empty for all pools together.
    pub pool: String,
    /// Bytes in use.
    pub bytes: u64,
    /// The time, in nanoseconds since recording began. Only recordings know it.
    pub at_ns: Option<u64>,
    /// The path of the module whose op reached the peak, or of another owner that did.
    pub scope: String,
    /// The op; `None` if it was not an op of the tracker.
    pub op: Option<String>,
    /// The op's phase.
    pub phase: Option<Phase>,
}

impl PeakRow {
    /// The path of the owner whose allocation reached the peak; empty outside of ops and modules.
    #[must_use]
    pub fn owner(&self) -> String {
        op_path(&self.scope, self.op.as_deref().unwrap_or(""), self.phase.unwrap_or_default())
    }
}

/// The holders of the peak, and how high the next peak is without each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct PeakParts {
    /// Bytes live at the peak, over all pools.
    pub bytes: u64,
    /// Ops in modules, and modules as far as they hold memory outside of ops.
    pub places: Vec<PeakPart>,
    /// Modules with everything below them, except the whole run.
    pub scopes: Vec<PeakPart>,
    /// Categories.
    pub categories: Vec<PeakPart>,
}

/// A holder of a part of the peak. Lists are sorted by falling [`falls`](Self::falls), then by falling bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct PeakPart {
    /// The path of a place or module, or the name of a category.
    pub name: String,
    /// Bytes held at the peak.
    pub bytes: u64,
    /// Blocks held at the peak.
    pub blocks: u64,
    /// The highest level of the run without anything that the holder ever held.
    pub next_peak: u64,
    /// The peak less the next peak.
    pub falls: u64,
    /// The time of the next peak, in nanoseconds since recording began.
    pub next_at_ns: u64,
    /// The owner whose allocation reaches the next peak; empty outside of ops.
    pub next_owner: String,
}
