//! Cutting chunks and joining them.

use super::unused::UnusedSlots;
use super::{Chunk, ChunkId, State};

/// The slots of a slab, with their table in hand: no slot is added as long as they are, so where the table lies and how long
/// it is need not be read again after each write.
#[derive(Debug)]
pub(crate) struct Slots<'a> {
    pub(crate) chunks: &'a mut [Chunk],
    pub(super) unused: &'a mut UnusedSlots,
}

impl Slots<'_> {
    /// Fills an unused slot with a chunk between two neighbours, which are not told. It is in no bin: its links mean
    /// nothing. The caller has seen to it that there is such a slot.
    #[inline(always)]
    pub(crate) fn insert(
        &mut self,
        address: u64,
        bytes: u64,
        (prev, next): (ChunkId, ChunkId),
        state: State,
    ) -> ChunkId {
        let id = self.unused.take();
        let slot = &mut self.chunks[id];
        debug_assert_eq!(slot.state, State::Unused);
        // One by one: what is not needed is not written.
        slot.address = address;
        slot.bytes = bytes;
        slot.prev = prev;
        slot.next = next;
        slot.state = state;
        id
    }

    /// Empties a slot. What else stands there means nothing until it is used again.
    #[inline(always)]
    pub(crate) fn remove(&mut self, id: ChunkId) {
        let slot = &mut self.chunks[id];
        debug_assert!(slot.state != State::Unused && !id.is_none());
        slot.state = State::Unused;
        self.unused.add(id);
    }

    /// Makes the first `bytes` bytes of a chunk, which is as `whole` says, a chunk of its own, in no bin. The caller has
    /// seen to it that there is an unused slot.
    // What is known of a chunk travels in registers, here and below: what was just written would be waited for.
    #[inline(always)]
    pub(crate) fn cut_low(&mut self, id: ChunkId, whole: Chunk, bytes: u64, state: State) -> ChunkId {
        debug_assert!(0 < bytes && bytes < whole.bytes);
        let front = self.insert(whole.address, bytes, (whole.prev, id), state);
        let rest = &mut self.chunks[id];
        rest.address = whole.address + bytes;
        rest.bytes = whole.bytes - bytes;
        rest.prev = front;
        self.chunks[whole.prev].next = front;
        front
    }

    /// The same with the last `bytes` bytes.
    #[inline(always)]
    pub(crate) fn cut_high(&mut self, id: ChunkId, whole: Chunk, bytes: u64, state: State) -> ChunkId {
        debug_assert!(0 < bytes && bytes < whole.bytes);
        let rest = whole.bytes - bytes;
        let back = self.insert(whole.address + rest, bytes, (id, whole.next), state);
        self.chunks[id].bytes = rest;
        self.chunks[id].next = back;
        self.chunks[whole.next].prev = back;
        back
    }

    /// Adds a chunk to the one after it, and empties its slot.
    #[inline(always)]
    pub(crate) fn join_to_next(&mut self, id: ChunkId, whole: Chunk) -> ChunkId {
        let Chunk { address, bytes, prev, next, .. } = whole;
        let chunk = &mut self.chunks[next];
        debug_assert_eq!(address + bytes, chunk.address);
        chunk.address = address;
        chunk.bytes += bytes;
        chunk.prev = prev;
        self.chunks[prev].next = next;
        self.remove(id);
        next
    }

    /// Adds a chunk to the one before it, and empties its slot.
    #[inline(always)]
    pub(crate) fn join_to_prev(&mut self, id: ChunkId, whole: Chunk) -> ChunkId {
        let Chunk { address, bytes, prev, next, .. } = whole;
        let chunk = &mut self.chunks[prev];
        debug_assert_eq!(chunk.end(), address);
        chunk.bytes += bytes;
        chunk.next = next;
        self.chunks[next].prev = prev;
        self.remove(id);
        prev
    }
}
