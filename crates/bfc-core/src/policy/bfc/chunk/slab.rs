//! The slab: all chunks of a pool, in reusable slots.

use std::ops::{Deref, DerefMut};

use super::{Chunk, ChunkId, ChunkState};

/// The slots of a pool's chunks. A chunk keeps its slot while it exists.
#[derive(Clone, Debug)]
pub(crate) struct Slab {
    slots: Vec<Chunk>,
    /// Unused slots. The slot emptied last is reused first, because it is probably in the processor's cache.
    unused: Vec<ChunkId>,
    /// The counts of pending frees, by slot. Empty if frees carry no counts.
    freed_at: Vec<u64>,
}

/// The most slots.
const MAX_SLOTS: usize = u32::MAX as usize;

impl Slab {
    /// Creates a slab with one used slot, [`ChunkId::NONE`].
    pub(crate) fn new() -> Self {
        let mut slab = Self { slots: Vec::new(), unused: Vec::new(), freed_at: Vec::new() };
        let none = slab.insert_border();
        debug_assert!(none.is_none());
        slab
    }

    /// Whether the slab has slots for `count` more chunks.
    #[inline]
    pub(crate) fn has_room_for(&self, count: usize) -> bool {
        self.unused.len() + (MAX_SLOTS - self.slots.len()) >= count
    }

    /// Inserts a chunk between two neighbors without changing their links, outside of the bins. The caller has checked
    /// [`has_room_for`](Self::has_room_for).
    #[inline(always)]
    pub(crate) fn insert(
        &mut self,
        address: u64,
        bytes: u64,
        (prev, next): (ChunkId, ChunkId),
        state: ChunkState,
    ) -> ChunkId {
        let id = self.unused.pop().unwrap_or_else(|| self.add_slot());
        let slot = &mut self[id];
        debug_assert_eq!(slot.state, ChunkState::Unused);
        // Heap links are left unset: they are meaningless outside of the bins.
        slot.address = address;
        slot.bytes = bytes;
        slot.prev = prev;
        slot.next = next;
        slot.state = state;
        id
    }

    #[cold]
    fn add_slot(&mut self) -> ChunkId {
        let id = ChunkId(self.slots.len() as u32);
        self.slots.push(Chunk::default());
        id
    }

    /// Inserts the border of a region, which is its own neighbor.
    pub(crate) fn insert_border(&mut self) -> ChunkId {
        let border = self.insert(0, 0, (ChunkId::NONE, ChunkId::NONE), ChunkState::Border);
        (self[border].prev, self[border].next) = (border, border);
        border
    }

    /// Empties a slot.
    #[inline(always)]
    pub(crate) fn remove(&mut self, id: ChunkId) {
        let slot = &mut self[id];
        debug_assert!(slot.state != ChunkState::Unused && !id.is_none());
        slot.state = ChunkState::Unused;
        self.unused.push(id);
    }

    /// Cuts the first `bytes` bytes off a chunk of `whole` bytes. Returns the new chunk, which is in no bin, and its address.
    // Callers pass the sizes that they just computed, so that no load waits for a store.
    #[inline(always)]
    pub(crate) fn cut_low(
        &mut self,
        id: ChunkId,
        whole: u64,
        bytes: u64,
        state: ChunkState,
    ) -> (ChunkId, u64) {
        debug_assert!(0 < bytes && bytes < whole && whole == self[id].bytes);
        let Chunk { address, prev, .. } = self[id];
        let front = self.insert(address, bytes, (prev, id), state);
        let rest = &mut self[id];
        rest.address = address + bytes;
        rest.bytes = whole - bytes;
        rest.prev = front;
        self[prev].next = front;
        (front, address)
    }

    /// Cuts the last `bytes` bytes off a chunk of `whole` bytes. Returns the new chunk, which is in no bin, and its address.
    #[inline(always)]
    pub(crate) fn cut_high(
        &mut self,
        id: ChunkId,
        whole: u64,
        bytes: u64,
        state: ChunkState,
    ) -> (ChunkId, u64) {
        debug_assert!(0 < bytes && bytes < whole && whole == self[id].bytes);
        let Chunk { address, next, .. } = self[id];
        let start = address + (whole - bytes);
        let back = self.insert(start, bytes, (id, next), state);
        self[id].bytes = whole - bytes;
        self[id].next = back;
        self[next].prev = back;
        (back, start)
    }

    /// Merges a chunk with the next one into `both` bytes, and empties its slot.
    #[inline(always)]
    pub(crate) fn join_to_next(&mut self, id: ChunkId, (prev, next): (ChunkId, ChunkId), both: u64) {
        let address = self[id].address;
        let chunk = &mut self[next];
        debug_assert!(chunk.prev == id && address + both == chunk.end());
        chunk.address = address;
        chunk.bytes = both;
        chunk.prev = prev;
        self[prev].next = next;
        self.remove(id);
    }

