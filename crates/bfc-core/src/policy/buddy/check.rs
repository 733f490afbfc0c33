//! The invariants of a buddy allocator, and their checker.

use super::descriptor::{Descriptor, Kind, NONE, Overwritten};
use super::{Buddy, NAME};
use crate::base::placement::Inconsistent;
use crate::policy::best_fit::FreePiece;
use crate::policy::region_table::TableRegion;

/// Sums over all regions.
#[derive(Debug, Default)]
struct Sums {
    pieces: usize,
    free_pieces: usize,
    used: u64,
    huge: u64,
}

/// Checks the guards of all descriptors, that chunks tile their regions and have correct neighbors, that no two free
/// ones touch, and that free list and sums are correct.
pub(super) fn check(buddy: &Buddy) -> Result<(), Inconsistent> {
    if let Some(damage) = buddy.damage {
        return Err(overwritten(damage));
    }
    for slot in 0..buddy.descriptors.slot_count() as u32 {
        buddy.descriptors.load(slot).map_err(overwritten)?;
    }
    let mut sums = Sums::default();
    for region in buddy.regions.as_slice() {
        check_region(buddy, region, &mut sums)?;
    }
    for &slot in buddy.descriptors.vacant() {
        let kind = buddy.descriptors.load(slot).map_err(overwritten)?.kind;
        holds(kind == Kind::Vacant, || format!("slot {slot} counts as vacant but is {kind:?}"))?;
    }
    let (slots, vacant) = (buddy.descriptors.slot_count(), buddy.descriptors.vacant().len());
    let Sums { pieces, free_pieces, used, huge } = sums;
    holds(pieces + vacant == slots, || format!("{pieces} pieces and {vacant} vacant of {slots} slots"))?;
    let ordered = buddy.free.len();
    holds(free_pieces == ordered, || format!("{free_pieces} free pieces, {ordered} of them in order"))?;
    holds((used, huge) == (buddy.used, buddy.huge), || {
        format!("{used} bytes used and {huge} huge, counted as {} and {}", buddy.used, buddy.huge)
    })?;
    for address in buddy.own_regions.iter().chain(&buddy.spent_regions) {
        let known = buddy.regions.starting_at(*address).is_some();
        holds(known, || format!("no region starts at {address:#x}"))?;
    }
    let both = buddy.own_regions.intersection(&buddy.spent_regions).next();
    holds(both.is_none(), || format!("the region at {both:x?} is in use and spent"))
}

fn check_region(buddy: &Buddy, region: &TableRegion, sums: &mut Sums) -> Result<(), Inconsistent> {
    let (mut slot, mut left) = (region.first, NONE);
    let mut address = region.span.address;
    let mut left_was_free = false;
    while slot != NONE {
        let piece = buddy.descriptors.load(slot).map_err(overwritten)?;
        let Descriptor { kind, bytes, .. } = piece;
        let is_free = kind == Kind::Free;
        holds(kind != Kind::Vacant && bytes > 0, || format!("slot {slot} in a region is {piece:?}"))?;
        holds(piece.address == address && piece.left == left, || {
            format!("slot {slot} is {piece:?}, next to slot {left} that ends at {address:#x}")
        })?;
        holds(!(is_free && left_was_free), || format!("slots {left} and {slot} are free side by side"))?;
        let key = FreePiece { bytes, address, slot };
        holds(!is_free || buddy.free.contains(key), || format!("{key:?} is not in order"))?;
        sums.pieces += 1;
        match kind {
            Kind::Free => sums.free_pieces += 1,
            Kind::Huge => sums.huge += bytes,
            _ => sums.used += bytes,
        }
        (left, left_was_free, address, slot) = (slot, is_free, piece.end(), piece.right);
    }
    let end = region.span.end();
    holds(end == Some(address), || format!("{:x?} is covered up to {address:#x}", region.span))
}

/// The error of an overwritten descriptor.
pub(super) fn overwritten(Overwritten { slot }: Overwritten) -> Inconsistent {
    Inconsistent { policy: NAME, detail: format!("the descriptor of slot {slot} was overwritten") }
}

fn holds(condition: bool, detail: impl FnOnce() -> String) -> Result<(), Inconsistent> {
    if condition { Ok(()) } else { Err(Inconsistent { policy: NAME, detail: detail() }) }
}
