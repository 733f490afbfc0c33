//! Builds the report of a live tracker and its pools.
//!
//! Counts of executions come from the tracker. Live bytes and the marks of modules come from the pools' ledgers. All
//! figures of a pool are read under one lock acquisition, so that they add up while other threads allocate.

use std::collections::HashMap;
use std::sync::Arc;

use bfc_core::{Allocator, AllocatorSnapshot, OwnerId, Stats, Stream, Tag};

use super::{OpTotals, Tracker};
use crate::heap;
use crate::report::{LiveRow, PoolRow, Report};
use crate::tally::{OpTally, PeakTally, PoolTally, Tallies, thread_row};

impl Report {
    /// Reports the ops of `tracker` and the pools that they allocate from. Live bytes that the pools charge to other
    /// owners are unowned.
    ///
    /// All figures of a pool come from one moment, also while other threads allocate. The live bytes of a
    /// pool's owners always add up to its bytes in use. Calls and totals change when an op ends. They are
    /// read after the pools.
    #[must_use]
    pub fn new(tracker: &Tracker, pools: &[Arc<dyn Allocator>]) -> Self {
        let snapshots: Vec<AllocatorSnapshot> = pools.iter().map(|pool| pool.snapshot()).collect();
        // Read after the pools: each op that held memory then has its row.
        let (totals, threads) = tracker.totals();
        let saved = tracker.saves().now();
        let ops = totals.iter().map(|row| {
            let OpTotals { owner, module, op, phase, totals } = row;
            OpTally {
                owner: *owner,
                module: *module,
                op,
                phase: *phase,
                totals,
                allocations: 0,
                live_peak: 0,
            }
        });
        let pool_tallies = pools.iter().zip(&snapshots).map(|(pool, AllocatorSnapshot { stats, ledger })| {
            let peak = PeakTally { bytes: stats.peak_bytes_in_use, owner: stats.peak_tag.owner, at_ns: None };
            PoolTally { name: pool.name(), ledger, in_use: stats.bytes_in_use, peak }
        });
        let tallies = Tallies {
            ops: ops.collect(),
            pools: pool_tallies.collect(),
            saved: &saved,
            parent: &OwnerId::parent,
            path: &OwnerId::path,
        };
        let mut report = Self {
            threads: threads.iter().map(|row| thread_row(row.thread, &row.totals)).collect(),
            unlisted_layers: tracker.unlisted_layers(),
            pools: pool_rows(pools, &snapshots),
            outside: [tracker.outside(), heap::outside_rows()].concat(),
            completed_steps: tracker.steps(),
            live: live_rows(pools, &totals, tracker),
            ..Self::default()
        };
        tallies.fill(&mut report);
        report
    }
}

/// Live memory by op, module and category, the most bytes first.
fn live_rows(pools: &[Arc<dyn Allocator>], totals: &[OpTotals], tracker: &Tracker) -> Vec<LiveRow> {
    let (completed, firsts) = (tracker.steps(), tracker.step_log().firsts());
    let mut rows: HashMap<Tag, LiveRow> = HashMap::new();
    for live in pools.iter().flat_map(|pool| pool.live_allocations()) {
        let before = live.serial.map(|serial| firsts.steps_before(live.pool, serial));
        let age = before.filter(|_| completed > 0).map(|before| completed.saturating_sub(before));
        rows.entry(live.tag).or_default().add(live.bytes, age, None);
    }
    let by_owner: HashMap<OwnerId, &OpTotals> = totals.iter().map(|row| (row.owner, row)).collect();
    let named = |(tag, row): (Tag, LiveRow)| {
        let category = tag.category.name().to_owned();
        match by_owner.get(&tag.owner) {
            Some(totals) => {
                let (scope, op) = (totals.module.path(), totals.op.to_owned());
                LiveRow { scope, op, phase: totals.phase, category, ..row }
            }
            None => LiveRow { scope: tag.owner.path(), category, ..row },
        }
    };
    let mut rows: Vec<LiveRow> = rows.into_iter().map(named).collect();
    rows.sort_by(|a, b| {
        (b.bytes, &a.scope, &a.op, &a.category).cmp(&(a.bytes, &b.scope, &b.op, &b.category))
    });
    rows
}

fn pool_row(pool: &dyn Allocator, stats: &Stats, stream: Option<u64>) -> PoolRow {
    PoolRow {
        name: pool.name().to_owned(),
        memory: pool.memory_kind().name().to_owned(),
        stream,
        limit: stats.bytes_limit,
        reserved: stats.bytes_reserved,
        in_use: stats.bytes_in_use,
        requested: stats.bytes_requested,
        peak_in_use: stats.peak_bytes_in_use,
        peak_reserved: stats.peak_bytes_reserved,
        largest_free_block: stats.largest_free_block_bytes,
        fragmentation: stats.fragmentation(),
        allocations: stats.num_allocs,
        live_allocations: stats.live_allocs,
        waits: stats.retry.waits,
    }
}

fn pool_rows(pools: &[Arc<dyn Allocator>], snapshots: &[AllocatorSnapshot]) -> Vec<PoolRow> {
    let mut streams: Vec<&Arc<Stream>> = Vec::new();
    let rows = pools.iter().zip(snapshots).map(|(pool, AllocatorSnapshot { stats, .. })| {
        let number = pool.stream().map(|stream| {
            let known = streams.iter().position(|known| *known == stream);
            known.unwrap_or_else(|| {
                streams.push(stream);
                streams.len() - 1
            }) as u64
                + 1
        });
        pool_row(&**pool, stats, number)
    });
    rows.collect()
}

#[cfg(test)]
mod tests;
