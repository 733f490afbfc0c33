//! Freed blocks before their reuse: a bounded queue.

use std::collections::VecDeque;

use super::zones::Zones;
use crate::base::ledger::Tag;
use crate::base::memory::Block;

/// A freed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Freed {
    /// The block as the user had it.
    pub(super) block: Block,
    pub(super) tag: Tag,
    pub(super) zones: Zones,
}

/// The queue, oldest first.
#[derive(Debug)]
pub(super) struct Quarantine {
    queue: VecDeque<Freed>,
    bytes: u64,
    most_bytes: u64,
    most_blocks: usize,
}

impl Quarantine {
    pub(super) const fn new(most_bytes: u64, most_blocks: usize) -> Self {
        Self { queue: VecDeque::new(), bytes: 0, most_bytes, most_blocks }
    }

    /// Adds a block. [`surplus`](Self::surplus) then returns the blocks that must leave.
    pub(super) fn admit(&mut self, freed: Freed) {
        self.bytes += freed.zones.inner.bytes;
        self.queue.push_back(freed);
    }

    /// Puts a block back that could not leave, as the next one to retry.
    pub(super) fn readmit(&mut self, freed: Freed) {
        self.bytes += freed.zones.inner.bytes;
        self.queue.push_front(freed);
    }

    /// Removes the next block beyond the capacity.
    pub(super) fn surplus(&mut self) -> Option<Freed> {
        let full = self.bytes > self.most_bytes || self.queue.len() > self.most_blocks;
        if full { self.oldest() } else { None }
    }

    /// Removes the oldest block.
    pub(super) fn oldest(&mut self) -> Option<Freed> {
        let freed = self.queue.pop_front()?;
        self.bytes -= freed.zones.inner.bytes;
        Some(freed)
    }

    /// Removes and returns the blocks for which `leaves` is true.
    pub(super) fn extract(&mut self, mut leaves: impl FnMut(&Freed) -> bool) -> Vec<Freed> {
        let mut left = Vec::new();
        self.queue.retain(|freed| {
            let leaves = leaves(freed);
            if leaves {
                self.bytes -= freed.zones.inner.bytes;
                left.push(*freed);
            }
            !leaves
        });
        left
    }

    /// Iterates over the inner blocks of the queue.
    pub(super) fn inner_blocks(&self) -> impl Iterator<Item = Block> + '_ {
        self.queue.iter().map(|freed| freed.zones.inner)
    }

    /// Returns the number of blocks.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns the bytes of the inner blocks.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn freed(id: u64, bytes: u64) -> Freed {
        let block = Block { id, bytes, ..Block::EMPTY };
        Freed { block, tag: Tag::default(), zones: Zones::new(block, 0, bytes) }
    }

    fn admit(quarantine: &mut Quarantine, new: Freed) -> Vec<u64> {
        quarantine.admit(new);
        std::iter::from_fn(|| quarantine.surplus()).map(|freed| freed.block.id).collect()
    }

    #[test]
    fn the_oldest_leave_when_there_are_too_many_bytes_or_blocks() {
        let mut quarantine = Quarantine::new(1000, 3);
        assert_eq!(admit(&mut quarantine, freed(1, 400)), []);
        assert_eq!(admit(&mut quarantine, freed(2, 600)), []);
        assert_eq!(admit(&mut quarantine, freed(3, 1)), [1]);
        assert_eq!(admit(&mut quarantine, freed(4, 1)), []);
        assert_eq!(admit(&mut quarantine, freed(5, 1)), [2]);
        assert_eq!((quarantine.len(), quarantine.bytes()), (3, 3));
        // A block that is too large by itself empties the queue and leaves too.
        assert_eq!(admit(&mut quarantine, freed(6, 1001)), [3, 4, 5, 6]);
        assert_eq!((quarantine.len(), quarantine.bytes()), (0, 0));
    }

    #[test]
    fn without_room_nothing_stays() {
        assert_eq!(admit(&mut Quarantine::new(0, 10), freed(1, 1)), [1]);
        assert_eq!(admit(&mut Quarantine::new(10, 0), freed(1, 1)), [1]);
    }
}
