//! What a run has cost, as plain data: by op, by module, by pool.
//!
//! Figures about executions (calls, totals, marks) come from a [`Tracker`]; live bytes come from the pools' ledgers,
//! and so does the high-water mark of a module, which counts everything below it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

use bfc_core::{Allocator, AllocatorSnapshot, Category, Ledger, OwnerId, Stats, Stream};
use serde::{Deserialize, Serialize};

use crate::account::saved::Kept;
use crate::account::{OpTotals, ThreadTotals, Tracker};
use crate::scope::Phase;

mod oom;
pub mod table;
mod text;

pub use oom::{Answer, BudgetRow, Holder, OutOfMemory};

/// The figures of a run at one moment. All sizes in bytes. Prints as tables for people; [`Report::write_json`] writes
/// the same for programs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Report {
    /// By op and phase over all modules, by phase and then by falling high-water mark.
    pub ops: Vec<OpRow>,
    /// By module, each followed by the modules below it.
    pub scopes: Vec<ScopeRow>,
    /// By module, op and phase, in the order of first execution.
    pub by_place: Vec<PlaceRow>,
    /// By phase, in the order of training.
    pub phases: Vec<PhaseRow>,
    /// By thread that began ops, in the order of their numbers.
    pub by_thread: Vec<ThreadRow>,
    /// What was kept for backward passes.
    pub saved: SavedRow,
    /// The pools; each is of one stream.
    pub pools: Vec<PoolRow>,
    /// The highest peak among the pools; `None` if nothing was ever allocated.
    pub peak: Option<PeakRow>,
    /// Live bytes by category, all categories in fixed order.
    pub categories: Vec<CategoryRow>,
    /// Live bytes that no op of the tracker holds.
    pub unowned_bytes: u64,
}

/// One op in one phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct OpRow {
    /// The op's name.
    pub op: String,
    /// The phase.
    pub phase: Phase,
    /// Finished executions.
    pub calls: u64,
    /// Bytes asked for by all of them.
    pub requested_bytes: u64,
    /// Bytes taken by all of them.
    pub total_bytes: u64,
    /// The most that one of them held at a time, of what it and the ops within it took.
    pub high_water_bytes: u64,
    /// The most that was charged to it at a time, by all executions together; over several modules or pools, the sum of
    /// their marks.
    pub self_peak_bytes: u64,
    /// Live bytes now.
    pub live_bytes: u64,
    /// Bytes that were live when the execution that took them returned, of all executions together.
    pub outliving_bytes: u64,
    /// The most that was live in its pools, whoever held it, when an execution first turned to them.
    pub live_before_bytes: u64,
    /// Bytes charged to it at the peak of the run (see [`Report::peak`]).
    pub peak_bytes: u64,
    /// Their share of the peak, 0 to 1.
    pub peak_share: f64,
    /// Of what it took, bytes that came to be kept for a backward pass.
    pub saved_bytes: u64,
    /// Bytes taken as temporaries and workspaces.
    pub temporary_bytes: u64,
    /// Bytes taken for results.
    pub output_bytes: u64,
    /// Bytes taken for what stays between steps.
    pub persistent_bytes: u64,
}

/// One op in one phase in one module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlaceRow {
    /// The module's path, empty outside of all modules.
    pub scope: String,
    /// The figures.
    #[serde(flatten)]
    pub row: OpRow,
}

/// One module and everything below it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ScopeRow {
    /// The module's path, empty for the whole.
    pub scope: String,
    /// Finished executions of ops.
    pub calls: u64,
    /// Bytes asked for by all of them.
    pub requested_bytes: u64,
    /// Bytes taken by all of them.
    pub total_bytes: u64,
    /// The most that was live at a time; with several pools the sum of their marks.
    pub high_water_bytes: u64,
    /// Live bytes now.
    pub live_bytes: u64,
    /// Bytes charged to it or below at the peak of the run (see [`Report::peak`]).
    pub peak_bytes: u64,
    /// Their share of the peak, 0 to 1.
    pub peak_share: f64,
}

/// One phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct PhaseRow {
    /// The phase.
    pub phase: Phase,
    /// Finished executions of ops.
    pub calls: u64,
    /// Bytes asked for by all of them.
    pub requested_bytes: u64,
    /// Bytes taken by all of them.
    pub total_bytes: u64,
    /// The most that one of them held at a time.
    pub high_water_bytes: u64,
    /// Live bytes now.
    pub live_bytes: u64,
    /// Bytes charged to its ops at the peak of the run (see [`Report::peak`]).
    pub peak_bytes: u64,
    /// Their share of the peak, 0 to 1.
    pub peak_share: f64,
}

