//! Constraints of a block: an alignment, and gaps in which other blocks may use its bytes.

use std::ops::Range;

use super::{Lifetime, PackedBlock, PackingError};

/// A part of a block's lifetime in which other blocks may use its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gap {
    /// The event at which the block lends its bytes.
    pub start: u32,
    /// The event at which the block needs its bytes again; above `start`.
    pub end: u32,
    /// The bytes that the block keeps during the gap, relative to its offset. May be empty.
    pub kept: Range<u64>,
}

/// The requirements of a block beyond its size and lifetime.
///
/// ```
/// use bfc_core::{BlockConstraint, Gap, Lifetime, Packing, PackingOptions};
/// // The first block lends its bytes to the second one.
/// let lifetimes = [Lifetime { bytes: 4, start: 0, end: 10 }, Lifetime { bytes: 4, start: 2, end: 8 }];
/// let gap = Gap { start: 2, end: 8, kept: 0..0 };
/// let constraint = BlockConstraint { block: 0, alignment: 1, gaps: vec![gap] };
/// let options = PackingOptions::default().with_granule(1);
/// let packing = Packing::solve_constrained(&lifetimes, vec![constraint], |_| true, &options, &mut |_| true)?;
/// assert_eq!((packing.capacity(), packing.lower_bound()), (4, 4));
/// # Ok::<(), bfc_core::PackingError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BlockConstraint {
    /// The block's index in the packing.
    pub block: usize,
    /// The alignment of the block's offset in bytes, a power of two.
    pub alignment: u64,
    /// Gaps in the block's lifetime, in order and without overlap.
    pub gaps: Vec<Gap>,
}

/// Sorts constraints by block, drops those that require nothing beyond the granule, and checks the rest.
pub(super) fn checked(
    mut constraints: Vec<BlockConstraint>,
    blocks: &[PackedBlock],
    granule: u64,
) -> Result<Vec<BlockConstraint>, PackingError> {
    constraints.sort_by_key(|constraint| constraint.block);
    let mut last = None;
    for constraint in &constraints {
        let index = constraint.block;
        let known = blocks.get(index).filter(|_| last.replace(index) != Some(index));
        let Some(block) = known else { return Err(PackingError::BadConstraint { index }) };
        if !constraint.alignment.is_power_of_two() {
            return Err(PackingError::BadAlignment { index, alignment: constraint.alignment });
        }
        if !are_gaps_of(&constraint.gaps, block.lifetime) {
            return Err(PackingError::BadGap { index });
        }
    }
    constraints.retain(|constraint| constraint.alignment > granule || !constraint.gaps.is_empty());
    Ok(constraints)
}

/// Whether the gaps are in order, disjoint, and inside the lifetime.
fn are_gaps_of(gaps: &[Gap], lifetime: Lifetime) -> bool {
    let mut from = lifetime.start;
    gaps.iter().all(|gap| {
        let in_order = gap.start >= from && gap.start < gap.end && gap.end <= lifetime.end;
        from = gap.end;
        in_order && gap.kept.start <= gap.kept.end && gap.kept.end <= lifetime.bytes
    })
}

#[cfg(test)]
mod tests;
