//! The regions of a pool, in order of address.

use super::chunk::{ChunkId, whole_granules};
use crate::base::memory::Span;

/// One region, or several adjacent ones of a source that allows merging.
#[derive(Clone, Debug)]
pub(crate) struct AllocationRegion {
    /// The span that returns to the source: exactly the delivered bytes.
    pub(crate) span: Span,
    /// The slot of the border, before the first and after the last chunk.
    pub(crate) border: ChunkId,
}

impl AllocationRegion {
    /// Returns the span that chunks cover. A tail shorter than a granule stays unused.
    pub(crate) const fn usable(&self) -> u64 {
        whole_granules(self.span.bytes)
    }

    /// Whether `next` starts exactly where this region ends, so that they can merge.
    fn touches(&self, next: Span) -> bool {
        self.usable() == self.span.bytes && self.span.end() == Some(next.address)
    }
}

/// The position of a new span among the regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// The index of the first region above it.
    pub(crate) index: usize,
    /// Whether it directly follows the region below.
    pub(crate) joins_below: bool,
    /// Whether the region above directly follows it.
    pub(crate) joins_above: bool,
}

/// The regions of a pool, sorted by address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Regions {
    sorted: Vec<AllocationRegion>,
}

impl Regions {
    pub(crate) fn as_slice(&self) -> &[AllocationRegion] {
        &self.sorted
    }

    pub(crate) fn insert(&mut self, index: usize, region: AllocationRegion) {
        self.sorted.insert(index, region);
    }

    pub(crate) fn remove(&mut self, index: usize) -> AllocationRegion {
        self.sorted.remove(index)
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> &mut AllocationRegion {
        &mut self.sorted[index]
    }

    /// Returns the position of `span`, or `None` if it overlaps a region: then the source broke its contract.
    pub(crate) fn place(&self, span: Span, join: bool) -> Option<Placement> {
        let index = self.sorted.partition_point(|region| region.span.address < span.address);
        let below = index.checked_sub(1).map(|index| &self.sorted[index]);
        let above = self.sorted.get(index);
        let end = span.end()?;
        let below_overlaps = below.is_some_and(|below| below.span.end().is_none_or(|end| end > span.address));
        if below_overlaps || above.is_some_and(|above| above.span.address < end) {
            return None;
        }
        let whole = whole_granules(span.bytes) == span.bytes;
        Some(Placement {
            index,
            joins_below: join && below.is_some_and(|below| below.touches(span)),
            joins_above: join && whole && above.is_some_and(|above| above.span.address == end),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions(spans: &[(u64, u64)]) -> Regions {
        let mut regions = Regions::default();
        for (index, &(address, bytes)) in spans.iter().enumerate() {
            let span = Span { address, bytes };
            regions.insert(index, AllocationRegion { span, border: ChunkId(index as u32) });
        }
        regions
    }

    #[test]
    fn a_span_joins_below_and_above_only_where_it_touches() {
        let regions = regions(&[(1024, 1024), (4096, 1024)]);
        let place = |address, bytes| regions.place(Span { address, bytes }, true);
        let joins = |index, joins_below, joins_above| Some(Placement { index, joins_below, joins_above });
        assert_eq!(place(0, 512), joins(0, false, false));
        assert_eq!(place(512, 512), joins(0, false, true));
        assert_eq!(place(2048, 512), joins(1, true, false));
        assert_eq!(place(2048, 2048), joins(1, true, true));
        assert_eq!(place(5120, 256), joins(2, true, false));
        assert_eq!(regions.place(Span { address: 2048, bytes: 2048 }, false), joins(1, false, false));
    }

    #[test]
    fn an_overlapping_span_has_no_place() {
        let regions = regions(&[(1024, 1024), (4096, 1024)]);
        for (address, bytes) in [(1024, 256), (1792, 512), (0, 1280), (3840, 512), (0, 8192), (256, u64::MAX)]
        {
            assert_eq!(regions.place(Span { address, bytes }, true), None, "{bytes} bytes at {address}");
        }
    }

    #[test]
    fn an_odd_tail_is_never_joined_over() {
        let odd = regions(&[(1024, 1024 + 100)]);
        assert_eq!(odd.as_slice()[0].usable(), 1024);
        let next = odd.place(Span { address: 1024 + 1024 + 100, bytes: 256 }, true);
        assert_eq!(next.map(|place| place.joins_below), Some(false));
        let before = odd.place(Span { address: 0, bytes: 1024 }, true);
        assert_eq!(before.map(|place| place.joins_above), Some(true));
    }
}
