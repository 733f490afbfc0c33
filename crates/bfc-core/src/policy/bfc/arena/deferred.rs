//! Deferred coalescing: see the [blocks freed last](super::super::recent).

use super::super::chunk::{Chunk, ChunkId, ChunkState};
use super::super::region::AllocationRegion;
use super::Bfc;
use crate::base::memory::Span;
use crate::base::placement::Placement;

impl Bfc {
    /// Takes a recently freed block of exactly this size. If there is none, merges all of them, so that a search finds
    /// all free memory in the bins.
    #[inline(always)]
    pub(super) fn take_recent(&mut self, rounded: u64) -> Option<Placement> {
        if self.recent.is_empty() {
            return None;
        }
        let Some(id) = self.recent.take(rounded) else {
            self.join_recent();
            return None;
        };
        let chunk = &mut self.chunks[id];
        chunk.state = ChunkState::Live;
        Some(Placement { address: chunk.address, bytes: rounded, slot: id.0 })
    }

    /// Defers the merge of a freed block, if it is small. Returns the block to merge now, if any.
    #[inline(always)]
    pub(super) fn defer(&mut self, id: ChunkId, bytes: u64) -> Option<ChunkId> {
        if bytes > self.deferred_up_to {
            return Some(id);
        }
        self.chunks[id].state = ChunkState::Recent;
        self.recent.push(id, bytes)
    }

    /// Merges all deferred blocks.
    #[inline(never)]
    pub(super) fn join_recent(&mut self) {
        while let Some(id) = self.recent.pop() {
            self.join_and_bin(id);
        }
    }

    /// Returns the span of a free chunk after merging it with its free neighbors.
    pub(super) fn once_joined(&self, id: ChunkId) -> Span {
        let beside = |id: ChunkId| self.chunks[id].is_free_for_anyone().then_some(id);
        let (mut first, mut last) = (id, id);
        while let Some(prev) = beside(self.chunks[first].prev) {
            first = prev;
        }
        while let Some(next) = beside(self.chunks[last].next) {
            last = next;
        }
        let address = self.chunks[first].address;
        Span { address, bytes: self.chunks[last].end().wrapping_sub(address) }
    }

    /// Returns the size of the largest deferred block after merging, or 0.
    pub(super) fn largest_recent(&self) -> u64 {
        self.recent.iter().map(|(id, _)| self.once_joined(id).bytes).max().unwrap_or(0)
    }

    /// Iterates over the chunks of a region in order of address, with free neighbors merged. Passes the first chunk of
    /// each.
    pub(super) fn spans_of(&self, region: &AllocationRegion) -> impl Iterator<Item = (ChunkId, Span)> + '_ {
        let mut rest = self.chunks_of(region).peekable();
        std::iter::from_fn(move || {
            let id = rest.next()?;
            let Chunk { address, bytes, .. } = self.chunks[id];
            let mut span = Span { address, bytes };
            let joins = |id: &ChunkId| self.chunks[*id].is_free_for_anyone();
            if joins(&id) {
                while let Some(next) = rest.next_if(joins) {
                    span.bytes += self.chunks[next].bytes;
                }
            }
            Some((id, span))
        })
    }
}
