//! Builds a consistent [`Recording`] from blocks of bytes.

use std::collections::HashMap;

use bfc_core::OwnerId;
use highwater_files::lean::{self, HeldMemory, TooMuchHeld};

use super::path::MAX_PATH;
use super::peak::Peak;
use super::recording::{
    BlockLife, Event, EventKind, Execution, Failure, Owner, PoolName, Recording, Region, Retag,
};
use super::wire::{Decoder, EventContext, EventProblem, RawEvent};

/// Limits of a recording that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordingLimits {
    /// Most events.
    pub events: u32,
    /// Most owners.
    pub owners: u32,
    /// The deepest nesting of owners.
    pub depth: u32,
    /// Most pools.
    pub pools: u32,
    /// Most threads.
    pub threads: u32,
    /// The most bytes of the file.
    pub input_bytes: u64,
    /// The most memory for a recording and for the reports and exports made from it, in bytes. If eight times the size
    /// of the file is more, that applies. Long paths of deeply nested owners count once per owner.
    pub held_bytes: u64,
}

impl Default for RecordingLimits {
    fn default() -> Self {
        Self {
            events: 20_000_000,
            owners: 1 << 20,
            depth: MAX_DEPTH,
            pools: 1 << 12,
            threads: 1 << 16,
            input_bytes: 2 * bfc_core::GIB,
            held_bytes: 64 * bfc_core::MIB,
        }
    }
}

/// The deepest owner that is written. Deeper ones are charged to it.
pub(super) const MAX_DEPTH: u32 = OwnerId::MAX_DEPTH;

/// The most failures of a recording with a complete report.
pub(super) const MAX_REPORTS: usize = 64;

/// Estimated costs in bytes, for the recording and for its reports and exports. In order: a map entry with
/// unused capacity, a text besides its letters, an owner besides its name, its rows, an owner in a stack, a failure, a
/// region.
const ENTRY_BYTES: u64 = 48;
const TEXT_BYTES: u64 = 32;
const NAMED_BYTES: u64 = 160;
const OWNER_BYTES: u64 = 1040;
const STACK_ENTRY_BYTES: u64 = 32;
const FAILURE_BYTES: u64 = 300;
const REGION_BYTES: u64 = 64;

/// The cost of an owner in the ledger of a pool.
pub(super) const LEVEL_BYTES: u64 = 80;

/// The most copies of an owner's path in a report, in its rows and in its text.
pub(super) const PATH_COPIES: u64 = 8;

/// The paths in the row of a failure: those of the owner and of the largest holders, in the row and in its text.
const PATHS_OF_FAILURE: u64 = 16;

/// The most bytes of the report of a failure.
const REPORT_BYTES: u64 = 64 << 10;

/// The largest ratio between the memory of parsed JSON and the bytes of its text.
const JSON_FACTOR: u64 = 16;

/// The cost per block and per event in a report or an export.
const OF_BLOCK_BYTES: u64 = 12;
const OF_EVENT_BYTES: u64 = 4;

