//! Chunks: the parts that regions are cut into.

mod slab;

use std::ops::{Index, IndexMut};

/// The granularity of chunk addresses and sizes, in bytes.
pub(crate) use crate::policy::{GRANULE, whole_granules};
pub(crate) use slab::Slab;

/// The index of a chunk in its slab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ChunkId(pub(crate) u32);

impl ChunkId {
    /// No chunk. The slab has a dummy slot for it, so that writes to a missing neighbor need no branch.
    pub(crate) const NONE: Self = Self(0);

    pub(crate) const fn is_none(self) -> bool {
        self.0 == Self::NONE.0
    }
}

/// The contents of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ChunkState {
    /// Nothing: the slot is unused.
    #[default]
    Unused,
    /// The border of a region. It precedes the region's first chunk and follows its last, so that every chunk has two
    /// neighbors.
    Border,
    /// A chunk in use.
    Live,
    /// A chunk that is free for all requests.
    Free,
    /// A chunk freed at a count that the frontier had not passed: free, but not mergeable.
    Pending,
    /// A reusable chunk whose merge is [deferred](super::recent).
    Recent,
}

/// The links of a free chunk in the [heap](super::bins::heap) of its size class; meaningless while in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Links {
    /// The parent or previous sibling; none for the front of a class.
    pub(crate) above: ChunkId,
    /// The first child.
    pub(crate) child: ChunkId,
}

/// A part of a region, in use or free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// The address, a multiple of [`GRANULE`].
    pub(crate) address: u64,
    /// The size, a multiple of [`GRANULE`].
    pub(crate) bytes: u64,
    /// The previous chunk in the region, or the region's border.
    pub(crate) prev: ChunkId,
    /// The next chunk in the region, or the region's border.
    pub(crate) next: ChunkId,
    pub(crate) links: Links,
    /// The next sibling, or the next heap of the class; meaningless while the chunk is in use.
    pub(crate) sibling: ChunkId,
    pub(crate) state: ChunkState,
}

// A chunk also takes the 24 bytes of an account in host memory.
const _: () = assert!(size_of::<Chunk>() <= 40);

impl Chunk {
    pub(crate) const fn is_free(&self) -> bool {
        matches!(self.state, ChunkState::Free | ChunkState::Pending | ChunkState::Recent)
    }

    pub(crate) const fn is_free_for_anyone(&self) -> bool {
        matches!(self.state, ChunkState::Free | ChunkState::Recent)
    }

    /// Returns the order of best fit: the smallest chunk first, the lowest address among equals.
    #[inline(always)]
    pub(crate) fn rank(&self) -> u128 {
        u128::from(self.bytes) << 64 | u128::from(self.address)
    }

    /// Returns the end address. Regions are checked to lie in the address space, so this never wraps.
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
