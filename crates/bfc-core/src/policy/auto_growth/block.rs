//! Blocks of an auto-growth allocator, and the slab that keeps them.

use std::ops::{Index, IndexMut};

use crate::policy::best_fit::FreePiece;

/// No block: the end of a region.
pub(super) const NONE: u32 = u32::MAX;

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Vacant,
    Free,
    Live,
}

/// A piece of a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) state: State,
    /// Where it starts.
    pub(super) address: u64,
    /// How long it is.
    pub(super) bytes: u64,
    /// The block below it in the same region.
    pub(super) prev: u32,
    /// The block above it in the same region.
    pub(super) next: u32,
}

impl Block {
    /// One past the last byte. Regions are checked to lie in the address space.
    pub(super) const fn end(&self) -> u64 {
        self.address.wrapping_add(self.bytes)
    }

    /// Whether a region is this block alone, and it is free.
    pub(super) fn is_idle_region(&self) -> bool {
        self.state == State::Free && self.prev == NONE && self.next == NONE
    }

    /// As the order of best fit knows it.
    pub(super) const fn as_free(&self, slot: u32) -> FreePiece {
        FreePiece { bytes: self.bytes, address: self.address, slot }
    }
}

/// All blocks, in slots that are used again last-in first-out.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    slots: Vec<Block>,
    vacant: Vec<u32>,
}

impl Blocks {
    /// The block of a slot that came from outside, if it holds one that is live.
    pub(super) fn live(&self, slot: u32) -> Option<&Block> {
        self.slots.get(slot as usize).filter(|block| block.state == State::Live)
    }

    /// Whether `count` more blocks can be numbered.
    pub(super) fn has_room_for(&self, count: usize) -> bool {
        self.len() + count < NONE as usize
    }

    /// How many blocks there are.
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
