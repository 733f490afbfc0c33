//! Counts events into the figures of a report: for a complete recording, and for one that still grows.
//!
//! The caller passes each event once, in order. Owners form a tree: a charge counts for the owner itself and for every
//! owner above it. Memory grows with the number of owners, not with the number of events.

use bfc_core::Category;
use highwater_files::boundary::fitting;

use super::recording::{BlockLife, Execution, Owner};
use crate::report::{CategoryRow, Class, OpRow, PeakRow, Report, SavedRow, ScopeRow};

/// A number of bytes that rises and falls, its maximum, and its value at the last peak of the run.
///
/// The value at the peak is stored by the first change after the peak, because peaks are often followed by higher ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Level {
    now: u64,
    most: u64,
    at_peak: u64,
    /// The number of the peak that `at_peak` belongs to.
    peak: u64,
}

impl Level {
    pub(super) const fn add(&mut self, bytes: u64, peak: u64) {
        self.before_change(peak);
        self.now += bytes;
        if self.now > self.most {
            self.most = self.now;
        }
    }

    pub(super) const fn remove(&mut self, bytes: u64, peak: u64) {
        self.before_change(peak);
        self.now -= bytes;
    }

    const fn before_change(&mut self, peak: u64) {
        if self.peak != peak {
            (self.at_peak, self.peak) = (self.now, peak);
        }
    }

    pub(super) const fn now(&self) -> u64 {
        self.now
    }

    pub(super) const fn most(&self) -> u64 {
        self.most
    }

    pub(super) const fn at_peak(&self, peak: u64) -> u64 {
        if self.peak == peak { self.at_peak } else { self.now }
    }
}

/// The account of an owner.
#[derive(Clone, Debug, Default)]
struct Account {
    parent: u32,
    calls: u64,
    time_ns: u64,
    allocations: u64,
    requested: u64,
    classes: [u64; Class::COUNT],
    high_water: u64,
    outliving: u64,
    live_before: u64,
    live_peak: u64,
    /// Charged to the owner itself.
    own: Level,
    /// Charged to the owner and all below it.
    inclusive: Level,
    /// Charged to the owner itself as activations.
    saved: Level,
}

impl Account {
    fn total(&self) -> u64 {
        crate::report::sum(self.classes.iter().copied())
    }
}

/// A live block, as far as its account needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charge {
    pub(super) bytes: u64,
    pub(super) owner: u32,
    pub(super) category: Category,
    /// When the block became an activation; `u64::MAX` if it never was one.
    pub(super) saved_at: u64,
}

impl Charge {
    pub(super) const fn of(block: &BlockLife) -> Self {
        let BlockLife { granted, owner, category, .. } = *block;
        Self { bytes: granted, owner, category, saved_at: u64::MAX }
    }
}

/// The sums over the events so far.
#[derive(Debug)]
pub(super) struct Tally {
    accounts: Vec<Account>,
    categories: [Level; Category::COUNT],
    category_totals: [u64; Category::COUNT],
    live: u64,
    peak_bytes: u64,
    peak_at_ns: u64,
    peak_owner: u32,
    /// How often the peak was raised: the number of the last peak.
    peaks: u64,
    saved: SavedRow,
    held_byte_ns: u128,
}

impl Default for Tally {
    /// Nothing counted; the only owner is the root.
    fn default() -> Self {
        Self {
            accounts: vec![Account::default()],
            categories: [Level::default(); Category::COUNT],
            category_totals: [0; Category::COUNT],
            live: 0,
            peak_bytes: 0,
            peak_at_ns: 0,
            peak_owner: 0,
            peaks: 0,
            saved: SavedRow::default(),
            held_byte_ns: 0,
        }
    }
}

impl Tally {
    /// Adds an owner below another one.
    pub(super) fn add_owner(&mut self, parent: u32) {
        self.accounts.push(Account { parent, ..Account::default() });
    }

    pub(super) const fn live(&self) -> u64 {
        self.live
    }

    /// The number of the last peak.
    pub(super) const fn peaks(&self) -> u64 {
        self.peaks
    }

    /// Counts an allocation. Live bytes must not exceed 64 bits with it.
    pub(super) fn allocate(&mut self, block: &mut Charge, requested: u64, now: u64) {
        let account = &mut self.accounts[block.owner as usize];
        account.allocations += 1;
        account.requested = account.requested.saturating_add(requested);
        let class = &mut account.classes[Class::of(block.category) as usize];
        *class = class.saturating_add(block.bytes);
        let total = &mut self.category_totals[block.category.index()];
        *total = total.saturating_add(block.bytes);
        self.charge(block, now);
    }

    /// Counts that a block is freed.
    pub(super) fn free(&mut self, block: &Charge, now: u64) {
        self.discharge(block, now);
    }

    /// Counts that a block gets another owner and category.
    pub(super) fn retag(&mut self, block: &mut Charge, owner: u32, category: Category, now: u64) {
        self.discharge(block, now);
        (block.owner, block.category) = (owner, category);
        self.charge(block, now);
    }

