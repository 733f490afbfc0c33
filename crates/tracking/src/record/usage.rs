//! Who used how much: the figures of a recording by owner, by op, by phase and by category.
//!
//! All of it is worked out from the events in one pass, so it needs no summary and holds for a file that was cut off.

use std::collections::BTreeMap;

use bfc_core::Category;
use serde::Serialize;

use super::recording::{EventKind, Recording};
use crate::scope::Phase;

mod streams;

pub use streams::StreamUsage;
use streams::Streams;

/// The figures of a recording. All sizes are granted bytes unless they say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Usage {
    /// The peak over all pools, with what was live then.
    pub peak: Option<PeakUsage>,
    /// By op and phase over all modules, by falling share of the peak and then by falling high-water mark.
    pub ops: Vec<OpUsage>,
    /// By module, op and phase, in the same order.
    pub places: Vec<OpUsage>,
    /// By module, each before the modules below it. The first is the whole. A name under which parts of a network were put together, and
    /// their memory was charged until they got their place, is none of the modules.
    pub scopes: Vec<ScopeUsage>,
    /// By phase; what no op holds is in none.
    pub phases: Vec<PhaseUsage>,
    /// By category, all of them in fixed order.
    pub categories: Vec<CategoryUsage>,
    /// By thread, in the order of their first events.
    pub threads: Vec<ThreadUsage>,
    /// By pool and device stream, in the order of their first blocks.
    pub streams: Vec<StreamUsage>,
    /// What was kept for backward passes.
    pub saved: SavedUsage,
}

/// The moment at which most was live.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeakUsage {
    /// Bytes live.
    pub bytes: u64,
    /// When, in nanoseconds since recording began.
    pub at_ns: u64,
    /// Whose block raised it to that: the path, with op and phase.
    pub owner: String,
}

/// What an op in one phase used: everywhere, or in one module.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OpUsage {
    /// The module's path; `None` for all modules together, empty outside of modules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// The op's name.
    pub op: String,
    /// The phase.
    pub phase: Phase,
    /// Executions that began.
    pub calls: u64,
    /// Blocks taken.
    pub allocations: u64,
    /// Bytes asked for.
    pub requested_bytes: u64,
    /// Bytes granted.
    pub granted_bytes: u64,
    /// The most that one execution held at a time, of what it and the ops within it took.
    pub high_water_bytes: u64,
    /// The most that was charged to it at a time, by all executions together; over several modules, the sum of their marks.
    pub self_peak_bytes: u64,
    /// Bytes that were live when the execution that took them ended, of all executions together.
    pub outliving_bytes: u64,
    /// The most that was live in all pools when an execution began.
    pub live_before_bytes: u64,
    /// The most that was live in all pools while one ran.
    pub live_peak_bytes: u64,
    /// Bytes charged to it at the peak of the whole run.
    pub peak_bytes: u64,
    /// Their share of the peak, 0 to 1.
    pub peak_share: f64,
    /// Bytes granted, by the category that they had at first.
    pub categories: BTreeMap<&'static str, u64>,
    /// Of what it took, the most that was kept for backward passes at a time.
    pub saved_bytes: u64,
}

/// What a module and everything below it used.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ScopeUsage {
    /// The module's path; empty for the whole.
    pub scope: String,
    /// Executions of ops that began in it or below.
    pub calls: u64,
    /// Bytes granted to them.
    pub granted_bytes: u64,
    /// The most that was charged to it or below at a time.
    pub high_water_bytes: u64,
    /// Bytes charged to it or below at the peak of the whole run.
    pub peak_bytes: u64,
    /// Their share of the peak, 0 to 1.
    pub peak_share: f64,
    /// Bytes charged to it or below at the end.
    pub live_bytes: u64,
}

