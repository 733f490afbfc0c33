//! A recording that is still being written: what is in use now, without keeping what has passed.
//!
//! A [`Follower`] reads what a file has grown by and forgets the events. Memory goes with the owners that there are and
//! with the blocks that live, not with how long the run has gone on.

use std::io::Read;

use bfc_core::Category;
use rustc_hash::FxHashMap;

use super::builder::{BlockProblem, RecordingLimits};
use super::hwm::{BlockReader, HwmError, Piece};
use super::recording::Owner;
use super::summary::{RunFacts, RunSummary};
use super::wire::{Decoder, Lane, Wire};
use crate::files::lean::held_limit;

mod course;
mod holders;

use course::Course;
use holders::Holders;
pub use holders::{CategoryNow, HolderNow};

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
/// assert_eq!((follower.events(), follower.holders(1)[0].calls), (2, 1));
/// assert!(follower.has_ended());
/// # std::fs::remove_dir_all(directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Follower<R> {
    blocks: BlockReader<R>,
    limits: RecordingLimits,
    facts: Option<RunFacts>,
    summary: Option<RunSummary>,
    state: State,
}

/// What the events so far come to.
#[derive(Debug)]
struct State {
    events: u64,
    lost: u64,
    failures: u64,
    time: u64,
    last_mark: Option<String>,
    holders: Holders,
    live: FxHashMap<(u32, u64), LiveBlock>,
    /// By pool and address.
    regions: FxHashMap<(u32, u64), u64>,
    reserved: u64,
    course: Course,
    /// Bytes of memory that owners were charged for.
    held: u64,
    /// The most bytes that may be held.
    held_limit: u64,
}

/// Charges in bytes: an owner beside its name, and an entry of a map with the room that it keeps for others.
const OWNER_BYTES: u64 = 160;
const ENTRY_BYTES: u64 = 60;

#[derive(Clone, Copy, Debug)]
struct LiveBlock {
    bytes: u64,
    owner: u32,
    category: Category,
}

impl<R: Read> Follower<R> {
    /// A follower that has read nothing yet.
    pub fn new(reader: R, limits: RecordingLimits) -> Self {
        let state = State {
            events: 0,
            lost: 0,
            failures: 0,
            time: 0,
            last_mark: None,
            holders: Holders::default(),
            live: FxHashMap::default(),
            regions: FxHashMap::default(),
            reserved: 0,
            course: Course::default(),
            held: 0,
            held_limit: limits.held_bytes,
        };
        Self { blocks: BlockReader::new(reader), limits, facts: None, summary: None, state }
    }

    /// Takes in what there is by now. A block that is not whole yet is left for the next time. Whether there was anything
    /// new.
    ///
    /// # Errors
    /// As [`Recording::read`](super::Recording::read). What was read before stays as it is.
    pub fn poll(&mut self) -> Result<bool, HwmError> {
        let mut any = false;
        while let Some(piece) = self.blocks.next()? {
            any = true;
            match piece {
                Piece::Facts(facts) => self.facts = Some(facts),
                Piece::Summary(summary) => self.summary = Some(*summary),
                Piece::Events(block) => {
                    self.state.held_limit = held_limit(self.limits.held_bytes, self.blocks.offset());
                    let added = self.state.add(&block, &self.limits);
                    added.map_err(|(offset, problem)| self.blocks.error_in_last(offset, problem))?;
                }
            }
        }
        Ok(any)
    }

    /// The file that is followed.
    pub const fn reader(&self) -> &R {
        self.blocks.reader()
    }

    /// How many bytes of the file were read.
    pub const fn offset(&self) -> u64 {
        self.blocks.offset()
    }

    /// What the run is; `None` until that was read.
    pub const fn facts(&self) -> Option<&RunFacts> {
        self.facts.as_ref()
    }

    /// What the run came to; `None` until it has ended.
    pub const fn summary(&self) -> Option<&RunSummary> {
        self.summary.as_ref()
    }

    /// Whether the recording has ended.
    pub const fn has_ended(&self) -> bool {
        self.summary.is_some()
    }

    /// Events so far.
    pub const fn events(&self) -> u64 {
        self.state.events
    }

    /// Events at the beginning that the recording lost.
    pub const fn lost_events(&self) -> u64 {
        self.state.lost
    }

    /// Requests that found no memory.
    pub const fn failures(&self) -> u64 {
        self.state.failures
    }

    /// When the last event happened, in nanoseconds since recording began.
    pub const fn time_ns(&self) -> u64 {
        self.state.time
    }

    /// The text of the last mark.
    pub fn last_mark(&self) -> Option<&str> {
        self.state.last_mark.as_deref()
    }

    /// Bytes in use now, over all pools.
    pub const fn live_bytes(&self) -> u64 {
        self.state.holders.live()
    }

    /// The most that was in use.
    pub const fn peak_bytes(&self) -> u64 {
        self.state.holders.peak()
    }

