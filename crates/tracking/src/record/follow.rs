//! Follows a recording while it is written.
//!
//! A [`Follower`] reads the new part of a file, updates its figures and forgets the events. Its memory grows with the
//! number of owners and of live blocks, not with the length of the run.

use std::io::Read;

use rustc_hash::FxHashMap;

use super::builder::{
    BlockProblem, LEVEL_BYTES, RecordingLimits, check_named_owner, check_named_pool, check_owner, each_event,
    in_turn, room,
};
use super::hwm::{BlockReader, HwmError, Piece};
use super::recording::Owner;
use super::recount::{At, Charge, Marks, Recount};
use super::wire::{EventContext, RawEvent};
use crate::report::{Report, RunFacts};

mod history;

use highwater_files::lean::HeldMemory;
use history::LevelHistory;

/// Follows an `.hwm` file while it grows.
///
/// ```
/// use highwater_tracking::{Follower, RecordingLimits, RunFacts, Tracker};
/// # let directory = std::env::temp_dir().join(format!("highwater-follow-{}", std::process::id()));
/// # std::fs::create_dir_all(&directory)?;
/// let path = directory.join("run.hwm");
/// let tracker = Tracker::new();
/// tracker.start_recording(std::fs::File::create(&path)?, &RunFacts::new("example"))?;
///
/// let mut follower = Follower::new(std::fs::File::open(&path)?, RecordingLimits::default());
/// follower.poll()?;
/// assert!(follower.facts().is_some_and(|facts| facts.program == "example") && !follower.has_ended());
/// drop(tracker.begin("matmul"));
/// tracker.finish_recording(&[])?;
/// follower.poll()?;
/// assert_eq!((follower.events(), follower.report(1).places[0].calls), (2, 1));
/// assert!(follower.has_ended());
/// # std::fs::remove_dir_all(directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Follower<R> {
    blocks: BlockReader<R>,
    limits: RecordingLimits,
    facts: Option<RunFacts>,
    has_ended: bool,
    state: RunningSums,
}

/// The sums over the events so far.
#[derive(Debug)]
struct RunningSums {
    events: u64,
    failures: u64,
    time: u64,
    last_mark: Option<String>,
    owners: Vec<Owner>,
    depths: Vec<u32>,
    pools: Vec<String>,
    /// The indices of the threads.
    threads: FxHashMap<u64, usize>,
    recount: Recount,
    live: FxHashMap<(u32, u64), Charge>,
    /// By pool and address.
    regions: FxHashMap<(u32, u64), u64>,
    reserved: u64,
    history: LevelHistory,
    /// The memory of owners. That of the maps is computed.
    memory: HeldMemory,
}

/// Costs in bytes: an owner and a pool besides their names, a thread, and a map entry including unused capacity.
const OWNER_BYTES: u64 = 520;
const POOL_BYTES: u64 = 500;
const THREAD_BYTES: u64 = 400;
const ENTRY_BYTES: u64 = 110;

impl<R: Read> Follower<R> {
    /// Creates a follower that has read nothing yet.
    pub fn new(reader: R, limits: RecordingLimits) -> Self {
        let state = RunningSums {
            events: 0,
            failures: 0,
            time: 0,
            last_mark: None,
            owners: vec![Owner::default()],
            depths: vec![0],
            pools: Vec::new(),
            threads: FxHashMap::default(),
            recount: Recount::default(),
            live: FxHashMap::default(),
            regions: FxHashMap::default(),
            reserved: 0,
            history: LevelHistory::default(),
            memory: HeldMemory::new(limits.held_bytes),
        };
        Self { blocks: BlockReader::new(reader, u64::MAX), limits, facts: None, has_ended: false, state }
    }