/// What a phase used.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhaseUsage {
    /// The phase.
    pub phase: Phase,
    /// Executions of ops that began.
    pub calls: u64,
    /// Bytes granted.
    pub granted_bytes: u64,
    /// The most that was live in all pools while one of its ops ran.
    pub live_peak_bytes: u64,
    /// Bytes charged to its ops at the peak of the whole run.
    pub peak_bytes: u64,
}

/// What was in use for one purpose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CategoryUsage {
    /// The category's name.
    pub category: &'static str,
    /// Bytes granted for it at first.
    pub granted_bytes: u64,
    /// The most that was live of it at a time.
    pub high_water_bytes: u64,
    /// What was live of it at the peak of the whole run.
    pub peak_bytes: u64,
    /// What was live of it at the end.
    pub live_bytes: u64,
}

/// What a thread did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ThreadUsage {
    /// Its number in the process.
    pub thread: u64,
    /// Executions of ops that it began.
    pub calls: u64,
    /// Bytes granted to it.
    pub granted_bytes: u64,
    /// Blocks that it took.
    pub allocations: u64,
    /// Blocks that it gave back.
    pub frees: u64,
}

/// What was kept for backward passes: blocks of the category "activation".
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SavedUsage {
    /// How many blocks were kept.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The most that was kept at a time.
    pub high_water_bytes: u64,
    /// How long a byte was kept on average, in nanoseconds.
    pub mean_held_ns: u64,
    /// How long the block was kept that was kept longest, in nanoseconds.
    pub longest_held_ns: u64,
}

/// What is counted by owner while the events pass.
#[derive(Clone, Debug, Default)]
struct Account {
    calls: u64,
    allocations: u64,
    requested: u64,
    granted: u64,
    by_category: [u64; Category::COUNT],
    high_water: u64,
    outliving: u64,
    live_before: u64,
    live_peak: u64,
    /// Charged to itself: now, and at most.
    own: Level,
    /// Charged to it and all below.
    inclusive: Level,
    /// Charged to itself as activations.
    saved: Level,
    own_at_peak: u64,
    inclusive_at_peak: u64,
}

/// A number that goes up and down, and the most that it was.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    now: u64,
    most: u64,
}

impl Level {
    const fn add(&mut self, bytes: u64) {
        self.now += bytes;
        if self.now > self.most {
            self.most = self.now;
        }
    }
}

impl Usage {
    /// The figures of a recording.
    ///
    /// ```
    /// use bfc_core::Bytes;
    /// use highwater_tracking::{Tracker, Usage};
    /// let tracker = Tracker::new();
    /// tracker.start_log(Bytes::mib(1));
    /// drop(tracker.begin("matmul"));
    /// assert_eq!(Usage::of(&tracker.take_log()).ops[0].calls, 1);
    /// ```
    #[must_use]
    pub fn of(recording: &Recording) -> Self {
        let mut count = Count::new(recording);
        for index in 0..recording.events().len() {
            count.take(index);
        }
        count.finish()
    }
}

struct Count<'a> {
    recording: &'a Recording,
    accounts: Vec<Account>,
    categories: [Level; Category::COUNT],
    category_granted: [u64; Category::COUNT],
    categories_at_peak: [u64; Category::COUNT],
    threads: Vec<ThreadUsage>,
    streams: Streams,
    /// By block: when it came to be kept for backward; `u64::MAX` if it is not.
    saved_at: Vec<u64>,
    saved: SavedUsage,
    held_byte_ns: u128,
}

impl<'a> Count<'a> {
    fn new(recording: &'a Recording) -> Self {
        let thread =
            |&thread: &u64| ThreadUsage { thread, calls: 0, granted_bytes: 0, allocations: 0, frees: 0 };
        Self {
            recording,
            accounts: vec![Account::default(); recording.owners().len()],
            categories: [Level::default(); Category::COUNT],
            category_granted: [0; Category::COUNT],
            categories_at_peak: [0; Category::COUNT],
            threads: recording.threads().iter().map(thread).collect(),
            streams: Streams::default(),
            saved_at: vec![u64::MAX; recording.blocks().len()],
            saved: SavedUsage::default(),
            held_byte_ns: 0,
        }
    }