/// One thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ThreadRow {
    /// Its number in the process.
    pub thread: u64,
    /// Finished executions of ops that it began.
    pub calls: u64,
    /// Bytes asked for by all of them.
    pub requested_bytes: u64,
    /// Bytes taken by all of them.
    pub total_bytes: u64,
    /// The most that one of them held at a time.
    pub high_water_bytes: u64,
    /// Bytes that were live when the execution that took them returned, of all executions together.
    pub outliving_bytes: u64,
}

/// What was kept for backward passes: blocks of the category "activation" that ops took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SavedRow {
    /// How many blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes kept now.
    pub live_bytes: u64,
    /// The most bytes kept at a time.
    pub high_water_bytes: u64,
    /// How long a byte was kept on average, in nanoseconds; those that are still kept, until now.
    pub mean_held_ns: u64,
}

/// One pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct PoolRow {
    /// The pool's name.
    pub name: String,
    /// What kind of memory it hands out.
    pub memory: String,
    /// The device stream in whose order its memory is handed out again, counted from 1; `None` where there is none.
    pub stream: Option<u64>,
    /// The most it may reserve; `None` without a limit.
    pub limit: Option<u64>,
    /// Bytes held from the source.
    pub reserved: u64,
    /// Granted bytes alive.
    pub in_use: u64,
    /// Bytes asked for by what is alive.
    pub requested: u64,
    /// The most that was in use.
    pub peak_in_use: u64,
    /// The most that was reserved.
    pub peak_reserved: u64,
    /// The largest free block.
    pub largest_free_block: u64,
    /// The share of free bytes outside the largest free block, 0 to 1.
    pub fragmentation: f64,
    /// Allocations made.
    pub allocations: u64,
    /// Allocations alive.
    pub live_allocations: u64,
    /// Requests that had to wait for memory.
    pub waits: u64,
}

/// The moment at which a pool held most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeakRow {
    /// The pool's name.
    pub pool: String,
    /// Bytes in use at that moment.
    pub bytes: u64,
    /// The path of the module whose op raised the mark, or of whoever else did.
    pub scope: String,
    /// The op that ran; `None` if it was none of the tracker's.
    pub op: Option<String>,
    /// The op's phase.
    pub phase: Option<Phase>,
}

/// One category.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct CategoryRow {
    /// The category's name.
    pub category: String,
    /// Live bytes now.
    pub live_bytes: u64,
    /// The most that was live of it at a time; with several pools the sum of their marks.
    pub high_water_bytes: u64,
    /// Live bytes at the peak of the run (see [`Report::peak`]).
    pub peak_bytes: u64,
}

impl Report {
    /// The figures of `tracker`'s ops and of the pools they take memory from. Live bytes that the pools charge to
    /// other owners are unowned.
    ///
    /// All figures of a pool are of one moment, also while other threads allocate: the live bytes of a pool's owners always
    /// add up to its bytes in use. Calls and totals are counted when an op ends, and are read after the pools.
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
        let (totals, by_thread) = tracker.totals();
        let saves = tracker.saves().now();

        let mut own = own_bytes(&ledgers);
        let by_owner: HashMap<OwnerId, &OpTotals> = totals.iter().map(|row| (row.owner, row)).collect();
        let peak = peak_row(pools, &stats, &by_owner);
        let at_peak = AtPeak::new(&stats, &ledgers);
        let scopes = scope_rows(&totals, &ledgers, &own, &by_owner, &at_peak);
        // Each owner's bytes are taken out once, so no byte is shown twice should two rows share an owner.
        let place = |row: &OpTotals, live: u64| PlaceRow {
            scope: row.module.path(),
            row: OpRow::new(row, live, &ledgers, &at_peak, &saves.of(row.owner)),
        };
        let mut by_place: Vec<PlaceRow> =
            totals.iter().map(|row| place(row, own.remove(&row.owner).unwrap_or(0))).collect();
        by_place.retain(|place| place.row.has_figures());
        let ops = op_rows(&by_place);
        // Pools without a ledger do not know who holds what.
        let unledgered = stats
            .iter()
            .zip(&ledgers)
            .map(|(stats, ledger)| if ledger.total() == 0 { stats.bytes_in_use } else { 0 });
        Self {
            phases: phase_rows(&ops),
            ops,
            scopes,
            by_place,
            by_thread: by_thread.iter().map(ThreadRow::new).collect(),
            saved: SavedRow::new(&saves.whole),
            peak,
            pools: pool_rows(pools, &stats),
            categories: category_rows(&ledgers, &at_peak),
            unowned_bytes: sum(own.into_values().chain(unledgered)),
        }
    }

    /// Live bytes of all ops and of nobody, which is what all pools have in use.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        sum(self.ops.iter().map(|row| row.live_bytes).chain([self.unowned_bytes]))
    }

    /// Writes the report as one JSON object, indented, with a newline at the end.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_json(&self, mut writer: impl io::Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut writer, self)?;
        writeln!(writer)
    }
}

