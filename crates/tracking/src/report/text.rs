//! A report as tables for people, no wider than 100 columns.

use std::fmt;

use super::table::{Table, bytes, count, duration, share};
use super::{OpRow, PeakRow, PoolRow, Report, ScopeRow, ThreadRow};
use crate::scope::Phase;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.ops.is_empty() {
            writeln!(f, "{}", op_table(&self.ops, self.unowned_bytes))?;
        }
        if self.peak.is_some() && !self.ops.is_empty() {
            writeln!(f, "{}", peak_table(&self.ops))?;
        }
        if !self.scopes.is_empty() {
            writeln!(f, "{}", scope_table(&self.scopes))?;
        }
        if self.by_thread.len() > 1 {
            writeln!(f, "{}", thread_table(&self.by_thread))?;
        }
        if !self.pools.is_empty() {
            write!(f, "{}", pool_table(&self.pools))?;
        }
        if let Some(peak) = &self.peak {
            writeln!(f, "\n{}", peak_line(peak))?;
        }
        let live = self.categories.iter().filter(|row| row.live_bytes > 0);
        let live: Vec<_> =
            live.map(|row| format!("{} {}", row.category.replace('_', " "), bytes(row.live_bytes))).collect();
        if !live.is_empty() {
            writeln!(f, "live: {}", live.join(", "))?;
        }
        let saved = &self.saved;
        if saved.blocks > 0 {
            writeln!(
                f,
                "kept for backward: {} blocks, {} at most at a time, a byte for {} on average",
                saved.blocks,
                bytes(saved.high_water_bytes),
                duration(saved.mean_held_ns)
            )?;
        }
        Ok(())
    }
}

/// What ops had to do with the peak and with each other's memory.
fn peak_table(ops: &[OpRow]) -> Table {
    let heading = ["op", "requested", "self peak", "live before", "outliving", "saved", "at peak", "share"];
    let mut table = Table::new(&heading);
    for row in ops {
        let phase = if row.phase == Phase::Forward { String::new() } else { format!(":{}", row.phase) };
        table.line(
            &format!("{}{phase}", row.op),
            [
                bytes(row.requested_bytes),
                bytes(row.self_peak_bytes),
                bytes(row.live_before_bytes),
                bytes(row.outliving_bytes),
                bytes(row.saved_bytes),
                bytes(row.peak_bytes),
                share(row.peak_share),
            ],
        );
    }
    table
}

/// Only where there are several: one thread's figures are those of all ops.
fn thread_table(threads: &[ThreadRow]) -> Table {
    let mut table = Table::new(&["thread", "calls", "requested", "total", "high water", "outliving"]);
    for row in threads {
        table.line(
            &row.thread.to_string(),
            [
                count(row.calls),
                bytes(row.requested_bytes),
                bytes(row.total_bytes),
                bytes(row.high_water_bytes),
                bytes(row.outliving_bytes),
            ],
        );
    }
    table
}

fn op_table(ops: &[OpRow], unowned: u64) -> Table {
    let figures = |row: &OpRow| {
        [
            count(row.calls),
            bytes(row.total_bytes),
            bytes(row.high_water_bytes),
            bytes(row.live_bytes),
            bytes(row.temporary_bytes),
            bytes(row.output_bytes),
            bytes(row.persistent_bytes),
        ]
    };
    let sum = |rows: &[OpRow]| {
        rows.iter().cloned().reduce(|mut sum, row| {
            sum.absorb(&row);
            sum
        })
    };
    let heading = ["op", "calls", "total", "high water", "live", "temporary", "output", "persistent"];
    let mut table = Table::new(&heading);
    for group in ops.chunk_by(|a, b| a.phase == b.phase) {
        if let Some(phase) = sum(group) {
            table.line(phase.phase.name(), figures(&phase));
        }
        for row in group {
            table.line(&format!("  {}", row.op), figures(row));
        }
    }
    table.rule();
    if unowned > 0 {
        let none = String::new;
        table.line("outside of ops", [none(), none(), none(), bytes(unowned)]);
    }
    if let Some(mut total) = sum(ops) {
        total.live_bytes = total.live_bytes.saturating_add(unowned);
        table.line("total", figures(&total));
    }
    table
}

/// The tree of modules: each name is indented by its depth.
fn scope_table(scopes: &[ScopeRow]) -> Table {
    let mut table = Table::new(&["module", "calls", "total", "high water", "live"]);
    for row in scopes {
        let name = match row.scope.rsplit('.').next() {
            Some(name) if !name.is_empty() => {
                format!("{}{name}", "  ".repeat(row.scope.matches('.').count() + 1))
            }
            _ => "(top)".to_owned(),
        };
        let figures =
            [count(row.calls), bytes(row.total_bytes), bytes(row.high_water_bytes), bytes(row.live_bytes)];
        table.line(&name, figures);
    }
    table
}

/// A column for each pool: there are few of them, with many figures.
fn pool_table(pools: &[PoolRow]) -> Table {
    let heading: Vec<&str> =
        std::iter::once("pool").chain(pools.iter().map(|pool| pool.name.as_str())).collect();
    let mut table = Table::new(&heading);
    let mut line = |name: &str, figure: &dyn Fn(&PoolRow) -> String| {
        table.line(name, pools.iter().map(figure));
    };
    line("memory", &|pool| pool.memory.clone());
    if pools.iter().any(|pool| pool.stream.is_some()) {
        line("stream", &|pool| pool.stream.map_or_else(|| "-".to_owned(), |stream| stream.to_string()));
    }
    line("limit", &|pool| pool.limit.map_or_else(|| "none".to_owned(), bytes));
    line("reserved", &|pool| bytes(pool.reserved));
    line("in use", &|pool| bytes(pool.in_use));
    line("requested", &|pool| bytes(pool.requested));
    line("peak in use", &|pool| bytes(pool.peak_in_use));
    line("peak reserved", &|pool| bytes(pool.peak_reserved));
    line("largest free block", &|pool| bytes(pool.largest_free_block));
    line("fragmentation", &|pool| format!("{:.1} %", pool.fragmentation * 100.0));
    line("allocations", &|pool| count(pool.allocations));
    line("live allocations", &|pool| count(pool.live_allocations));
    line("waits for memory", &|pool| count(pool.waits));
    table
}

fn peak_line(peak: &PeakRow) -> String {
    let by = match (&peak.op, peak.phase) {
        (Some(op), Some(phase)) => format!(", reached in {op} ({phase})"),
        _ => String::new(),
    };
    let scope = if peak.scope.is_empty() { String::new() } else { format!(" of {}", peak.scope) };
    format!("peak: {} in {}{by}{scope}", bytes(peak.bytes), peak.pool)
}
