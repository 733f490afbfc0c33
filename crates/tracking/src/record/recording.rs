//! A recording in memory: tables of rows, and events in order that refer to them.
//!
//! Indices identify owners, pools, threads, allocations ("blocks") and executions of ops. An [`Event`] holds its time,
//! its thread and the index of its row. A reader may pass through the events in order, or through the blocks, which
//! know their first and last event.

use std::collections::BTreeMap;

use bfc_core::{Category, OomReport};

use super::peak::Peak;
use super::summary::RunSummary;
use super::timeline::Timeline;
use crate::report::{Cut, RunFacts};
use crate::scope::Phase;

/// The longest label of a block in a trace, in characters of up to 4 bytes. A line with it is within the limit of readers.
pub(super) const MAX_LABEL: usize = 1000;

/// The begin of the names of a dry device's pools.
const DRY: &str = "dry";

/// A recorded run. [`Recording::read`] reads it from a file; [`Tracker::take_log`](crate::Tracker::take_log) returns it
/// from memory.
///
/// A recording is always consistent: every index refers to an existing row, blocks end after they begin, and live bytes
/// fit into 64 bits. All sizes are bytes. All times are nanoseconds since recording began.
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
    /// The reports of the first failures by index.
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
    /// Returns an empty recording whose only owner is the root.
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

/// An event of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// Nanoseconds since recording began.
    pub at_ns: u64,
    /// The thread, as an index into [`Recording::threads`].
    pub thread: u32,
    /// The kind of event.
    pub kind: EventKind,
}

/// A kind of event, with the index of its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// A block was allocated: an index into [`Recording::blocks`]. Blocks have the order of their allocation.
    Alloc(u32),
    /// A block was freed: an index into [`Recording::blocks`].
    Free(u32),
    /// A block changed its owner or its category: an index into [`Recording::retags`].
    Retag(u32),
    /// An op began: an index into [`Recording::executions`].
    Enter(u32),
    /// An op ended: an index into [`Recording::executions`].
    Leave(u32),
    /// A request ran out of memory: an index into [`Recording::failures`].
    Failed(u32),
    /// A pool took a region from its source or returned one: an index into [`Recording::regions`].
    Region(u32),
    /// The program marked this moment: an index into [`Recording::marks`].
    Mark(u32),
}

/// An owner of memory: a module, or an op in a phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Owner {
    /// The name, without those of the owners above. An op's name includes its phase: `matmul:backward`. Empty for the
    /// root.
    pub name: String,
    /// The owner above, which has a smaller index. The root, 0, is its own parent.
    pub parent: u32,
    /// The phase of an op; `None` for a module.
    pub phase: Option<Phase>,
    /// A hash of the path. It distinguishes shortened paths.
    pub(super) path_hash: u64,
}

impl Owner {
    pub(super) fn new(name: &str, parent: u32, phase: Option<Phase>) -> Self {
        Self { name: name.to_owned(), parent, phase, path_hash: 0 }
    }

    /// Completes an owner below its parent.
    pub(super) fn below(self, parent: &Self) -> Self {
        let parent = parent.path_hash.to_le_bytes();
        Self { path_hash: fnv1a(parent.iter().chain(self.name.as_bytes())), ..self }
    }

    /// Returns whether this is an op.
    #[must_use]
    pub const fn is_op(&self) -> bool {
        self.phase.is_some()
    }

    /// Returns the name of an op without its phase, or the name of a module.
    #[must_use]
    pub fn op_name(&self) -> &str {
        let suffix = self.phase.map_or("", Phase::suffix);
        self.name.strip_suffix(suffix).unwrap_or(&self.name)
    }
}

/// The hash FNV-1a. Runs of different versions are compared by it, so it must not depend on a library.
fn fnv1a<'a>(bytes: impl Iterator<Item = &'a u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolName {
    /// The pool's name.
    pub name: String,
    /// The kind of memory (see [`MemoryKind::name`](bfc_core::MemoryKind::name)).
    pub memory: String,
}