    /// When that was, in nanoseconds since recording began.
    pub const fn peak_at_ns(&self) -> u64 {
        self.state.holders.peak_at_ns()
    }

    /// The path of whose block raised it to that.
    pub fn peak_owner(&self) -> String {
        self.state.holders.path(self.state.holders.peak_owner())
    }

    /// Bytes in regions that pools hold, as far as the recording tells.
    pub const fn reserved_bytes(&self) -> u64 {
        self.state.reserved
    }

    /// Who holds most, or ran at least: `most` of them by falling bytes in use, and then by what they held at the peak.
    pub fn holders(&self, most: usize) -> Vec<HolderNow> {
        self.state.holders.rows(most)
    }

    /// All categories, in fixed order.
    pub fn categories(&self) -> [CategoryNow; Category::COUNT] {
        self.state.holders.categories()
    }

    /// The most that was in use in each of equal stretches of time from the beginning to now; at most 512 of them.
    pub fn course(&self) -> &[u64] {
        self.state.course.levels()
    }
}

impl State {
    fn add(&mut self, block: &[u8], limits: &RecordingLimits) -> Result<(), (usize, BlockProblem)> {
        let mut decoder = Decoder::new(block);
        loop {
            let offset = decoder.position();
            let at = |problem| (offset, problem);
            let Some(event) = decoder.next().map_err(|problem| at(problem.into()))? else { return Ok(()) };
            self.take(decoder.time(), decoder.place(), &event, limits).map_err(at)?;
        }
    }

    /// Checks what is held with one more entry in each map. A full map doubles, and copies its entries.
    fn check_held(&self) -> Result<(), BlockProblem> {
        let entries =
            |len: usize, capacity: usize| if len == capacity { 2 * capacity.max(4) } else { capacity };
        let live = entries(self.live.len(), self.live.capacity());
        let regions = entries(self.regions.len(), self.regions.capacity());
        let limit = self.held_limit;
        if self.held + ENTRY_BYTES * (live + regions) as u64 > limit {
            return Err(BlockProblem::TooMuchHeld { limit });
        }
        Ok(())
    }

    fn take(
        &mut self,
        time: u64,
        place: Lane,
        event: &Wire<'_>,
        limits: &RecordingLimits,
    ) -> Result<(), BlockProblem> {
        let too_many = |what, limit| Err(BlockProblem::TooMany { what, limit });
        match *event {
            Wire::Switch { .. } | Wire::Pool { .. } | Wire::Report { .. } => return Ok(()),
            Wire::Owner { owner, parent, phase, name } => {
                if self.holders.check(owner).is_err() {
                    self.held += OWNER_BYTES + name.len() as u64;
                    self.check_held()?;
                }
                let named = Owner { name: name.to_owned(), parent, phase };
                return self.holders.name(owner, named, limits);
            }
            Wire::Lost { events } => {
                self.lost = self.lost.saturating_add(events);
                return Ok(());
            }
            _ => {}
        }
        self.events += 1;
        self.time = self.time.max(time);
        match *event {
            Wire::Alloc { id, granted, owner, category, .. } => {
                self.holders.check(owner)?;
                if self.live.len() >= limits.events as usize {
                    return too_many("live blocks", limits.events);
                }
                let key = (place.pool, id);
                if !self.live.contains_key(&key) {
                    self.check_held()?;
                    self.holders.add(owner, category, granted, self.time)?;
                    self.live.insert(key, LiveBlock { bytes: granted, owner, category });
                }
            }
            Wire::Free { id } => {
                if let Some(LiveBlock { bytes, owner, category }) = self.live.remove(&(place.pool, id)) {
                    self.holders.remove(owner, category, bytes);
                }
            }
            Wire::Retag { id, owner, category } => {
                self.holders.check(owner)?;
                if let Some(live) = self.live.get_mut(&(place.pool, id)) {
                    let before = std::mem::replace(live, LiveBlock { owner, category, ..*live });
                    self.holders.remove(before.owner, before.category, before.bytes);
                    self.holders.add(owner, category, before.bytes, self.time)?;
                }
            }
            Wire::Enter { owner } => self.holders.call(owner)?,
            Wire::Failed { owner, .. } => {
                self.holders.check(owner)?;
                self.failures += 1;
            }
            Wire::Region { address, bytes, taken } => {
                let key = (place.pool, address);
                if !taken {
                    self.reserved -= self.regions.remove(&key).unwrap_or(0);
                } else if self.regions.len() >= limits.events as usize {
                    return too_many("regions", limits.events);
                } else {
                    self.check_held()?;
                    let sum = self.reserved - self.regions.remove(&key).unwrap_or(0);
                    // More than there can be counts as much as can be counted, and takes off the same.
                    let bytes = bytes.min(u64::MAX - sum);
                    self.reserved = sum + bytes;
                    self.regions.insert(key, bytes);
                }
            }
            Wire::Mark { text } => self.last_mark = Some(text.to_owned()),
            _ => {}
        }
        self.course.note(self.time, self.holders.live());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
