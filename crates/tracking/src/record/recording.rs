//! A recording as it is read: tables of what there was, and events in order that point into them.
//!
//! Everything is told apart by small numbers: owners, pools, threads, allocations ("blocks"), executions of ops. An
//! [`Event`] says when and on which thread something happened, and names the row of the table that says the rest. So a
//! reader may go through events in order, or straight through the blocks, which know their first and last event.

use std::collections::BTreeMap;

use bfc_core::{Category, OomReport};

use super::peak::Peak;
use super::summary::RunSummary;
use super::timeline::Timeline;
use crate::report::{Cut, RunFacts};
use crate::scope::Phase;

/// What was recorded of a run: from a file by [`Recording::read`], from memory by
/// [`Tracker::take_log`](crate::Tracker::take_log).
///
/// It holds together, whatever it was read from: every number in it is one of a row that exists, blocks end after they
/// began, live bytes never leave 64 bits. All sizes are bytes, all times nanoseconds since recording began.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::{Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Category, HostMemory, Request};
/// use highwater_tracking::{EventKind, Tracker, module};
///
/// let config = BfcConfig::new(Bytes::mib(1));
/// let pool: Arc<dyn Allocator> = Arc::new(BfcAllocator::new("cpu", Arc::new(HostMemory::new()), config));
/// let tracker = Tracker::new();
/// tracker.start_log(Bytes::mib(1));
/// {
///     let _scope = module("net.fc1");
///     let run = tracker.begin("matmul");
///     let _out = Allocation::new(&run.track(&pool), &Request::new(1000).with_category(Category::Output))?;
/// }
/// let recording = tracker.take_log();
///
/// let kinds: Vec<_> = recording.events().iter().map(|event| event.kind).collect();
/// use EventKind::{Alloc, Enter, Free, Leave, Region};
/// assert_eq!(kinds, [Enter(0), Region(0), Alloc(0), Free(0), Leave(0)]);
/// let block = recording.block(0);
/// assert_eq!((block.requested, block.granted, block.category), (1000, 1024, Category::Output));
/// assert_eq!(recording.owner_path(block.owner), "net.fc1.matmul");
/// assert_eq!(recording.peak().unwrap().bytes, 1024);
/// # Ok::<(), bfc_core::AllocError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    pub(super) facts: RunFacts,
    pub(super) owners: Vec<Owner>,
    pub(super) pools: Vec<PoolName>,
    pub(super) threads: Vec<u64>,
    pub(super) events: Vec<Event>,
    pub(super) blocks: Vec<BlockLife>,
    pub(super) retags: Vec<Retag>,
    pub(super) executions: Vec<Execution>,
    pub(super) failures: Vec<Failure>,
    /// What is known of the first failures, by their numbers.
    pub(super) reports: BTreeMap<u32, OomReport>,
    pub(super) regions: Vec<Region>,
    pub(super) marks: Vec<String>,
    pub(super) peak: Option<Peak>,
    pub(super) lost: u64,
    pub(super) carried: usize,
    pub(super) skipped: u64,
    pub(super) summary: Option<RunSummary>,
    pub(super) cut: Option<Cut>,
}

impl Default for Recording {
    /// A recording of nothing, whose only owner is the root.
    fn default() -> Self {
        Self {
            facts: RunFacts::default(),
            owners: vec![Owner::default()],
            pools: Vec::new(),
            threads: Vec::new(),
            events: Vec::new(),
            blocks: Vec::new(),
            retags: Vec::new(),
            executions: Vec::new(),
            failures: Vec::new(),
            reports: BTreeMap::new(),
            regions: Vec::new(),
            marks: Vec::new(),
            peak: None,
            lost: 0,
            carried: 0,
            skipped: 0,
            summary: None,
            cut: None,
        }
    }
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since recording began.
    pub at_ns: u64,
    /// The thread, as an index into [`Recording::threads`].
    pub thread: u32,
    /// What it was.
    pub kind: EventKind,
}

/// What happened, with the index of the row that says more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// A block was handed out: an index into [`Recording::blocks`]. Blocks are numbered in this order.
    Alloc(u32),
    /// A block was given back.
    Free(u32),
    /// A block changed its owner or its category: an index into [`Recording::retags`].
    Retag(u32),
    /// An op began: an index into [`Recording::executions`].
    Enter(u32),
    /// It ended.
    Leave(u32),
    /// A request found no memory: an index into [`Recording::failures`].
    Failed(u32),
    /// A pool took a region from its source or gave one back: an index into [`Recording::regions`].
    Region(u32),
    /// A moment that somebody wanted to find again: an index into [`Recording::marks`].
    Mark(u32),
}

