//! The recorder of a tracker: writes events to memory or to a file as they happen.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use bfc_core::sync::atomic::{AtomicBool, Ordering};
use bfc_core::sync::{Mutex, MutexGuard, ThreadNumber, lock};
use bfc_core::{Allocator, Block, MemoryKind, OomReport, OwnerId, PoolId, Request, Span, Stream, Tag};
use quanta::Clock;

use super::hwm::{HwmWriter, Written};
use super::regions::Regions;
use super::ring::Ring;
use super::summary::RunSummary;
use super::wire::{Encoder, EventContext, MAX_REPORT, RawEvent};
use super::{BLOCK_BYTES, MAX_REPORTS, Recording};
use crate::report::RunFacts;
use crate::scope::Phase;

/// A new block.
#[derive(Clone, Copy)]
pub(crate) struct Allocated<'a> {
    pub(crate) pool: &'a dyn Allocator,
    pub(crate) block: &'a Block,
    /// Unique among the live blocks of the pool.
    pub(crate) id: u64,
    pub(crate) requested: u64,
    pub(crate) tag: Tag,
    /// The id of a block that the new one replaces in the same step.
    pub(crate) replaced: Option<u64>,
    /// The number of the thread that began the op that allocates.
    pub(crate) thread: u64,
}

/// The longest time that an event stays in memory before it goes to the file, if other events follow it.
const FLUSH_EVERY: Duration = Duration::from_millis(100);

/// The number of queries for a pool's regions if some come or go in between.
const ATTEMPTS: u32 = 8;

/// The most holders that a recorded report names.
const REPORTED_HOLDERS: usize = 64;

