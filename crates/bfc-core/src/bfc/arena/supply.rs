//! Regions in and out.

use super::super::chunk::{Chunk, ChunkId, GRANULE, whole_granules};
use super::super::region::AllocationRegion;
use super::Arena;
use crate::memory::Span;

/// Why a region was not added. The arena is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotAdded {
    /// It is misaligned, empty, leaves the address space or overlaps another.
    Bad,
    /// No more chunks can be numbered.
    Full,
}

impl Arena {
    /// Adds a region, free throughout. With `join` it becomes one with the regions it touches, below and above
    /// (upstream: only below), so that free chunks join across the seam.
    pub(crate) fn add_region(&mut self, span: Span, join: bool) -> Result<(), NotAdded> {
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
        self.figures.bytes_reserved += span.bytes;
        self.figures.peak_bytes_reserved = self.figures.peak_bytes_reserved.max(self.figures.bytes_reserved);
        self.coalesce_and_bin(id);
        Ok(())
    }

    /// Bytes of the regions that could be given back.
    pub(crate) fn idle_bytes(&self) -> u64 {
        let idle = self.regions.as_slice().iter().filter(|region| self.is_idle(region));
        idle.map(|region| region.span.bytes).sum()
    }

    /// Forgets one region that could be given back: it is the caller's from now on.
    pub(crate) fn take_idle_region(&mut self) -> Option<Span> {
        let index = self.regions.as_slice().iter().position(|region| self.is_idle(region))?;
        let region = self.regions.remove(index);
        self.unbin(region.first);
        self.chunks.remove(region.first);
        self.figures.bytes_reserved -= region.span.bytes;
        Some(region.span)
    }

    /// Where the regions lie, in the order of their addresses.
    pub(crate) fn region_spans(&self) -> impl Iterator<Item = Span> + '_ {
        self.regions.as_slice().iter().map(|region| region.span)
    }

    /// Whether a region is one free chunk that anyone may use. A region with frees that the frontier has not passed is
    /// not idle: a device may still work on it (upstream gives it back).
    fn is_idle(&self, region: &AllocationRegion) -> bool {
        let chunk = &self.chunks[region.first];
        chunk.is_free() && chunk.freed_at == 0 && chunk.bytes == region.usable()
    }

    fn link(&mut self, before: ChunkId, after: ChunkId) {
        self.chunks[before].next = after;
        self.chunks[after].prev = before;
    }
}
