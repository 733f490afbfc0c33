//! Builds the report of a live tracker and its pools.
//!
//! Counts of executions come from the tracker. Live bytes and the marks of modules come from the pools' ledgers. All
//! figures of a pool are read under one lock acquisition, so that they add up while other threads allocate.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bfc_core::{Allocator, AllocatorSnapshot, Category, Ledger, OwnerId, Stats, Stream, Tag};

use super::saved::SavedBytes;
use super::{OpTotals, ThreadTotals, Tracker};
use crate::heap;
use crate::report::{
    CategoryRow, LiveRow, OpRow, PeakRow, PoolRow, Report, SavedRow, ScopeRow, ThreadRow, sum,
};

impl Report {
    /// Reports the ops of `tracker` and the pools that they allocate from. Live bytes that the pools charge to other
    /// owners are unowned.
    ///
    /// All figures of a pool come from one moment, also while other threads allocate. The live bytes of a
    /// pool's owners always add up to its bytes in use. Calls and totals change when an op ends. They are
    /// read after the pools.
    #[must_use]
    pub fn new(tracker: &Tracker, pools: &[Arc<dyn Allocator>]) -> Self {
        let (stats, ledgers): (Vec<Stats>, Vec<Ledger>) = pools
            .iter()
            .map(|pool| {
                let AllocatorSnapshot { stats, ledger } = pool.snapshot();
                (stats, ledger)
            })
            .unzip();
        // Read after the pools: each op that held memory then has its row.
        let (totals, threads) = tracker.totals();
        let saves = tracker.saves().now();
        let live = live_rows(pools, &totals, tracker);

        let mut own = own_bytes(&ledgers);
        let by_owner: HashMap<OwnerId, &OpTotals> = totals.iter().map(|row| (row.owner, row)).collect();
        let at_peak = AtPeak::new(&stats, &ledgers);
        let scopes = scope_rows(&totals, &ledgers, &own, &by_owner, &at_peak);
        // Removes each owner's bytes, so that no byte is shown twice if two rows share an owner.
        let mut places: Vec<OpRow> = totals
            .iter()
            .map(|row| {
                let live = own.remove(&row.owner).unwrap_or(0);
                op_row(row, live, &ledgers, &at_peak, &saves.of(row.owner))
            })
            .collect();
        // A reset tracker keeps empty rows. `init` takes over blocks without a call.
        places.retain(|row| row.calls > 0 || row.live_bytes > 0 || row.peak_bytes > 0);
        // The bytes of a pool without a ledger have no owner.
        let unledgered = stats
            .iter()
            .zip(&ledgers)
            .map(|(stats, ledger)| if ledger.total() == 0 { stats.bytes_in_use } else { 0 });
        let mut report = Self {
            scopes,
            threads: threads.iter().map(thread_row).collect(),
            saved: saved_row(&saves.total),
            unlisted_layers: tracker.unlisted_layers(),
            peak: peak_row(pools, &stats, &by_owner),
            pools: pool_rows(pools, &stats),
            outside: [tracker.outside(), heap::outside_rows()].concat(),
            categories: category_rows(&ledgers, &at_peak),
            completed_steps: tracker.steps(),
            live,
            unowned_bytes: sum(own.into_values().chain(unledgered)),
            ..Self::default()
        };
        report.set_places(places);
        report
    }
}

