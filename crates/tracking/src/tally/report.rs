//! Makes the rows of a report from the tallies of a run.

use std::collections::{BTreeMap, HashMap};

use bfc_core::{Category, Ledger, OwnerId};

use super::call::CallTotals;
use super::saved::SavedTotals;
use crate::report::{CategoryRow, OpRow, PeakRow, Report, SavedRow, ScopeRow, ThreadRow, sum};
use crate::scope::Phase;

/// The tallies of a run.
pub(crate) struct Tallies<'a> {
    /// Ops that ran or held memory. Other owners are modules.
    pub(crate) ops: Vec<OpTally<'a>>,
    pub(crate) pools: Vec<PoolTally<'a>>,
    pub(crate) saved: &'a SavedTotals,
    /// Returns the owner above another one.
    pub(crate) parent: &'a dyn Fn(OwnerId) -> OwnerId,
    /// Returns the path of a module.
    pub(crate) path: &'a dyn Fn(OwnerId) -> String,
}

/// An op in a scope, with its finished calls.
#[derive(Clone, Copy)]
pub(crate) struct OpTally<'a> {
    pub(crate) owner: OwnerId,
    pub(crate) module: OwnerId,
    pub(crate) op: &'a str,
    pub(crate) phase: Phase,
    pub(crate) totals: &'a CallTotals,
    /// Blocks that it allocated, if they are counted.
    pub(crate) allocations: u64,
    /// The highest level of all pools during a call, if it is known.
    pub(crate) live_peak: u64,
}

impl OpTally<'_> {
    /// Whether it has finished calls, or allocated without calls as in the traces of other tools.
    const fn has_run(&self) -> bool {
        self.totals.calls > 0 || self.totals.total_bytes() > 0
    }
}

/// A pool.
pub(crate) struct PoolTally<'a> {
    pub(crate) name: &'a str,
    pub(crate) ledger: &'a Ledger,
    /// Live bytes, also those of a pool without a ledger.
    pub(crate) in_use: u64,
    pub(crate) peak: PeakTally,
}

/// The moment with the most live bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeakTally {
    pub(crate) bytes: u64,
    /// The owner whose allocation reached it.
    pub(crate) owner: OwnerId,
    /// The time, if it is known.
    pub(crate) at_ns: Option<u64>,
}

