//! The checks of a packing: ordered lifetimes, sums in range, and disjoint blocks.

use std::collections::BTreeMap;

use super::pieces::{self, Piece};
use super::{BlockConstraint, Lifetime, PackedBlock, PackingError};
use crate::base::units::round_up;

/// Beyond this, sums of offsets could exceed 64 bits.
const MOST_BYTES: u64 = 1 << 63;

/// Block numbers must fit into slots, beside those of another policy.
const MOST_BLOCKS: usize = 1 << 31;

/// Checks sizes, lifetimes and order. Alignment may waste as many bytes as it has.
pub(super) fn lifetimes(
    blocks: &[PackedBlock],
    constraints: &[BlockConstraint],
    granule: u64,
) -> Result<(), PackingError> {
    let alignments = constraints.iter().map(|constraint| constraint.alignment);
    let mut total = alignments.fold(0, u64::saturating_add);
    let mut last_start = 0;
    for (index, block) in blocks.iter().enumerate() {
        let Lifetime { bytes, start, end } = block.lifetime;
        if bytes == 0 || end <= start {
            return Err(PackingError::Empty { index });
        }
        if start < last_start {
            return Err(PackingError::OutOfOrder { index });
        }
        last_start = start;
        let sum = round_up(bytes, granule).and_then(|rounded| total.checked_add(rounded));
        total = sum.filter(|&sum| sum < MOST_BYTES).ok_or(PackingError::TooLarge { index })?;
        if index >= MOST_BLOCKS {
            return Err(PackingError::TooLarge { index });
        }
    }
    Ok(())
}

/// Returns the end of the highest block, if all are aligned and disjoint. The lifetimes and constraints are checked
/// before.
pub(super) fn capacity(
    blocks: &[PackedBlock],
    constraints: &[BlockConstraint],
    granule: u64,
) -> Result<u64, PackingError> {
    let capacity = highest_end(blocks, granule)?;
    for constraint in constraints {
        let index = constraint.block;
        let offset = blocks.get(index).and_then(|block| block.offset);
        if let Some(offset) = offset.filter(|offset| offset % constraint.alignment != 0) {
            return Err(PackingError::Misaligned { index, offset });
        }
    }
    let pieces = placed_pieces(blocks, constraints, granule);
    let low_of = |piece: &Piece| blocks[piece.block as usize].offset.unwrap_or(0) + piece.low;
    // The live pieces by first byte, each with its end and its block.
    let mut live: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
    let mut ends = Ends::new(&pieces);
    for piece in &pieces {
        for ended in ends.up_to(piece.start) {
            live.remove(&low_of(&pieces[ended]));
        }
        let low = low_of(piece);
        let end = low + (piece.high - piece.low);
        let below = live.range(..end).next_back().filter(|(_, (below_end, _))| *below_end > low);
        if let Some((_, &(_, other))) = below {
            let (first, second) = (other.min(piece.block) as usize, other.max(piece.block) as usize);
            return Err(PackingError::Overlap { first, second });
        }
        live.insert(low, (end, piece.block));
    }
    Ok(capacity)
}

/// Returns the end of the highest placed block.
fn highest_end(blocks: &[PackedBlock], granule: u64) -> Result<u64, PackingError> {
    let mut capacity = 0;
    for (index, block) in blocks.iter().enumerate() {
        let Some(offset) = block.offset else { continue };
        let end = round_up(block.lifetime.bytes, granule).and_then(|rounded| offset.checked_add(rounded));
        let end = end.filter(|&end| end <= MOST_BYTES).ok_or(PackingError::TooLarge { index })?;
        capacity = capacity.max(end);
    }
    Ok(capacity)
}

/// Returns a lower bound on the bytes of any packing for the placed blocks.
pub(super) fn lower_bound(blocks: &[PackedBlock], constraints: &[BlockConstraint], granule: u64) -> u64 {
    let placed = blocks.iter().filter(|block| block.offset.is_some());
    let largest = placed.filter_map(|block| round_up(block.lifetime.bytes, granule)).max().unwrap_or(0);
    pieces::lower_bound(&placed_pieces(blocks, constraints, granule), granule).max(largest)
}

fn placed_pieces(blocks: &[PackedBlock], constraints: &[BlockConstraint], granule: u64) -> Vec<Piece> {
    let placed = (0..).zip(blocks).filter(|(_, block)| block.offset.is_some());
    pieces::of(placed.map(|(index, block)| (index, block.lifetime)), constraints, granule)
}

/// Pieces in order of their ends.
pub(super) struct Ends<'a> {
    pieces: &'a [Piece],
    by_end: Vec<u32>,
    next: usize,
}

impl<'a> Ends<'a> {
    pub(super) fn new(pieces: &'a [Piece]) -> Self {
        let mut by_end: Vec<u32> = (0..).take(pieces.len()).collect();
        by_end.sort_by_key(|&index| pieces[index as usize].end);
        Self { pieces, by_end, next: 0 }
    }

    /// Removes and returns the pieces that end at `time` or before.
    pub(super) fn up_to(&mut self, time: u32) -> impl Iterator<Item = usize> {
        let first = self.next;
        let ended = |&&index: &&u32| self.pieces[index as usize].end <= time;
        self.next += self.by_end[first..].iter().take_while(ended).count();
        self.by_end[first..self.next].iter().map(|&index| index as usize)
    }
}
