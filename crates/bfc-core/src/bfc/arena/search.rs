//! Finding the best fit, and cutting out what is needed of it.

use super::super::chunk::{Chunk, ChunkId, GRANULE};
use super::super::frontier::PendingFree;
use super::Arena;
use crate::ledger::Tag;
use crate::units::round_up;

/// A request in the arena's terms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// Bytes asked for.
    pub(crate) requested: u64,
    /// The same in whole granules.
    pub(crate) rounded: u64,
    /// A power of two, at least [`GRANULE`].
    pub(crate) alignment: u64,
    /// If given, memory freed at a later count must not be used.
    pub(crate) freed_before: Option<u64>,
    pub(crate) tag: Tag,
}

impl Need {
    /// `requested` in whole granules; `None` if the request leaves the address space once rounded and aligned. The
    /// alignment is a power of two.
    #[inline]
    pub(crate) fn rounded(requested: u64, alignment: u64) -> Option<u64> {
        let rounded = round_up(requested, GRANULE)?;
        rounded.checked_add(alignment.max(GRANULE)).map(|_| rounded)
    }

    /// Bytes from `address`, a multiple of [`GRANULE`], up to the next address that is aligned as asked.
    pub(crate) const fn padding_at(&self, address: u64) -> u64 {
        address.wrapping_neg() & (self.alignment - 1)
    }

    /// Whether `bytes` bytes at `address` hold the need and the padding before it.
    pub(crate) const fn fits(&self, address: u64, bytes: u64) -> bool {
        // Both terms stay below 2^64 together: `new` has checked it.
        self.padding_at(address) + self.rounded <= bytes
    }

    /// The bytes that suffice wherever they start: with the largest padding there can be.
    pub(crate) const fn with_most_padding(&self) -> u64 {
        self.rounded + (self.alignment - GRANULE)
    }
}

impl Arena {
    /// The free chunk to use: the smallest that fits with its padding and was freed early enough; of equals, the one
    /// at the lowest address.
    #[inline]
    pub(super) fn find(&mut self, need: &Need) -> Option<ChunkId> {
        // A chunk may be cut into three, so two more must be numberable. Four thousand million chunks are out of
        // reach of real pools, but not of pools of bare addresses.
        if !self.chunks.has_room_for(2) {
            return None;
        }
        self.bins.best_fit(&mut self.chunks, need.rounded, |chunk| {
            need.fits(chunk.address, chunk.bytes)
                && need.freed_before.is_none_or(|before| chunk.freed_at <= before)
        })
    }

    /// Takes a chunk that fits out of its bin and cuts off what is not needed, which becomes free chunks of its own.
    #[inline]
    pub(super) fn carve(&mut self, best: ChunkId, need: &Need) -> ChunkId {
        self.unbin(best);
        let mut id = best;
        let padding = need.padding_at(self.chunks[id].address);
        if padding > 0 {
            let aligned = self.split(id, padding);
            self.bin(id);
            id = aligned;
        }
        if self.split.cuts(self.chunks[id].bytes, need.rounded) {
            let rest = self.split(id, need.rounded);
            self.bin(rest);
            let freed_at = self.chunks[rest].freed_at;
            if freed_at > 0 {
                // Upstream forgets such a rest, which then never joins its neighbours again.
                self.pending.push(PendingFree { chunk: rest, freed_at });
            }
        }
        id
    }

    /// Cuts a free chunk that is in no bin after `bytes` bytes. The rest, returned, is as free as the whole was.
    #[inline]
    fn split(&mut self, id: ChunkId, bytes: u64) -> ChunkId {
        let whole = &mut self.chunks[id];
        debug_assert!(whole.is_free() && 0 < bytes && bytes < whole.bytes);
        let next = whole.next;
        let rest = Chunk {
            freed_at: whole.freed_at,
            prev: id,
            next,
            ..Chunk::free(whole.address + bytes, whole.bytes - bytes)
        };
        whole.bytes = bytes;
        let rest = self.chunks.insert(rest);
        self.chunks[id].next = rest;
        self.link_back(rest, next);
        rest
    }

    /// Tells what comes after a chunk, its neighbour or its region, that this chunk comes before.
    #[inline]
    pub(super) fn link_back(&mut self, id: ChunkId, next: ChunkId) {
        if next.is_none() {
            self.regions.containing(self.chunks[id].address).last = id;
        } else {
            self.chunks[next].prev = id;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_reaches_the_next_aligned_address_even_at_the_end_of_the_address_space() {
        let rounded = Need::rounded(300, 4096).unwrap();
        let need = Need { requested: 300, rounded, alignment: 4096, freed_before: None, tag: Tag::default() };
        assert_eq!((need.rounded, need.with_most_padding()), (512, 512 + 4096 - 256));
        assert_eq!(need.padding_at(0), 0);
        assert_eq!(need.padding_at(256), 3840);
        assert_eq!(need.padding_at(u64::MAX - 255), 256);
        assert!(need.fits(256, 4352) && !need.fits(256, 4096));
    }

    #[test]
    fn a_need_that_leaves_the_address_space_is_none() {
        assert!(Need::rounded(u64::MAX, 64).is_none());
        assert!(Need::rounded(u64::MAX - 4096, 1 << 63).is_none());
        assert!(Need::rounded(u64::MAX - 4096, 64).is_some());
    }
}
