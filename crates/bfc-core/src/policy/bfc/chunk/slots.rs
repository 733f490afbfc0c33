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

    /// Makes the first `bytes` bytes of a chunk of `whole` bytes a chunk of its own, in no bin: that, and where it starts.
    /// The caller has seen to it that there is an unused slot.
    // What was just worked out travels in registers, here and below: read back, it would be waited for. The rest is read where
    // it is needed: there are too few registers to keep it in.
    #[inline(always)]
    pub(crate) fn cut_low(&mut self, id: ChunkId, whole: u64, bytes: u64, state: State) -> (ChunkId, u64) {
        debug_assert!(0 < bytes && bytes < whole && whole == self.chunks[id].bytes);
        let Chunk { address, prev, .. } = self.chunks[id];
        let front = self.insert(address, bytes, (prev, id), state);
        let rest = &mut self.chunks[id];
        rest.address = address + bytes;
        rest.bytes = whole - bytes;
        rest.prev = front;
        self.chunks[prev].next = front;
        (front, address)
    }

    /// The same with the last `bytes` bytes.
    #[inline(always)]
    pub(crate) fn cut_high(&mut self, id: ChunkId, whole: u64, bytes: u64, state: State) -> (ChunkId, u64) {
        debug_assert!(0 < bytes && bytes < whole && whole == self.chunks[id].bytes);
        let Chunk { address, next, .. } = self.chunks[id];
        let start = address + (whole - bytes);
        let back = self.insert(start, bytes, (id, next), state);
        self.chunks[id].bytes = whole - bytes;
        self.chunks[id].next = back;
        self.chunks[next].prev = back;
        (back, start)
    }

    /// Adds a chunk that lies between two others to the one after it, of `both` bytes then, and empties its slot.
    #[inline(always)]
    pub(crate) fn join_to_next(&mut self, id: ChunkId, (prev, next): (ChunkId, ChunkId), both: u64) {
        let address = self.chunks[id].address;
        let chunk = &mut self.chunks[next];
        debug_assert!(chunk.prev == id && address + both == chunk.end());
        chunk.address = address;
        chunk.bytes = both;
        chunk.prev = prev;
        self.chunks[prev].next = next;
        self.remove(id);
    }

    /// Adds a chunk to the one before it, of `both` bytes then, and empties its slot.
    #[inline(always)]
    pub(crate) fn join_to_prev(&mut self, id: ChunkId, prev: ChunkId, both: u64) {
        let next = self.chunks[id].next;
        let chunk = &mut self.chunks[prev];
        debug_assert!(chunk.next == id && chunk.bytes < both);
        chunk.bytes = both;
        chunk.next = next;
        self.chunks[next].prev = prev;
        self.remove(id);
    }
}
