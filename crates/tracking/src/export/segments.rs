//! The segments of a pool as a viewer of memory must see them: each block lies within one, as long as it lives.
//!
//! Recordings know the regions that pools took and gave back while recording was on. That need not be all: a pool may have
//! had regions before, may have made two neighbours one and put a block across them, or may have none, as when every
//! block comes from the system. So regions and blocks that touch the same bytes are taken together. What is one region
//! then, and was there whenever a block lay in it, comes and goes as it did; anything else is there from the beginning to
//! the end.

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
            let (address, bytes) = match recording.events()[event as usize].kind {
                EventKind::Alloc(block) => (recording.block(block).address, recording.block(block).granted),
                EventKind::Region(region) => {
                    let region = &recording.regions()[region as usize];
                    (region.address, region.bytes)
                }
                _ => continue,
            };
            match address.checked_add(bytes) {
                Some(end) if end <= TOO_HIGH => stretches.push((address, end)),
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

/// Makes stretches that share bytes one.
fn join(mut stretches: Vec<(u64, u64)>) -> Vec<Segment> {
    stretches.retain(|(start, end)| start < end);
    stretches.sort_unstable();
    let mut joined: Vec<Segment> = Vec::new();
    for (start, end) in stretches {
        match joined.last_mut() {
            Some(last) if start < last.end => last.end = last.end.max(end),
            _ => joined.push(Segment { start, end, fixed: false, present: false, live: 0 }),
        }
    }
    joined
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

    #[test]
    fn stretches_that_share_bytes_become_one_and_neighbours_stay_apart() {
        let joined = join(vec![(256, 512), (0, 256), (300, 600), (700, 700), (1000, 1001)]);
        let ends: Vec<_> = joined.iter().map(|segment| (segment.start, segment.end)).collect();
        assert_eq!(ends, [(0, 256), (256, 600), (1000, 1001)]);
    }
}
