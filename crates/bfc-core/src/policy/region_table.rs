//! The regions of a policy that never merges them, in order of address.

use crate::base::memory::Span;
use crate::policy::NotAdded;

/// One region as the source delivered it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableRegion {
    /// The span that returns to the source.
    pub(crate) span: Span,
    /// The slot of the chunk at its start. A policy keeps that slot there through cuts and merges.
    pub(crate) first: u32,
}

/// The regions, sorted by address.
#[derive(Clone, Debug, Default)]
pub(crate) struct RegionTable {
    sorted: Vec<TableRegion>,
    bytes: u64,
}

impl RegionTable {
    /// Returns the index for a new region.
    pub(crate) fn room_for(&self, span: Span) -> Result<usize, NotAdded> {
        let end = span.end().filter(|_| span.bytes > 0).ok_or(NotAdded::Bad)?;
        let index = self.sorted.partition_point(|region| region.span.address < span.address);
        let below = index.checked_sub(1).and_then(|below| self.sorted[below].span.end());
        let overlaps_below = below.is_some_and(|below| below > span.address);
        let overlaps_above = self.sorted.get(index).is_some_and(|above| above.span.address < end);
        if overlaps_below || overlaps_above { Err(NotAdded::Bad) } else { Ok(index) }
    }

    /// Inserts a region at the index of [`room_for`](Self::room_for).
    pub(crate) fn insert(&mut self, index: usize, region: TableRegion) {
        // Regions do not overlap, so their sum is at most the address space.
        self.bytes += region.span.bytes;
        self.sorted.insert(index, region);
    }

    pub(crate) fn remove(&mut self, index: usize) -> TableRegion {
        let region = self.sorted.remove(index);
        self.bytes -= region.span.bytes;
        region
    }

    /// Returns the index of the region that starts at `address`.
    pub(crate) fn starting_at(&self, address: u64) -> Option<usize> {
        self.sorted.binary_search_by_key(&address, |region| region.span.address).ok()
    }

    /// Returns the region that contains `address`.
    pub(crate) fn containing(&self, address: u64) -> Option<&TableRegion> {
        let above = self.sorted.partition_point(|region| region.span.address <= address);
        let region = &self.sorted[above.checked_sub(1)?];
        (address - region.span.address < region.span.bytes).then_some(region)
    }

    pub(crate) fn as_slice(&self) -> &[TableRegion] {
        &self.sorted
    }

    pub(crate) fn spans(&self) -> Vec<Span> {
        self.sorted.iter().map(|region| region.span).collect()
    }

    /// Returns the bytes of all regions.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(spans: &[(u64, u64)]) -> RegionTable {
        let mut table = RegionTable::default();
        for (first, &(address, bytes)) in spans.iter().enumerate() {
            let span = Span { address, bytes };
            let index = table.room_for(span).unwrap();
            table.insert(index, TableRegion { span, first: first as u32 });
        }
        table
    }

    #[test]
    fn regions_stand_in_the_order_of_their_addresses() {
        let table = table(&[(4096, 1024), (0, 512), (512, 512)]);
        assert_eq!(table.as_slice().iter().map(|region| region.first).collect::<Vec<_>>(), [1, 2, 0]);
        assert_eq!(table.bytes(), 2048);
        assert_eq!(table.starting_at(512), Some(1));
        assert_eq!(table.starting_at(513), None);
        let first = |address| table.containing(address).map(|region| region.first);
        assert_eq!(
            [0, 511, 512, 1023, 1024, 4095, 4096, 5120].map(first),
            [Some(1), Some(1), Some(2), Some(2), None, None, Some(0), None]
        );
    }

    #[test]
    fn an_invalid_region_is_refused() {
        let table = table(&[(1024, 1024), (4096, 1024)]);
        let spans = [
            (0, 0),
            (8192, 0),
            (1024, 1),
            (0, 1025),
            (2047, 1),
            (3000, 1097),
            (u64::MAX, 1),
            (5120, u64::MAX),
        ];
        for (address, bytes) in spans {
            assert_eq!(table.room_for(Span { address, bytes }), Err(NotAdded::Bad), "{bytes} at {address}");
        }
        assert_eq!(table.room_for(Span { address: 2048, bytes: 2048 }), Ok(1));
        assert_eq!(table.room_for(Span { address: 5120, bytes: u64::MAX - 5120 }), Ok(2));
    }
}
