//! The rows of a report. All sizes are granted bytes unless their name says otherwise.

use std::cmp::Reverse;

use bfc_core::OomReport;
use serde::{Deserialize, Serialize};

use crate::scope::Phase;

/// An op in a phase, in one module or over all modules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct OpRow {
    /// The module's path, empty outside of modules; `None` for all modules together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// The op's name.
    pub op: String,
    /// The phase.
    pub phase: Phase,
    /// Finished calls.
    pub calls: u64,
    /// The time that the host spent in them, in nanoseconds, including nested ops. 0 on a dry device.
    pub time_ns: u64,
    /// Blocks allocated. Only recordings count them.
    pub allocations: u64,
    /// Bytes requested by all executions.
    pub requested_bytes: u64,
    /// Bytes allocated by all executions.
    pub total_bytes: u64,
    /// The most bytes that one execution held at a time, nested ops included.
    pub high_water_bytes: u64,
    /// The most bytes charged to the op at a time. Over several modules or pools: the sum of their marks.
    pub self_peak_bytes: u64,
    /// Live bytes at the end.
    pub live_bytes: u64,
    /// Bytes that were live when the execution that allocated them ended.
    pub outliving_bytes: u64,
    /// The most bytes that were live in the pool of a call when it began.
    pub live_before_bytes: u64,
    /// The most bytes that were live in all pools during an execution. Only recordings know it.
    pub live_peak_bytes: u64,
    /// Bytes charged to the op at the peak of the run.
    pub peak_bytes: u64,
    /// The share of the peak, 0 to 1.
    pub peak_share: f64,
    /// Bytes of the op's blocks that were kept for backward passes, over time.
    pub saved_bytes: u64,
    /// The most bytes that were kept for backward passes at a time. Over several modules: the sum of their marks.
    pub saved_peak_bytes: u64,
    /// Bytes allocated as temporaries and workspaces.
    pub temporary_bytes: u64,
    /// Bytes allocated for results.
    pub output_bytes: u64,
    /// Bytes allocated for state that persists between steps.
    pub persistent_bytes: u64,
}

impl OpRow {
    /// The path of the op in its module, with its phase unless that is forward: `net.fc1.matmul:backward`.
    #[must_use]
    pub fn path(&self) -> String {
        op_path(self.scope.as_deref().unwrap_or(""), &self.op, self.phase)
    }

    /// Adds the figures of another row: sums, and the higher of two marks.
    pub(super) fn add(&mut self, other: &Self) {
        let sums: [(&mut u64, u64); 13] = [
            (&mut self.calls, other.calls),
            (&mut self.time_ns, other.time_ns),
            (&mut self.allocations, other.allocations),
            (&mut self.requested_bytes, other.requested_bytes),
            (&mut self.total_bytes, other.total_bytes),
            (&mut self.self_peak_bytes, other.self_peak_bytes),
            (&mut self.live_bytes, other.live_bytes),
            (&mut self.outliving_bytes, other.outliving_bytes),
            (&mut self.peak_bytes, other.peak_bytes),
            (&mut self.saved_bytes, other.saved_bytes),
            (&mut self.saved_peak_bytes, other.saved_peak_bytes),
            (&mut self.temporary_bytes, other.temporary_bytes),
            (&mut self.output_bytes, other.output_bytes),
        ];
        for (sum, more) in sums {
            *sum = sum.saturating_add(more);
        }
        self.persistent_bytes = self.persistent_bytes.saturating_add(other.persistent_bytes);
        self.peak_share += other.peak_share;
        self.high_water_bytes = self.high_water_bytes.max(other.high_water_bytes);
        self.live_before_bytes = self.live_before_bytes.max(other.live_before_bytes);
        self.live_peak_bytes = self.live_peak_bytes.max(other.live_peak_bytes);
    }

    /// The order of rows in a report.
    pub(super) fn order(&self) -> impl Ord + '_ {
        (self.phase, Reverse(self.high_water_bytes), &self.op, &self.scope)
    }

    /// The order of rows in text: the holders of the peak first.
    pub(crate) fn order_at_peak(&self) -> impl Ord + '_ {
        (Reverse((self.peak_bytes, self.high_water_bytes)), self.order())
    }
}

/// The path of an op in a module.
pub(super) fn op_path(scope: &str, op: &str, phase: Phase) -> String {
    let dot = if scope.is_empty() || op.is_empty() { "" } else { "." };
    format!("{scope}{dot}{op}{}", phase.suffix())
}

/// A module and everything below it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ScopeRow {
    /// The module's path, empty for the whole run.
    pub scope: String,
    /// Executions of ops.
    pub calls: u64,
    /// The time that the host spent in them, in nanoseconds, including nested ops. 0 on a dry device.
    pub time_ns: u64,
    /// Bytes requested by them.
    pub requested_bytes: u64,
    /// Bytes allocated by them.
    pub total_bytes: u64,
    /// The most bytes held by the module at a time. Over several pools: the sum of their marks.
    pub high_water_bytes: u64,
    /// Live bytes at the end.
    pub live_bytes: u64,
    /// Bytes held by the module at the peak of the run.
    pub peak_bytes: u64,
    /// The share of the peak, 0 to 1.
    pub peak_share: f64,
}