/// Live memory by op, module and category, the most bytes first.
fn live_rows(pools: &[Arc<dyn Allocator>], totals: &[OpTotals], tracker: &Tracker) -> Vec<LiveRow> {
    let (completed, firsts) = (tracker.steps(), tracker.step_log().firsts());
    let mut rows: HashMap<Tag, LiveRow> = HashMap::new();
    for live in pools.iter().flat_map(|pool| pool.live_allocations()) {
        let before = live.serial.and_then(|serial| firsts.steps_before(live.pool, serial));
        let age = before.map(|before| completed.saturating_sub(before));
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

fn op_row(
    totals: &OpTotals,
    live_bytes: u64,
    ledgers: &[Ledger],
    at_peak: &AtPeak<'_>,
    saved: &SavedBytes,
) -> OpRow {
    let peak_bytes = at_peak.own(totals.owner);
    OpRow {
        scope: Some(totals.module.path()),
        op: totals.op.to_owned(),
        phase: totals.phase,
        calls: totals.calls,
        time_ns: totals.time_ns,
        requested_bytes: totals.requested_bytes,
        total_bytes: totals.total_bytes,
        high_water_bytes: totals.high_water_bytes,
        // No owner is below an op, so its inclusive mark is its own.
        self_peak_bytes: sum(ledgers.iter().map(|ledger| ledger.owner(totals.owner).peak)),
        live_bytes,
        outliving_bytes: totals.outliving_bytes,
        live_before_bytes: totals.live_before_bytes,
        peak_bytes,
        peak_share: at_peak.share(peak_bytes),
        saved_bytes: saved.bytes,
        temporary_bytes: totals.temporary_bytes,
        output_bytes: totals.output_bytes,
        persistent_bytes: totals.persistent_bytes,
        ..OpRow::default()
    }
}

fn thread_row(totals: &ThreadTotals) -> ThreadRow {
    ThreadRow {
        thread: totals.thread,
        calls: totals.calls,
        time_ns: totals.time_ns,
        requested_bytes: totals.requested_bytes,
        total_bytes: totals.total_bytes,
        high_water_bytes: totals.high_water_bytes,
        outliving_bytes: totals.outliving_bytes,
        ..ThreadRow::default()
    }
}

fn saved_row(saved: &SavedBytes) -> SavedRow {
    SavedRow {
        blocks: saved.blocks,
        bytes: saved.bytes,
        live_bytes: saved.live,
        high_water_bytes: saved.peak,
        mean_held_ns: saved.mean_ns(),
        ..SavedRow::default()
    }
}

/// The holders of the peak: those of the pool with the highest peak.
struct AtPeak<'a> {
    ledger: Option<&'a Ledger>,
    bytes: u64,
}

impl<'a> AtPeak<'a> {
    fn new(stats: &[Stats], ledgers: &'a [Ledger]) -> Self {
        let highest = stats.iter().zip(ledgers).max_by_key(|(stats, _)| stats.peak_bytes_in_use);
        Self {
            ledger: highest.map(|(_, ledger)| ledger),
            bytes: highest.map_or(0, |(stats, _)| stats.peak_bytes_in_use),
        }
    }

    fn own(&self, owner: OwnerId) -> u64 {
        self.ledger.map_or(0, |ledger| ledger.own_at_peak(owner))
    }

    /// Bytes held by each owner and everything below it.
    fn inclusive(&self) -> Sums<1> {
        let owners = self.ledger.iter().flat_map(|ledger| ledger.owners());
        let own = owners.map(|(owner, _)| (owner, [self.own(owner)]));
        with_ancestors(own.filter(|(_, [bytes])| *bytes > 0).collect()).0
    }

    fn category(&self, category: Category) -> u64 {
        self.ledger.map_or(0, |ledger| ledger.category_at_peak(category))
    }

    fn share(&self, bytes: u64) -> f64 {
        bytes as f64 / self.bytes.max(1) as f64
    }
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

/// Each owner's own live bytes over all pools.
fn own_bytes(ledgers: &[Ledger]) -> HashMap<OwnerId, u64> {
    let mut own = HashMap::new();
    for (owner, bytes) in ledgers.iter().flat_map(Ledger::owners) {
        let sum: &mut u64 = own.entry(owner).or_default();
        *sum = sum.saturating_add(bytes.own);
    }
    own
}

fn pool_rows(pools: &[Arc<dyn Allocator>], stats: &[Stats]) -> Vec<PoolRow> {
    let mut streams: Vec<&Arc<Stream>> = Vec::new();
    let rows = pools.iter().zip(stats).map(|(pool, stats)| {
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

fn scope_rows(
    totals: &[OpTotals],
    ledgers: &[Ledger],
    own: &HashMap<OwnerId, u64>,
    by_owner: &HashMap<OwnerId, &OpTotals>,
    at_peak: &AtPeak<'_>,
) -> Vec<ScopeRow> {
    let held_at_peak = at_peak.inclusive();
    let mut modules = BTreeMap::from([(OwnerId::ROOT, [0; 4])]);
    let holds = |owner: &OwnerId| at_peak.own(*owner) > 0 || own.get(owner).is_some_and(|bytes| *bytes > 0);
    for row in totals.iter().filter(|row| row.calls > 0 || holds(&row.owner)) {
        let executed = [row.calls, row.time_ns, row.requested_bytes, row.total_bytes];
        add(modules.entry(row.module).or_default(), executed);
    }
    // Memory may also be charged to a module without an op.
    for (owner, _) in own.iter().filter(|(owner, bytes)| **bytes > 0 && !by_owner.contains_key(owner)) {
        modules.entry(*owner).or_default();
    }
    let (modules, mut below) = with_ancestors(modules);

    let row = |module: OwnerId| {
        let [calls, time_ns, requested_bytes, total_bytes] =
            modules.get(&module).copied().unwrap_or_default();
        let [peak_bytes] = held_at_peak.get(&module).copied().unwrap_or_default();
        let accounts = || ledgers.iter().map(|ledger| ledger.owner(module));
        ScopeRow {
            scope: module.path(),
            calls,
            time_ns,
            requested_bytes,
            total_bytes,
            high_water_bytes: sum(accounts().map(|account| account.peak)),
            live_bytes: sum(accounts().map(|account| account.live)),
            peak_bytes,
            peak_share: at_peak.share(peak_bytes),
        }
    };
    // A tree whose siblings are in the order of their first use.
    let (mut rows, mut ahead) = (Vec::with_capacity(modules.len()), vec![OwnerId::ROOT]);
    while let Some(module) = ahead.pop() {
        rows.push(row(module));
        ahead.append(&mut below.remove(&module).unwrap_or_default());
    }
    rows
}

/// Figures by owner.
type Sums<const N: usize> = BTreeMap<OwnerId, [u64; N]>;

/// Adds the figures of each owner to those of all owners above it. Also returns the children of each owner, the last one
/// first. Takes time in proportion to the number of owners with their ancestors.
fn with_ancestors<const N: usize>(mut own: Sums<N>) -> (Sums<N>, HashMap<OwnerId, Vec<OwnerId>>) {
    let (mut sums, mut children) = (Sums::new(), HashMap::<_, Vec<_>>::new());
    // Children have higher numbers than their parents, so that the sum of the last owner is complete.
    while let Some((owner, figures)) = own.pop_last() {
        if owner != OwnerId::ROOT {
            let parent = owner.parent();
            add(own.entry(parent).or_insert([0; N]), figures);
            children.entry(parent).or_default().push(owner);
        }
        sums.insert(owner, figures);
    }
    (sums, children)
}

fn add<const N: usize>(sums: &mut [u64; N], more: [u64; N]) {
    for (sum, more) in sums.iter_mut().zip(more) {
        *sum = sum.saturating_add(more);
    }
}

fn peak_row(
    pools: &[Arc<dyn Allocator>],
    stats: &[Stats],
    by_owner: &HashMap<OwnerId, &OpTotals>,
) -> Option<PeakRow> {
    let (pool, stats) = pools.iter().zip(stats).max_by_key(|(_, stats)| stats.peak_bytes_in_use)?;
    if stats.peak_bytes_in_use == 0 {
        return None;
    }
    let owner = stats.peak_tag.owner;
    let totals = by_owner.get(&owner);
    Some(PeakRow {
        pool: pool.name().to_owned(),
        bytes: stats.peak_bytes_in_use,
        scope: totals.map_or(owner, |totals| totals.module).path(),
        op: totals.map(|totals| totals.op.to_owned()),
        phase: totals.map(|totals| totals.phase),
        ..PeakRow::default()
    })
}

fn category_rows(ledgers: &[Ledger], at_peak: &AtPeak<'_>) -> Vec<CategoryRow> {
    let row = |category: Category| CategoryRow {
        category: category.name().to_owned(),
        live_bytes: sum(ledgers.iter().map(|ledger| ledger.category(category))),
        high_water_bytes: sum(ledgers.iter().map(|ledger| ledger.category_peak(category))),
        peak_bytes: at_peak.category(category),
        ..CategoryRow::default()
    };
    Category::ALL.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests;
