//! The slab: all chunks of a pool, in slots that are used again.

use std::ops::{Deref, DerefMut};

use super::{Chunk, ChunkId, State};

/// Slots of chunks. The one that was emptied last is used first, since it is likeliest to be in the cache.
#[derive(Clone, Debug)]
pub(crate) struct Slab {
    slots: Vec<Chunk>,
    unused: ChunkId,
    /// By slot, the counts of the frees of held chunks: only as long as frees bear counts.
    freed_at: Vec<u64>,
}

/// How many slots can be numbered.
const MAX_SLOTS: usize = u32::MAX as usize;

impl Slab {
    pub(crate) fn new() -> Self {
        let nobody = Chunk { state: State::Border, ..Chunk::default() };
        Self { slots: vec![nobody], unused: ChunkId::NONE, freed_at: Vec::new() }
    }

    /// Sees to it that one more slot can be taken; whether that is so.
    #[inline]
    pub(crate) fn has_room(&mut self) -> bool {
        !self.unused.is_none() || self.add_unused(1)
    }

    /// Sees to it that `count` more slots can be taken; whether that is so.
    pub(crate) fn has_room_for(&mut self, count: usize) -> bool {
        let unused = self.unused_slots().take(count).count();
        unused == count || self.add_unused(count - unused)
    }

    #[cold]
    fn add_unused(&mut self, count: usize) -> bool {
        if self.slots.len() + count > MAX_SLOTS {
            return false;
        }
        for _ in 0..count {
            let id = ChunkId(self.slots.len() as u32);
            self.slots.push(Chunk { next: self.unused, ..Chunk::default() });
            self.unused = id;
        }
        true
    }

    /// The slot that is taken next.
    #[inline]
    pub(crate) const fn first_unused(&self) -> ChunkId {
        self.unused
    }

    /// Fills the first unused slot with a chunk between two neighbours, which are not told. It is in no bin: its links
    /// mean nothing. The caller has seen to it that there is such a slot.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        address: u64,
        bytes: u64,
        (prev, next): (ChunkId, ChunkId),
        state: State,
    ) -> ChunkId {
        let id = self.unused;
        let slot = &mut self.slots[id.0 as usize];
        debug_assert!(slot.state == State::Unused && !id.is_none());
        self.unused = slot.next;
        // One by one: what is not needed is not written.
        slot.address = address;
        slot.bytes = bytes;
        slot.prev = prev;
        slot.next = next;
        slot.state = state;
        id
    }

    /// Fills the first unused slot with a region's border, which is its own neighbour.
    pub(crate) fn insert_border(&mut self) -> ChunkId {
        let border = self.unused;
        self.insert(0, 0, (border, border), State::Border)
    }

    /// Empties a slot. What else stands there means nothing until it is used again.
    #[inline]
    pub(crate) fn remove(&mut self, id: ChunkId) {
        let slot = &mut self.slots[id.0 as usize];
        debug_assert!(slot.state != State::Unused && !id.is_none());
        (slot.state, slot.next) = (State::Unused, self.unused);
        self.unused = id;
    }

    /// The live chunk of an id that came from outside, if there is one.
    #[inline]
    pub(crate) fn live(&self, id: ChunkId) -> Option<&Chunk> {
        self.slots.get(id.0 as usize).filter(|chunk| chunk.state == State::Live)
    }

    /// All chunks in the order of their slots.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = (ChunkId, &Chunk)> {
        let numbered = self.slots.iter().enumerate().map(|(slot, chunk)| (ChunkId(slot as u32), chunk));
        numbered.filter(|(_, chunk)| !matches!(chunk.state, State::Unused | State::Border))
    }

    /// The count at which a chunk was freed; 0 if anyone may use it, and while it is in use.
    pub(crate) fn freed_at(&self, id: ChunkId) -> u64 {
        match self[id].state {
            State::Held => self.freed_at[id.0 as usize],
            _ => 0,
        }
    }

    /// Makes a chunk free for those whose work comes after `freed_at`; for anyone if that is 0.
    pub(crate) fn set_free(&mut self, id: ChunkId, freed_at: u64) {
        self[id].state = if freed_at == 0 { State::Free } else { State::Held };
        if freed_at > 0 {
            let slots = self.slots.len().max(self.freed_at.len());
            self.freed_at.resize(slots, 0);
            self.freed_at[id.0 as usize] = freed_at;
        }
    }

    /// The unused slots in the order in which they will be taken.
    pub(crate) fn unused_slots(&self) -> impl Iterator<Item = ChunkId> + '_ {
        let some = |id: ChunkId| (!id.is_none()).then_some(id);
        std::iter::successors(some(self.unused), move |&id| some(self[id].next))
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

    /// Four chunks, in the first four slots.
    fn four() -> (Slab, Vec<ChunkId>) {
        let mut slab = Slab::new();
        let ids = (0..4).map(|n| {
            assert!(slab.has_room());
            slab.insert(n * 256, 256, BETWEEN_NONE, State::Free)
        });
        let ids = ids.collect();
        (slab, ids)
    }

    #[test]
    fn the_slot_emptied_last_is_used_first() {
        let (mut slab, ids) = four();
        slab.remove(ids[1]);
        slab.remove(ids[3]);
        assert_eq!((slab.chunks().count(), slab.unused_slots().count()), (2, 2));
        assert_eq!(slab.insert(1024, 256, BETWEEN_NONE, State::Free), ids[3]);
        assert!(slab.has_room_for(2));
        assert_eq!(slab.insert(4096, 256, BETWEEN_NONE, State::Free), ChunkId(5));
        assert_eq!(slab.insert(2048, 256, BETWEEN_NONE, State::Free), ids[1]);
    }

    #[test]
    fn only_a_live_chunk_is_found_from_outside() {
        let (mut slab, ids) = four();
        assert!(slab.live(ids[2]).is_none());
        slab[ids[2]].state = State::Live;
        assert!(slab.live(ids[2]).is_some());
        slab.remove(ids[2]);
        assert!(slab.live(ids[2]).is_none());
        assert!(slab.live(ChunkId(7)).is_none() && slab.live(ChunkId::NONE).is_none());
    }

    #[test]
    fn a_chunk_bears_the_count_of_its_free_until_it_is_free_for_anyone() {
        let (mut slab, ids) = four();
        slab.set_free(ids[3], 7);
        assert_eq!((slab[ids[3]].state, slab.freed_at(ids[3]), slab.freed_at(ids[0])), (State::Held, 7, 0));
        slab.set_free(ids[3], 0);
        assert_eq!((slab[ids[3]].state, slab.freed_at(ids[3])), (State::Free, 0));
    }
}