/// Records events while it is on. It is off at first.
pub(crate) struct Recorder {
    /// Read on every event. A recorder that is off costs nothing else.
    on: AtomicBool,
    active: Mutex<Option<Active>>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { on: AtomicBool::new(false), active: Mutex::new(None) }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("on", &self.on).finish_non_exhaustive()
    }
}

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, Option<Active>> {
        lock(&self.active)
    }

    /// Starts a recording in memory. Drops an earlier recording in memory; ends an earlier file without a summary.
    pub(crate) fn start_in_memory(&self, capacity: usize) {
        self.start(Sink::Memory(Ring::new(capacity)), Ring::block_bytes(capacity));
    }

    /// Starts a recording into `file`. Treats earlier recordings like [`start_in_memory`](Self::start_in_memory).
    pub(crate) fn start_to(&self, file: impl Write + Send + 'static, facts: &RunFacts) -> io::Result<()> {
        self.start(Sink::File(HwmWriter::start(file, facts)?), BLOCK_BYTES);
        Ok(())
    }

    fn start(&self, sink: Sink, block_bytes: usize) {
        let before = self.lock().replace(Active::new(sink, block_bytes));
        self.on.store(true, Ordering::Release);
        if let Some(before) = before {
            before.abandon();
        }
    }

    /// Ends a recording in memory. Returns an empty one if there is none, or if it goes to a file.
    pub(crate) fn take(&self) -> Recording {
        let mut active = self.lock();
        match active.take_if(|active| matches!(active.sink, Sink::Memory(_))) {
            Some(Active { sink: Sink::Memory(ring), names, encoder, .. }) => {
                self.on.store(false, Ordering::Release);
                drop(active);
                ring.into_recording(names.bytes(), encoder.bytes())
            }
            _ => Recording::default(),
        }
    }

    /// Ends a recording into a file; `None` if there is none. `summary` completes the summary.
    pub(crate) fn finish(
        &self,
        summary: impl FnOnce(RunSummary) -> RunSummary,
    ) -> Option<io::Result<Written>> {
        let active = {
            let mut active = self.lock();
            let taken = active.take_if(|active| matches!(active.sink, Sink::File(_)))?;
            self.on.store(false, Ordering::Release);
            taken
        };
        let facts = RunSummary { duration_ns: active.now(), events: active.events, ..RunSummary::default() };
        let Active { sink: Sink::File(mut writer), encoder, .. } = active else { return None };
        writer.take(encoder.into_bytes());
        Some(writer.finish(&summary(facts)))
    }

    /// Returns the number of events since the recording began.
    pub(crate) fn events(&self) -> u64 {
        self.lock().as_ref().map_or(0, |active| active.events)
    }

    /// Records an allocation after it succeeded.
    #[inline]
    pub(crate) fn post_alloc(&self, new: &Allocated<'_>) {
        if self.on.load(Ordering::Relaxed) {
            self.post_new(new);
        }
    }

    fn post_new(&self, new: &Allocated<'_>) {
        let post = |active: &mut Active, number: u32| {
            let owner = active.owner(new.tag.owner, None);
            let Allocated { block, id, requested, .. } = *new;
            let (granted, address, category) = (block.bytes, block.address, new.tag.category);
            if let Some(id) = new.replaced {
                active.push(number, &RawEvent::Free { id });
            }
            active.push(number, &RawEvent::Alloc { id, requested, granted, address, owner, category });
        };
        let (pool, id) = (new.pool, new.block.pool);
        let posted = self.record_for(new.thread, |active| {
            let number = active.pool(id, pool);
            let known = active.pools[number as usize].regions.are_complete();
            if known {
                post(active, number);
            }
            known
        });
        if posted == Some(false) {
            self.post_regions_of(pool, id);
            self.record_for(new.thread, |active| {
                let number = active.pool(id, pool);
                post(active, number);
            });
        }
    }

    /// Records the regions that a pool had before the recording began. Queries the pool without the recorder's lock,
    /// because the pool may report a region under its own lock.
    #[cold]
    fn post_regions_of(&self, pool: &dyn Allocator, id: PoolId) {
        let mut changes = 0;
        for attempt in 1..=ATTEMPTS {
            let regions = pool.regions();
            let done = self.record(|active| {
                let number = active.pool(id, pool);
                let known = &mut active.pools[number as usize].regions;
                // Regions that came or went in between make the answer stale.
                let is_fresh = std::mem::replace(&mut changes, known.changes()) == known.changes();
                if is_fresh || attempt == ATTEMPTS || known.are_complete() {
                    for Span { address, bytes } in known.complete(&regions) {
                        active.push(number, &RawEvent::Region { address, bytes, taken: true });
                    }
                    return true;
                }
                false
            });
            if done != Some(false) {
                return;
            }
        }
    }

    /// Records a free before it happens.
    #[inline]
    pub(crate) fn post_free(&self, pool: &dyn Allocator, block: &Block, id: u64) {
        self.if_recording(|active| {
            let pool = active.pool(block.pool, pool);
            active.push(pool, &RawEvent::Free { id });
        });
    }

    /// Records that a block is now charged to another tag.
    #[inline]
    pub(crate) fn post_retag(&self, pool: &dyn Allocator, block: &Block, id: u64, tag: Tag) {
        self.if_recording(|active| {
            let owner = active.owner(tag.owner, None);
            let pool = active.pool(block.pool, pool);
            active.push(pool, &RawEvent::Retag { id, owner, category: tag.category });
        });
    }

    /// Records a request that ran out of memory, with its report if there is one.
    pub(crate) fn post_failed(
        &self,
        pool: &dyn Allocator,
        request: &Request<'_>,
        report: Option<&OomReport>,
    ) {
        let (requested, tag) = (request.bytes, request.tag);
        self.if_recording(|active| {
            let owner = active.owner(tag.owner, None);
            let pool = active.pool_by_name(pool.name(), pool.memory_kind());
            active.push(pool, &RawEvent::Failed { requested, owner, category: tag.category });
            if let Some(report) = report.filter(|_| active.reports < MAX_REPORTS) {
                active.reports += 1;
                let json = short_json(report, MAX_REPORT);
                json.iter().for_each(|text| active.encoder.push(0, &RawEvent::Report { text }));
                // The program may be about to end.
                if matches!(active.sink, Sink::File(_)) {
                    active.seal(active.now());
                }
            }
        });
    }

    /// Records a region, after the pool took it from its source or before the pool returns it.
    pub(crate) fn post_region(&self, pool: &str, memory: MemoryKind, region: Span, taken: bool) {
        self.if_recording(|active| {
            let pool = active.pool_by_name(pool, memory);
            active.pools[pool as usize].regions.change(region, taken);
            let Span { address, bytes } = region;
            active.push(pool, &RawEvent::Region { address, bytes, taken });
        });
    }

    /// Records that an op begins on this thread. It uses `pool` first, if that is known.
    #[inline]
    pub(crate) fn post_enter(&self, owner: OwnerId, phase: Phase, pool: Option<&dyn Allocator>) {
        self.if_recording(|active| {
            let owner = active.owner(owner, Some(phase));
            let pool =
                pool.map_or(active.last_pool, |pool| active.pool_by_name(pool.name(), pool.memory_kind()));
            active.push(pool, &RawEvent::Enter { owner });
        });
    }

    /// Records that the op ends.
    #[inline]
    pub(crate) fn post_leave(&self, high_water: u64, outliving: u64) {
        self.if_recording(|active| active.push(active.last_pool, &RawEvent::Leave { high_water, outliving }));
    }

    /// Marks an owner as an op that is charged without running.
    pub(crate) fn name_op(&self, owner: OwnerId, phase: Phase) {
        self.if_recording(|active| {
            active.owner(owner, Some(phase));
        });
    }

    pub(crate) fn post_mark(&self, text: &str) {
        self.if_recording(|active| active.push(active.last_pool, &RawEvent::Mark { text }));
    }

    #[inline]
    fn if_recording(&self, record: impl FnOnce(&mut Active)) {
        if self.on.load(Ordering::Relaxed) {
            self.record(record);
        }
    }

    fn record<R>(&self, record: impl FnOnce(&mut Active) -> R) -> Option<R> {
        self.record_for(ThreadNumber::current().get(), record)
    }

    /// Records events of the thread with this number.
    fn record_for<R>(&self, thread: u64, record: impl FnOnce(&mut Active) -> R) -> Option<R> {
        let guard = &mut *lock(&self.active);
        let active = guard.as_mut()?;
        active.context.thread = thread;
        let result = record(active);
        if active.broken {
            self.on.store(false, Ordering::Release);
        }
        Some(result)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let active = self.lock().take();
        if let Some(active) = active {
            active.abandon();
        }
    }
}