    /// Counts the beginning of an execution.
    pub(super) fn call(&mut self, owner: u32) {
        self.accounts[owner as usize].calls += 1;
    }

    /// Counts the time and the marks of a complete execution.
    pub(super) fn execution(&mut self, execution: &Execution, time_ns: u64) {
        let account = &mut self.accounts[execution.owner as usize];
        account.time_ns = account.time_ns.saturating_add(time_ns);
        account.high_water = account.high_water.max(execution.high_water);
        account.outliving = account.outliving.saturating_add(execution.outliving);
        account.live_before = account.live_before.max(execution.live_before);
        account.live_peak = account.live_peak.max(execution.live_peak);
    }

    fn charge(&mut self, block: &mut Charge, now: u64) {
        let Charge { bytes, owner, category, .. } = *block;
        let peak = self.peaks;
        self.live += bytes;
        self.categories[category.index()].add(bytes, peak);
        let account = &mut self.accounts[owner as usize];
        account.own.add(bytes, peak);
        if category == Category::Activation {
            account.saved.add(bytes, peak);
            if block.saved_at == u64::MAX {
                self.saved.blocks += 1;
                self.saved.bytes = self.saved.bytes.saturating_add(bytes);
            }
            block.saved_at = now;
        }
        self.for_each_above(owner, |account| account.inclusive.add(bytes, peak));
        if self.live > self.peak_bytes {
            (self.peak_bytes, self.peak_at_ns, self.peak_owner) = (self.live, now, owner);
            self.peaks += 1;
        }
    }

    fn discharge(&mut self, block: &Charge, now: u64) {
        let Charge { bytes, owner, category, .. } = *block;
        let peak = self.peaks;
        self.live -= bytes;
        self.categories[category.index()].remove(bytes, peak);
        let account = &mut self.accounts[owner as usize];
        account.own.remove(bytes, peak);
        if category == Category::Activation {
            account.saved.remove(bytes, peak);
            self.end_saved(block, now);
        }
        self.for_each_above(owner, |account| account.inclusive.remove(bytes, peak));
    }

    /// Counts how long a block was kept for backward. Blocks that are live at the end count up to there.
    pub(super) fn end_saved(&mut self, block: &Charge, now: u64) {
        let held = now.saturating_sub(block.saved_at);
        self.saved.longest_held_ns = self.saved.longest_held_ns.max(held);
        let byte_ns = u128::from(held).saturating_mul(block.bytes.into());
        self.held_byte_ns = self.held_byte_ns.saturating_add(byte_ns);
    }

    /// Visits an owner and all above it.
    fn for_each_above(&mut self, owner: u32, mut visit: impl FnMut(&mut Account)) {
        let mut above = owner;
        loop {
            let account = &mut self.accounts[above as usize];
            visit(account);
            if above == 0 {
                return;
            }
            above = account.parent;
        }
    }

    /// The peak, categories and saved blocks: the parts of a report whose size does not depend on the owners.
    pub(super) fn summary(&self, owners: &[Owner]) -> Report {
        let activations = &self.categories[Category::Activation.index()];
        let mean = self.held_byte_ns / u128::from(self.saved.bytes.max(1));
        let peak = || {
            let owner = &owners[self.peak_owner as usize];
            PeakRow {
                bytes: self.peak_bytes,
                at_ns: Some(self.peak_at_ns),
                scope: path(owners, if owner.is_op() { owner.parent } else { self.peak_owner }),
                op: owner.is_op().then(|| owner.op_name().to_owned()),
                phase: owner.phase,
                ..PeakRow::default()
            }
        };
        Report {
            peak: (self.peak_bytes > 0).then(peak),
            categories: Category::ALL.iter().map(|&category| self.category(category)).collect(),
            saved: SavedRow {
                high_water_bytes: activations.most,
                live_bytes: activations.now,
                mean_held_ns: u64::try_from(mean).unwrap_or(u64::MAX),
                ..self.saved
            },
            ..Report::default()
        }
    }

    fn category(&self, category: Category) -> CategoryRow {
        let level = &self.categories[category.index()];
        CategoryRow {
            category: category.name().to_owned(),
            total_bytes: self.category_totals[category.index()],
            high_water_bytes: level.most,
            peak_bytes: level.at_peak(self.peaks),
            live_bytes: level.now,
        }
    }

    /// The rows by owner, and those that follow from them.
    pub(super) fn complete(&self, report: &mut Report, owners: &[Owner]) {
        let mut places = Vec::new();
        for (owner, account) in (0..).zip(&self.accounts) {
            let is_op = owners[owner as usize].is_op();
            if is_op && (account.calls > 0 || account.own.most > 0) {
                places.push(self.place(owner, owners));
            } else if !is_op {
                report.unowned_bytes += account.own.now;
            }
        }
        report.set_places(places);
        report.scopes = self.scopes(owners);
    }