/// A block from its allocation to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockLife {
    /// Requested bytes.
    pub requested: u64,
    /// Granted bytes.
    pub granted: u64,
    /// The address.
    pub address: u64,
    /// The first owner: an index into [`Recording::owners`].
    pub owner: u32,
    /// The first category.
    pub category: Category,
    /// The pool, as an index into [`Recording::pools`].
    pub pool: u32,
    /// The device stream; 0 on the host.
    pub stream: u32,
    /// The event of its allocation.
    pub born: u32,
    /// The event of its free; `None` if it is live at the end of the recording.
    pub freed: Option<u32>,
    /// The last owner.
    pub last_owner: u32,
    /// The last category.
    pub last_category: Category,
}

/// A change of a live block's owner or category, for example when an op keeps its result for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retag {
    /// The block.
    pub block: u32,
    /// The owner before.
    pub old_owner: u32,
    /// The category before.
    pub old_category: Category,
    /// The owner after.
    pub owner: u32,
    /// The category after.
    pub category: Category,
}

/// One execution of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Execution {
    /// The op.
    pub owner: u32,
    /// The pool that it uses first, if the recording has a pool of this index.
    pub pool: u32,
    /// The event of its begin.
    pub entered: u32,
    /// The event of its end; `None` if it was running at the end of the recording.
    pub left: Option<u32>,
    /// Live bytes of all pools when it began.
    pub live_before: u64,
    /// The most bytes that were live in all pools while it ran.
    pub live_peak: u64,
    /// The most bytes that it held at a time, of its own allocations; 0 until it ends.
    pub high_water: u64,
    /// Bytes of its allocations that were live when it ended.
    pub outliving: u64,
}

/// A request that ran out of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// Requested bytes.
    pub requested: u64,
    /// The owner of the request.
    pub owner: u32,
    /// The category of the request.
    pub category: Category,
    /// The pool.
    pub pool: u32,
}

/// A region that a pool took from its source or returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Region {
    /// The address.
    pub address: u64,
    /// The length in bytes.
    pub bytes: u64,
    /// Whether the pool took the region; otherwise it returned it.
    pub taken: bool,
    /// The pool.
    pub pool: u32,
}

impl Recording {
    /// Adds a fact that was not known when the run began.
    #[must_use]
    pub fn with_fact(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.facts = self.facts.with(name, value);
        self
    }

    /// Returns the facts known when the run began. Empty for a recording in memory.
    #[must_use]
    pub const fn facts(&self) -> &RunFacts {
        &self.facts
    }

    /// Returns the summary of the run; `None` for a recording in memory, and for a file that was cut off.
    #[must_use]
    pub const fn summary(&self) -> Option<&RunSummary> {
        self.summary.as_ref()
    }

    /// Returns where and why the file was cut off; `None` for a complete file.
    #[must_use]
    pub const fn cut(&self) -> Option<&Cut> {
        self.cut.as_ref()
    }

    /// Notes where the file was cut off.
    #[must_use]
    pub fn with_cut(self, cut: Option<Cut>) -> Self {
        Self { cut, ..self }
    }

    /// Returns the number of events at the beginning that were lost because the recording's memory was full.
    #[must_use]
    pub const fn lost_events(&self) -> u64 {
        self.lost
    }

    /// Returns whether events were lost because the recording's memory was full.
    #[must_use]
    pub const fn overflowed(&self) -> bool {
        self.lost > 0
    }

    /// Returns the number of events at the beginning that replace lost ones: regions, and the allocations of blocks
    /// that were still live. They have their original times.
    #[must_use]
    pub const fn carried_events(&self) -> usize {
        self.carried
    }

    /// Returns the number of skipped events. They refer to blocks that are not live, usually from before the recording.
    #[must_use]
    pub const fn skipped_events(&self) -> u64 {
        self.skipped
    }

    /// Returns all events, in order.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Returns all blocks, in the order of their allocation.
    #[must_use]
    pub fn blocks(&self) -> &[BlockLife] {
        &self.blocks
    }

    /// Returns the owners. The first is the root; every other owner comes after its parent.
    #[must_use]
    pub fn owners(&self) -> &[Owner] {
        &self.owners
    }

    /// Returns the pools, in the order of their first use.
    #[must_use]
    pub fn pools(&self) -> &[PoolName] {
        &self.pools
    }