impl OpRow {
    fn new(
        totals: &OpTotals,
        live_bytes: u64,
        ledgers: &[Ledger],
        at_peak: &AtPeak<'_>,
        kept: &Kept,
    ) -> Self {
        let peak_bytes = at_peak.own(totals.owner);
        Self {
            op: totals.op.to_owned(),
            phase: totals.phase,
            calls: totals.calls,
            requested_bytes: totals.requested_bytes,
            total_bytes: totals.total_bytes,
            high_water_bytes: totals.high_water_bytes,
            // Nobody stands below an op, so what it held with those below is what it held itself.
            self_peak_bytes: sum(ledgers.iter().map(|ledger| ledger.owner(totals.owner).peak)),
            live_bytes,
            outliving_bytes: totals.outliving_bytes,
            live_before_bytes: totals.live_before_bytes,
            peak_bytes,
            peak_share: at_peak.share(peak_bytes),
            saved_bytes: kept.bytes,
            temporary_bytes: totals.temporary_bytes,
            output_bytes: totals.output_bytes,
            persistent_bytes: totals.persistent_bytes,
        }
    }

    /// Takes the figures of another row in: sums, and the higher of the marks.
    pub(crate) fn absorb(&mut self, other: &Self) {
        self.saved_bytes = self.saved_bytes.saturating_add(other.saved_bytes);
        self.calls = self.calls.saturating_add(other.calls);
        self.requested_bytes = self.requested_bytes.saturating_add(other.requested_bytes);
        self.self_peak_bytes = self.self_peak_bytes.saturating_add(other.self_peak_bytes);
        self.live_before_bytes = self.live_before_bytes.max(other.live_before_bytes);
        self.peak_bytes = self.peak_bytes.saturating_add(other.peak_bytes);
        self.peak_share += other.peak_share;
        self.total_bytes = self.total_bytes.saturating_add(other.total_bytes);
        self.high_water_bytes = self.high_water_bytes.max(other.high_water_bytes);
        self.live_bytes = self.live_bytes.saturating_add(other.live_bytes);
        self.outliving_bytes = self.outliving_bytes.saturating_add(other.outliving_bytes);
        self.temporary_bytes = self.temporary_bytes.saturating_add(other.temporary_bytes);
        self.output_bytes = self.output_bytes.saturating_add(other.output_bytes);
        self.persistent_bytes = self.persistent_bytes.saturating_add(other.persistent_bytes);
    }

    /// Whether there is anything to show: a reset tracker still has its rows.
    const fn has_figures(&self) -> bool {
        self.calls > 0 || self.live_bytes > 0
    }
}

impl PhaseRow {
    fn new(phase: Phase) -> Self {
        Self { phase, ..Self::default() }
    }

    fn add(&mut self, row: &OpRow) {
        self.calls = self.calls.saturating_add(row.calls);
        self.requested_bytes = self.requested_bytes.saturating_add(row.requested_bytes);
        self.total_bytes = self.total_bytes.saturating_add(row.total_bytes);
        self.high_water_bytes = self.high_water_bytes.max(row.high_water_bytes);
        self.live_bytes = self.live_bytes.saturating_add(row.live_bytes);
        self.peak_bytes = self.peak_bytes.saturating_add(row.peak_bytes);
        self.peak_share += row.peak_share;
    }
}

impl ThreadRow {
    const fn new(totals: &ThreadTotals) -> Self {
        Self {
            thread: totals.thread,
            calls: totals.calls,
            requested_bytes: totals.requested_bytes,
            total_bytes: totals.total_bytes,
            high_water_bytes: totals.high_water_bytes,
            outliving_bytes: totals.outliving_bytes,
        }
    }
}

impl SavedRow {
    fn new(kept: &Kept) -> Self {
        Self {
            blocks: kept.blocks,
            bytes: kept.bytes,
            live_bytes: kept.live,
            high_water_bytes: kept.peak,
            mean_held_ns: kept.mean_ns(),
        }
    }
}

/// What was held at the peak of the run: that of the pool whose peak is highest.
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

    /// By owner, what it and all below it held.
    fn inclusive(&self) -> HashMap<OwnerId, u64> {
        let mut held = HashMap::new();
        for (owner, _) in self.ledger.iter().flat_map(|ledger| ledger.owners()) {
            let own = self.own(owner);
            let mut above = Some(owner).filter(|_| own > 0);
            while let Some(id) = above {
                *held.entry(id).or_default() += own;
                above = (id != OwnerId::ROOT).then(|| id.parent());
            }
        }
        held
    }

    fn category(&self, category: Category) -> u64 {
        self.ledger.map_or(0, |ledger| ledger.category_at_peak(category))
    }

    fn share(&self, bytes: u64) -> f64 {
        bytes as f64 / self.bytes.max(1) as f64
    }
}

