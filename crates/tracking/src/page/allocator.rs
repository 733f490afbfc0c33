//! Facts of the allocator of a recorded run, beyond its events: the settings, the causes of the difference between
//! reserved and requested bytes, and the bytes that other settings would reserve.

use serde::Serialize;

/// Facts about an allocator, such as PyTorch's, for the page of its recording. See
/// [`write_page_with_allocator`](crate::write_page_with_allocator).
///
/// ```
/// use highwater_tracking::{AllocatorFacts, GapRow, ReplayedSettings};
/// let mut facts = AllocatorFacts::new("PyTorch");
/// facts.streams = vec!["stream 0".to_owned(), "private pool (1, 0)".to_owned()];
/// facts.gaps.push(GapRow::new("largest", 7_000, 100 << 20, 60 << 20).with_cause("rounding", 40 << 20));
/// let mut row = ReplayedSettings::new("expandable_segments:True", 64 << 20);
/// row.peak_gap_removed = Some(0.9);
/// facts.options.push(row);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AllocatorFacts {
    /// The allocator's name.
    pub allocator: String,
    /// The settings of the run: names and values.
    pub settings: Vec<(String, String)>,
    /// The names of the recording's streams by number. Other streams are shown by their numbers.
    pub streams: Vec<String>,
    /// Moments with the causes of their differences. All have the same causes in the same order.
    pub gaps: Vec<GapRow>,
    /// The blocks that keep the most free bytes at the first of these moments.
    pub keepers: Vec<KeeperRow>,
    /// The reserved bytes of replays with some settings.
    pub options: Vec<ReplayedSettings>,
    /// Sentences about these figures.
    pub notes: Vec<String>,
}

/// A moment with the causes of the difference between its reserved and its requested bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GapRow {
    /// The moment's name, such as `at the end`.
    pub moment: String,
    /// Nanoseconds since recording began.
    pub at_ns: u64,
    /// Bytes reserved from the device.
    pub reserved: u64,
    /// Bytes that the program requested for its live blocks.
    pub requested: u64,
    /// The causes, whose bytes sum up to the difference.
    pub causes: Vec<CauseRow>,
}

/// A cause of the difference between reserved and requested bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CauseRow {
    /// A description, such as `rounding`.
    pub name: String,
    /// The bytes that it accounts for.
    pub bytes: u64,
}

/// Blocks of one owner that keep the regions in which they lie, with their free bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KeeperRow {
    /// The path of the owner.
    pub owner: String,
    /// The name of the blocks' category.
    pub category: String,
    /// The number of regions.
    pub regions: u64,
    /// The bytes of the blocks in them.
    pub block_bytes: u64,
    /// The free bytes in them.
    pub free_bytes: u64,
}

/// The result of a replay with some settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ReplayedSettings {
    /// The settings in the allocator's syntax; empty for the defaults.
    pub settings: String,
    /// The most reserved bytes; `None` if the replay failed.
    pub peak_reserved: Option<u64>,
    /// The reserved bytes at the end.
    pub end_reserved: Option<u64>,
    /// The share of the difference between reserved and requested bytes at the peak of reserved bytes that these settings
    /// remove: 1 for all of it, negative if they add to it.
    pub peak_gap_removed: Option<f64>,
    /// The same share at the end.
    pub end_gap_removed: Option<f64>,
    /// A remark, such as why the replay failed.
    pub note: String,
    /// Whether these are the settings of the run.
    pub is_recorded: bool,
    /// Whether these settings reserve the least.
    pub is_best: bool,
}

impl AllocatorFacts {
    /// Creates the facts of an allocator of this name, without figures.
    #[must_use]
    pub fn new(allocator: impl Into<String>) -> Self {
        Self { allocator: allocator.into(), ..Self::default() }
    }
}

impl GapRow {
    /// Creates a moment without causes.
    #[must_use]
    pub fn new(moment: impl Into<String>, at_ns: u64, reserved: u64, requested: u64) -> Self {
        Self { moment: moment.into(), at_ns, reserved, requested, causes: Vec::new() }
    }

    /// Adds a cause.
    #[must_use]
    pub fn with_cause(mut self, name: impl Into<String>, bytes: u64) -> Self {
        self.causes.push(CauseRow { name: name.into(), bytes });
        self
    }
}

impl KeeperRow {
    /// Creates a row without figures.
    #[must_use]
    pub fn new(owner: impl Into<String>, category: impl Into<String>) -> Self {
        Self { owner: owner.into(), category: category.into(), ..Self::default() }
    }
}

impl ReplayedSettings {
    /// Creates a row of these settings, in the allocator's syntax.
    #[must_use]
    pub fn new(settings: impl Into<String>, peak_reserved: impl Into<Option<u64>>) -> Self {
        Self { settings: settings.into(), peak_reserved: peak_reserved.into(), ..Self::default() }
    }
}