    /// Returns whether all pools belong to a dry device. Its ops compute nothing, so their time says nothing.
    #[must_use]
    pub fn is_dry(&self) -> bool {
        let is_dry = |pool: &PoolName| pool.name.split(':').next() == Some(DRY);
        !self.pools.is_empty() && self.pools.iter().all(is_dry)
    }

    /// Returns the threads' numbers in the process.
    #[must_use]
    pub fn threads(&self) -> &[u64] {
        &self.threads
    }

    /// Returns the changes of owner or category.
    #[must_use]
    pub fn retags(&self) -> &[Retag] {
        &self.retags
    }

    /// Returns the executions of ops, in the order of their begin.
    #[must_use]
    pub fn executions(&self) -> &[Execution] {
        &self.executions
    }

    /// Returns the report of a failure by its index. Only the first failures have one.
    #[must_use]
    pub fn report_of(&self, failure: u32) -> Option<&OomReport> {
        self.reports.get(&failure)
    }

    /// Returns the requests that ran out of memory.
    #[must_use]
    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// Returns the regions that pools took and returned.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Returns the texts of marks.
    #[must_use]
    pub fn marks(&self) -> &[String] {
        &self.marks
    }

    /// Returns a block by its index.
    ///
    /// # Panics
    /// If there is none. The indices in events of this recording are valid.
    #[must_use]
    pub fn block(&self, block: u32) -> &BlockLife {
        &self.blocks[block as usize]
    }

    /// Returns an owner by its index.
    ///
    /// # Panics
    /// If there is none. The indices in rows of this recording are valid.
    #[must_use]
    pub fn owner(&self, owner: u32) -> &Owner {
        &self.owners[owner as usize]
    }

    /// Returns the owner and those above it, from the top down, without the root.
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

    /// Returns the path of an owner: the names below the root, joined by dots. Empty for the root. A path of more than
    /// 1 KiB loses the names in its middle: `main.run.(57 more 1f3a5c7e9b2d4f60).parse.push`. The number distinguishes
    /// paths whose other names are equal.
    ///
    /// # Panics
    /// As [`owner`](Self::owner).
    #[must_use]
    pub fn owner_path(&self, owner: u32) -> String {
        super::path::path(&self.owners, owner)
    }

    /// Returns the path of an owner as one word of at most 1,000 characters: the label of its blocks in a trace.
    ///
    /// # Panics
    /// As [`owner`](Self::owner).
    #[must_use]
    pub fn owner_label(&self, owner: u32) -> String {
        let path = self.owner_path(owner);
        if path.is_empty() {
            return "unowned".to_owned();
        }
        let word = |letter: char| if letter.is_control() || letter.is_whitespace() { '_' } else { letter };
        path.chars().take(MAX_LABEL).map(word).collect()
    }

    /// Returns the module of an owner: the parent of an op, or the owner itself.
    ///
    /// # Panics
    /// As [`owner`](Self::owner).
    #[must_use]
    pub fn module_of(&self, owner: u32) -> u32 {
        let found = self.owner(owner);
        if found.is_op() { found.parent } else { owner }
    }

    /// Returns the time of an event in nanoseconds since recording began. An index beyond the last event means the last
    /// event.
    #[must_use]
    pub fn time_of(&self, event: u32) -> u64 {
        self.events.get(event as usize).map_or_else(|| self.end_ns(), |event| event.at_ns)
    }

    /// Returns the time of the last event in nanoseconds since recording began.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        self.events.last().map_or(0, |event| event.at_ns)
    }

    /// Returns when a block was allocated and freed. A block that is live at the end lasts until the last event.
    #[must_use]
    pub fn life_ns(&self, block: &BlockLife) -> (u64, u64) {
        (self.time_of(block.born), self.time_of(block.freed.unwrap_or(u32::MAX)))
    }

    /// Returns the live bytes by category over all pools, after each event that changes them.
    #[must_use]
    pub fn timeline(&self) -> Timeline<'_> {
        Timeline::new(self)
    }

    /// Returns the peak over all pools; `None` if no memory was ever live.
    #[must_use]
    pub const fn peak(&self) -> Option<&Peak> {
        self.peak.as_ref()
    }
}

#[cfg(test)]
impl Recording {
    /// Sets the program's name, which a recording in memory lacks.
    pub(crate) fn set_program(&mut self, program: &str) {
        program.clone_into(&mut self.facts.program);
    }
}
