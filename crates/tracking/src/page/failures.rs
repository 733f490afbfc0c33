//! Requests that found no memory: what was asked for, and who held what then.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::record::{EventKind, LiveBlock, Recording};
use crate::report::OutOfMemory;

/// How many are told in full, and the most holders of each.
const MAX_TOLD: usize = 8;
const MAX_HOLDERS: usize = 12;

/// A request that found no memory. Sizes are bytes, of its pool alone.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct FailureRow {
    pub(super) at_ns: u64,
    pub(super) requested: u64,
    pub(super) owner: String,
    pub(super) category: &'static str,
    pub(super) pool: String,
    pub(super) in_use: u64,
    /// What the pool may hold, as far as a summary tells.
    pub(super) limit: Option<u64>,
    /// Of regions that the recording knows of; 0 if it knows of none.
    pub(super) reserved: u64,
    pub(super) largest_free: u64,
    /// Why, as far as the recording tells.
    pub(super) verdict: &'static str,
    pub(super) holders: Vec<(String, u64)>,
    /// What the pool itself said, if that was recorded: it knows more than can be told from events.
    pub(super) report: Option<OutOfMemory>,
}

/// The first failures of a recording.
pub(super) fn failures(recording: &Recording) -> Vec<FailureRow> {
    let failed = (0_u32..).zip(recording.events()).filter_map(|(index, event)| match event.kind {
        EventKind::Failed(failure) => Some((index, failure)),
        _ => None,
    });
    failed.take(MAX_TOLD).map(|(event, failure)| row(recording, event, failure)).collect()
}

fn row(recording: &Recording, event: u32, failure: u32) -> FailureRow {
    let report = recording.report_of(failure).cloned();
    let failure = recording.failures()[failure as usize];
    let mut live = recording.live_after(event);
    live.retain(|block| recording.block(block.block).pool == failure.pool);
    let in_use = live.iter().map(|block| block.bytes).sum();
    let pool = recording.pools()[failure.pool as usize].name.clone();
    let pools = recording.summary().map_or(&[][..], |summary| &summary.report.pools);
    let limit = pools.iter().find(|row| row.name == pool).and_then(|row| row.limit);

    let regions = regions_at(recording, event, failure.pool);
    let reserved = regions.values().fold(0_u64, |sum, &bytes| sum.saturating_add(bytes));
    let largest_free = largest_free(recording, &live, &regions);
    let most = limit.or((reserved > 0).then_some(reserved));
    let verdict = match most {
        None => "not known: neither limit nor regions are recorded",
        Some(most) if failure.requested > most => "over the limit",
        Some(most) if failure.requested > most.saturating_sub(in_use) => "exhausted",
        Some(_) => "fragmented",
    };
    FailureRow {
        at_ns: recording.time_of(event),
        requested: failure.requested,
        owner: recording.owner_path(failure.owner),
        category: failure.category.name(),
        pool,
        in_use,
        limit,
        reserved,
        largest_free,
        verdict,
        holders: holders(recording, &live),
        report,
    }
}

/// The regions that a pool had after an event, by address.
fn regions_at(recording: &Recording, event: u32, pool: u32) -> BTreeMap<u64, u64> {
    let mut regions = BTreeMap::new();
    for event in &recording.events()[..event as usize] {
        let EventKind::Region(region) = event.kind else { continue };
        let region = recording.regions()[region as usize];
        match region.taken {
            _ if region.pool != pool => {}
            true => drop(regions.insert(region.address, region.bytes)),
            false => drop(regions.remove(&region.address)),
        }
    }
    regions
}

/// The largest piece of the regions in which no live block lies. Looks at each region and block once.
fn largest_free(recording: &Recording, live: &[LiveBlock], regions: &BTreeMap<u64, u64>) -> u64 {
    let span = |block: &LiveBlock| {
        let block = recording.block(block.block);
        (block.address, block.address.saturating_add(block.granted))
    };
    let mut taken: Vec<(u64, u64)> = live.iter().map(span).collect();
    taken.sort_unstable();
    let mut taken = taken.into_iter().peekable();
    // Up to here, everything was looked at or is taken.
    let (mut largest, mut free_from) = (0, 0_u64);
    for (&start, &bytes) in regions {
        let end = start.saturating_add(bytes);
        while let Some((_, to)) = taken.next_if(|&(from, _)| from < start) {
            free_from = free_from.max(to);
        }
        free_from = free_from.max(start);
        while let Some((from, to)) = taken.next_if(|&(from, _)| from < end) {
            largest = largest.max(from.saturating_sub(free_from));
            free_from = free_from.max(to);
        }
        largest = largest.max(end.saturating_sub(free_from));
        free_from = free_from.max(end);
    }
    largest
}

/// Who held most.
fn holders(recording: &Recording, live: &[LiveBlock]) -> Vec<(String, u64)> {
    let mut sums: BTreeMap<u32, u64> = BTreeMap::new();
    for block in live {
        *sums.entry(block.owner).or_default() += block.bytes;
    }
    let mut holders: Vec<(u32, u64)> = sums.into_iter().collect();
    holders.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
    holders.truncate(MAX_HOLDERS);
    holders.into_iter().map(|(owner, bytes)| (recording.owner_path(owner), bytes)).collect()
}
