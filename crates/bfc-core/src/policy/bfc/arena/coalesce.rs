//! Joining free neighbours, at once or when the frontier allows it.

use std::hint::cold_path;

use super::super::bins::SizeClass;
use super::super::chunk::{Chunk, ChunkId, State};
use super::super::pending::PendingFree;
use super::{Bfc, Fit};

impl Bfc {
    /// Makes a chunk free for anyone that is in no bin, joins it with its neighbours that are, and puts the result into its
    /// bin. No further chunk can be joined, as two such neighbours would be one already.
    #[inline]
    pub(super) fn join_and_bin(&mut self, id: ChunkId) {
        let (mut id, Chunk { mut bytes, prev, next, .. }) = (id, self.chunks[id]);
        let after = &self.chunks[next];
        if after.state == State::Free {
            let class = SizeClass::of(after.bytes);
            bytes += after.bytes;
            self.bins.remove(&mut self.chunks, next, class);
            self.chunks.join_to_next(id, (prev, next), bytes);
            id = next;
        }
        let before = &self.chunks[prev];
        if before.state == State::Free {
            cold_path();
            let class = SizeClass::of(before.bytes);
            bytes += before.bytes;
            self.bins.remove(&mut self.chunks, prev, class);
            self.chunks.join_to_prev(id, prev, bytes);
            id = prev;
        }
        self.chunks[id].state = State::Free;
        self.bins.insert(&mut self.chunks, id, SizeClass::of(bytes));
    }

    /// Makes a chunk in use one that stays apart until the frontier has passed the count of its free.
    #[cold]
    pub(super) fn hold(&mut self, id: ChunkId, freed_at: u64) {
        self.chunks.set_free(id, freed_at);
        self.bin(id);
        self.pending.push(PendingFree { chunk: id, freed_at });
    }

    /// Joins what the frontier has passed: frees with a count strictly below it, as upstream.
    pub(super) fn merge_below(&mut self, frontier: u64) {
        for _ in 0..self.pending.begin_pass() {
            let Some(free) = self.pending.pop().filter(|free| self.is_pending(free)) else { continue };
            if free.freed_at < frontier {
                self.unbin(free.chunk);
                self.chunks.set_free(free.chunk, 0);
                self.join_and_bin(free.chunk);
            } else {
                self.pending.push(free);
            }
        }
    }

    /// Joins pending frees regardless of the frontier, oldest first, until one fits; whether one does. Only for needs
    /// that may use memory whenever it was freed. No more is joined than fits: what is joined is as late as its latest
    /// part (upstream joins all neighbours).
    pub(super) fn merge_until(&mut self, fit: &Fit) -> bool {
        self.join_recent();
        let mut satisfied = false;
        for _ in 0..self.pending.begin_pass() {
            let Some(free) = self.pending.pop().filter(|free| self.is_pending(free)) else { continue };
            if satisfied {
                self.pending.push(free);
                continue;
            }
            self.unbin(free.chunk);
            let joined = self.join_any(free.chunk, fit);
            self.bin(joined);
            self.pending.push(PendingFree { chunk: joined, freed_at: self.chunks.freed_at(joined) });
            satisfied = self.holds(joined, fit);
        }
        satisfied
    }

    /// Whether an entry of the queue still speaks of the chunk that is in its slot.
    pub(in super::super) fn is_pending(&self, free: &PendingFree) -> bool {
        self.chunks.freed_at(free.chunk) == free.freed_at
    }

    /// Joins a free chunk, which is in no bin, with what is free beside it until it holds the need or nothing is: the
    /// result, in no bin either, is as late as its latest part.
    fn join_any(&mut self, id: ChunkId, fit: &Fit) -> ChunkId {
        let (mut id, mut freed_at) = (id, self.chunks.freed_at(id));
        while let next = self.chunks[id].next
            && self.chunks[next].is_free()
            && !self.holds(id, fit)
        {
            freed_at = freed_at.max(self.chunks.freed_at(next));
            self.unbin(next);
            id = self.join_to_next(id, next);
        }
        while let prev = self.chunks[id].prev
            && self.chunks[prev].is_free()
            && !self.holds(id, fit)
        {
            freed_at = freed_at.max(self.chunks.freed_at(prev));
            self.unbin(prev);
            id = self.join_to_prev(id, prev);
        }
        self.chunks.set_free(id, freed_at);
        id
    }

    /// Whether a free chunk holds the need.
    fn holds(&self, id: ChunkId, fit: &Fit) -> bool {
        let chunk = &self.chunks[id];
        fit.fits(chunk.address, chunk.bytes)
    }

    /// Adds a chunk to the one after it, and empties its slot.
    fn join_to_next(&mut self, id: ChunkId, next: ChunkId) -> ChunkId {
        let Chunk { bytes, prev, .. } = self.chunks[id];
        let both = bytes + self.chunks[next].bytes;
        self.chunks.join_to_next(id, (prev, next), both);
        next
    }

    /// Adds a chunk to the one before it, and empties its slot.
    fn join_to_prev(&mut self, id: ChunkId, prev: ChunkId) -> ChunkId {
        let both = self.chunks[prev].bytes + self.chunks[id].bytes;
        self.chunks.join_to_prev(id, prev, both);
        prev
    }
}