    /// Reads the new blocks of the file. Leaves an incomplete block for the next call. Returns whether there was
    /// anything new.
    ///
    /// # Errors
    /// As [`Recording::read`](super::Recording::read). The earlier figures stay.
    pub fn poll(&mut self) -> Result<bool, HwmError> {
        let mut any = false;
        while let Some(piece) = self.blocks.next()? {
            any = true;
            match piece {
                Piece::Facts(json) => self.facts = Some(self.blocks.parse(&json, |_| Ok(()))?),
                Piece::Summary(_) => self.has_ended = true,
                Piece::Events(block) => {
                    self.state.memory.note_input(block.len() as u64);
                    let added = each_event(&block, |time, context, event| {
                        self.state.take(time, context, event, &self.limits)
                    });
                    added.map_err(|(offset, problem)| self.blocks.error_in_last(offset, problem.into()))?;
                }
            }
        }
        Ok(any)
    }

    /// Returns the file.
    pub const fn reader(&self) -> &R {
        self.blocks.reader()
    }

    /// Returns the number of bytes read.
    pub const fn offset(&self) -> u64 {
        self.blocks.offset()
    }

    /// Returns the facts of the run; `None` until they were read.
    pub const fn facts(&self) -> Option<&RunFacts> {
        self.facts.as_ref()
    }

    /// Returns whether the recording has ended.
    pub const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns the number of events so far.
    pub const fn events(&self) -> u64 {
        self.state.events
    }

    /// Returns the number of requests that ran out of memory.
    pub const fn failures(&self) -> u64 {
        self.state.failures
    }

    /// Returns the time of the last event in nanoseconds since recording began.
    pub const fn time_ns(&self) -> u64 {
        self.state.time
    }

    /// Returns the text of the last mark.
    pub fn last_mark(&self) -> Option<&str> {
        self.state.last_mark.as_deref()
    }

    /// Returns the bytes of all recorded regions that pools hold.
    pub const fn reserved_bytes(&self) -> u64 {
        self.state.reserved
    }

    /// Returns the bytes in use now, over all pools.
    pub fn live_bytes(&self) -> u64 {
        self.state.recount.live()
    }

    /// Returns the figures so far, with at most `most` places: the owners that hold most now, then those that held most
    /// at the peak. The rows by op, module and thread are empty.
    pub fn report(&self, most: usize) -> Report {
        let RunningSums { recount, owners, pools, .. } = &self.state;
        let pools: Vec<&str> = pools.iter().map(String::as_str).collect();
        Report { places: recount.largest(owners, &pools, most), ..recount.summary(owners, &pools) }
    }

    /// Returns the highest level in each of at most 512 equal intervals, from the beginning to now.
    pub fn level_history(&self) -> &[u64] {
        self.state.history.levels()
    }
}

impl RunningSums {
    /// Checks the memory with one more entry in each map. A full map doubles and copies its entries.
    fn check_held(&self) -> Result<(), BlockProblem> {
        let entries =
            |len: usize, capacity: usize| if len == capacity { 2 * capacity.max(4) } else { capacity };
        let live = entries(self.live.len(), self.live.capacity());
        let regions = entries(self.regions.len(), self.regions.capacity());
        Ok(self.memory.check(ENTRY_BYTES * (live + regions) as u64)?)
    }

    /// Adds an owner, or marks a known owner as an op.
    fn name_owner(
        &mut self,
        number: u32,
        named: Owner,
        limits: &RecordingLimits,
    ) -> Result<(), BlockProblem> {
        let Some(parent) = check_owner(&mut self.owners, number, &named, limits)? else { return Ok(()) };
        let levels = LEVEL_BYTES * self.pools.len() as u64;
        self.memory.charge(OWNER_BYTES + levels + named.name.len() as u64)?;
        self.check_held()?;
        let depth = self.depths[parent];
        room(depth as usize, limits.depth, "owners one below the other")?;
        self.depths.push(depth + 1);
        let named = named.below(&self.owners[parent]);
        self.owners.push(named);
        Ok(())
    }