    fn take(&mut self, index: usize) {
        let event = self.recording.events()[index];
        let thread = event.thread as usize;
        match event.kind {
            EventKind::Alloc(number) => {
                let block = self.recording.block(number);
                let account = &mut self.accounts[block.owner as usize];
                account.allocations += 1;
                account.requested = account.requested.saturating_add(block.requested);
                account.granted = account.granted.saturating_add(block.granted);
                let by_category = &mut account.by_category[block.category.index()];
                *by_category = by_category.saturating_add(block.granted);
                let granted = &mut self.category_granted[block.category.index()];
                *granted = granted.saturating_add(block.granted);
                self.streams.take(block);
                let thread = &mut self.threads[thread];
                thread.allocations += 1;
                thread.granted_bytes = thread.granted_bytes.saturating_add(block.granted);
                self.charge(number, block.granted, block.owner, block.category, event.at_ns);
            }
            EventKind::Free(number) => {
                let block = self.recording.block(number);
                self.threads[thread].frees += 1;
                self.streams.give_back(block);
                self.discharge(number, block.granted, block.last_owner, block.last_category, event.at_ns);
            }
            EventKind::Retag(retag) => {
                let retag = self.recording.retags()[retag as usize];
                let bytes = self.recording.block(retag.block).granted;
                self.discharge(retag.block, bytes, retag.old_owner, retag.old_category, event.at_ns);
                self.charge(retag.block, bytes, retag.owner, retag.category, event.at_ns);
            }
            EventKind::Enter(number) => {
                let execution = self.recording.executions()[number as usize];
                self.threads[thread].calls += 1;
                let account = &mut self.accounts[execution.owner as usize];
                account.calls += 1;
                account.high_water = account.high_water.max(execution.high_water);
                account.outliving = account.outliving.saturating_add(execution.outliving);
                account.live_before = account.live_before.max(execution.live_before);
                account.live_peak = account.live_peak.max(execution.live_peak);
            }
            _ => {}
        }
        if self.recording.peak().is_some_and(|peak| peak.event as usize == index) {
            for account in &mut self.accounts {
                (account.own_at_peak, account.inclusive_at_peak) = (account.own.now, account.inclusive.now);
            }
            self.categories_at_peak = self.categories.map(|level| level.now);
            self.streams.note_peak();
        }
    }

    fn charge(&mut self, block: u32, bytes: u64, owner: u32, category: Category, now: u64) {
        self.categories[category.index()].add(bytes);
        let account = &mut self.accounts[owner as usize];
        account.own.add(bytes);
        if category == Category::Activation {
            account.saved.add(bytes);
            if self.saved_at[block as usize] == u64::MAX {
                self.saved.blocks += 1;
                self.saved.bytes = self.saved.bytes.saturating_add(bytes);
            }
            self.saved_at[block as usize] = now;
        }
        let mut above = owner;
        loop {
            self.accounts[above as usize].inclusive.add(bytes);
            if above == 0 {
                return;
            }
            above = self.recording.owner(above).parent;
        }
    }

    fn discharge(&mut self, block: u32, bytes: u64, owner: u32, category: Category, now: u64) {
        self.categories[category.index()].now -= bytes;
        let account = &mut self.accounts[owner as usize];
        account.own.now -= bytes;
        if category == Category::Activation {
            account.saved.now -= bytes;
            self.let_go(block, bytes, now);
        }
        let mut above = owner;
        loop {
            self.accounts[above as usize].inclusive.now -= bytes;
            if above == 0 {
                return;
            }
            above = self.recording.owner(above).parent;
        }
    }

