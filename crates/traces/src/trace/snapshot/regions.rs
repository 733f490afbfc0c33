//! The regions of a snapshot over time.
//!
//! A snapshot has the segments at its end, and the changes that the buffer of events still holds. Going backwards from
//! the end through the changes finds the regions that are older than the first event.

use std::collections::BTreeMap;

use bfc_core::Span;

use super::collect::RegionChange;
use super::rounding::{Kind, SMALL_SEGMENT};
use super::segments::Segments;

/// A region: its size, its kind and its private pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KnownRegion {
    pub(super) bytes: u64,
    pub(super) kind: Kind,
    pub(super) pool: (u64, u64),
}

/// The regions at one moment, by address. They do not overlap.
#[derive(Clone, Debug, Default)]
pub(super) struct RegionMap(BTreeMap<u64, KnownRegion>);

impl RegionMap {
    /// Returns the region that contains an address, with its own address.
    pub(super) fn at(&self, address: u64) -> Option<(u64, KnownRegion)> {
        let (&start, &region) = self.0.range(..=address).next_back()?;
        (address - start < region.bytes).then_some((start, region))
    }

    /// Returns all regions by address.
    pub(super) fn iter(&self) -> impl Iterator<Item = Span> {
        self.0.iter().map(|(&address, region)| Span { address, bytes: region.bytes })
    }

    /// Adds a region in place of anything that it overlaps. Joins neighbors of expandable segments.
    pub(super) fn insert(&mut self, address: u64, region: KnownRegion) {
        self.remove(Span { address, bytes: region.bytes });
        let (mut address, mut region) = (address, region);
        if region.bytes == 0 {
            return;
        }
        if region.kind.is_expandable {
            let joins = |other: &KnownRegion| other.kind == region.kind && other.pool == region.pool;
            let before = self.0.range(..address).next_back().map(|(&start, &before)| (start, before));
            if let Some((start, before)) =
                before.filter(|(start, before)| start + before.bytes == address && joins(before))
            {
                self.0.remove(&start);
                (address, region.bytes) = (start, before.bytes + region.bytes);
            }
            let end = address.saturating_add(region.bytes);
            if let Some(&after) = self.0.get(&end).filter(|after| joins(after)) {
                self.0.remove(&end);
                region.bytes += after.bytes;
            }
        }
        self.0.insert(address, region);
    }

    /// Removes a range, which may be a part of regions.
    pub(super) fn remove(&mut self, span: Span) {
        let end = span.address.saturating_add(span.bytes);
        while let Some((&start, &region)) = self.0.range(..end).next_back() {
            let stop = start.saturating_add(region.bytes);
            if stop <= span.address {
                break;
            }
            self.0.remove(&start);
            if end < stop {
                self.0.insert(end, KnownRegion { bytes: stop - end, ..region });
            }
            if start < span.address {
                self.0.insert(start, KnownRegion { bytes: span.address - start, ..region });
                break;
            }
        }
    }
}

/// Returns the regions that are older than the first event, and the properties of each region that an event took or
/// returned.
pub(super) fn before_events(segments: &Segments, changes: &[RegionChange]) -> (RegionMap, Vec<KnownRegion>) {
    let mut regions = RegionMap::default();
    for (segment, &(_, pool)) in segments.list.iter().zip(&segments.streams) {
        let kind = Kind { is_small: segment.is_small, is_expandable: segment.is_expandable };
        regions.insert(segment.address, KnownRegion { bytes: segment.bytes, kind, pool });
    }
    let mut found = Vec::with_capacity(changes.len());
    for change in changes.iter().rev() {
        let Span { address, bytes } = change.span;
        let stated = KnownRegion {
            bytes,
            kind: Kind {
                is_small: !change.is_expandable && bytes == SMALL_SEGMENT,
                is_expandable: change.is_expandable,
            },
            pool: change.pool.unwrap_or_default(),
        };
        if change.taken {
            let known = regions.at(address).map_or(stated, |(_, known)| KnownRegion { bytes, ..known });
            let pool = change.pool.unwrap_or(known.pool);
            found.push(KnownRegion { pool, ..known });
            regions.remove(change.span);
        } else {
            found.push(stated);
            regions.insert(address, stated);
        }
    }
    found.reverse();
    (regions, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn plain(bytes: u64) -> KnownRegion {
        KnownRegion { bytes, kind: Kind { is_small: false, is_expandable: false }, pool: (0, 0) }
    }

    const fn mapped(bytes: u64) -> KnownRegion {
        KnownRegion { bytes, kind: Kind { is_small: false, is_expandable: true }, pool: (0, 0) }
    }

    const fn span(address: u64, bytes: u64) -> Span {
        Span { address, bytes }
    }

    #[test]
    fn mapped_neighbors_join_and_parts_can_be_removed() {
        let mut regions = RegionMap::default();
        regions.insert(100, mapped(10));
        regions.insert(120, mapped(10));
        regions.insert(110, mapped(10));
        assert_eq!(regions.iter().collect::<Vec<_>>(), [span(100, 30)]);
        regions.remove(span(105, 10));
        assert_eq!(regions.iter().collect::<Vec<_>>(), [span(100, 5), span(115, 15)]);
        assert_eq!(regions.at(104), Some((100, mapped(5))));
        assert_eq!(regions.at(105), None);
        regions.insert(130, plain(10));
        regions.insert(140, plain(10));
        assert_eq!(regions.iter().count(), 4, "ordinary regions stay apart");
        regions.remove(span(0, u64::MAX));
        assert_eq!(regions.iter().count(), 0);
    }

    #[test]
    fn regions_older_than_the_events_are_found_backwards() {
        let change = |address, bytes, taken| RegionChange {
            span: span(address, bytes),
            taken,
            is_expandable: false,
            pool: None,
        };
        let mut segments = Segments::default();
        for address in [1000, 3000] {
            segments.list.push(super::super::SnapshotSegment { address, bytes: 100, ..Default::default() });
            segments.streams.push((0, (0, 7)));
        }
        // The region at 2000 is older and was returned, the one at 3000 is new.
        let changes = [change(2000, 100, false), change(3000, 100, true)];
        let (older, found) = before_events(&segments, &changes);
        assert_eq!(older.iter().collect::<Vec<_>>(), [span(1000, 100), span(2000, 100)]);
        assert_eq!((found[0].pool, found[1].pool), ((0, 0), (0, 7)));
    }
}