/// Who holds memory: a module, or an op in a phase below one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The name, without those above it; an op's bears its phase: `matmul:backward`. Empty for the root.
    pub name: String,
    /// The owner above; always one with a smaller index. The root, 0, is its own.
    pub parent: u32,
    /// The phase, for an op; `None` for a module.
    pub phase: Option<Phase>,
}

impl Owner {
    /// Whether this is an op.
    #[must_use]
    pub const fn is_op(&self) -> bool {
        self.phase.is_some()
    }

    /// An op's name without its phase; the name of anything else.
    #[must_use]
    pub fn op_name(&self) -> &str {
        let suffix = match self.phase {
            Some(phase @ (Phase::Backward | Phase::Optimizer)) => phase.name(),
            Some(Phase::Forward) | None => return &self.name,
        };
        let name = self.name.strip_suffix(suffix).and_then(|name| name.strip_suffix(':'));
        name.unwrap_or(&self.name)
    }
}

/// A pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolName {
    /// What it is called.
    pub name: String,
    /// What kind of memory it hands out (see [`MemoryKind::name`](bfc_core::MemoryKind::name)).
    pub memory: String,
}

/// A block from its allocation to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLife {
    /// Bytes asked for.
    pub requested: u64,
    /// Bytes granted.
    pub granted: u64,
    /// Where it lies.
    pub address: u64,
    /// Whom it was charged to at first: an index into [`Recording::owners`].
    pub owner: u32,
    /// What it was for at first.
    pub category: Category,
    /// The pool, as an index into [`Recording::pools`].
    pub pool: u32,
    /// The device stream; 0 on the host.
    pub stream: u32,
    /// The event that began it.
    pub born: u32,
    /// The event that ended it; `None` if it is live at the end of the recording.
    pub freed: Option<u32>,
    /// Whom it was charged to at last.
    pub last_owner: u32,
    /// What it was for at last.
    pub last_category: Category,
}

/// A change of what a live block is charged to, as when a result is kept for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retag {
    /// The block.
    pub block: u32,
    /// Whom it was charged to before.
    pub old_owner: u32,
    /// What it was for before.
    pub old_category: Category,
    /// Whom it is charged to from now on.
    pub owner: u32,
    /// What it is for from now on.
    pub category: Category,
}

/// One execution of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Execution {
    /// The op.
    pub owner: u32,
    /// The event that began it.
    pub entered: u32,
    /// The event that ended it; `None` if it was running at the end of the recording.
    pub left: Option<u32>,
    /// Live bytes of all pools when it began.
    pub live_before: u64,
    /// The most that was live in all pools while it ran, whoever held it.
    pub live_peak: u64,
    /// The most that it held at a time, of what it took itself; 0 while it has not ended.
    pub high_water: u64,
    /// Of what it took, bytes that were live when it ended.
    pub outliving: u64,
}

/// A request that found no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Bytes asked for.
    pub requested: u64,
    /// Who asked.
    pub owner: u32,
    /// What for.
    pub category: Category,
    /// The pool.
    pub pool: u32,
}

/// A region that a pool took from its source, or gave back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Where it begins.
    pub address: u64,
    /// How long it is.
    pub bytes: u64,
    /// Whether it was taken; else it was given back.
    pub taken: bool,
    /// The pool.
    pub pool: u32,
}

impl Recording {
    /// What the run was, as it was known when it began. Empty for a recording in memory.
    #[must_use]
    pub const fn facts(&self) -> &RunFacts {
        &self.facts
    }

    /// What the run came to; `None` for a recording in memory, and for a file that was cut off.
    #[must_use]
    pub const fn summary(&self) -> Option<&RunSummary> {
        self.summary.as_ref()
    }

    /// Where and why the file could not be read further; `None` for a whole one.
    #[must_use]
    pub const fn cut(&self) -> Option<&Cut> {
        self.cut.as_ref()
    }

    /// How many events at the beginning were lost because memory for them had run out.
    #[must_use]
    pub const fn lost_events(&self) -> u64 {
        self.lost
    }

    /// Whether events were lost because memory for them had run out.
    #[must_use]
    pub const fn overflowed(&self) -> bool {
        self.lost > 0
    }

    /// How many events at the beginning stand for those lost: regions, and the allocations of what was still live where
    /// the recording sets in, all at their true times.
    #[must_use]
    pub const fn carried_events(&self) -> usize {
        self.carried
    }