/// An error in the events of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockProblem {
    /// The bytes do not encode an event.
    #[error(transparent)]
    Event(#[from] EventProblem),
    /// An event names an owner or a pool that has no name.
    #[error("{what} {number} has no name")]
    Unnamed {
        /// The kind of row.
        what: &'static str,
        /// Its number.
        number: u32,
    },
    /// An owner or a pool is named out of order, or below an unnamed owner.
    #[error("{what} {number} is named out of order")]
    OutOfTurn {
        /// The kind of row.
        what: &'static str,
        /// Its number.
        number: u32,
    },
    /// A table exceeds its limit.
    #[error("more than {limit} {what}")]
    TooMany {
        /// The kind of row.
        what: &'static str,
        /// The limit.
        limit: u32,
    },
    /// The recording exceeds the memory limit.
    #[error("the recording and the paths of its owners need more than {} of memory", bfc_core::Bytes(*limit))]
    TooMuchHeld {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The live bytes exceed 64 bits.
    #[error("live bytes exceed 2^64")]
    TooManyBytes,
}

impl From<TooMuchHeld> for BlockProblem {
    fn from(TooMuchHeld { limit }: TooMuchHeld) -> Self {
        Self::TooMuchHeld { limit }
    }
}

/// Reads blocks and checks every event.
#[derive(Debug)]
pub(super) struct Builder {
    recording: Recording,
    limits: RecordingLimits,
    /// The number of owners above each, and the bytes of its path.
    depths: Vec<(u32, u64)>,
    /// The bytes of the longest path.
    longest_path: u64,
    memory: HeldMemory,
    threads: HashMap<u64, u32>,
    live: HashMap<(u32, u64), u32>,
    live_bytes: u64,
    /// The running executions by thread, innermost last.
    running: Vec<Vec<u32>>,
    /// The allocations after which less was live than after every earlier one in this list. A binary search finds the
    /// highest level since any event, regardless of how many ops run.
    levels: Vec<(u32, u64)>,
}

impl Builder {
    pub(super) fn new(limits: RecordingLimits, memory: HeldMemory) -> Self {
        Self {
            recording: Recording::default(),
            limits,
            depths: vec![(0, 0)],
            longest_path: 0,
            memory,
            threads: HashMap::new(),
            live: HashMap::new(),
            live_bytes: 0,
            running: Vec::new(),
            levels: Vec::new(),
        }
    }

    /// Reads the events of one block.
    ///
    /// # Errors
    /// The first invalid event, with its offset in the block. Earlier events stay in the recording.
    pub(super) fn add(&mut self, block: &[u8]) -> Result<(), (usize, BlockProblem)> {
        self.memory.note_input(block.len() as u64);
        each_event(block, |time, context, event| self.take(time, context, event))
    }

    /// Returns the recording, without the parts that do not come from events.
    pub(super) fn finish(mut self) -> Recording {
        for number in self.running.iter().flatten() {
            let level = self.level_since(self.recording.executions[*number as usize].entered);
            let execution = &mut self.recording.executions[*number as usize];
            execution.live_peak = execution.live_peak.max(level);
        }
        self.recording
    }

    /// Whether reports and exports will be made from the recording. Otherwise it becomes a trace, which has a part of the
    /// memory limit.
    const fn is_for_reports(&self) -> bool {
        !self.memory.has_reserve()
    }

    /// Checks the memory of the complete recording. Each row of a report may also contain the longest path.
    pub(super) fn check_rows(&mut self) -> Result<(), BlockProblem> {
        if !self.is_for_reports() {
            return Ok(());
        }
        let owners = 2 * self.recording.owners.len() as u64;
        let failures = PATHS_OF_FAILURE * self.recording.failures.len() as u64;
        self.charge((owners + failures).saturating_mul(self.longest_path))
    }

    /// Returns a named owner.
    pub(super) fn owner(&self, owner: u32) -> &Owner {
        &self.recording.owners[owner as usize]
    }

    /// Returns how deep a named owner is below the root, which has depth 0.
    pub(super) fn depth(&self, owner: u32) -> u32 {
        self.depths[owner as usize].0
    }

    pub(super) const fn memory(&self) -> &HeldMemory {
        &self.memory
    }

    pub(super) const fn memory_mut(&mut self) -> &mut HeldMemory {
        &mut self.memory
    }

    /// Charges for a block of JSON in parsed form.
    pub(super) fn charge_json(&mut self, bytes: usize) -> Result<(), BlockProblem> {
        self.memory.note_input(bytes as u64);
        self.charge(JSON_FACTOR * bytes as u64)
    }

    /// Charges for memory before it is allocated.
    fn charge(&mut self, bytes: u64) -> Result<(), BlockProblem> {
        Ok(self.memory.charge(bytes)?)
    }

    /// Adds one event at a time in nanoseconds.
    pub(super) fn take(
        &mut self,
        time: u64,
        context: EventContext,
        event: &RawEvent<'_>,
    ) -> Result<(), BlockProblem> {
        match *event {
            RawEvent::Switch { .. } => Ok(()),
            RawEvent::Owner { owner, parent, phase, name } => {
                self.name_owner(owner, Owner::new(name, parent, phase))
            }
            RawEvent::Pool { pool, memory, name } => {
                let name = PoolName { name: name.to_owned(), memory: memory.to_owned() };
                let count = self.recording.pools.len();
                if (pool as usize) < count {
                    return Ok(());
                }
                room(count, self.limits.pools, "pools")?;
                in_turn(pool, count, "pool")?;
                let levels = if self.is_for_reports() { self.recording.owners.len() } else { 0 };
                let levels = LEVEL_BYTES * levels as u64;
                self.charge(TEXT_BYTES * 2 + (name.name.len() + name.memory.len()) as u64 + levels)?;
                self.recording.pools.push(name);
                Ok(())
            }
            RawEvent::Lost { events } => {
                self.recording.lost = self.recording.lost.saturating_add(events);
                self.recording.carried = self.recording.events.len();
                Ok(())
            }
            RawEvent::Report { text } => self.take_report(text),
            _ => self.take_event(time, context, event),
        }
    }

    /// Stores the report of the failure just before. Ignores reports without a failure and invalid reports.
    fn take_report(&mut self, text: &str) -> Result<(), BlockProblem> {
        let failure = self.recording.events.last().and_then(|event| match event.kind {
            EventKind::Failed(failure) => Some(failure),
            _ => None,
        });
        let room = self.recording.reports.len() < MAX_REPORTS;
        match (failure.filter(|_| room), serde_json::from_str(text)) {
            (Some(failure), Ok(report)) => {
                self.charge(REPORT_BYTES)?;
                self.recording.reports.insert(failure, report);
                Ok(())
            }
            _ => self.skip(),
        }
    }

    fn name_owner(&mut self, owner: u32, named: Owner) -> Result<(), BlockProblem> {
        let Some(parent) = check_owner(&mut self.recording.owners, owner, &named, &self.limits)? else {
            return Ok(());
        };
        let (above, path) = self.depths[parent];
        room(above as usize, self.limits.depth, "owners one below the other")?;
        let name = named.name.len() as u64;
        let path = path + name + 1;
        // Charged before any path is built. Paths are shortened.
        let built = path.min(MAX_PATH as u64 + name);
        let stack = u64::from(above + 1) * STACK_ENTRY_BYTES;
        let rows = match (self.is_for_reports(), named.is_op()) {
            (true, _) => {
                let levels = LEVEL_BYTES * self.recording.pools.len() as u64;
                OWNER_BYTES + levels + PATH_COPIES * built + stack
            }
            // The label of its blocks in a trace.
            (false, true) => built,
            (false, false) => 0,
        };
        self.charge(NAMED_BYTES + name + rows)?;
        self.longest_path = self.longest_path.max(built);
        self.depths.push((above + 1, path));
        let named = named.below(&self.recording.owners[parent]);
        self.recording.owners.push(named);
        Ok(())
    }

    fn take_event(
        &mut self,
        time: u64,
        context: EventContext,
        event: &RawEvent<'_>,
    ) -> Result<(), BlockProblem> {
        let index = u32::try_from(self.recording.events.len()).unwrap_or(u32::MAX);
        room(index as usize, self.limits.events, "events")?;
        let thread = self.thread(context.thread)?;
        // The time in each block starts at zero. Only in an invalid file does it go backwards.
        let time = time.max(self.recording.end_ns());
        self.charge(lean::cost::<Event>() + OF_EVENT_BYTES + self.row_bytes(event))?;
        let kind = match *event {
            RawEvent::Alloc { id, requested, granted, address, owner, category } => {
                self.check_named(owner, context.pool)?;
                let number = self.recording.blocks.len() as u32;
                if self.live.contains_key(&(context.pool, id)) {
                    return self.skip();
                }
                self.live_bytes = self.live_bytes.checked_add(granted).ok_or(BlockProblem::TooManyBytes)?;
                if self.live.len() == self.live.capacity() {
                    // The map doubles, and copies its entries.
                    self.charge(ENTRY_BYTES * self.live.capacity().max(4) as u64)?;
                }
                self.live.insert((context.pool, id), number);
                self.charge(lean::cost::<BlockLife>() + OF_BLOCK_BYTES)?;
                let life = BlockLife {
                    requested,
                    granted,
                    address,
                    owner,
                    category,
                    pool: context.pool,
                    stream: context.stream,
                    born: index,
                    freed: None,
                    last_owner: owner,
                    last_category: category,
                };
                lean::push(&mut self.recording.blocks, life);
                self.note_level(index, thread);
                Some(EventKind::Alloc(number))
            }
            RawEvent::Free { id } => self.live.remove(&(context.pool, id)).map(|number| {
                let block = &mut self.recording.blocks[number as usize];
                block.freed = Some(index);
                self.live_bytes -= block.granted;
                EventKind::Free(number)
            }),
            RawEvent::Retag { id, owner, category } => {
                check_named_owner(&self.recording.owners, owner)?;
                self.live.get(&(context.pool, id)).map(|&block| {
                    let life = &mut self.recording.blocks[block as usize];
                    let (old_owner, old_category) = (life.last_owner, life.last_category);
                    (life.last_owner, life.last_category) = (owner, category);
                    let retag = Retag { block, old_owner, old_category, owner, category };
                    EventKind::Retag(push(&mut self.recording.retags, retag))
                })
            }
            RawEvent::Enter { owner } => {
                check_named_owner(&self.recording.owners, owner)?;
                let execution = Execution {
                    owner,
                    pool: context.pool,
                    entered: index,
                    left: None,
                    live_before: self.live_bytes,
                    live_peak: self.live_bytes,
                    high_water: 0,
                    outliving: 0,
                };
                let number = push(&mut self.recording.executions, execution);
                self.running[thread as usize].push(number);
                Some(EventKind::Enter(number))
            }
            // Its beginning may be among the lost events.
            RawEvent::Leave { high_water, outliving } => self.running[thread as usize].pop().map(|number| {
                let level = self.level_since(self.recording.executions[number as usize].entered);
                let execution = &mut self.recording.executions[number as usize];
                execution.live_peak = execution.live_peak.max(level);
                (execution.left, execution.high_water, execution.outliving) =
                    (Some(index), high_water, outliving);
                EventKind::Leave(number)
            }),
            RawEvent::Failed { requested, owner, category } => {
                self.check_named(owner, context.pool)?;
                let failure = Failure { requested, owner, category, pool: context.pool };
                Some(EventKind::Failed(push(&mut self.recording.failures, failure)))
            }
            RawEvent::Region { address, bytes, taken } => {
                self.check_named(0, context.pool)?;
                let region = Region { address, bytes, taken, pool: context.pool };
                Some(EventKind::Region(push(&mut self.recording.regions, region)))
            }
            RawEvent::Mark { text } => {
                Some(EventKind::Mark(push(&mut self.recording.marks, text.to_owned())))
            }
            RawEvent::Lost { .. }
            | RawEvent::Switch { .. }
            | RawEvent::Owner { .. }
            | RawEvent::Pool { .. }
            | RawEvent::Report { .. } => None,
        };
        match kind {
            Some(kind) => lean::push(&mut self.recording.events, Event { at_ns: time, thread, kind }),
            None => self.skip()?,
        }
        Ok(())
    }

    /// Skips an event that contradicts the state of its block.
    #[allow(clippy::unnecessary_wraps, reason = "ends the taking of an event, which may fail")]
    const fn skip(&mut self) -> Result<(), BlockProblem> {
        self.recording.skipped += 1;
        Ok(())
    }

    /// Raises the peak if the live bytes are higher than ever before.
    fn note_level(&mut self, event: u32, thread: u32) {
        let bytes = self.live_bytes;
        if self.recording.peak.is_none_or(|peak| peak.bytes < bytes) {
            let execution = self.running[thread as usize].last().copied();
            self.recording.peak = Some(Peak { event, bytes, execution });
        }
        while self.levels.last().is_some_and(|&(_, level)| level <= bytes) {
            self.levels.pop();
        }
        lean::push(&mut self.levels, (event, bytes));
    }

    /// The cost of an event's row, besides the event.
    const fn row_bytes(&self, event: &RawEvent<'_>) -> u64 {
        match event {
            // The level that the allocation leaves.
            RawEvent::Alloc { .. } => lean::cost::<(u32, u64)>(),
            RawEvent::Retag { .. } => lean::cost::<Retag>(),
            RawEvent::Enter { .. } => lean::cost::<Execution>(),
            RawEvent::Failed { .. } => FAILURE_BYTES,
            RawEvent::Region { .. } => lean::cost::<Region>() + REGION_BYTES,
            RawEvent::Mark { text } => TEXT_BYTES + text.len() as u64,
            _ => 0,
        }
    }

    /// The highest level after an event later than `event`; 0 without an allocation.
    fn level_since(&self, event: u32) -> u64 {
        let first = self.levels.partition_point(|&(index, _)| index < event);
        self.levels.get(first).map_or(0, |&(_, bytes)| bytes)
    }

    fn thread(&mut self, number: u64) -> Result<u32, BlockProblem> {
        if let Some(&thread) = self.threads.get(&number) {
            return Ok(thread);
        }
        room(self.threads.len(), self.limits.threads, "threads")?;
        let thread = push(&mut self.recording.threads, number);
        self.threads.insert(number, thread);
        self.running.push(Vec::new());
        Ok(thread)
    }

    fn check_named(&self, owner: u32, pool: u32) -> Result<(), BlockProblem> {
        check_named_pool(self.recording.pools.len(), pool)?;
        check_named_owner(&self.recording.owners, owner)
    }
}

/// Decodes the events of a block with their times and contexts, and passes each to `take`.
///
/// # Errors
/// The first invalid event, with its offset in the block.
pub(super) fn each_event(
    block: &[u8],
    mut take: impl FnMut(u64, EventContext, &RawEvent<'_>) -> Result<(), BlockProblem>,
) -> Result<(), (usize, BlockProblem)> {
    let mut decoder = Decoder::new(block);
    loop {
        let offset = decoder.position();
        let at = |problem| (offset, problem);
        let Some(event) = decoder.next().map_err(|problem| at(problem.into()))? else { return Ok(()) };
        take(decoder.time(), decoder.context(), &event).map_err(at)?;
    }
}

/// Checks the name of a new owner. Returns the index of the owner above it. For a known owner, marks it as an op if
/// `named` is one, and returns `None`.
pub(super) fn check_owner(
    owners: &mut [Owner],
    number: u32,
    named: &Owner,
    limits: &RecordingLimits,
) -> Result<Option<usize>, BlockProblem> {
    if let Some(known) = owners.get_mut(number as usize) {
        if number != 0 && known.phase.is_none() {
            known.phase = named.phase;
        }
        return Ok(None);
    }
    room(owners.len(), limits.owners.min(OwnerId::MAX_COUNT), "owners")?;
    in_turn(number, owners.len(), "owner")?;
    check_named_owner(owners, named.parent)?;
    Ok(Some(named.parent as usize))
}

/// Checks that an owner has a name.
pub(super) const fn check_named_owner(owners: &[Owner], number: u32) -> Result<(), BlockProblem> {
    if (number as usize) < owners.len() {
        Ok(())
    } else {
        Err(BlockProblem::Unnamed { what: "owner", number })
    }
}

/// Checks that a pool has a name, if there are `count` pools.
pub(super) const fn check_named_pool(count: usize, pool: u32) -> Result<(), BlockProblem> {
    if (pool as usize) < count { Ok(()) } else { Err(BlockProblem::Unnamed { what: "pool", number: pool }) }
}

/// Adds a row and returns its index.
fn push<T>(rows: &mut Vec<T>, row: T) -> u32 {
    lean::push(rows, row);
    // There are never more rows than events, whose number is limited to 32 bits.
    (rows.len() - 1) as u32
}

pub(super) const fn room(count: usize, limit: u32, what: &'static str) -> Result<(), BlockProblem> {
    if count < limit as usize { Ok(()) } else { Err(BlockProblem::TooMany { what, limit }) }
}

pub(super) const fn in_turn(number: u32, count: usize, what: &'static str) -> Result<(), BlockProblem> {
    if number as usize == count { Ok(()) } else { Err(BlockProblem::OutOfTurn { what, number }) }
}
