//! Pieces of blocks: constant sets of bytes that a block occupies for some time.
//!
//! A block without gaps is one piece. A gap splits it into a piece before, a piece for the bytes that it keeps, and a
//! piece after. The pieces of a block share one offset.
//!
//! ```text
//! bytes ^   ┌─────┐           ┌─────┐
//!       │   │     │           │     │
//!       │   │     ├───────────┤     │
//!       │   │     │   kept    │     │
//!       │   └─────┴───────────┴─────┘
//!       └──────────── gap ──────────────> events
//! ```

use std::collections::{BTreeMap, BTreeSet};

use super::verify::Ends;
use super::{BlockConstraint, Lifetime};
use crate::base::units::round_up;

/// A constant range of bytes that a block occupies between two events.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) start: u32,
    pub(super) end: u32,
    /// The first byte, relative to the block's offset, in whole granules.
    pub(super) low: u64,
    /// The end byte.
    pub(super) high: u64,
    /// The block's index.
    pub(super) block: u32,
    /// The alignment of the block's offset.
    pub(super) alignment: u64,
}

/// Returns the pieces of checked blocks, in order of their starts.
pub(super) fn of(
    blocks: impl Iterator<Item = (u32, Lifetime)>,
    constraints: &[BlockConstraint],
    granule: u64,
) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(blocks.size_hint().0);
    let mut constraints = constraints.iter().peekable();
    for (block, lifetime) in blocks {
        while constraints.next_if(|constraint| constraint.block < block as usize).is_some() {}
        let constraint = constraints.next_if(|constraint| constraint.block == block as usize);
        let alignment = constraint.map_or(granule, |constraint| constraint.alignment.max(granule));
        let size = round_up(lifetime.bytes, granule).unwrap_or(u64::MAX);
        let mut add = |start, end, low, high| {
            if start < end && low < high {
                pieces.push(Piece { start, end, low, high, block, alignment });
            }
        };
        let mut from = lifetime.start;
        for gap in constraint.map_or(&[][..], |constraint| &constraint.gaps) {
            add(from, gap.start, 0, size);
            if !gap.kept.is_empty() {
                let low = gap.kept.start / granule * granule;
                add(gap.start, gap.end, low, round_up(gap.kept.end, granule).unwrap_or(size));
            }
            from = gap.end;
        }
        add(from, lifetime.end, 0, size);
    }
    // The sort is stable: pieces that start together stay in block order.
    pieces.sort_by_key(|piece| piece.start);
    pieces
}

/// Returns a lower bound on the bytes of any packing for the pieces.
///
/// Live pieces do not overlap, so the sum of their sizes is a bound. There is a second bound for each alignment `a`:
/// all but the highest piece of blocks aligned to `a` fill whole multiples of `a`.
pub(super) fn lower_bound(pieces: &[Piece], granule: u64) -> u64 {
    let alignments: BTreeSet<u64> = pieces.iter().map(|piece| piece.alignment).collect();
    let aligned = alignments.into_iter().filter(|&alignment| alignment > granule).map(|alignment| {
        let counts = |piece: &Piece| piece.alignment >= alignment && piece.low == 0;
        peak(pieces, alignment, counts)
    });
    let plain = peak(pieces, 1, |_| true);
    aligned.fold(plain, u64::max)
}

/// Returns the largest sum of live pieces that count, with all but one rounded up to `multiple`.
fn peak(pieces: &[Piece], multiple: u64, counts: impl Fn(&Piece) -> bool) -> u64 {
    let pieces: Vec<Piece> = pieces.iter().filter(|piece| counts(piece)).copied().collect();
    let rounded = |piece: &Piece| round_up(piece.high - piece.low, multiple).unwrap_or(u64::MAX);
    let padding = |piece: &Piece| rounded(piece) - (piece.high - piece.low);
    let mut ends = Ends::new(&pieces);
    // The number of live pieces with each padding. The highest piece may be the one with the most padding.
    let mut paddings: BTreeMap<u64, usize> = BTreeMap::new();
    let (mut live, mut peak) = (0_u64, 0);
    for piece in &pieces {
        for ended in ends.up_to(piece.start) {
            let ended = &pieces[ended];
            live = live.saturating_sub(rounded(ended));
            if let Some(count) = paddings.get_mut(&padding(ended)) {
                *count -= 1;
                if *count == 0 {
                    paddings.remove(&padding(ended));
                }
            }
        }
        live = live.saturating_add(rounded(piece));
        if multiple > 1 {
            *paddings.entry(padding(piece)).or_default() += 1;
        }
        let most = paddings.last_key_value().map_or(0, |(&padding, _)| padding);
        peak = peak.max(live.saturating_sub(most));
    }
    peak
}