    /// Counts how long a block was kept for backward.
    fn let_go(&mut self, block: u32, bytes: u64, now: u64) {
        let held = now.saturating_sub(self.saved_at[block as usize]);
        self.saved.longest_held_ns = self.saved.longest_held_ns.max(held);
        let byte_ns = u128::from(held).saturating_mul(bytes.into());
        self.held_byte_ns = self.held_byte_ns.saturating_add(byte_ns);
    }

    fn finish(mut self) -> Usage {
        // What is kept at the end has been kept up to there.
        for (number, block) in (0..).zip(self.recording.blocks()) {
            if block.freed.is_none() && block.last_category == Category::Activation {
                self.let_go(number, block.granted, self.recording.end_ns());
            }
        }
        self.saved.high_water_bytes = self.categories[Category::Activation.index()].most;
        let mean = self.held_byte_ns / u128::from(self.saved.bytes.max(1));
        self.saved.mean_held_ns = u64::try_from(mean).unwrap_or(u64::MAX);

        let places = self.places();
        Usage {
            peak: self.peak(),
            ops: by_op(&places),
            phases: by_phase(&places),
            places,
            scopes: self.scopes(),
            categories: self.by_category(),
            threads: self.threads,
            streams: self.streams.finish(self.recording),
            saved: self.saved,
        }
    }

    fn share(&self, bytes: u64) -> f64 {
        self.recording.peak().map_or(0.0, |peak| bytes as f64 / peak.bytes.max(1) as f64)
    }

    fn peak(&self) -> Option<PeakUsage> {
        let peak = self.recording.peak()?;
        let event = self.recording.events()[peak.event as usize];
        let EventKind::Alloc(block) = event.kind else { return None };
        let owner = self.recording.owner_path(self.recording.block(block).owner);
        Some(PeakUsage { bytes: peak.bytes, at_ns: event.at_ns, owner })
    }

    fn places(&self) -> Vec<OpUsage> {
        let mut places: Vec<OpUsage> = Vec::new();
        for (number, account) in (0..).zip(&self.accounts) {
            let owner = self.recording.owner(number);
            let Some(phase) = owner.phase.filter(|_| account.calls > 0 || account.own.most > 0) else {
                continue;
            };
            // Inserted, as a map that is collected brings a sort of its own.
            let mut categories = BTreeMap::new();
            for category in Category::ALL {
                let bytes = account.by_category[category.index()];
                if bytes > 0 {
                    categories.insert(category.name(), bytes);
                }
            }
            places.push(OpUsage {
                scope: Some(self.recording.owner_path(owner.parent)),
                op: owner.op_name().to_owned(),
                phase,
                calls: account.calls,
                allocations: account.allocations,
                requested_bytes: account.requested,
                granted_bytes: account.granted,
                high_water_bytes: account.high_water,
                self_peak_bytes: account.own.most,
                outliving_bytes: account.outliving,
                live_before_bytes: account.live_before,
                live_peak_bytes: account.live_peak,
                peak_bytes: account.own_at_peak,
                peak_share: self.share(account.own_at_peak),
                categories,
                saved_bytes: account.saved.most,
            });
        }
        sort(&mut places);
        places
    }

    /// Modules in the order of a tree, in which siblings stand in the order of their names' first use.
    fn scopes(&self) -> Vec<ScopeUsage> {
        // Calls and bytes of all below: children stand behind their parents, so going backwards each is complete.
        let mut sums: Vec<(u64, u64)> =
            self.accounts.iter().map(|account| (account.calls, account.granted)).collect();
        let mut children: Vec<Vec<u32>> = vec![Vec::new(); self.accounts.len()];
        for number in (1..self.accounts.len()).rev() {
            let parent = self.recording.owner(number as u32).parent as usize;
            let (calls, granted) = sums[number];
            sums[parent] = (sums[parent].0 + calls, sums[parent].1.saturating_add(granted));
            if !self.recording.owner(number as u32).is_op() {
                children[parent].push(number as u32);
            }
        }
        let (mut scopes, mut ahead) = (Vec::new(), vec![0_u32]);
        while let Some(number) = ahead.pop() {
            let account = &self.accounts[number as usize];
            let (calls, granted_bytes) = sums[number as usize];
            let holds = account.inclusive.now.max(account.inclusive_at_peak);
            if number == 0 || calls > 0 || holds > 0 {
                scopes.push(ScopeUsage {
                    scope: self.recording.owner_path(number),
                    calls,
                    granted_bytes,
                    high_water_bytes: account.inclusive.most,
                    peak_bytes: account.inclusive_at_peak,
                    peak_share: self.share(account.inclusive_at_peak),
                    live_bytes: account.inclusive.now,
                });
            }
            ahead.append(&mut children[number as usize]);
        }
        scopes
    }

