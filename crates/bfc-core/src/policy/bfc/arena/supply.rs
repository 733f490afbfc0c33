//! Adding and removing regions.

use super::super::chunk::{Chunk, ChunkId, ChunkState, GRANULE, whole_granules};
use super::super::region::AllocationRegion;
use super::Bfc;
use crate::base::memory::Span;
use crate::policy::NotAdded;

impl Bfc {
    /// Adds a free region. With `join` it merges with the regions directly below and above, including free chunks
    /// across the seam. Upstream merges only below.
    pub(super) fn add(&mut self, span: Span, join: bool) -> Result<(), NotAdded> {
        let bytes = whole_granules(span.bytes);
        if bytes == 0 || span.address % GRANULE != 0 {
            return Err(NotAdded::Bad);
        }
        let place = self.regions.place(span, join).ok_or(NotAdded::Bad)?;
        // One slot for the chunk and one for the border.
        if !self.chunks.has_room_for(2) {
            return Err(NotAdded::Full);
        }
        let alone = (ChunkId::NONE, ChunkId::NONE);
        let id = self.chunks.insert(span.address, bytes, alone, ChunkState::Free);
        if place.joins_below {
            let below = self.regions.get_mut(place.index - 1);
            below.span.bytes += span.bytes;
            let border = below.border;
            self.link_in(self.chunks[border].prev, id, border);
            if place.joins_above {
                let above = self.regions.remove(place.index);
                self.regions.get_mut(place.index - 1).span.bytes += above.span.bytes;
                self.splice(border, above.border);
            }
        } else if place.joins_above {
            let above = self.regions.get_mut(place.index);
            above.span = Span { address: span.address, bytes: span.bytes + above.span.bytes };
            let border = above.border;
            self.link_in(border, id, self.chunks[border].next);
        } else {
            let border = self.chunks.insert_border();
            self.regions.insert(place.index, AllocationRegion { span, border });
            self.link_in(border, id, border);
        }
        self.reserved += span.bytes;
        self.join_and_bin(id);
        Ok(())
    }

    /// Removes one idle region of at most this many bytes. It then belongs to the caller.
    pub(super) fn take_idle(&mut self, at_most: u64) -> Option<Span> {
        let fits = |region: &AllocationRegion| region.span.bytes <= at_most && self.is_idle(region);
        let index = self.regions.as_slice().iter().position(fits)?;
        self.join_recent();
        self.take_region(index)
    }

    /// Removes a region that is one free chunk.
    fn take_region(&mut self, index: usize) -> Option<Span> {
        let region = self.regions.remove(index);
        let chunk = self.chunks[region.border].next;
        self.unbin(chunk);
        self.chunks.remove(chunk);
        self.chunks.remove(region.border);
        self.reserved -= region.span.bytes;
        Some(region.span)
    }

    /// Returns the free chunk at the end of the last region if it is reusable, or an empty span.
    pub(super) fn last_tail(&self) -> Option<Span> {
        let region = self.regions.as_slice().last()?;
        let (end, last) = (region.span.end()?, self.chunks[region.border].prev);
        // A tail that is not whole granules never merges.
        let joins = region.usable() == region.span.bytes && self.chunks[last].is_free_for_anyone();
        let bytes = if joins { self.once_joined(last).bytes } else { 0 };
        Some(Span { address: end - bytes, bytes })
    }

    /// Removes this many reusable bytes at the end of the last region. They then belong to the caller.
    pub(super) fn cut_last(&mut self, bytes: u64) -> Option<Span> {
        let tail =
            self.last_tail().filter(|tail| 0 < bytes && bytes <= tail.bytes && bytes % GRANULE == 0)?;
        self.join_recent();
        let index = self.regions.as_slice().len() - 1;
        let (span, border) = (self.regions.as_slice()[index].span, self.regions.as_slice()[index].border);
        if bytes == span.bytes {
            return self.take_region(index);
        }
        let last = self.chunks[border].prev;
        self.unbin(last);
        if bytes == tail.bytes {
            self.link(self.chunks[last].prev, border);
            self.chunks.remove(last);
        } else {
            self.chunks[last].bytes -= bytes;
            self.bin(last);
        }
        self.regions.get_mut(index).span.bytes -= bytes;
        self.reserved -= bytes;
        Some(Span { address: span.address + span.bytes - bytes, bytes })
    }

    /// Whether a region is one reusable free chunk. A region with frees that wait for the frontier is not idle: a
    /// device may still work on it. Upstream releases it.
    pub(super) fn is_idle(&self, region: &AllocationRegion) -> bool {
        let first = self.chunks[region.border].next;
        self.chunks[first].is_free_for_anyone() && self.once_joined(first).bytes == region.usable()
    }

    /// Links a chunk between two neighbors.
    fn link_in(&mut self, before: ChunkId, id: ChunkId, after: ChunkId) {
        self.link(before, id);
        self.link(id, after);
    }

    /// Moves all chunks from the ring of `gone` to the end of the ring of `border`, and removes `gone`.
    fn splice(&mut self, border: ChunkId, gone: ChunkId) {
        let Chunk { prev: last, next: first, .. } = self.chunks[gone];
        self.link(self.chunks[border].prev, first);
        self.link(last, border);
        self.chunks.remove(gone);
    }

    fn link(&mut self, before: ChunkId, after: ChunkId) {
        self.chunks[before].next = after;
        self.chunks[after].prev = before;
    }
}