/// The destination of full blocks.
#[derive(Debug)]
enum Sink {
    Memory(Ring),
    File(HwmWriter),
}

/// An owner in the recording.
#[derive(Clone, Copy, Debug)]
struct OwnerEntry {
    /// Its number in the recording; [`UNKNOWN`] until it has one.
    number: u32,
    /// Whether the recording marks it as an op.
    is_op: bool,
}

const UNKNOWN: u32 = u32::MAX;

/// A pool of the recording.
#[derive(Debug)]
struct Pool {
    /// [`PoolId::NONE`] while only the name is known.
    id: PoolId,
    name: String,
    /// The number of its stream, counted from 1; 0 without a stream.
    stream: u32,
    regions: Regions,
}

/// The recording in progress.
#[derive(Debug)]
struct Active {
    /// Reads the cycle counter of the processor. The system clock would double the cost of an event.
    clock: Clock,
    started: u64,
    encoder: Encoder,
    /// All names, including those whose block is gone.
    names: Encoder,
    /// By [`OwnerId::index`].
    owners: Vec<OwnerEntry>,
    owner_count: u32,
    /// By number.
    pools: Vec<Pool>,
    /// By number, counted from 1.
    streams: Vec<Arc<Stream>>,
    last_pool: u32,
    /// The thread, pool and stream of the current event.
    context: EventContext,
    events: u64,
    /// The number of failures with a complete report.
    reports: usize,
    block_bytes: usize,
    sealed_at: u64,
    sink: Sink,
    /// Whether writing to the file has failed.
    broken: bool,
}

