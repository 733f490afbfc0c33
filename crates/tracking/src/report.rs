//! The figures of a run as plain data: one model, one text form, one JSON form.
//!
//! A [`Report`] is made of a live tracker and its pools ([`Report::new`]), or of a recording
//! ([`Report::from_recording`]). The command line, the HTML page and the summary of a recording all use it.
//! This folder holds the data and its text; the layers above fill it in.
//!
//! A recording knows more than a tracker. A figure that only one of them has is 0 or absent in the other. The
//! text leaves out columns without figures.

mod class;
mod diff;
mod live;
mod outside;
mod peak;
mod ranks;
mod rows;
mod run;
pub mod table;
mod text;

use std::collections::BTreeMap;

use bfc_core::Bytes;
use serde::{Deserialize, Serialize};

pub(crate) use class::Class;
pub use diff::{Change, ReportDiff};
pub use live::{GrowthRow, LiveRow};
pub use outside::OutsideRow;
pub(crate) use outside::set_outside;
pub use peak::{PeakPart, PeakParts, PeakRow};
pub use ranks::{RankBytes, RankComparison, RankError, RankReport, RankRow, RanksText};
pub use rows::{
    CategoryRow, FailureRow, MarkRow, OpRow, PhaseRow, PoolRow, SavedRow, ScopeRow, StreamRow, ThreadRow,
};
pub use run::{Cut, ProcessMemory, RecordedRun, RunFacts};
pub use text::{HoldersText, ReportText, TextOptions};

/// The figures of a run. All sizes are bytes. Prints as tables and serializes with serde.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Report {
    /// The recorded run; `None` for a live tracker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<RecordedRun>,
    /// The peak of the pool with the highest one; `None` if nothing was ever allocated.
    pub peak: Option<PeakRow>,
    /// The peak of all pools together, if there are several. Only recordings know it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_peak: Option<PeakRow>,
    /// Ops by phase over all modules, sorted by phase, then by falling high-water mark.
    pub ops: Vec<OpRow>,
    /// Ops by module and phase, in the same order.
    #[serde(alias = "by_place")]
    pub places: Vec<OpRow>,
    /// Modules, each before the modules below it. The first is the whole run.
    ///
    /// Modules without calls that only held memory in passing are omitted, such as the temporary name of a layer that
    /// is moved into a network.
    pub scopes: Vec<ScopeRow>,
    /// Phases, in the order of a training step.
    pub phases: Vec<PhaseRow>,
    /// Threads that began ops.
    #[serde(alias = "by_thread")]
    pub threads: Vec<ThreadRow>,
    /// Pools by device stream. Only recordings know them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<StreamRow>,
    /// All categories, in fixed order.
    pub categories: Vec<CategoryRow>,
    /// Blocks kept for backward passes.
    pub saved: SavedRow,
    /// The pools at the end of the run.
    pub pools: Vec<PoolRow>,
    /// Memory outside the pools, which libraries hold and report. No other figure includes it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outside: Vec<OutsideRow>,
    /// Holders of the peak, and how far it falls without each. Only recordings know them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_parts: Option<PeakParts>,
    /// The first requests that ran out of memory. Only recordings know them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<FailureRow>,
    /// The first moments that the program marked. Only recordings know them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<MarkRow>,
    /// Live bytes that no op holds.
    pub unowned_bytes: u64,
    /// Completed steps: runs of optimizer ops after a backward op, or else repeated marks of a recording.
    pub completed_steps: u64,
    /// Live memory at the end by op, module and category, the most bytes first.
    pub live: Vec<LiveRow>,
    /// Ops whose live bytes rise from step to step, the largest growth first. Only recordings of at least five steps
    /// know them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub growth: Vec<GrowthRow>,
    /// Layers that ran without a path, because no module lists them as parts. Only trackers know them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unlisted_layers: Vec<String>,
}

impl Report {
    /// Live bytes of all ops plus unowned live bytes. For a tracker this equals the bytes in use of its pools.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        sum(self.ops.iter().map(|row| row.live_bytes).chain([self.unowned_bytes]))
    }

    /// Adds memory that a library holds outside the pools, or replaces the bytes of this library. A live tracker and its
    /// recording get such memory from [`Tracker::set_outside`](crate::Tracker::set_outside).
    ///
    /// ```
    /// use bfc_core::Bytes;
    /// use highwater_tracking::Report;
    /// let report = Report::default().with_outside("NCCL", Bytes::mib(12));
    /// assert!(report.to_string().contains("NCCL               12.0 MiB"));
    /// ```
    #[must_use]
    pub fn with_outside(mut self, name: &str, bytes: Bytes) -> Self {
        set_outside(&mut self.outside, name, bytes);
        self
    }

    /// Sets the rows by module, and derives those by op and by phase from them.
    pub(crate) fn set_places(&mut self, mut places: Vec<OpRow>) {
        places.sort_by(|a, b| a.order().cmp(&b.order()));
        let mut ops: BTreeMap<_, OpRow> = BTreeMap::new();
        let mut phases: BTreeMap<_, PhaseRow> = BTreeMap::new();
        for place in &places {
            let op = ops.entry((place.phase, place.op.as_str()));
            op.and_modify(|sum| sum.add(place)).or_insert_with(|| OpRow { scope: None, ..place.clone() });
            let phase = PhaseRow { phase: place.phase, ..PhaseRow::default() };
            phases.entry(place.phase).or_insert(phase).add(place);
        }
        self.ops = ops.into_values().collect();
        self.phases = phases.into_values().collect();
        self.ops.sort_by(|a, b| a.order().cmp(&b.order()));
        self.places = places;
    }
}

/// Adds sizes. Pools of bare addresses may hold so much that several of them together exceed 64 bits.
pub(crate) fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}
