//! Reserved, allocated and requested bytes over time, and the moments that a report explains.

use std::collections::HashMap;

use highwater_tracking::{EventKind, Recording};
use serde::Serialize;

/// The number of parts of a timeline.
const PARTS: usize = 64;

/// The memory after an event. All sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MemoryLevel {
    /// The event in the recording.
    pub event: u32,
    /// The time, in nanoseconds since recording began.
    pub at_ns: u64,
    /// Bytes of all segments.
    pub reserved_bytes: u64,
    /// Bytes of all live blocks as the allocator granted them, including blocks that wait for other streams.
    pub allocated_bytes: u64,
    /// Bytes that the program requested for the blocks that it has not freed.
    pub requested_bytes: u64,
}

impl MemoryLevel {
    /// Returns the reserved bytes that hold no requested ones.
    #[must_use]
    pub const fn gap_bytes(&self) -> u64 {
        self.reserved_bytes.saturating_sub(self.requested_bytes)
    }
}

/// The memory over a whole recording.
#[derive(Clone, Debug, Default)]
pub(super) struct Levels {
    pub(super) largest_gap: MemoryLevel,
    pub(super) peak_reserved: MemoryLevel,
    pub(super) peak_allocated: MemoryLevel,
    pub(super) end: MemoryLevel,
    /// The level with the largest gap of each part of the recording.
    pub(super) timeline: Vec<MemoryLevel>,
}

/// Follows the memory from event to event.
#[derive(Debug)]
pub(super) struct Meter<'a> {
    recording: &'a Recording,
    /// By block: the event before which the program freed it, if the block waited for other streams.
    pending: &'a HashMap<u32, u32>,
    /// The blocks of `pending` by falling event.
    requests: Vec<(u32, u32)>,
    level: MemoryLevel,
}

impl<'a> Meter<'a> {
    pub(super) fn new(recording: &'a Recording, pending: &'a HashMap<u32, u32>) -> Self {
        let mut requests: Vec<(u32, u32)> = pending.iter().map(|(&block, &event)| (event, block)).collect();
        requests.sort_unstable_by(|a, b| b.cmp(a));
        Self { recording, pending, requests, level: MemoryLevel::default() }
    }

    /// Returns the level after the last event.
    pub(super) const fn level(&self) -> MemoryLevel {
        self.level
    }

    /// Counts the event and returns the level after it.
    pub(super) fn take(&mut self, index: u32) -> MemoryLevel {
        let (recording, level) = (self.recording, &mut self.level);
        while let Some(&(_, block)) = self.requests.last().filter(|(event, _)| *event <= index) {
            self.requests.pop();
            level.requested_bytes = level.requested_bytes.saturating_sub(requested(recording, block));
        }
        let Some(event) = recording.events().get(index as usize) else { return *level };
        (level.event, level.at_ns) = (index, event.at_ns);
        match event.kind {
            EventKind::Alloc(number) => {
                level.allocated_bytes = level.allocated_bytes.saturating_add(recording.block(number).granted);
                let bytes = requested(recording, number);
                level.requested_bytes = level.requested_bytes.saturating_add(bytes);
            }
            EventKind::Free(number) => {
                level.allocated_bytes = level.allocated_bytes.saturating_sub(recording.block(number).granted);
                if !self.pending.contains_key(&number) {
                    level.requested_bytes =
                        level.requested_bytes.saturating_sub(requested(recording, number));
                }
            }
            EventKind::Region(number) => {
                let region = &recording.regions()[number as usize];
                level.reserved_bytes = if region.taken {
                    level.reserved_bytes.saturating_add(region.bytes)
                } else {
                    level.reserved_bytes.saturating_sub(region.bytes)
                };
            }
            _ => {}
        }
        *level
    }
}

/// The requested bytes of a block, which are part of the granted ones.
fn requested(recording: &Recording, block: u32) -> u64 {
    let block = recording.block(block);
    block.requested.min(block.granted)
}

/// Returns whether levels count after this event. A segment that was just taken is not free: the block that needs it
/// follows.
pub(super) fn is_settled(recording: &Recording, index: u32) -> bool {
    let event = recording.events().get(index as usize);
    let is_block = event.is_some_and(|event| matches!(event.kind, EventKind::Alloc(_) | EventKind::Free(_)));
    is_block || index as usize + 1 == recording.events().len()
}

impl Levels {
    /// Follows a recording. The events at its beginning that stand for lost ones have no level of their own.
    pub(super) fn of(recording: &Recording, pending: &HashMap<u32, u32>) -> Self {
        let mut levels = Self::default();
        let mut meter = Meter::new(recording, pending);
        let count = recording.events().len() as u32;
        let first = (recording.carried_events() as u32).min(count.saturating_sub(1));
        let parts = Parts::new(recording, first);
        for index in 0..count {
            let level = meter.take(index);
            // The last carried event is the state at the beginning.
            if index + 1 < first || !is_settled(recording, index) && index + 1 != first {
                continue;
            }
            if levels.timeline.is_empty() {
                (levels.largest_gap, levels.peak_reserved, levels.peak_allocated) = (level, level, level);
            }
            let better = |old: &MemoryLevel, figure: fn(&MemoryLevel) -> u64| figure(&level) > figure(old);
            if better(&levels.largest_gap, MemoryLevel::gap_bytes) {
                levels.largest_gap = level;
            }
            if better(&levels.peak_reserved, |level| level.reserved_bytes) {
                levels.peak_reserved = level;
            }
            if better(&levels.peak_allocated, |level| level.allocated_bytes) {
                levels.peak_allocated = level;
            }
            levels.end = level;
            parts.add(&mut levels.timeline, level);
        }
        parts.fill(&mut levels.timeline, levels.end);
        levels
    }
}

/// The parts of a timeline: equal times, or equal numbers of events if the file has no times.
#[derive(Clone, Copy, Debug)]
struct Parts {
    is_timed: bool,
    first: u64,
    length: u64,
}

impl Parts {
    fn new(recording: &Recording, first: u32) -> Self {
        let (start, end) = (recording.time_of(first), recording.end_ns());
        let is_timed = end > start;
        let count = recording.events().len() as u64;
        let (first, end) = if is_timed { (start, end) } else { (u64::from(first), count.saturating_sub(1)) };
        Self { is_timed, first, length: end.saturating_sub(first) + 1 }
    }

    fn part(&self, level: &MemoryLevel) -> usize {
        let position = if self.is_timed { level.at_ns } else { level.event.into() };
        let part = u128::from(position.saturating_sub(self.first)) * PARTS as u128 / u128::from(self.length);
        (part as usize).min(PARTS - 1)
    }

    /// Keeps the level with the largest gap of each part. A part without events has the level before it.
    fn add(&self, timeline: &mut Vec<MemoryLevel>, level: MemoryLevel) {
        let part = self.part(&level);
        match timeline.get_mut(part) {
            Some(largest) => {
                if level.gap_bytes() >= largest.gap_bytes() {
                    *largest = level;
                }
            }
            None => {
                let before = timeline.last().copied().unwrap_or(level);
                timeline.resize(part, before);
                timeline.push(level);
            }
        }
    }

    fn fill(&self, timeline: &mut Vec<MemoryLevel>, end: MemoryLevel) {
        // Few events have few parts.
        if self.is_timed && !timeline.is_empty() {
            timeline.resize(PARTS, end);
        }
    }
}