impl Active {
    fn new(sink: Sink, block_bytes: usize) -> Self {
        let clock = Clock::new();
        Self {
            started: clock.raw(),
            clock,
            encoder: Encoder::with_capacity(block_bytes),
            names: Encoder::default(),
            owners: vec![OwnerEntry { number: 0, is_op: true }],
            owner_count: 1,
            pools: Vec::new(),
            streams: Vec::new(),
            last_pool: 0,
            context: EventContext::default(),
            events: 0,
            reports: 0,
            block_bytes,
            sealed_at: 0,
            sink,
            broken: false,
        }
    }

    fn now(&self) -> u64 {
        self.clock.delta_as_nanos(self.started, self.clock.raw())
    }

    #[inline]
    fn push(&mut self, pool: u32, event: &RawEvent<'_>) {
        let time = self.now();
        if self.context.pool != pool {
            self.context.stream = self.pools.get(pool as usize).map_or(0, |pool| pool.stream);
            self.context.pool = pool;
        }
        self.encoder.at(self.context);
        self.encoder.push(time, event);
        self.events += 1;
        let late = || time.saturating_sub(self.sealed_at) >= FLUSH_EVERY.as_nanos() as u64;
        if self.encoder.len() >= self.block_bytes || (matches!(self.sink, Sink::File(_)) && late()) {
            self.seal(time);
        }
    }

    #[cold]
    fn seal(&mut self, time: u64) {
        self.sealed_at = time;
        let next = Encoder::with_capacity(self.block_bytes);
        let block = std::mem::replace(&mut self.encoder, next).into_bytes();
        match &mut self.sink {
            Sink::Memory(ring) => ring.take(block),
            Sink::File(writer) => self.broken = !writer.take(block),
        }
    }

    /// Ends a recording without waiting for errors of the file.
    fn abandon(self) {
        if let Sink::File(writer) = self.sink {
            writer.abandon(self.encoder.into_bytes());
        }
    }

    #[inline]
    fn owner(&mut self, owner: OwnerId, phase: Option<Phase>) -> u32 {
        match self.owners.get(owner.index()) {
            Some(known) if known.number != UNKNOWN && (known.is_op || phase.is_none()) => known.number,
            _ => self.name_owner(owner, phase),
        }
    }

    #[cold]
    fn name_owner(&mut self, owner: OwnerId, phase: Option<Phase>) -> u32 {
        let mut unnamed = vec![owner];
        while let Some(&lowest) = unnamed.last() {
            let parent = lowest.parent();
            if self.known(parent).number != UNKNOWN {
                break;
            }
            unnamed.push(parent);
        }
        while let Some(next) = unnamed.pop() {
            let parent = self.known(next.parent());
            let before = self.known(next);
            let phase = phase.filter(|_| next == owner);
            let number = if before.number == UNKNOWN {
                self.owner_count += 1;
                self.owner_count - 1
            } else {
                before.number
            };
            self.owners[next.index()] = OwnerEntry { number, is_op: phase.is_some() };
            self.name(&RawEvent::Owner { owner: number, parent: parent.number, phase, name: &next.name() });
        }
        self.known(owner).number
    }

    /// Returns the entry of an owner, and grows the table if necessary.
    fn known(&mut self, owner: OwnerId) -> OwnerEntry {
        let index = owner.index();
        if self.owners.len() <= index {
            self.owners.resize(index + 1, OwnerEntry { number: UNKNOWN, is_op: false });
        }
        self.owners[index]
    }

