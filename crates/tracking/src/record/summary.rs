//! What stands in a recording beside its events: what the run was, what it came to, and what lies outside.

use serde::{Deserialize, Serialize};

use super::outside::Outside;
use crate::report::Report;

/// What a run is, as known when it begins: the head of a `.hwm` file. All fields may be left empty.
///
/// ```
/// use highwater_tracking::RunFacts;
/// let facts = RunFacts::new("train_digits").with("seed", 7);
/// assert_eq!(facts.more[0], ("seed".to_owned(), "7".to_owned()));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RunFacts {
    /// The program.
    pub program: String,
    /// The version of Highwater that wrote the file.
    pub version: String,
    /// When recording began, in milliseconds since 1970.
    pub started_unix_ms: u64,
    /// The process and its memory, as the system told when recording began.
    pub outside: Outside,
    /// Whatever else is worth keeping, in order: device, policy, threads, seed.
    pub more: Vec<(String, String)>,
}

impl RunFacts {
    /// The facts of a run of `program` that begins now.
    #[must_use]
    pub fn new(program: impl Into<String>) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self {
            program: program.into(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_unix_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            outside: Outside::now(),
            more: Vec::new(),
        }
    }

    /// The same with one fact more.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.more.push((name.into(), value.to_string()));
        self
    }

    /// The fact of this name among [`more`](Self::more).
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.more.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// What a run came to: the end of a `.hwm` file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RunSummary {
    /// How long recording went on, in nanoseconds.
    pub duration_ns: u64,
    /// How many events were recorded.
    pub events: u64,
    /// Totals by op, scope and category, the peak, and the pools: limit, bytes reserved, marks.
    pub report: Report,
    /// The process and its memory, as the system told at the end.
    pub outside: Outside,
}
