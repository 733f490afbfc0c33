//! Blocks of an auto-growth allocator, and their slab.

use std::ops::{Index, IndexMut};

use crate::policy::best_fit::FreePiece;

/// No block: the end of a region.
pub(super) const NONE: u32 = u32::MAX;

/// The contents of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Vacant,
    Free,
    Live,
}

/// A block of a region, live or free.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) state: State,
    /// The address.
    pub(super) address: u64,
    /// The size.
    pub(super) bytes: u64,
    /// The block below in the same region.
    pub(super) prev: u32,
    /// The block above in the same region.
    pub(super) next: u32,
}

impl Block {
    /// Returns the end address. Regions are checked to lie in the address space.
    pub(super) const fn end(&self) -> u64 {
        self.address.wrapping_add(self.bytes)
    }

    /// Whether this is the only block of its region, and free.
    pub(super) fn is_idle_region(&self) -> bool {
        self.state == State::Free && self.prev == NONE && self.next == NONE
    }

    /// Returns the block's entry among the free blocks.
    pub(super) const fn as_free(&self, slot: u32) -> FreePiece {
        FreePiece { bytes: self.bytes, address: self.address, slot }
    }
}

/// All blocks, in slots that are reused last-in first-out.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    slots: Vec<Block>,
    vacant: Vec<u32>,
}

impl Blocks {
    /// Returns the live block of a slot that the caller passed, if any.
    pub(super) fn live(&self, slot: u32) -> Option<&Block> {
        self.slots.get(slot as usize).filter(|block| block.state == State::Live)
    }

    /// Whether the slab has slots for `count` more blocks.
    pub(super) fn has_room_for(&self, count: usize) -> bool {
        self.len() + count < NONE as usize
    }

    /// Returns the number of blocks.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    /// Stores a new block. The caller has checked [`has_room_for`](Self::has_room_for).
    pub(super) fn insert(&mut self, block: Block) -> u32 {
        match self.vacant.pop() {
            Some(slot) => {
                self[slot] = block;
                slot
            }
            None => {
                self.slots.push(block);
                (self.slots.len() - 1) as u32
            }
        }
    }

    /// Empties a slot.
    pub(super) fn remove(&mut self, slot: u32) {
        self[slot].state = State::Vacant;
        self.vacant.push(slot);
    }
}

impl Index<u32> for Blocks {
    type Output = Block;

    fn index(&self, slot: u32) -> &Block {
        &self.slots[slot as usize]
    }
}

impl IndexMut<u32> for Blocks {
    fn index_mut(&mut self, slot: u32) -> &mut Block {
        &mut self.slots[slot as usize]
    }
}