impl Tallies<'_> {
    /// Adds the peak, and the rows by op, module, phase and category. Live bytes of other owners are unowned.
    pub(crate) fn fill(&self, report: &mut Report) {
        self.fill_summary(report);
        let mut own = self.own_bytes();
        report.scopes = self.scopes(&own);
        let places = self.ops.iter().filter_map(|op| {
            // Removes each owner's bytes, so that no byte is shown twice if two rows share an owner.
            let live = own.remove(&op.owner).unwrap_or(0);
            // A reset tracker keeps empty rows. `init` takes over blocks without a call.
            let is_shown = op.has_run() || live > 0 || self.own_at_peak(op.owner) > 0;
            is_shown.then(|| self.op_row(op, live))
        });
        report.set_places(places.collect());
        let unledgered = self.pools.iter().map(|pool| if pool.ledger.total() == 0 { pool.in_use } else { 0 });
        report.unowned_bytes = sum(own.into_values().chain(unledgered));
    }

    /// Adds the parts of a report whose size does not depend on the number of owners.
    pub(crate) fn fill_summary(&self, report: &mut Report) {
        report.peak = self.peak();
        report.categories = Category::ALL.into_iter().map(|category| self.category(category)).collect();
        let saved = &self.saved.total;
        report.saved = SavedRow {
            blocks: saved.blocks,
            bytes: saved.bytes,
            live_bytes: saved.live,
            high_water_bytes: saved.peak,
            mean_held_ns: saved.mean_ns(),
            ..SavedRow::default()
        };
    }

    /// Returns a peak as a row.
    pub(crate) fn peak_row(&self, pool: &str, peak: &PeakTally) -> PeakRow {
        let op = self.ops.iter().find(|op| op.owner == peak.owner);
        PeakRow {
            pool: pool.to_owned(),
            bytes: peak.bytes,
            at_ns: peak.at_ns,
            scope: (self.path)(op.map_or(peak.owner, |op| op.module)),
            op: op.map(|op| op.op.to_owned()),
            phase: op.map(|op| op.phase),
        }
    }

    /// Returns the row of an op that holds `live_bytes` now.
    pub(crate) fn op_row(&self, op: &OpTally<'_>, live_bytes: u64) -> OpRow {
        let (totals, saved) = (op.totals, self.saved.of(op.owner));
        let peak_bytes = self.own_at_peak(op.owner);
        OpRow {
            scope: Some((self.path)(op.module)),
            op: op.op.to_owned(),
            phase: op.phase,
            calls: totals.calls,
            time_ns: totals.time_ns,
            allocations: op.allocations,
            requested_bytes: totals.requested_bytes(),
            total_bytes: totals.total_bytes(),
            high_water_bytes: totals.high_water_bytes,
            // No owner is below an op, so its inclusive mark is its own.
            self_peak_bytes: sum(self.accounts(op.owner).map(|account| account.peak)),
            live_bytes,
            outliving_bytes: totals.outliving_bytes,
            live_before_bytes: totals.live_before_bytes,
            live_peak_bytes: op.live_peak,
            peak_bytes,
            peak_share: self.share(peak_bytes),
            saved_bytes: saved.bytes,
            saved_peak_bytes: saved.peak,
            temporary_bytes: totals.temporary_bytes,
            output_bytes: totals.output_bytes,
            persistent_bytes: totals.persistent_bytes,
        }
    }

    /// The pool with the highest peak. `at peak` and `share` are of this pool.
    fn highest(&self) -> Option<&PoolTally<'_>> {
        self.pools.iter().max_by_key(|pool| pool.peak.bytes)
    }

    fn peak(&self) -> Option<PeakRow> {
        let pool = self.highest().filter(|pool| pool.peak.bytes > 0)?;
        Some(self.peak_row(pool.name, &pool.peak))
    }

    pub(crate) fn own_at_peak(&self, owner: OwnerId) -> u64 {
        self.highest().map_or(0, |pool| pool.ledger.own_at_peak(owner))
    }

    fn share(&self, bytes: u64) -> f64 {
        bytes as f64 / self.highest().map_or(1, |pool| pool.peak.bytes.max(1)) as f64
    }

    pub(crate) fn accounts(&self, owner: OwnerId) -> impl Iterator<Item = bfc_core::OwnerBytes> {
        self.pools.iter().map(move |pool| pool.ledger.owner(owner))
    }

    /// Each owner's own live bytes over all pools.
    fn own_bytes(&self) -> HashMap<OwnerId, u64> {
        let mut own = HashMap::new();
        for (owner, bytes) in self.pools.iter().flat_map(|pool| pool.ledger.owners()) {
            let sum: &mut u64 = own.entry(owner).or_default();
            *sum = sum.saturating_add(bytes.own);
        }
        own
    }

    fn category(&self, category: Category) -> CategoryRow {
        let ledgers = || self.pools.iter().map(|pool| pool.ledger);
        CategoryRow {
            category: category.name().to_owned(),
            live_bytes: sum(ledgers().map(|ledger| ledger.category(category))),
            high_water_bytes: sum(ledgers().map(|ledger| ledger.category_peak(category))),
            peak_bytes: self.highest().map_or(0, |pool| pool.ledger.category_at_peak(category)),
            ..CategoryRow::default()
        }
    }

    /// Modules with everything below them: those with calls, with live bytes, or with bytes at the peak.
    fn scopes(&self, own: &HashMap<OwnerId, u64>) -> Vec<ScopeRow> {
        let at_peak = self.highest().into_iter().flat_map(|pool| {
            pool.ledger.owners().map(|(owner, _)| (owner, [pool.ledger.own_at_peak(owner)]))
        });
        let at_peak: Sums<1> = at_peak.filter(|(_, [bytes])| *bytes > 0).collect();
        let holds =
            |owner: &OwnerId| at_peak.contains_key(owner) || own.get(owner).is_some_and(|bytes| *bytes > 0);
        let mut modules = BTreeMap::from([(OwnerId::ROOT, [0; 4])]);
        for op in &self.ops {
            let OpTally { owner, module, totals, .. } = op;
            if op.has_run() || holds(owner) {
                let called = [totals.calls, totals.time_ns, totals.requested_bytes(), totals.total_bytes()];
                add(modules.entry(*module).or_default(), called);
            }
        }
        // Memory may also be charged to a module without an op.
        let ops: HashMap<OwnerId, OwnerId> = self.ops.iter().map(|op| (op.owner, op.module)).collect();
        for owner in own.keys().filter(|owner| !ops.contains_key(owner) && holds(owner)) {
            modules.entry(*owner).or_default();
        }
        let (modules, mut below) = self.with_ancestors(modules);
        let (at_peak, _) = self.with_ancestors(at_peak);

        // A tree whose siblings are in the order of their first use.
        let (mut rows, mut ahead) = (Vec::with_capacity(modules.len()), vec![OwnerId::ROOT]);
        while let Some(module) = ahead.pop() {
            let [calls, time_ns, requested_bytes, total_bytes] =
                modules.get(&module).copied().unwrap_or_default();
            let [peak_bytes] = at_peak.get(&module).copied().unwrap_or_default();
            rows.push(ScopeRow {
                scope: (self.path)(module),
                calls,
                time_ns,
                requested_bytes,
                total_bytes,
                high_water_bytes: sum(self.accounts(module).map(|account| account.peak)),
                live_bytes: sum(self.accounts(module).map(|account| account.live)),
                peak_bytes,
                peak_share: self.share(peak_bytes),
            });
            ahead.append(&mut below.remove(&module).unwrap_or_default());
        }
        rows
    }

    /// Adds the figures of each owner to those of all owners above it. Also returns the children of each owner, the last
    /// one first. Takes time in proportion to the number of owners with their ancestors.
    fn with_ancestors<const N: usize>(&self, mut own: Sums<N>) -> (Sums<N>, HashMap<OwnerId, Vec<OwnerId>>) {
        let (mut sums, mut children) = (Sums::new(), HashMap::<_, Vec<_>>::new());
        // Children have higher numbers than their parents, so that the sum of the last owner is complete.
        while let Some((owner, figures)) = own.pop_last() {
            if owner != OwnerId::ROOT {
                let parent = (self.parent)(owner);
                add(own.entry(parent).or_insert([0; N]), figures);
                children.entry(parent).or_default().push(owner);
            }
            sums.insert(owner, figures);
        }
        (sums, children)
    }
}

/// Figures by owner.
type Sums<const N: usize> = BTreeMap<OwnerId, [u64; N]>;

fn add<const N: usize>(sums: &mut [u64; N], more: [u64; N]) {
    for (sum, more) in sums.iter_mut().zip(more) {
        *sum = sum.saturating_add(more);
    }
}

/// Returns the row of a thread with its finished calls.
pub(crate) fn thread_row(thread: u64, totals: &CallTotals) -> ThreadRow {
    ThreadRow {
        thread,
        calls: totals.calls,
        time_ns: totals.time_ns,
        requested_bytes: totals.requested_bytes(),
        total_bytes: totals.total_bytes(),
        high_water_bytes: totals.high_water_bytes,
        outliving_bytes: totals.outliving_bytes,
        ..ThreadRow::default()
    }
}