    /// Merges a chunk with the previous one into `both` bytes, and empties its slot.
    #[inline(always)]
    pub(crate) fn join_to_prev(&mut self, id: ChunkId, prev: ChunkId, both: u64) {
        let next = self[id].next;
        let chunk = &mut self[prev];
        debug_assert!(chunk.next == id && chunk.bytes < both);
        chunk.bytes = both;
        chunk.next = next;
        self[next].prev = prev;
        self.remove(id);
    }

    /// Returns the live chunk of an id that the caller passed, if any.
    #[inline]
    pub(crate) fn live(&self, id: ChunkId) -> Option<&Chunk> {
        match self.slots.get(id.0 as usize) {
            Some(chunk) if chunk.state == ChunkState::Live => Some(chunk),
            _ => None,
        }
    }

    /// Iterates over all chunks in the order of their slots.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = (ChunkId, &Chunk)> {
        let numbered = self.slots.iter().enumerate().map(|(slot, chunk)| (ChunkId(slot as u32), chunk));
        numbered.filter(|(_, chunk)| !matches!(chunk.state, ChunkState::Unused | ChunkState::Border))
    }

    /// Returns the count at which a chunk was freed; 0 if it is reusable or in use.
    pub(crate) fn freed_at(&self, id: ChunkId) -> u64 {
        match self[id].state {
            ChunkState::Pending => self.freed_at[id.0 as usize],
            _ => 0,
        }
    }

    /// Frees a chunk at the count `freed_at`; 0 makes it reusable immediately.
    pub(crate) fn set_free(&mut self, id: ChunkId, freed_at: u64) {
        self[id].state = if freed_at == 0 { ChunkState::Free } else { ChunkState::Pending };
        if freed_at > 0 {
            let slots = self.slots.len().max(self.freed_at.len());
            self.freed_at.resize(slots, 0);
            self.freed_at[id.0 as usize] = freed_at;
        }
    }

    /// Returns the unused slots in the order of reuse.
    pub(crate) fn unused_slots(&self) -> impl Iterator<Item = ChunkId> + '_ {
        self.unused.iter().rev().copied()
    }
}

impl Deref for Slab {
    type Target = [Chunk];

    #[inline]
    fn deref(&self) -> &[Chunk] {
        &self.slots
    }
}

impl DerefMut for Slab {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Chunk] {
        &mut self.slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BETWEEN_NONE: (ChunkId, ChunkId) = (ChunkId::NONE, ChunkId::NONE);

    /// Creates four chunks in the first four slots.
    fn four() -> (Slab, Vec<ChunkId>) {
        let mut slab = Slab::new();
        let ids = (0..4).map(|n| slab.insert(n * 256, 256, BETWEEN_NONE, ChunkState::Free));
        let ids = ids.collect();
        (slab, ids)
    }

    #[test]
    fn the_slot_emptied_last_is_used_first() {
        let (mut slab, ids) = four();
        let others = slab.unused_slots().count();
        slab.remove(ids[1]);
        slab.remove(ids[3]);
        assert_eq!((slab.chunks().count(), slab.unused_slots().count()), (2, others + 2));
        assert_eq!(slab.insert(1024, 256, BETWEEN_NONE, ChunkState::Free), ids[3]);
        assert_eq!(slab.insert(2048, 256, BETWEEN_NONE, ChunkState::Free), ids[1]);
        assert_eq!(slab.insert(4096, 256, BETWEEN_NONE, ChunkState::Free), ChunkId(5));
    }

    #[test]
    fn only_a_live_chunk_is_found_from_outside() {
        let (mut slab, ids) = four();
        assert!(slab.live(ids[2]).is_none());
        slab[ids[2]].state = ChunkState::Live;
        assert!(slab.live(ids[2]).is_some());
        slab.remove(ids[2]);
        assert!(slab.live(ids[2]).is_none());
        assert!(slab.live(ChunkId(7)).is_none() && slab.live(ChunkId::NONE).is_none());
        assert!(slab.live(ChunkId(u32::MAX)).is_none());
    }

    #[test]
    fn a_chunk_keeps_its_freed_count_until_it_is_available() {
        let (mut slab, ids) = four();
        slab.set_free(ids[3], 7);
        assert_eq!(
            (slab[ids[3]].state, slab.freed_at(ids[3]), slab.freed_at(ids[0])),
            (ChunkState::Pending, 7, 0)
        );
        slab.set_free(ids[3], 0);
        assert_eq!((slab[ids[3]].state, slab.freed_at(ids[3])), (ChunkState::Free, 0));
    }
}
