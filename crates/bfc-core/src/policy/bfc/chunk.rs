//! Chunks: the pieces that regions are cut into.

mod slab;

use std::ops::{Index, IndexMut};

/// Every chunk starts at a multiple of this and is a multiple of it long, in bytes.
pub(crate) use crate::policy::{GRANULE, whole_granules};
pub(crate) use slab::Slab;

/// A chunk's place in its slab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ChunkId(pub(crate) u32);

impl ChunkId {
    /// No chunk. There is a slot of this number, so that what is written to the neighbour that a chunk does not have
    /// goes nowhere without a question asked.
    pub(crate) const NONE: Self = Self(0);

    pub(crate) const fn is_none(self) -> bool {
        self.0 == Self::NONE.0
    }
}

/// What a slot of the slab holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// Nothing; it is among the unused slots.
    #[default]
    Unused,
    /// No chunk, but the border of a region: it comes before the region's first chunk and after its last, so that every
    /// chunk has two neighbours.
    Border,
    /// A chunk that was handed out.
    Live,
    /// A chunk that is free for anyone.
    Free,
    /// A chunk freed at a count that the frontier had not passed: free, but not to be joined.
    Held,
    /// A chunk that is free for anyone, but was freed so lately that it is [not joined yet](super::recent).
    Recent,
}

/// A free chunk's place in the [heap](super::bins::heap) of its size class; means nothing while it is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Links {
    /// The chunk that has this one as its child or as its sibling; none for the one in front of a class.
    pub(crate) above: ChunkId,
    /// The first of those that come after this one.
    pub(crate) child: ChunkId,
}

/// A piece of a region, handed out or free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Where it starts, a multiple of [`GRANULE`].
    pub(crate) address: u64,
    /// How long it is, a multiple of [`GRANULE`].
    pub(crate) bytes: u64,
    /// The chunk before it in the same region, or the region's border.
    pub(crate) prev: ChunkId,
    /// The chunk after it in the same region, or the region's border.
    pub(crate) next: ChunkId,
    pub(crate) links: Links,
    /// The next child of the same chunk, or the next heap of the class; means nothing while the chunk is in use.
    pub(crate) sibling: ChunkId,
    pub(crate) state: State,
}

// A chunk also takes the 24 bytes of an account in host memory.
const _: () = assert!(size_of::<Chunk>() <= 40);

impl Chunk {
    pub(crate) const fn is_free(&self) -> bool {
        matches!(self.state, State::Free | State::Held | State::Recent)
    }

    pub(crate) const fn is_free_for_anyone(&self) -> bool {
        matches!(self.state, State::Free | State::Recent)
    }

    /// The order of best fit: the smallest chunk first, of equals the one at the lowest address.
    #[inline(always)]
    pub(crate) fn rank(&self) -> u128 {
        u128::from(self.bytes) << 64 | u128::from(self.address)
    }

    /// One past the last byte. Regions are checked to lie in the address space, so this never wraps past 2^64.
    pub(crate) const fn end(&self) -> u64 {
        self.address.wrapping_add(self.bytes)
    }
}

impl Index<ChunkId> for [Chunk] {
    type Output = Chunk;

    #[inline]
    fn index(&self, id: ChunkId) -> &Chunk {
        &self[id.0 as usize]
    }
}

impl IndexMut<ChunkId> for [Chunk] {
    #[inline]
    fn index_mut(&mut self, id: ChunkId) -> &mut Chunk {
        &mut self[id.0 as usize]
    }
}
