//! Coalescing of free neighbors, immediately or when the frontier allows it.

use super::super::bins::SizeClass;
use super::super::chunk::{Chunk, ChunkId, ChunkState};
use super::super::pending::PendingFree;
use super::super::timed::TimedPolicy;
use super::{Bfc, ChunkRequest};
use crate::base::hint::cold_path;
use crate::policy::NotLive;

impl Bfc {
    /// Frees a chunk for all requests, merges it with free neighbors, and inserts the result into its bin. No further
    /// chunk can merge, because two free neighbors would be merged already.
    #[inline]
    pub(super) fn join_and_bin(&mut self, id: ChunkId) {
        let (mut id, Chunk { mut bytes, prev, next, .. }) = (id, self.chunks[id]);
        let after = &self.chunks[next];
        if after.state == ChunkState::Free {
            let class = SizeClass::of(after.bytes);
            bytes += after.bytes;
            self.bins.remove(&mut self.chunks, next, class);
            self.chunks.join_to_next(id, (prev, next), bytes);
            id = next;
        }
        let before = &self.chunks[prev];
        if before.state == ChunkState::Free {
            cold_path();
            let class = SizeClass::of(before.bytes);
            bytes += before.bytes;
            self.bins.remove(&mut self.chunks, prev, class);
            self.chunks.join_to_prev(id, prev, bytes);
            id = prev;
        }
        self.chunks[id].state = ChunkState::Free;
        self.bins.insert(&mut self.chunks, id, SizeClass::of(bytes));
    }

    /// Frees a chunk that stays separate until the frontier has passed the count of its free.
    #[cold]
    fn hold(&mut self, id: ChunkId, freed_at: u64) {
        self.chunks.set_free(id, freed_at);
        self.bin(id);
        self.pending.push(PendingFree { chunk: id, freed_at });
    }

    /// Merges frees with counts strictly below the frontier, as upstream.
    fn merge_below(&mut self, frontier: u64) {
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

    /// Merges pending frees regardless of the frontier, oldest first, until the request fits. Returns whether it does.
    /// Only for requests without `freed_before`. Stops as soon as the request fits, because a merged chunk carries the
    /// latest count of its parts. Upstream merges all neighbors.
    pub(super) fn merge_until(&mut self, request: &ChunkRequest) -> bool {
        self.join_recent();
        let mut satisfied = false;
        for _ in 0..self.pending.begin_pass() {
            let Some(free) = self.pending.pop().filter(|free| self.is_pending(free)) else { continue };
            if satisfied {
                self.pending.push(free);
                continue;
            }
            self.unbin(free.chunk);
            let joined = self.join_any(free.chunk, request);
            self.bin(joined);
            self.pending.push(PendingFree { chunk: joined, freed_at: self.chunks.freed_at(joined) });
            satisfied = self.holds(joined, request);
        }
        satisfied
    }

    /// Whether an entry of the queue still matches the chunk in its slot.
    pub(in super::super) fn is_pending(&self, free: &PendingFree) -> bool {
        self.chunks.freed_at(free.chunk) == free.freed_at
    }

    /// Merges a free chunk outside of the bins with free neighbors until it fits the request or none is left. The
    /// result, outside of the bins too, carries the latest count of its parts.
    fn join_any(&mut self, id: ChunkId, request: &ChunkRequest) -> ChunkId {
        let (mut id, mut freed_at) = (id, self.chunks.freed_at(id));
        while !self.holds(id, request) {
            let next = self.chunks[id].next;
            if !self.chunks[next].is_free() {
                break;
            }
            freed_at = freed_at.max(self.chunks.freed_at(next));
            self.unbin(next);
            id = self.join_to_next(id, next);
        }
        while !self.holds(id, request) {
            let prev = self.chunks[id].prev;
            if !self.chunks[prev].is_free() {
                break;
            }
            freed_at = freed_at.max(self.chunks.freed_at(prev));
            self.unbin(prev);
            id = self.join_to_prev(id, prev);
        }
        self.chunks.set_free(id, freed_at);
        id
    }

    /// Whether the request fits in a free chunk.
    fn holds(&self, id: ChunkId, request: &ChunkRequest) -> bool {
        let chunk = &self.chunks[id];
        request.fits(chunk.address, chunk.bytes)
    }

    /// Merges a chunk into the next one, and empties its slot.
    fn join_to_next(&mut self, id: ChunkId, next: ChunkId) -> ChunkId {
        let Chunk { bytes, prev, .. } = self.chunks[id];
        let both = bytes + self.chunks[next].bytes;
        self.chunks.join_to_next(id, (prev, next), both);
        next
    }

    /// Merges a chunk into the previous one, and empties its slot.
    fn join_to_prev(&mut self, id: ChunkId, prev: ChunkId) -> ChunkId {
        let both = self.chunks[prev].bytes + self.chunks[id].bytes;
        self.chunks.join_to_prev(id, prev, both);
        prev
    }
}

impl TimedPolicy for Bfc {
    #[inline]
    fn free_at(&mut self, slot: u32, count: u64) -> Result<(), NotLive> {
        let id = ChunkId(slot);
        self.chunks.live(id).ok_or(NotLive { slot })?;
        self.hold(id, count);
        Ok(())
    }

    #[inline]
    fn merge_ripe(&mut self, frontier: u64) {
        if self.pending.may_have_ripe(frontier) {
            self.merge_below(frontier);
        }
    }
}