    #[inline]
    fn pool(&mut self, id: PoolId, pool: &dyn Allocator) -> u32 {
        if self.pools.get(self.last_pool as usize).is_none_or(|known| known.id != id) {
            self.last_pool = self.find_pool(id, pool);
        }
        self.last_pool
    }

    #[cold]
    fn find_pool(&mut self, id: PoolId, pool: &dyn Allocator) -> u32 {
        if let Some(known) = self.pools.iter().position(|known| known.id == id) {
            return known as u32;
        }
        let same = |known: &Pool| known.id == PoolId::NONE && known.name == pool.name();
        let number = match self.pools.iter().position(same) {
            Some(known) => known as u32,
            None => self.add_pool(pool.name(), pool.memory_kind()),
        };
        let stream = pool.stream().map_or(0, |stream| self.stream(stream));
        let known = &mut self.pools[number as usize];
        (known.id, known.stream) = (id, stream);
        // The last context may not have this stream yet.
        self.context.pool = u32::MAX;
        number
    }

    fn stream(&mut self, stream: &Arc<Stream>) -> u32 {
        let known = self.streams.iter().position(|known| known == stream).unwrap_or_else(|| {
            self.streams.push(Arc::clone(stream));
            self.streams.len() - 1
        });
        known as u32 + 1
    }

    fn pool_by_name(&mut self, name: &str, memory: MemoryKind) -> u32 {
        if self.pools.get(self.last_pool as usize).is_some_and(|last| last.name == name) {
            return self.last_pool;
        }
        let known = self.pools.iter().position(|known| known.name == name);
        known.map_or_else(|| self.add_pool(name, memory), |known| known as u32)
    }

    fn add_pool(&mut self, name: &str, memory: MemoryKind) -> u32 {
        let number = self.pools.len() as u32;
        let pool = Pool { id: PoolId::NONE, name: name.to_owned(), stream: 0, regions: Regions::default() };
        self.pools.push(pool);
        self.name(&RawEvent::Pool { pool: number, memory: memory.name(), name });
        number
    }

    fn name(&mut self, name: &RawEvent<'_>) {
        self.encoder.push(0, name);
        self.names.push(0, name);
    }
}

/// A report as JSON of at most `most` bytes, with fewer holders if necessary. `None` if it never fits.
fn short_json(report: &OomReport, most: usize) -> Option<String> {
    let mut short = report.clone();
    [REPORTED_HOLDERS, REPORTED_HOLDERS / 4, 1, 0].into_iter().find_map(|holders| {
        short.holdings = report.holdings.largest(holders);
        short.holders.truncate(holders);
        serde_json::to_string(&short).ok().filter(|json| json.len() <= most)
    })
}

#[cfg(test)]
mod tests {
    use bfc_core::{Category, Holdings, Verdict};

    use super::*;

    #[test]
    fn a_short_report_names_fewer_holders_and_keeps_the_sums() {
        let mut report = OomReport::new("cpu", &Request::new(1), Verdict::Exhausted);
        let tag = |index| {
            let owner = OwnerId::intern(OwnerId::ROOT, &format!("short{index:0>100}"));
            Tag { owner, category: Category::ALL[index % Category::COUNT] }
        };
        report.holdings = Holdings::sum((0..100).map(|index| (tag(index), 100 - index as u64)));
        let short = |most| {
            let json = short_json(&report, most)?;
            assert!(json.len() <= most);
            let read: OomReport = serde_json::from_str(&json).unwrap();
            assert_eq!(read.holdings.total(), report.holdings.total());
            assert_eq!(read.holdings.by_category(), report.holdings.by_category());
            Some(read.holdings.all().len())
        };
        let others = Category::COUNT;
        let sizes = [100_000, 8_000, 1_520, 100];
        assert_eq!(sizes.map(short), [Some(64 + others), Some(16 + others), Some(1 + others), None]);
    }
}