    /// How many events were left out because they named blocks that were not live: as a rule, blocks from before
    /// recording began.
    #[must_use]
    pub const fn skipped_events(&self) -> u64 {
        self.skipped
    }

    /// All events, in order.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// All blocks, in the order of their allocation.
    #[must_use]
    pub fn blocks(&self) -> &[BlockLife] {
        &self.blocks
    }

    /// Owners; the first is the root, and every other stands after the one above it.
    #[must_use]
    pub fn owners(&self) -> &[Owner] {
        &self.owners
    }

    /// Pools, in the order of their first use.
    #[must_use]
    pub fn pools(&self) -> &[PoolName] {
        &self.pools
    }

    /// Threads, by the numbers that they had in the process.
    #[must_use]
    pub fn threads(&self) -> &[u64] {
        &self.threads
    }

    /// Changes of owner or category.
    #[must_use]
    pub fn retags(&self) -> &[Retag] {
        &self.retags
    }

    /// Executions of ops, in the order of their beginnings.
    #[must_use]
    pub fn executions(&self) -> &[Execution] {
        &self.executions
    }

    /// What is known of a failure, by its number: of the first failures of a recording in full.
    #[must_use]
    pub fn report_of(&self, failure: u32) -> Option<&OomReport> {
        self.reports.get(&failure)
    }

    /// Requests that found no memory.
    #[must_use]
    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// Regions that were taken and given back.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Texts of marks.
    #[must_use]
    pub fn marks(&self) -> &[String] {
        &self.marks
    }

    /// A block by its index.
    ///
    /// # Panics
    /// If there is none; an index from an event of this recording is one.
    #[must_use]
    pub fn block(&self, block: u32) -> &BlockLife {
        &self.blocks[block as usize]
    }

    /// An owner by its index.
    ///
    /// # Panics
    /// If there is none; an index from a row of this recording is one.
    #[must_use]
    pub fn owner(&self, owner: u32) -> &Owner {
        &self.owners[owner as usize]
    }

    /// The owner and those above it, from the top down, without the root.
    ///
    /// # Panics
    /// As [`owner`](Self::owner).
    #[must_use]
    pub fn lineage(&self, owner: u32) -> Vec<u32> {
        let up = |&owner: &u32| Some(self.owner(owner).parent);
        let mut owners: Vec<u32> =
            std::iter::successors(Some(owner), up).take_while(|&owner| owner != 0).collect();
        owners.reverse();
        owners
    }

    /// The names from below the root down to the owner, joined by dots; empty for the root.
    ///
    /// # Panics
    /// As [`owner`](Self::owner).
    #[must_use]
    pub fn owner_path(&self, owner: u32) -> String {
        super::tally::path(&self.owners, owner)
    }

    /// The module of an owner: the one above an op, the owner itself otherwise.
    ///
    /// # Panics
    /// As [`owner`](Self::owner).
    #[must_use]
    pub fn module_of(&self, owner: u32) -> u32 {
        let found = self.owner(owner);
        if found.is_op() { found.parent } else { owner }
    }

    /// When an event happened, in nanoseconds since recording began; the time of the last event for an index beyond it.
    #[must_use]
    pub fn time_of(&self, event: u32) -> u64 {
        self.events.get(event as usize).map_or_else(|| self.end_ns(), |event| event.at_ns)
    }

    /// When the last event happened, in nanoseconds since recording began.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        self.events.last().map_or(0, |event| event.at_ns)
    }

    /// From when to when a block lived; one that is live at the end, to the last event.
    #[must_use]
    pub fn life_ns(&self, block: &BlockLife) -> (u64, u64) {
        (self.time_of(block.born), self.time_of(block.freed.unwrap_or(u32::MAX)))
    }

    /// Live bytes by category after each event that changes them, over all pools.
    #[must_use]
    pub fn timeline(&self) -> Timeline<'_> {
        Timeline::new(self, None)
    }

    /// Live bytes by category after each event that changes them, of one pool.
    #[must_use]
    pub fn timeline_of(&self, pool: u32) -> Timeline<'_> {
        Timeline::new(self, Some(pool))
    }

    /// The moment at which most was live, over all pools; `None` if nothing ever was.
    #[must_use]
    pub const fn peak(&self) -> Option<&Peak> {
        self.peak.as_ref()
    }
}

#[cfg(test)]
impl Recording {
    /// Names the program, which a recording in memory leaves open.
    pub(crate) fn set_program(&mut self, program: &str) {
        program.clone_into(&mut self.facts.program);
    }
}
