//! The slab: all chunks of a pool, in slots that are used again.

use std::ops::{Deref, DerefMut};

use super::unused::{GROUP, UnusedSlots};
use super::{Chunk, ChunkId, Slots, State};

/// Slots of chunks, made a group at a time.
#[derive(Clone, Debug)]
pub(crate) struct Slab {
    slots: Vec<Chunk>,
    unused: UnusedSlots,
    /// By slot, the counts of the frees of held chunks: only as long as frees bear counts.
    freed_at: Vec<u64>,
}

/// How many slots there can be: whole groups, and so few that all can be numbered.
const MAX_SLOTS: usize = u32::MAX as usize / GROUP * GROUP;

impl Slab {
    pub(crate) fn new() -> Self {
        let mut slab = Self { slots: Vec::new(), unused: UnusedSlots::new(), freed_at: Vec::new() };
        slab.has_room();
        let nobody = slab.insert_border();
        debug_assert!(nobody.is_none());
        slab
    }

    /// Sees to it that one more slot can be taken; whether that is so.
    #[inline(always)]
    pub(crate) fn has_room(&mut self) -> bool {
        self.has_room_for(1)
    }

    /// Sees to it that `count` more slots, a few at most, can be taken; whether that is so.
    #[inline(always)]
    pub(crate) fn has_room_for(&mut self, count: usize) -> bool {
        self.unused.has(count) || self.add_group() && self.unused.has(count)
    }

    #[cold]
    fn add_group(&mut self) -> bool {
        let slots = self.slots.len() + GROUP;
        if slots > MAX_SLOTS {
            return false;
        }
        self.slots.resize(slots, Chunk::default());
        self.unused.add_group();
        true
    }

    /// Its slots, as long as none is added.
    #[inline(always)]
    pub(crate) fn slots(&mut self) -> Slots<'_> {
        Slots { chunks: &mut self.slots, unused: &mut self.unused }
    }

    /// As [`Slots::insert`].
    pub(crate) fn insert(
        &mut self,
        address: u64,
        bytes: u64,
        beside: (ChunkId, ChunkId),
        state: State,
    ) -> ChunkId {
        self.slots().insert(address, bytes, beside, state)
    }

    /// Fills an unused slot with a region's border, which is its own neighbour.
    pub(crate) fn insert_border(&mut self) -> ChunkId {
        let border = self.insert(0, 0, (ChunkId::NONE, ChunkId::NONE), State::Border);
        (self[border].prev, self[border].next) = (border, border);
        border
    }

    /// As [`Slots::remove`].
    pub(crate) fn remove(&mut self, id: ChunkId) {
        self.slots().remove(id);
    }

    /// The live chunk of an id that came from outside, if there is one.
    #[inline]
    pub(crate) fn live(&self, id: ChunkId) -> Option<&Chunk> {
        match self.slots.get(id.0 as usize) {
            Some(chunk) if chunk.state == State::Live => Some(chunk),
            _ => None,
        }
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
        self.unused.iter()
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
        let others = slab.unused_slots().count();
        slab.remove(ids[1]);
        slab.remove(ids[3]);
        assert_eq!((slab.chunks().count(), slab.unused_slots().count()), (2, others + 2));
        assert_eq!(slab.insert(1024, 256, BETWEEN_NONE, State::Free), ids[3]);
        assert_eq!(slab.insert(2048, 256, BETWEEN_NONE, State::Free), ids[1]);
        assert_eq!(slab.insert(4096, 256, BETWEEN_NONE, State::Free), ChunkId(5));
    }

    #[test]
    fn slots_are_made_when_there_are_too_few() {
        let mut slab = Slab::new();
        for n in 0..3 * GROUP as u64 {
            assert!(slab.has_room_for(2));
            slab.insert(n * 256, 256, BETWEEN_NONE, State::Free);
        }
        let (chunks, unused) = (slab.chunks().count(), slab.unused_slots().count());
        // Nobody has one, too.
        assert_eq!((chunks, 1 + chunks + unused), (3 * GROUP, slab.len()));
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
        assert!(slab.live(ChunkId(u32::MAX)).is_none());
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
