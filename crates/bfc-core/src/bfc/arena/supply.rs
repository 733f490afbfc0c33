//! Regions in and out.

use super::super::chunk::{Chunk, ChunkId, GRANULE, whole_granules};
use super::super::region::AllocationRegion;
use super::Bfc;
use crate::memory::Span;
use crate::policy::NotAdded;

impl Bfc {
    /// Adds a region, free throughout. With `join` it becomes one with the regions it touches, below and above
    /// (upstream: only below), so that free chunks join across the seam.
    pub(super) fn add(&mut self, span: Span, join: bool) -> Result<(), NotAdded> {
        let bytes = whole_granules(span.bytes);
        if bytes == 0 || !span.address.is_multiple_of(GRANULE) {
            return Err(NotAdded::Bad);
        }
        let place = self.regions.place(span, join).ok_or(NotAdded::Bad)?;
        if !self.chunks.has_room_for(1) {
            return Err(NotAdded::Full);
        }
        let id = self.chunks.insert(Chunk::free(span.address, bytes));
        if place.joins_below {
            let below = self.regions.get_mut(place.index - 1);
            let last = std::mem::replace(&mut below.last, id);
            below.span.bytes += span.bytes;
            self.link(last, id);
            if place.joins_above {
                let above = self.regions.remove(place.index);
                let below = self.regions.get_mut(place.index - 1);
                below.span.bytes += above.span.bytes;
                below.last = above.last;
                self.link(id, above.first);
            }
        } else if place.joins_above {
            let above = self.regions.get_mut(place.index);
            let first = std::mem::replace(&mut above.first, id);
            above.span = Span { address: span.address, bytes: span.bytes + above.span.bytes };
            self.link(id, first);
        } else {
            self.regions.insert(place.index, AllocationRegion { span, first: id, last: id });
        }
        self.reserved += span.bytes;
        self.coalesce_and_bin(id);
        Ok(())
    }

    /// Forgets one region of at most so many bytes that could be given back: it is the caller's from now on.
    pub(super) fn take_idle(&mut self, at_most: u64) -> Option<Span> {
        let fits = |region: &AllocationRegion| region.span.bytes <= at_most && self.is_idle(region);
        let index = self.regions.as_slice().iter().position(fits)?;
        let region = self.regions.remove(index);
        self.unbin(region.first);
        self.chunks.remove(region.first);
        self.reserved -= region.span.bytes;
        Some(region.span)
    }

    /// Whether a region is one free chunk that anyone may use. A region with frees that the frontier has not passed is
    /// not idle: a device may still work on it (upstream gives it back).
    pub(super) fn is_idle(&self, region: &AllocationRegion) -> bool {
        let chunk = &self.chunks[region.first];
        chunk.is_free() && chunk.freed_at == 0 && chunk.bytes == region.usable()
    }

    fn link(&mut self, before: ChunkId, after: ChunkId) {
        self.chunks[before].next = after;
        self.chunks[after].prev = before;
    }
}
