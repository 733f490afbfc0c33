//! Maps addresses to positions on the map, without the gaps between regions.

use crate::record::Recording;

/// The most gaps to remove within pools. Smaller gaps stay on the map as empty space.
const MAX_CUTS: usize = 63;

/// A contiguous range of a pool's addresses on the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) pool: u32,
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// The position on the map, in bytes.
    pub(super) at: u64,
}

/// All ranges, by pool and address.
#[derive(Debug, Default)]
pub(super) struct Space {
    pub(super) extents: Vec<Extent>,
    pub(super) bytes: u64,
}

impl Space {
    /// Collects all memory that was ever reserved or in use.
    pub(super) fn of(recording: &Recording) -> Self {
        let regions = recording.regions().iter().map(|region| (region.pool, region.address, region.bytes));
        let blocks = recording.blocks().iter().map(|block| (block.pool, block.address, block.granted));
        let mut spans: Vec<(u32, u64, u64)> = regions
            .chain(blocks)
            .filter(|&(_, _, bytes)| bytes > 0)
            .map(|(pool, address, bytes)| (pool, address, address.saturating_add(bytes)))
            .collect();
        spans.sort_unstable();
        spans.dedup_by(|next, span| {
            let joins = next.0 == span.0 && next.1 <= span.2;
            if joins {
                span.2 = span.2.max(next.2);
            }
            joins
        });
        Self::join(&spans)
    }

    /// Joins the ranges with the smaller gaps between them.
    fn join(spans: &[(u32, u64, u64)]) -> Self {
        let gap = |pair: &[(u32, u64, u64)]| (pair[0].0 == pair[1].0).then(|| pair[1].1 - pair[0].2);
        let mut gaps: Vec<u64> = spans.windows(2).filter_map(gap).collect();
        gaps.sort_unstable_by(|a, b| b.cmp(a));
        let joined = gaps.get(MAX_CUTS).copied().unwrap_or(0);

        let mut extents: Vec<Extent> = Vec::new();
        for &(pool, start, end) in spans {
            match extents.last_mut() {
                Some(last) if last.pool == pool && start - (last.address + last.bytes) <= joined => {
                    last.bytes = end - last.address;
                }
                _ => extents.push(Extent { pool, address: start, bytes: end - start, at: 0 }),
            }
        }
        let mut bytes = 0_u64;
        for extent in &mut extents {
            extent.at = bytes;
            bytes = bytes.saturating_add(extent.bytes);
        }
        Self { extents, bytes }
    }

    /// Returns the position of a pool's address on the map.
    pub(super) fn place(&self, pool: u32, address: u64) -> u64 {
        let after = self.extents.partition_point(|extent| (extent.pool, extent.address) <= (pool, address));
        let Some(extent) = after.checked_sub(1).map(|index| &self.extents[index]) else { return 0 };
        extent.at.saturating_add(address - extent.address.min(address))
    }
}