/// A phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct PhaseRow {
    /// The phase.
    pub phase: Phase,
    /// Executions of ops.
    pub calls: u64,
    /// The time that the host spent in them, in nanoseconds, including nested ops. 0 on a dry device.
    pub time_ns: u64,
    /// Bytes requested by them.
    pub requested_bytes: u64,
    /// Bytes allocated by them.
    pub total_bytes: u64,
    /// The most bytes that one execution held at a time.
    pub high_water_bytes: u64,
    /// Live bytes at the end.
    pub live_bytes: u64,
    /// The most bytes that were live in all pools during an execution. Only recordings know it.
    pub live_peak_bytes: u64,
    /// Bytes charged to the phase's ops at the peak of the run.
    pub peak_bytes: u64,
    /// The share of the peak, 0 to 1.
    pub peak_share: f64,
}

impl PhaseRow {
    pub(super) fn add(&mut self, row: &OpRow) {
        self.calls = self.calls.saturating_add(row.calls);
        self.time_ns = self.time_ns.saturating_add(row.time_ns);
        self.requested_bytes = self.requested_bytes.saturating_add(row.requested_bytes);
        self.total_bytes = self.total_bytes.saturating_add(row.total_bytes);
        self.live_bytes = self.live_bytes.saturating_add(row.live_bytes);
        self.peak_bytes = self.peak_bytes.saturating_add(row.peak_bytes);
        self.peak_share += row.peak_share;
        self.high_water_bytes = self.high_water_bytes.max(row.high_water_bytes);
        self.live_peak_bytes = self.live_peak_bytes.max(row.live_peak_bytes);
    }
}

/// A category of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct CategoryRow {
    /// The category's name.
    pub category: String,
    /// Bytes allocated in this category. Only recordings count them.
    pub total_bytes: u64,
    /// The most bytes live at a time. Over several pools: the sum of their marks.
    pub high_water_bytes: u64,
    /// Live bytes at the end.
    pub live_bytes: u64,
    /// Live bytes at the peak of the run.
    pub peak_bytes: u64,
}

/// A thread, with the ops that it began, whatever threads did their work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ThreadRow {
    /// The thread's number in the process.
    pub thread: u64,
    /// Finished calls of ops that it began.
    pub calls: u64,
    /// The time that the host spent in them, in nanoseconds, including nested ops. 0 on a dry device.
    pub time_ns: u64,
    /// Blocks that its ops allocated. Only recordings count them.
    pub allocations: u64,
    /// Blocks that it freed. Only recordings count them.
    pub frees: u64,
    /// Bytes requested.
    pub requested_bytes: u64,
    /// Bytes allocated.
    pub total_bytes: u64,
    /// The most bytes that one execution held at a time.
    pub high_water_bytes: u64,
    /// Bytes that were live when the execution that allocated them ended.
    pub outliving_bytes: u64,
}

/// A pool's memory for the work of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct StreamRow {
    /// The pool's name.
    pub pool: String,
    /// The stream, counted from 1; 0 on the host.
    pub stream: u32,
    /// Blocks allocated.
    pub allocations: u64,
    /// Bytes requested.
    pub requested_bytes: u64,
    /// Bytes allocated.
    pub total_bytes: u64,
    /// The most bytes live at a time.
    pub high_water_bytes: u64,
    /// Live bytes at the end.
    pub live_bytes: u64,
    /// Live bytes at the peak of all pools together.
    pub peak_bytes: u64,
}

/// Blocks kept for backward passes: ops' blocks of the category "activation".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SavedRow {
    /// Number of blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes kept at the end.
    pub live_bytes: u64,
    /// The most bytes kept at a time.
    pub high_water_bytes: u64,
    /// Mean time that a byte was kept, in nanoseconds. Bytes that are still kept count up to now.
    pub mean_held_ns: u64,
    /// The longest time that a block was kept, in nanoseconds. Only recordings know it.
    pub longest_held_ns: u64,
}

/// A pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct PoolRow {
    /// The pool's name.
    pub name: String,
    /// The kind of its memory.
    pub memory: String,
    /// The device stream that orders the reuse of its memory, counted from 1; `None` on the host.
    pub stream: Option<u64>,
    /// The most bytes that it may reserve; `None` without a limit.
    pub limit: Option<u64>,
    /// Bytes reserved from the source.
    pub reserved: u64,
    /// Live bytes.
    pub in_use: u64,
    /// Bytes requested for live blocks.
    pub requested: u64,
    /// The most bytes in use at a time.
    pub peak_in_use: u64,
    /// The most bytes reserved at a time.
    pub peak_reserved: u64,
    /// The largest free block.
    pub largest_free_block: u64,
    /// The share of free bytes outside the largest free block, 0 to 1.
    pub fragmentation: f64,
    /// Allocations made.
    pub allocations: u64,
    /// Live allocations.
    pub live_allocations: u64,
    /// Requests that waited for memory.
    pub waits: u64,
}

/// A moment that the program [marked](crate::Tracker::mark).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct MarkRow {
    /// The text of the mark.
    pub text: String,
    /// The time, in nanoseconds since recording began.
    pub at_ns: u64,
    /// The steps that were completed before.
    pub completed_steps: u64,
    /// Live bytes of all pools.
    pub live_bytes: u64,
}

/// A request that ran out of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct FailureRow {
    /// The time, in nanoseconds since recording began.
    pub at_ns: u64,
    /// Bytes requested.
    pub requested: u64,
    /// The path of the owner that requested them.
    pub owner: String,
    /// The category of the request.
    pub category: String,
    /// The pool's name.
    pub pool: String,
    /// The verdict as a sentence; empty without a report.
    pub advice: String,
    /// Changes that would have made room, and those that would not; empty without a report.
    pub answers: Vec<(String, bool)>,
    /// The pool's own report. Recordings have it for the first failures.
    pub report: Option<OomReport>,
}