impl PoolRow {
    fn new(pool: &dyn Allocator, stats: &Stats, stream: Option<u64>) -> Self {
        Self {
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
}

/// Pools of bare addresses may hold so much that several of them together leave 64 bits.
fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
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
        PoolRow::new(&**pool, stats, number)
    });
    rows.collect()
}

fn phase_rows(ops: &[OpRow]) -> Vec<PhaseRow> {
    let mut phases: BTreeMap<Phase, PhaseRow> = BTreeMap::new();
    for row in ops {
        phases.entry(row.phase).or_insert_with(|| PhaseRow::new(row.phase)).add(row);
    }
    phases.into_values().collect()
}

fn op_rows(places: &[PlaceRow]) -> Vec<OpRow> {
    let mut rows: BTreeMap<(Phase, &str), OpRow> = BTreeMap::new();
    for PlaceRow { row, .. } in places {
        let sum = rows.entry((row.phase, &row.op));
        sum.and_modify(|sum| sum.absorb(row)).or_insert_with(|| row.clone());
    }
    let mut rows: Vec<OpRow> = rows.into_values().collect();
    rows.sort_by(|a, b| {
        let by_mark = b.high_water_bytes.cmp(&a.high_water_bytes);
        a.phase.cmp(&b.phase).then(by_mark).then_with(|| a.op.cmp(&b.op))
    });
    rows
}

fn scope_rows(
    totals: &[OpTotals],
    ledgers: &[Ledger],
    own: &HashMap<OwnerId, u64>,
    by_owner: &HashMap<OwnerId, &OpTotals>,
    at_peak: &AtPeak<'_>,
) -> Vec<ScopeRow> {
    let held_at_peak = at_peak.inclusive();
    let mut executed: HashMap<OwnerId, [u64; 3]> = HashMap::new();
    let mut modules = BTreeSet::from([Vec::new()]);
    let shown =
        totals.iter().filter(|row| row.calls > 0 || own.get(&row.owner).is_some_and(|bytes| *bytes > 0));
    for row in shown {
        for module in lineage(row.module) {
            let [calls, requested, bytes] =
                executed.entry(*module.last().unwrap_or(&OwnerId::ROOT)).or_default();
            *calls += row.calls;
            *requested = requested.saturating_add(row.requested_bytes);
            *bytes = bytes.saturating_add(row.total_bytes);
            modules.insert(module);
        }
    }
    // Memory may also be charged to a module outside of any op.
    let charged = own.iter().filter(|(owner, bytes)| **bytes > 0 && !by_owner.contains_key(owner));
    modules.extend(charged.flat_map(|(owner, _)| lineage(*owner)));

    let row = |lineage: &Vec<OwnerId>| {
        let module = *lineage.last().unwrap_or(&OwnerId::ROOT);
        let [calls, requested_bytes, total_bytes] = executed.get(&module).copied().unwrap_or_default();
        let peak_bytes = held_at_peak.get(&module).copied().unwrap_or(0);
        let accounts = || ledgers.iter().map(|ledger| ledger.owner(module));
        ScopeRow {
            scope: module.path(),
            calls,
            requested_bytes,
            total_bytes,
            high_water_bytes: sum(accounts().map(|account| account.peak)),
            live_bytes: sum(accounts().map(|account| account.live)),
            peak_bytes,
            peak_share: at_peak.share(peak_bytes),
        }
    };
    modules.iter().map(row).collect()
}

/// A module and all modules above it, each as its path of ids from below the root. Sorted, such paths give a tree in
/// which siblings stand in the order of their first use.
fn lineage(module: OwnerId) -> Vec<Vec<OwnerId>> {
    let mut ids: Vec<OwnerId> = std::iter::successors(Some(module), |id| Some(id.parent()))
        .take_while(|id| *id != OwnerId::ROOT)
        .collect();
    ids.reverse();
    (0..=ids.len()).map(|depth| ids[..depth].to_vec()).collect()
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
    })
}

fn category_rows(ledgers: &[Ledger], at_peak: &AtPeak<'_>) -> Vec<CategoryRow> {
    let row = |category: Category| CategoryRow {
        category: category.name().to_owned(),
        live_bytes: sum(ledgers.iter().map(|ledger| ledger.category(category))),
        high_water_bytes: sum(ledgers.iter().map(|ledger| ledger.category_peak(category))),
        peak_bytes: at_peak.category(category),
    };
    Category::ALL.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests;
