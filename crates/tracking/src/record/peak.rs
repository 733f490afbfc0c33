//! The peak of a recording, and the live blocks at any moment.

use bfc_core::Category;

use super::recording::{EventKind, Recording};

/// The peak: the moment with the most live bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peak {
    /// The event that reached it first.
    pub event: u32,
    /// Granted bytes that were live.
    pub bytes: u64,
    /// The execution of an op that reached it; `None` outside of ops.
    pub execution: Option<u32>,
}

/// A block that is live at some moment, with its tag at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveBlock {
    /// The block's index.
    pub block: u32,
    /// Its granted bytes.
    pub bytes: u64,
    /// The owner of the block.
    pub owner: u32,
    /// The category of the block.
    pub category: Category,
}

impl Recording {
    /// Returns the blocks that are live after the event with this index, in the order of allocation. An index beyond
    /// the last event means the end.
    #[must_use]
    pub fn live_after(&self, event: u32) -> Vec<LiveBlock> {
        let end = (event as usize).saturating_add(1).min(self.events.len());
        let born = self.blocks.partition_point(|block| (block.born as usize) < end);
        let mut live = Vec::new();
        // The position of the block in `live`. Only live blocks can have changed.
        let mut position = vec![u32::MAX; born];
        for (index, block) in self.blocks[..born].iter().enumerate() {
            if block.freed.is_none_or(|freed| freed as usize >= end) {
                position[index] = live.len() as u32;
                let (bytes, owner, category) = (block.granted, block.owner, block.category);
                live.push(LiveBlock { block: index as u32, bytes, owner, category });
            }
        }
        for event in &self.events[..end] {
            let EventKind::Retag(retag) = event.kind else { continue };
            let retag = &self.retags[retag as usize];
            if let Some(block) = live.get_mut(position[retag.block as usize] as usize) {
                (block.owner, block.category) = (retag.owner, retag.category);
            }
        }
        live
    }

    /// Returns the blocks that were live at the peak, in the order of allocation.
    #[must_use]
    pub fn live_at_peak(&self) -> Vec<LiveBlock> {
        self.peak.map_or_else(Vec::new, |peak| self.live_after(peak.event))
    }
}
