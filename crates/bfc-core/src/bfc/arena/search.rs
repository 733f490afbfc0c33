//! Finding the best fit, and cutting out what is needed of it.

use super::super::chunk::{Chunk, ChunkId, GRANULE};
use super::super::pending::PendingFree;
use super::Bfc;
use crate::policy::{Need, round_to_granule};

/// A need in whole granules.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Fit {
    /// Bytes needed, in whole granules.
    pub(super) rounded: u64,
    /// A power of two, at least [`GRANULE`].
    alignment: u64,
    /// If given, memory freed at a later count must not be used.
    freed_before: Option<u64>,
}

impl Fit {
    /// `None` if the need leaves the address space once rounded and aligned.
    #[inline]
    pub(super) fn of(need: &Need) -> Option<Self> {
        let rounded = round_to_granule(need.bytes.max(1), need.alignment, GRANULE)?;
        Some(Self { rounded, alignment: need.alignment.max(GRANULE), freed_before: need.freed_before })
    }

    /// Bytes from `address`, a multiple of [`GRANULE`], up to the next address that is aligned as asked.
    const fn padding_at(&self, address: u64) -> u64 {
        address.wrapping_neg() & (self.alignment - 1)
    }

    /// Whether `bytes` bytes at `address` hold the need and the padding before it.
    pub(super) const fn fits(&self, address: u64, bytes: u64) -> bool {
        // Both terms stay below 2^64 together: `of` has checked it.
        self.padding_at(address) + self.rounded <= bytes
    }
}

impl Bfc {
    /// The free chunk to use: the smallest that fits with its padding and was freed early enough; of equals, the one
    /// at the lowest address.
    #[inline]
    pub(super) fn find(&mut self, fit: &Fit) -> Option<ChunkId> {
        // A chunk may be cut into three, so two more must be numberable. Four thousand million chunks are out of
        // reach of real pools, but not of pools of bare addresses.
        if !self.chunks.has_room_for(2) {
            return None;
        }
        self.bins.best_fit(&mut self.chunks, fit.rounded, |chunk| {
            fit.fits(chunk.address, chunk.bytes)
                && fit.freed_before.is_none_or(|before| chunk.freed_at <= before)
        })
    }

    /// Takes a chunk that fits out of its bin and cuts off what is not needed, which becomes free chunks of its own.
    #[inline]
    pub(super) fn carve(&mut self, best: ChunkId, fit: &Fit) -> ChunkId {
        self.unbin(best);
        let mut id = best;
        let padding = fit.padding_at(self.chunks[id].address);
        if padding > 0 {
            let aligned = self.split(id, padding);
            self.bin(id);
            id = aligned;
        }
        if self.split.cuts(self.chunks[id].bytes, fit.rounded) {
            let rest = self.split(id, fit.rounded);
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
        let fit = Fit::of(&Need::new(300).with_alignment(4096)).unwrap();
        assert_eq!(fit.rounded, 512);
        assert_eq!(fit.padding_at(0), 0);
        assert_eq!(fit.padding_at(256), 3840);
        assert_eq!(fit.padding_at(u64::MAX - 255), 256);
        assert!(fit.fits(256, 4352) && !fit.fits(256, 4096));
    }

    #[test]
    fn a_need_that_leaves_the_address_space_is_none() {
        assert!(Fit::of(&Need::new(u64::MAX)).is_none());
        assert!(Fit::of(&Need::new(u64::MAX - 4096).with_alignment(1 << 63)).is_none());
        assert!(Fit::of(&Need::new(u64::MAX - 4096).with_alignment(64)).is_some());
    }
}
