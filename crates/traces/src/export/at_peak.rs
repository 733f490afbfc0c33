//! The holders at the peak.

use std::collections::BTreeMap;

use bfc_core::Category;
use highwater_tracking::Recording;

/// The blocks of one owner, category and pool that were live at the peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holding {
    pub(super) owner: u32,
    pub(super) category: Category,
    pub(super) pool: u32,
    pub(super) blocks: u64,
    pub(super) bytes: u64,
}

/// Returns the holders at the peak, by owner, category and pool.
pub(super) fn holdings(recording: &Recording) -> Vec<Holding> {
    let mut sums: BTreeMap<(u32, usize, u32), (u64, u64)> = BTreeMap::new();
    for live in recording.live_at_peak() {
        let pool = recording.block(live.block).pool;
        let (blocks, bytes) = sums.entry((live.owner, live.category.index(), pool)).or_default();
        *blocks += 1;
        *bytes += live.bytes;
    }
    let holding = |((owner, category, pool), (blocks, bytes))| Holding {
        owner,
        category: Category::ALL[category],
        pool,
        blocks,
        bytes,
    };
    sums.into_iter().map(holding).collect()
}
