//! The segments of a pool as a viewer of memory must see them: each block lies within one, as long as it lives.
//!
//! Recordings know the regions that pools took and gave back while recording was on. That need not be all: a pool may have
//! had regions before, may have made two neighbours one and put a block across them, or may have none, as when every
//! block comes from the system. So regions and blocks that share bytes are taken together, and so are neighbours of which
//! no region is known. What is one region then, and was there whenever a block lay in it, comes and goes as it did;
//! anything else is there from the beginning to the end.

use super::ExportError;
use crate::record::{EventKind, Recording};

/// The first address that a double-precision number cannot be trusted with.
const TOO_HIGH: u64 = 1 << 53;

/// A stretch of a pool's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Whether it is there from the beginning to the end, because the recording does not tell when it came and went.
    pub(super) fixed: bool,
    /// Whether it is there at the moment that is looked at; at last, at the end of the recording.
    pub(super) present: bool,
    /// How many live blocks lie in it.
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
    /// The segments of the pool whose events these are.
    ///
    /// # Errors
    /// [`ExportError::TooHigh`].
    pub(super) fn of(recording: &Recording, events: &[u32]) -> Result<Self, ExportError> {
        let mut stretches = Vec::new();
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
                Some(end) if end <= TOO_HIGH => stretches.push(Stretch { start: address, end, known }),
                _ => return Err(ExportError::TooHigh { address, bytes }),
            }
        }
        let mut segments = Self { all: join(stretches) };
        for &event in events {
            segments.check(recording, event);
        }
        for segment in segments.all.iter_mut().filter(|segment| segment.fixed) {
            segment.present = true;
        }
        Ok(segments)
    }

    /// The segment of an address: its index.
    fn find(&self, address: u64) -> Option<usize> {
        let after = self.all.partition_point(|segment| segment.start <= address);
        let index = after.checked_sub(1)?;
        (address < self.all[index].end).then_some(index)
    }

    /// The segment that comes or goes with this region, if it is one that does.
    pub(super) fn moving(&self, address: u64) -> Option<&Segment> {
        self.find(address).map(|index| &self.all[index]).filter(|segment| !segment.fixed)
    }

    /// Follows an event; a segment for which it makes no sense is fixed.
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

/// A region, or the place of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Stretch {
    start: u64,
    end: u64,
    /// Whether it is a region, or has one in it.
    known: bool,
}

/// Makes stretches one that share bytes, and then neighbours of which no region is known.
fn join(mut stretches: Vec<Stretch>) -> Vec<Segment> {
    stretches.retain(|stretch| stretch.start < stretch.end);
    stretches.sort_unstable();
    let mut joined: Vec<Stretch> = Vec::new();
    for stretch in stretches {
        match joined.last_mut() {
            Some(last) if stretch.start < last.end => {
                last.end = last.end.max(stretch.end);
                last.known |= stretch.known;
            }
            _ => joined.push(stretch),
        }
    }
    joined.dedup_by(|next, last| {
        let neighbours = last.end == next.start && !last.known && !next.known;
        if neighbours {
            last.end = next.end;
        }
        neighbours
    });
    let segment = |Stretch { start, end, .. }| Segment { start, end, fixed: false, present: false, live: 0 };
    joined.into_iter().map(segment).collect()
}

/// The events of each pool, in order.
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

    fn ends(stretches: &[(u64, u64, bool)]) -> Vec<(u64, u64)> {
        let stretch = |&(start, end, known)| Stretch { start, end, known };
        join(stretches.iter().map(stretch).collect())
            .iter()
            .map(|segment| (segment.start, segment.end))
            .collect()
    }

    #[test]
    fn overlapping_spans_become_one_segment() {
        let regions =
            [(256, 512, true), (0, 256, true), (300, 600, false), (700, 700, true), (1000, 1001, true)];
        assert_eq!(ends(&regions), [(0, 256), (256, 600), (1000, 1001)]);
    }

    #[test]
    fn neighbours_of_which_no_region_is_known_become_one() {
        let blocks = [(0, 10, false), (20, 30, false), (10, 20, false), (30, 40, true), (40, 50, false)];
        assert_eq!(ends(&blocks), [(0, 30), (30, 40), (40, 50)]);
    }
}
