//! Whether a plan holds: lifetimes in order, sums within range, no two blocks in one place at one time.

use std::collections::BTreeMap;

use super::{Lifetime, PlanBlock, PlanError};
use crate::units::round_up;

/// Beyond this, sums of offsets could leave 64 bits.
const MOST_BYTES: u64 = 1 << 63;

/// The numbers of blocks must fit into slots, beside those of another policy.
const MOST_BLOCKS: usize = 1 << 31;

/// Checks sizes, times and order.
pub(super) fn lifetimes(blocks: &[PlanBlock], granule: u64) -> Result<(), PlanError> {
    let mut total: u64 = 0;
    let mut last_start = 0;
    for (index, block) in blocks.iter().enumerate() {
        let Lifetime { bytes, start, end } = block.lifetime;
        if bytes == 0 || end <= start {
            return Err(PlanError::Empty { index });
        }
        if start < last_start {
            return Err(PlanError::OutOfOrder { index });
        }
        last_start = start;
        let sum = round_up(bytes, granule).and_then(|rounded| total.checked_add(rounded));
        total = sum.filter(|&sum| sum < MOST_BYTES).ok_or(PlanError::TooLarge { index })?;
        if index >= MOST_BLOCKS {
            return Err(PlanError::TooLarge { index });
        }
    }
    Ok(())
}

/// The end of the highest block, if no two overlap. The lifetimes were checked before.
pub(super) fn capacity(blocks: &[PlanBlock], granule: u64) -> Result<u64, PlanError> {
    // The planned blocks live now, by offset; each with its end and its index.
    let mut live: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    let mut ends = Ends::new(blocks);
    let mut capacity = 0;
    for (second, block) in blocks.iter().enumerate() {
        let Some(offset) = block.offset else { continue };
        for ended in ends.up_to(block.lifetime.start) {
            if let Some(offset) = blocks[ended].offset {
                live.remove(&offset);
            }
        }
        let end = round_up(block.lifetime.bytes, granule)
            .and_then(|rounded| offset.checked_add(rounded))
            .filter(|&end| end <= MOST_BYTES)
            .ok_or(PlanError::TooLarge { index: second })?;
        let below = live.range(..end).next_back().filter(|(_, (below_end, _))| *below_end > offset);
        if let Some((_, &(_, first))) = below {
            return Err(PlanError::Overlap { first, second });
        }
        live.insert(offset, (end, second));
        capacity = capacity.max(end);
    }
    Ok(capacity)
}

/// The most bytes of planned blocks live at a time, in whole granules.
pub(super) fn peak_live(blocks: &[PlanBlock], granule: u64) -> u64 {
    let bytes = |block: &PlanBlock| match block.offset {
        Some(_) => round_up(block.lifetime.bytes, granule).unwrap_or(u64::MAX),
        None => 0,
    };
    let mut ends = Ends::new(blocks);
    let (mut live, mut peak) = (0_u64, 0);
    for block in blocks {
        for ended in ends.up_to(block.lifetime.start) {
            live = live.saturating_sub(bytes(&blocks[ended]));
        }
        live = live.saturating_add(bytes(block));
        peak = peak.max(live);
    }
    peak
}

/// Blocks in the order of their ends.
struct Ends<'a> {
    blocks: &'a [PlanBlock],
    by_end: Vec<u32>,
    next: usize,
}

impl<'a> Ends<'a> {
    fn new(blocks: &'a [PlanBlock]) -> Self {
        let mut by_end: Vec<u32> = (0..).take(blocks.len()).collect();
        crate::order::sort_by_key(&mut by_end, |&index| blocks[index as usize].lifetime.end);
        Self { blocks, by_end, next: 0 }
    }

    /// Those that end at `time` or before and were not told of yet.
    fn up_to(&mut self, time: u32) -> impl Iterator<Item = usize> {
        let first = self.next;
        let ended = |&&index: &&u32| self.blocks[index as usize].lifetime.end <= time;
        self.next += self.by_end[first..].iter().take_while(ended).count();
        self.by_end[first..self.next].iter().map(|&index| index as usize)
    }
}