    fn by_category(&self) -> Vec<CategoryUsage> {
        let usage = |category: Category| {
            let index = category.index();
            CategoryUsage {
                category: category.name(),
                granted_bytes: self.category_granted[index],
                high_water_bytes: self.categories[index].most,
                peak_bytes: self.categories_at_peak[index],
                live_bytes: self.categories[index].now,
            }
        };
        Category::ALL.map(usage).into()
    }
}

/// The rows of an op in a phase, made one.
fn by_op(places: &[OpUsage]) -> Vec<OpUsage> {
    let mut ops: BTreeMap<(Phase, &str), OpUsage> = BTreeMap::new();
    for place in places {
        let op = ops.entry((place.phase, &place.op)).or_insert_with(|| OpUsage {
            op: place.op.clone(),
            phase: place.phase,
            ..OpUsage::default()
        });
        op.calls += place.calls;
        op.allocations += place.allocations;
        op.requested_bytes = op.requested_bytes.saturating_add(place.requested_bytes);
        op.granted_bytes = op.granted_bytes.saturating_add(place.granted_bytes);
        op.high_water_bytes = op.high_water_bytes.max(place.high_water_bytes);
        op.self_peak_bytes = op.self_peak_bytes.saturating_add(place.self_peak_bytes);
        op.outliving_bytes = op.outliving_bytes.saturating_add(place.outliving_bytes);
        op.live_before_bytes = op.live_before_bytes.max(place.live_before_bytes);
        op.live_peak_bytes = op.live_peak_bytes.max(place.live_peak_bytes);
        op.peak_bytes = op.peak_bytes.saturating_add(place.peak_bytes);
        op.peak_share += place.peak_share;
        op.saved_bytes = op.saved_bytes.saturating_add(place.saved_bytes);
        for (category, bytes) in &place.categories {
            let sum = op.categories.entry(category).or_default();
            *sum = sum.saturating_add(*bytes);
        }
    }
    let mut ops: Vec<OpUsage> = ops.into_values().collect();
    sort(&mut ops);
    ops
}

fn by_phase(places: &[OpUsage]) -> Vec<PhaseUsage> {
    let mut phases: BTreeMap<Phase, PhaseUsage> = BTreeMap::new();
    for place in places {
        let phase = place.phase;
        let sum = phases.entry(phase).or_insert(PhaseUsage {
            phase,
            calls: 0,
            granted_bytes: 0,
            live_peak_bytes: 0,
            peak_bytes: 0,
        });
        sum.calls += place.calls;
        sum.granted_bytes = sum.granted_bytes.saturating_add(place.granted_bytes);
        sum.live_peak_bytes = sum.live_peak_bytes.max(place.live_peak_bytes);
        sum.peak_bytes = sum.peak_bytes.saturating_add(place.peak_bytes);
    }
    phases.into_values().collect()
}

fn sort(rows: &mut [OpUsage]) {
    rows.sort_by(|a, b| {
        let weight = |row: &OpUsage| (row.peak_bytes, row.high_water_bytes);
        weight(b).cmp(&weight(a)).then_with(|| (a.phase, &a.op, &a.scope).cmp(&(b.phase, &b.op, &b.scope)))
    });
}

#[cfg(test)]
mod tests;
