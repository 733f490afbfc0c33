//! Memory that is live at the end of a run, with its age, and memory that grows from step to step.

use serde::{Deserialize, Serialize};

use super::rows::op_path;
use super::table::{Table, bytes, count, duration};
use crate::scope::Phase;

/// The live blocks of an op in a module, of one category.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct LiveRow {
    /// The module's path; empty outside of modules.
    pub scope: String,
    /// The op's name; empty outside of ops.
    pub op: String,
    /// The op's phase.
    pub phase: Phase,
    /// The category's name.
    pub category: String,
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes.
    pub bytes: u64,
    /// The steps that ended after the allocation: of the youngest block, and of the oldest. `None` before the first
    /// step ends. In a live report, steps older than the last hundreds are approximate, and blocks of thread caches have
    /// no age.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_steps: Option<(u64, u64)>,
    /// The time since the allocation in nanoseconds: of the youngest block, and of the oldest. Only recordings know it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_ns: Option<(u64, u64)>,
}

impl LiveRow {
    /// The path of the op in its module, with its phase unless that is forward.
    #[must_use]
    pub fn path(&self) -> String {
        op_path(&self.scope, &self.op, self.phase)
    }

    /// Adds a block.
    pub(crate) fn add(&mut self, bytes: u64, age_steps: Option<u64>, age_ns: Option<u64>) {
        self.blocks += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        widen(&mut self.age_steps, age_steps);
        widen(&mut self.age_ns, age_ns);
    }

    /// The age as a cell.
    fn age(&self) -> String {
        match (self.age_steps, self.age_ns) {
            (Some((youngest, oldest)), _) if youngest == oldest => steps(oldest),
            (Some((youngest, oldest)), _) => format!("{youngest} to {}", steps(oldest)),
            (None, Some((_, oldest))) if oldest > 0 => self.time(),
            (None, _) => "-".to_owned(),
        }
    }

    /// The age in time as a cell.
    fn time(&self) -> String {
        self.age_ns.map_or_else(
            || "-".to_owned(),
            |(youngest, oldest)| match (duration(youngest), duration(oldest)) {
                (youngest, oldest) if youngest == oldest => oldest,
                (youngest, oldest) => format!("{youngest} to {oldest}"),
            },
        )
    }
}

/// Extends a range to a value.
fn widen(range: &mut Option<(u64, u64)>, value: Option<u64>) {
    if let Some(value) = value {
        let (low, high) = range.unwrap_or((value, value));
        *range = Some((low.min(value), high.max(value)));
    }
}

fn steps(count: u64) -> String {
    if count == 1 { "1 step".to_owned() } else { format!("{count} steps") }
}

/// An op whose live bytes rise from step to step, at equal points of the steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct GrowthRow {
    /// The module's path; empty outside of modules.
    pub scope: String,
    /// The op's name; empty outside of ops.
    pub op: String,
    /// The op's phase.
    pub phase: Phase,
    /// The mean growth per step in bytes.
    pub bytes_per_step: u64,
    /// The first step after which more bytes were live than before, counted from 1.
    pub since_step: u64,
    /// Live bytes after the last step.
    pub live_bytes: u64,
}

impl GrowthRow {
    /// The path of the op in its module, with its phase unless that is forward.
    #[must_use]
    pub fn path(&self) -> String {
        op_path(&self.scope, &self.op, self.phase)
    }
}

/// The name in a table of memory without an op or module.
fn named(path: &str) -> &str {
    if path.is_empty() { "(outside of ops)" } else { path }
}

/// The table of live memory.
pub(super) fn live_table(rows: &[LiveRow], top: usize, wide: bool) -> Table {
    let mut heading = vec!["live", "category", "blocks", "bytes", "age"];
    let with_time = wide && rows.iter().any(|row| row.age_steps.is_some());
    heading.extend(with_time.then_some("age in time"));
    let mut table = Table::new(&heading).omitting(&["blocks"]).wide(wide);
    for row in rows.iter().take(top) {
        let cells = [row.category.replace('_', " "), count(row.blocks), bytes(row.bytes), row.age()];
        table.line(named(&row.path()), cells.into_iter().chain(with_time.then(|| row.time())));
    }
    table
}

/// The table of growth.
pub(super) fn growth_table(rows: &[GrowthRow], top: usize, wide: bool) -> Table {
    let mut table = Table::new(&["grows", "per step", "since step", "live"]).wide(wide);
    for row in rows.iter().take(top) {
        let cells = [bytes(row.bytes_per_step), count(row.since_step), bytes(row.live_bytes)];
        table.line(named(&row.path()), cells);
    }
    table
}