    fn name_pool(&mut self, pool: u32, name: &str, limits: &RecordingLimits) -> Result<(), BlockProblem> {
        let count = self.pools.len();
        if (pool as usize) < count {
            return Ok(());
        }
        room(count, limits.pools, "pools")?;
        in_turn(pool, count, "pool")?;
        self.memory.charge(POOL_BYTES + LEVEL_BYTES * self.owners.len() as u64 + name.len() as u64)?;
        self.pools.push(name.to_owned());
        Ok(())
    }

    fn thread(&mut self, number: u64, limits: &RecordingLimits) -> Result<usize, BlockProblem> {
        let count = self.threads.len();
        if let Some(&known) = self.threads.get(&number) {
            return Ok(known);
        }
        room(count, limits.threads, "threads")?;
        self.memory.charge(THREAD_BYTES)?;
        self.threads.insert(number, count);
        Ok(count)
    }

    fn take(
        &mut self,
        time: u64,
        context: EventContext,
        event: &RawEvent<'_>,
        limits: &RecordingLimits,
    ) -> Result<(), BlockProblem> {
        match *event {
            RawEvent::Switch { .. } | RawEvent::Report { .. } | RawEvent::Lost { .. } => return Ok(()),
            RawEvent::Pool { pool, name, .. } => return self.name_pool(pool, name, limits),
            RawEvent::Owner { owner, parent, phase, name } => {
                return self.name_owner(owner, Owner::new(name, parent, phase), limits);
            }
            _ => {}
        }
        self.events += 1;
        self.time = self.time.max(time);
        let thread = self.thread(context.thread, limits)?;
        let at = At { now: self.time, thread, pool: context.pool as usize, stream: context.stream };
        match *event {
            RawEvent::Alloc { id, requested, granted, owner, category, .. } => {
                check_named_owner(&self.owners, owner)?;
                check_named_pool(self.pools.len(), context.pool)?;
                room(self.live.len(), limits.events, "live blocks")?;
                let key = (context.pool, id);
                if !self.live.contains_key(&key) {
                    self.check_held()?;
                    let sum = self.recount.live().checked_add(granted);
                    sum.ok_or(BlockProblem::TooManyBytes)?;
                    let (tag, bytes) = ((owner, category), [requested, granted]);
                    self.live.insert(key, self.recount.allocate(&self.owners, at, tag, bytes));
                }
            }
            RawEvent::Free { id } => {
                if let Some(block) = self.live.remove(&(context.pool, id)) {
                    self.recount.free(&block, at);
                }
            }
            RawEvent::Retag { id, owner, category } => {
                check_named_owner(&self.owners, owner)?;
                if let Some(block) = self.live.get_mut(&(context.pool, id)) {
                    self.recount.retag(&self.owners, block, (owner, category), self.time);
                }
            }
            RawEvent::Enter { owner } => {
                check_named_owner(&self.owners, owner)?;
                self.recount.enter(owner, at);
            }
            RawEvent::Leave { high_water, outliving } => {
                // No view of a growing file has the time of calls.
                let marks = Marks { high_water, outliving, live_peak: 0, is_timed: false };
                self.recount.leave(at, &marks);
            }
            RawEvent::Failed { owner, .. } => {
                check_named_owner(&self.owners, owner)?;
                self.failures += 1;
            }
            RawEvent::Region { address, bytes, taken } => {
                let key = (context.pool, address);
                if !taken {
                    self.reserved -= self.regions.remove(&key).unwrap_or(0);
                } else {
                    room(self.regions.len(), limits.events, "regions")?;
                    self.check_held()?;
                    let sum = self.reserved - self.regions.remove(&key).unwrap_or(0);
                    // Values beyond the range saturate, in allocations and frees alike.
                    let bytes = bytes.min(u64::MAX - sum);
                    self.reserved = sum + bytes;
                    self.regions.insert(key, bytes);
                }
            }
            RawEvent::Mark { text } => self.last_mark = Some(text.to_owned()),
            _ => {}
        }
        self.history.add(self.time, self.recount.live());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