    /// The owners that hold most now, then those that held most at the peak; also modules that hold memory outside of
    /// ops. Only these owners get a path, because the paths of a hostile file may be long.
    pub(super) fn largest(&self, owners: &[Owner], most: usize) -> Vec<OpRow> {
        let used = |&owner: &u32| {
            let account = &self.accounts[owner as usize];
            account.calls > 0 || account.own.most > 0
        };
        let mut found: Vec<u32> = (0..self.accounts.len() as u32).filter(used).collect();
        found.sort_by_key(|&owner| {
            let own = &self.accounts[owner as usize].own;
            (std::cmp::Reverse((own.now, own.at_peak(self.peaks), own.most)), owner)
        });
        found.into_iter().take(most).map(|owner| self.place(owner, owners)).collect()
    }

    fn place(&self, number: u32, owners: &[Owner]) -> OpRow {
        let (owner, account) = (&owners[number as usize], &self.accounts[number as usize]);
        let peak_bytes = account.own.at_peak(self.peaks);
        let [temporary_bytes, output_bytes, persistent_bytes] = account.classes;
        OpRow {
            scope: Some(path(owners, if owner.is_op() { owner.parent } else { number })),
            op: if owner.is_op() { owner.op_name().to_owned() } else { String::new() },
            phase: owner.phase.unwrap_or_default(),
            calls: account.calls,
            time_ns: account.time_ns,
            allocations: account.allocations,
            requested_bytes: account.requested,
            total_bytes: account.total(),
            high_water_bytes: account.high_water,
            self_peak_bytes: account.own.most,
            live_bytes: account.own.now,
            outliving_bytes: account.outliving,
            live_before_bytes: account.live_before,
            live_peak_bytes: account.live_peak,
            peak_bytes,
            peak_share: self.share(peak_bytes),
            saved_bytes: account.saved.most,
            temporary_bytes,
            output_bytes,
            persistent_bytes,
        }
    }

    /// Modules in the order of a tree whose siblings are in the order of their first use.
    fn scopes(&self, owners: &[Owner]) -> Vec<ScopeRow> {
        // Owners stand behind their parents, so going backwards each sum is complete.
        let mut sums: Vec<[u64; 4]> = self
            .accounts
            .iter()
            .map(|account| [account.calls, account.time_ns, account.requested, account.total()])
            .collect();
        let mut children: Vec<Vec<u32>> = vec![Vec::new(); sums.len()];
        for number in (1..sums.len()).rev() {
            let parent = self.accounts[number].parent as usize;
            let below = sums[number];
            for (sum, more) in sums[parent].iter_mut().zip(below) {
                *sum = sum.saturating_add(more);
            }
            if !owners[number].is_op() {
                children[parent].push(number as u32);
            }
        }
        let (mut scopes, mut ahead) = (Vec::new(), vec![0_u32]);
        while let Some(number) = ahead.pop() {
            let level = &self.accounts[number as usize].inclusive;
            let [calls, time_ns, requested_bytes, total_bytes] = sums[number as usize];
            let peak_bytes = level.at_peak(self.peaks);
            if number == 0 || calls > 0 || level.now.max(peak_bytes) > 0 {
                scopes.push(ScopeRow {
                    scope: path(owners, number),
                    calls,
                    time_ns,
                    requested_bytes,
                    total_bytes,
                    high_water_bytes: level.most,
                    live_bytes: level.now,
                    peak_bytes,
                    peak_share: self.share(peak_bytes),
                });
            }
            ahead.append(&mut children[number as usize]);
        }
        scopes
    }

    fn share(&self, bytes: u64) -> f64 {
        bytes as f64 / self.peak_bytes.max(1) as f64
    }
}

/// The longest path, without the last name. A longer path loses the names in its middle, so that the paths of deep
/// owners take memory in proportion to the number of owners.
pub(super) const MAX_PATH: usize = 1024;

/// The names from below the root down to an owner, joined by dots.
pub(super) fn path<'a>(owners: &'a [Owner], owner: u32) -> String {
    let mut lineage = Vec::new();
    let (mut above, mut bytes) = (owner, 0);
    while above != 0 {
        let owner = &owners[above as usize];
        lineage.push(owner);
        bytes += owner.name.len() + 1;
        above = owner.parent;
    }
    lineage.reverse();
    let names =
        |lineage: &[&Owner]| lineage.iter().map(|owner| owner.name.as_str()).collect::<Vec<_>>().join(".");
    if bytes <= MAX_PATH {
        return names(&lineage);
    }
    // The end of a path is more informative.
    let name = |owner: &&'a Owner| owner.name.as_str();
    let outer = fitting(lineage.iter().map(name), MAX_PATH / 4);
    let inner = fitting(lineage.iter().rev().map(name), MAX_PATH / 2).clamp(1, lineage.len() - outer);
    let (begin, rest) = lineage.split_at(outer);
    let (omitted, end) = rest.split_at(rest.len() - inner);
    let Some(last) = omitted.last() else { return names(&lineage) };
    let omitted = format!("({} more {:016x})", omitted.len(), last.path_hash);
    [names(begin), omitted, names(end)]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(".")
}

#[cfg(test)]
mod tests;
