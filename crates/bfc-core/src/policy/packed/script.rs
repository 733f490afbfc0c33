//! A packing in the form that the policy follows: the expected request and the due blocks of each allocation.

use crate::packing::Packing;
use crate::policy::PlacementRequest;

/// One allocation of the step.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScriptedBlock {
    /// The requested bytes.
    pub(super) bytes: u64,
    /// The granted bytes: the requested ones in whole granules.
    pub(super) granted: u64,
    /// The offset in the packed range; [`Script::NOWHERE`] if the fallback serves the block, because the packing omits it
    /// or the block has gaps.
    pub(super) offset: u64,
    /// The end in [`Script::due`] of the blocks that must be free before this allocation.
    pub(super) due_end: u32,
    /// The number of the first allocation after the block's free.
    pub(super) gone_by: u32,
}

impl ScriptedBlock {
    /// Whether the entry's offset has the alignment of a request that the packing can serve.
    #[inline]
    pub(super) const fn is_aligned(&self, request: &PlacementRequest) -> bool {
        self.offset & (request.alignment - 1) == 0
    }
}

/// The allocations of a step, in order. Time counts in allocations: the position of frees between two of them is
/// irrelevant.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) entries: Vec<ScriptedBlock>,
    /// The packed blocks, by the allocation before which they must be free.
    pub(super) due: Vec<u32>,
    pub(super) granule: u64,
    /// The largest alignment of a packed block, at least the granule. The range's address is a multiple of it.
    pub(super) alignment: u64,
    pub(super) capacity: u64,
}

impl Script {
    pub(super) const NOWHERE: u64 = u64::MAX;

    pub(super) fn new(packing: &Packing) -> Self {
        let blocks = packing.blocks();
        // Starts ascend, so a binary search finds the first allocation at or after an end.
        let gone_by = |end| blocks.partition_point(|block| block.lifetime.start < end) as u32;
        let mut entries: Vec<ScriptedBlock> = blocks
            .iter()
            .map(|block| ScriptedBlock {
                bytes: block.lifetime.bytes,
                granted: packing.rounded(block.lifetime.bytes).unwrap_or(u64::MAX),
                offset: block.offset.unwrap_or(Self::NOWHERE),
                due_end: 0,
                gone_by: gone_by(block.lifetime.end),
            })
            .collect();
        let mut alignment = packing.granule();
        for constraint in packing.constraints() {
            alignment = alignment.max(constraint.alignment);
            // A pool's block may be used until its free, so a block that lends its bytes keeps them here.
            if let Some(entry) = entries.get_mut(constraint.block).filter(|_| !constraint.gaps.is_empty()) {
                entry.offset = Self::NOWHERE;
            }
        }
        let packed = (0..).zip(&entries).filter(|(_, entry)| entry.offset != Self::NOWHERE);
        let mut due: Vec<u32> = packed.map(|(index, _)| index).collect();
        due.sort_by_key(|&index| entries[index as usize].gone_by);
        let mut passed = 0;
        for position in 0..entries.len() {
            let gone = |&&index: &&u32| entries[index as usize].gone_by as usize <= position;
            passed += due[passed..].iter().take_while(gone).count();
            entries[position].due_end = passed as u32;
        }
        Self { entries, due, granule: packing.granule(), alignment, capacity: packing.capacity() }
    }

    pub(super) fn len(&self) -> u32 {
        self.entries.len() as u32
    }
}
