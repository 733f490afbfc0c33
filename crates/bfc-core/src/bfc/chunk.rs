//! Chunks: the pieces that regions are cut into, and the slab that keeps them.

use std::ops::{Index, IndexMut};

/// Every chunk starts at a multiple of this and is a multiple of it long, in bytes.
pub(crate) use crate::policy::{GRANULE, whole_granules};

/// A chunk's place in its slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ChunkId(pub(crate) u32);

impl ChunkId {
    /// No chunk: the end of a list.
    pub(crate) const NONE: Self = Self(u32::MAX);

    /// No chunk either: a member of something other than a list.
    pub(crate) const NO_LIST: Self = Self(u32::MAX - 1);

    /// No chunk either: in use. There are therefore three fewer chunks than numbers.
    const IN_USE: Self = Self(u32::MAX - 2);

    pub(crate) const fn is_none(self) -> bool {
        self.0 == Self::NONE.0
    }
}

/// A free chunk's place in the list of its size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Links {
    /// The next smaller one, or of the same size the next below.
    pub(crate) before: ChunkId,
    /// The next larger one, or of the same size the next above.
    pub(crate) after: ChunkId,
}

impl Links {
    /// In no list, or the only one of its list.
    pub(crate) const ALONE: Self = Self { before: ChunkId::NONE, after: ChunkId::NONE };

    /// In no list because it is not free.
    pub(crate) const IN_USE: Self = Self { before: ChunkId::IN_USE, after: ChunkId::NONE };
}

/// A piece of a region, handed out or free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Where it starts, a multiple of [`GRANULE`].
    pub(crate) address: u64,
    /// How long it is, a multiple of [`GRANULE`]. 0 marks an unused slot of the slab.
    pub(crate) bytes: u64,
    /// The timing counter when it was freed; 0 if its memory may be used by anyone, and while in use.
    pub(crate) freed_at: u64,
    /// The chunk before it in the same region.
    pub(crate) prev: ChunkId,
    /// The chunk after it in the same region; in an unused slot, the next unused one.
    pub(crate) next: ChunkId,
    /// Its place among the free chunks; [`Links::IN_USE`] while it is in use.
    pub(crate) links: Links,
}

// With the 24 bytes of an account a cache line, and the price of a chunk in host memory.
const _: () = assert!(size_of::<Chunk>() <= 40);

impl Chunk {
    /// A free chunk without neighbours.
    pub(crate) fn free(address: u64, bytes: u64) -> Self {
        Self { address, bytes, freed_at: 0, prev: ChunkId::NONE, next: ChunkId::NONE, links: Links::ALONE }
    }

    pub(crate) const fn is_free(&self) -> bool {
        self.links.before.0 != Links::IN_USE.before.0
    }

    /// One past the last byte. Regions are checked to lie in the address space, so this never wraps past 2^64.
    pub(crate) const fn end(&self) -> u64 {
        self.address.wrapping_add(self.bytes)
    }
}

/// All chunks of a pool, in slots that are used again last-in first-out.
#[derive(Clone, Debug)]
pub(crate) struct Slab {
    slots: Vec<Chunk>,
    unused: ChunkId,
    unused_count: usize,
}

/// Indices must stay below the numbers that mean no chunk.
const MAX_CHUNKS: usize = ChunkId::IN_USE.0 as usize;

impl Slab {
    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), unused: ChunkId::NONE, unused_count: 0 }
    }

    /// Whether `count` more chunks can be numbered.
    #[inline]
    pub(crate) fn has_room_for(&self, count: usize) -> bool {
        self.len() + count <= MAX_CHUNKS
    }

    /// How many chunks there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.unused_count
    }

    /// How many slots there are, used or not: an upper bound for any walk along links.
    pub(crate) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// Stores a chunk. The caller has checked [`has_room_for`](Self::has_room_for).
    #[inline]
    pub(crate) fn insert(&mut self, chunk: Chunk) -> ChunkId {
        debug_assert!(chunk.bytes > 0 && self.has_room_for(1));
        if self.unused.is_none() {
            self.slots.push(chunk);
            return ChunkId((self.slots.len() - 1) as u32);
        }
        let id = self.unused;
        self.unused = self[id].next;
        self.unused_count -= 1;
        self[id] = chunk;
        id
    }

    /// Empties the slot of a free chunk. What else stands there means nothing until it is used again.
    #[inline]
    pub(crate) fn remove(&mut self, id: ChunkId) {
        debug_assert!(self[id].bytes > 0);
        let next = self.unused;
        let slot = &mut self[id];
        (slot.bytes, slot.next) = (0, next);
        self.unused = id;
        self.unused_count += 1;
    }

    /// The chunk of an id that came from outside, if there is one.
    #[inline]
    pub(crate) fn get(&self, id: ChunkId) -> Option<&Chunk> {
        self.slots.get(id.0 as usize).filter(|chunk| chunk.bytes > 0)
    }

    /// All chunks in the order of their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ChunkId, &Chunk)> {
        let numbered = self.slots.iter().enumerate();
        numbered.filter(|(_, chunk)| chunk.bytes > 0).map(|(index, chunk)| (ChunkId(index as u32), chunk))
    }

    /// Length of the list of unused slots, walked at most as far as there are slots; for the invariant checker.
    pub(crate) fn unused_list_length(&self) -> usize {
        let mut length = 0;
        let mut id = self.unused;
        while !id.is_none() && length <= self.slots.len() {
            length += 1;
            id = self[id].next;
        }
        length
    }
}

impl Index<ChunkId> for Slab {
    type Output = Chunk;

    #[inline]
    fn index(&self, id: ChunkId) -> &Chunk {
        &self.slots[id.0 as usize]
    }
}

impl IndexMut<ChunkId> for Slab {
    #[inline]
    fn index_mut(&mut self, id: ChunkId) -> &mut Chunk {
        &mut self.slots[id.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slot_emptied_last_is_used_first() {
        let mut slab = Slab::new();
        let ids: Vec<ChunkId> = (0..4).map(|n| slab.insert(Chunk::free(n * 256, 256))).collect();
        slab.remove(ids[1]);
        slab.remove(ids[3]);
        assert_eq!((slab.len(), slab.unused_list_length()), (2, 2));
        assert_eq!(slab.insert(Chunk::free(1024, 256)), ids[3]);
        assert_eq!(slab.insert(Chunk::free(2048, 256)), ids[1]);
        assert_eq!(slab.insert(Chunk::free(4096, 256)), ChunkId(4));
    }

    #[test]
    fn an_unused_slot_and_a_slot_that_never_was_are_no_chunks() {
        let mut slab = Slab::new();
        let id = slab.insert(Chunk::free(0, 256));
        assert!(slab.get(id).is_some());
        slab.remove(id);
        assert!(slab.get(id).is_none());
        assert!(slab.get(ChunkId(7)).is_none() && slab.get(ChunkId::NONE).is_none());
    }
}
