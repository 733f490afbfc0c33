//! Joining free neighbours, at once or when the frontier allows it.

use super::super::chunk::ChunkId;
use super::super::pending::PendingFree;
use super::{Bfc, Fit};

impl Bfc {
    /// Joins a free chunk, which is in no bin, with its free neighbours and puts the result into its bin.
    #[inline]
    pub(super) fn coalesce_and_bin(&mut self, id: ChunkId) {
        let joined = self.coalesce(id);
        self.bin(joined);
    }

    /// Joins what the frontier has passed: frees with a count strictly below it, as upstream.
    pub(super) fn merge_below(&mut self, frontier: u64) {
        for _ in 0..self.pending.begin_pass() {
            let Some(free) = self.pending.pop().filter(|free| self.is_pending(free)) else { continue };
            if free.freed_at < frontier {
                self.unbin(free.chunk);
                self.chunks[free.chunk].freed_at = 0;
                self.coalesce_and_bin(free.chunk);
            } else {
                self.pending.push(free);
            }
        }
    }

    /// Joins pending frees regardless of the frontier, oldest first, until one fits; whether one does. Only for needs
    /// that may use memory whenever it was freed. No more is joined than fits: what is joined is as late as its latest
    /// part (upstream joins all neighbours).
    pub(super) fn merge_until(&mut self, fit: &Fit) -> bool {
        let mut satisfied = false;
        for _ in 0..self.pending.begin_pass() {
            let Some(free) = self.pending.pop().filter(|free| self.is_pending(free)) else { continue };
            if satisfied {
                self.pending.push(free);
                continue;
            }
            self.unbin(free.chunk);
            let joined = self.coalesce_until(free.chunk, fit);
            self.bin(joined);
            let chunk = self.chunks[joined];
            self.pending.push(PendingFree { chunk: joined, freed_at: chunk.freed_at });
            satisfied = fit.fits(chunk.address, chunk.bytes);
        }
        satisfied
    }

    /// Whether an entry of the queue still speaks of the chunk that is in its slot.
    pub(in super::super) fn is_pending(&self, free: &PendingFree) -> bool {
        self.chunks.get(free.chunk).is_some_and(|chunk| chunk.is_free() && chunk.freed_at == free.freed_at)
    }

    /// The chunk that a free one has become after joining those of its neighbours that anyone may use; in no bin,
    /// before and after.
    #[inline]
    fn coalesce(&mut self, id: ChunkId) -> ChunkId {
        let mut id = id;
        let for_anyone = |bfc: &Self, id: ChunkId| bfc.is_free(id) && bfc.chunks[id].freed_at == 0;
        if for_anyone(self, self.chunks[id].next) {
            self.absorb_next(id);
        }
        let prev = self.chunks[id].prev;
        if for_anyone(self, prev) {
            self.unbin(prev);
            self.absorb(prev, id);
            id = prev;
        }
        id
    }

    /// The same with free neighbours of any time, one after the other, until the chunk fits or none is left.
    fn coalesce_until(&mut self, id: ChunkId, fit: &Fit) -> ChunkId {
        let mut id = id;
        let fits = |bfc: &Self, id: ChunkId| fit.fits(bfc.chunks[id].address, bfc.chunks[id].bytes);
        while !fits(self, id) && self.is_free(self.chunks[id].next) {
            self.absorb_next(id);
        }
        while !fits(self, id) && self.is_free(self.chunks[id].prev) {
            let prev = self.chunks[id].prev;
            self.unbin(prev);
            self.absorb(prev, id);
            id = prev;
        }
        id
    }

    /// Whether there is such a chunk, and it is free.
    #[inline]
    fn is_free(&self, id: ChunkId) -> bool {
        !id.is_none() && self.chunks[id].is_free()
    }

    #[inline]
    fn absorb_next(&mut self, id: ChunkId) {
        let next = self.chunks[id].next;
        self.unbin(next);
        self.absorb(id, next);
    }

    /// Makes two neighbours one: the left survives, the right one's slot is emptied.
    #[inline]
    fn absorb(&mut self, left: ChunkId, right: ChunkId) {
        let gone = &self.chunks[right];
        debug_assert_eq!(self.chunks[left].end(), gone.address);
        let (bytes, freed_at, next) = (gone.bytes, gone.freed_at, gone.next);
        self.chunks.remove(right);
        let chunk = &mut self.chunks[left];
        chunk.bytes += bytes;
        chunk.freed_at = chunk.freed_at.max(freed_at);
        chunk.next = next;
        self.link_back(left, next);
    }
}
