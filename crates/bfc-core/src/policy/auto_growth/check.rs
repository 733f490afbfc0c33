//! The invariants of an auto-growth allocator, and their checker.

use super::block::{NONE, State};
use super::{AutoGrowth, NAME};
use crate::base::placement::Inconsistent;
use crate::policy::region_table::TableRegion;

/// Sums over all regions.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sums {
    blocks: usize,
    free_blocks: usize,
    free_bytes: u64,
    idle_regions: usize,
}

/// Checks that blocks tile their regions and have correct neighbors, that no two free ones touch, and that free list
/// and sums are correct.
pub(super) fn check(policy: &AutoGrowth) -> Result<(), Inconsistent> {
    let mut sums = Sums::default();
    for region in policy.regions.as_slice() {
        check_region(policy, region, &mut sums)?;
    }
    let kept = Sums {
        blocks: policy.blocks.len(),
        free_blocks: policy.free.len(),
        free_bytes: policy.free_bytes,
        idle_regions: policy.idle_regions,
    };
    holds(sums == kept, || format!("{sums:?} counted as {kept:?}"))
}

fn check_region(policy: &AutoGrowth, region: &TableRegion, sums: &mut Sums) -> Result<(), Inconsistent> {
    let (mut slot, mut prev) = (region.first, NONE);
    let mut address = region.span.address;
    let mut prev_was_free = false;
    let step = policy.options.alignment().0;
    while slot != NONE {
        let block = policy.blocks[slot];
        let is_free = block.state == State::Free;
        holds(block.state != State::Vacant && block.bytes > 0, || {
            format!("slot {slot} in a region is {block:?}")
        })?;
        holds(block.address == address && block.prev == prev, || {
            format!("slot {slot} is {block:?}, next to slot {prev} that ends at {address:#x}")
        })?;
        holds(!(is_free && prev_was_free), || format!("slots {prev} and {slot} are free side by side"))?;
        holds(is_free || block.bytes.is_multiple_of(step), || {
            format!("slot {slot} is not rounded: {block:?}")
        })?;
        let key = block.as_free(slot);
        holds(!is_free || policy.free.contains(key), || format!("{key:?} is not in order"))?;
        sums.blocks += 1;
        if is_free {
            sums.free_blocks += 1;
            sums.free_bytes += block.bytes;
            sums.idle_regions += usize::from(block.is_idle_region());
        }
        (prev, prev_was_free, address, slot) = (slot, is_free, block.end(), block.next);
    }
    let end = region.span.end();
    holds(end == Some(address), || format!("{:x?} is covered up to {address:#x}", region.span))
}

fn holds(condition: bool, detail: impl FnOnce() -> String) -> Result<(), Inconsistent> {
    if condition { Ok(()) } else { Err(Inconsistent { policy: NAME, detail: detail() }) }
}
