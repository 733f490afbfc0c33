//! The segments of a pool for a memory viewer: each block lies within one segment during its lifetime.
//!
//! Recordings contain the regions that pools reserved and returned during recording. Other regions may be
//! unknown:
//!
//! - The pool reserved the region before the recording.
//! - The pool joined two neighbors and put a block across them.
//! - The pool has no regions because every block comes from the system.
//!
//! Therefore overlapping regions and blocks merge into one segment, and so do neighbors without a known region. A
//! segment with one region that exists throughout the lifetimes of its blocks has the lifetime of the region. Other
//! segments exist from the beginning to the end.

use highwater_tracking::{EventKind, Recording};

use super::ExportError;

/// The first address that a double-precision number cannot represent exactly.
const TOO_HIGH: u64 = 1 << 53;

/// A range of a pool's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Whether it exists from the beginning to the end, because the recording does not contain its lifetime.
    pub(super) fixed: bool,
    /// Whether it exists at the current moment; finally, at the end of the recording.
    pub(super) present: bool,
    /// The number of live blocks in it.
    live: u64,
}

impl Segment {
    pub(super) const fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

/// The segments of one pool, by address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Segments {
    pub(super) all: Vec<Segment>,
}

impl Segments {
    /// Computes the segments of the pool with these events.
    ///
    /// # Errors
    /// [`ExportError::TooHigh`].
    pub(super) fn of(recording: &Recording, events: &[u32]) -> Result<Self, ExportError> {
        let mut ranges = Vec::new();
        for &event in events {
            let (address, bytes, known) = match recording.events()[event as usize].kind {
                EventKind::Alloc(block) => {
                    let block = recording.block(block);
                    (block.address, block.granted, false)
                }
                EventKind::Region(region) => {
                    let region = &recording.regions()[region as usize];
                    (region.address, region.bytes, true)
                }
                _ => continue,
            };
            match address.checked_add(bytes) {
                Some(end) if end <= TOO_HIGH => ranges.push(AddressRange { start: address, end, known }),
                _ => return Err(ExportError::TooHigh { address, bytes }),
            }
        }
        let mut segments = Self { all: join(ranges) };
        for &event in events {
            segments.check(recording, event);
        }
        for segment in segments.all.iter_mut().filter(|segment| segment.fixed) {
            segment.present = true;
        }
        Ok(segments)
    }

    /// Returns the index of the segment at an address.
    fn find(&self, address: u64) -> Option<usize> {
        let after = self.all.partition_point(|segment| segment.start <= address);
        let index = after.checked_sub(1)?;
        (address < self.all[index].end).then_some(index)
    }

    /// Returns the segment that begins or ends with this region, if any.
    pub(super) fn moving(&self, address: u64) -> Option<&Segment> {
        self.find(address).map(|index| &self.all[index]).filter(|segment| !segment.fixed)
    }

    /// Applies an event. Makes a segment permanent if the event contradicts it.
    fn check(&mut self, recording: &Recording, event: u32) {
        match recording.events()[event as usize].kind {
            EventKind::Alloc(block) => {
                if let Some(index) = self.find(recording.block(block).address) {
                    let segment = &mut self.all[index];
                    segment.live += 1;
                    segment.fixed |= !segment.present;
                }
            }
            EventKind::Free(block) => {
                if let Some(index) = self.find(recording.block(block).address) {
                    self.all[index].live = self.all[index].live.saturating_sub(1);
                }
            }
            EventKind::Region(region) => {
                let region = &recording.regions()[region as usize];
                if let Some(index) = self.find(region.address) {
                    let segment = &mut self.all[index];
                    let same = segment.start == region.address && segment.bytes() == region.bytes;
                    segment.fixed |= !same || segment.present == region.taken || segment.live > 0;
                    segment.present = region.taken;
                }
            }
            _ => {}
        }
    }
}

/// A region, or the range of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct AddressRange {
    start: u64,
    end: u64,
    /// Whether it is a region or contains one.
    known: bool,
}

/// Merges ranges that overlap, then neighbors without a known region.
fn join(mut ranges: Vec<AddressRange>) -> Vec<Segment> {
    ranges.retain(|range| range.start < range.end);
    ranges.sort_unstable();
    let mut joined: Vec<AddressRange> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start < last.end => {
                last.end = last.end.max(range.end);
                last.known |= range.known;
            }
            _ => joined.push(range),
        }
    }
    joined.dedup_by(|next, last| {
        let neighbours = last.end == next.start && !last.known && !next.known;
        if neighbours {
            last.end = next.end;
        }
        neighbours
    });
    let segment =
        |AddressRange { start, end, .. }| Segment { start, end, fixed: false, present: false, live: 0 };
    joined.into_iter().map(segment).collect()
}

/// Returns the events of each pool, in order.
pub(super) fn events_by_pool(recording: &Recording) -> Vec<Vec<u32>> {
    let mut pools = vec![Vec::new(); recording.pools().len()];
    for (index, event) in (0..).zip(recording.events()) {
        let pool = match event.kind {
            EventKind::Alloc(block) | EventKind::Free(block) => recording.block(block).pool,
            EventKind::Region(region) => recording.regions()[region as usize].pool,
            EventKind::Failed(failure) => recording.failures()[failure as usize].pool,
            _ => continue,
        };
        pools[pool as usize].push(index);
    }
    pools
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(ranges: &[(u64, u64, bool)]) -> Vec<(u64, u64)> {
        let range = |&(start, end, known)| AddressRange { start, end, known };
        join(ranges.iter().map(range).collect()).iter().map(|segment| (segment.start, segment.end)).collect()
    }

    #[test]
    fn overlapping_spans_become_one_segment() {
        let regions =
            [(256, 512, true), (0, 256, true), (300, 600, false), (700, 700, true), (1000, 1001, true)];
        assert_eq!(ends(&regions), [(0, 256), (256, 600), (1000, 1001)]);
    }

    #[test]
    fn neighbors_without_a_known_region_merge() {
        let blocks = [(0, 10, false), (20, 30, false), (10, 20, false), (30, 40, true), (40, 50, false)];
        assert_eq!(ends(&blocks), [(0, 30), (30, 40), (40, 50)]);
    }
}
