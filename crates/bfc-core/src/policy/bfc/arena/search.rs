//! The best-fit search, and cutting a block out of the result.

use super::super::bins::SizeClass;
use super::super::chunk::{Chunk, ChunkId, ChunkState, GRANULE, Slab, whole_granules};
use super::super::pending::PendingFree;
use super::Bfc;
use crate::base::hint::cold_path;
use crate::base::placement::Placement;
use crate::policy::{PlacementRequest, round_to_granule};

/// A request in whole granules.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct ChunkRequest {
    /// The bytes, in whole granules.
    pub(super) rounded: u64,
    /// The alignment: a power of two, at least [`GRANULE`].
    alignment: u64,
    /// Excludes memory freed at a later count, if given.
    freed_before: Option<u64>,
}

impl ChunkRequest {
    /// Returns `None` if the request exceeds the address space once rounded and aligned.
    pub(super) fn of(request: &PlacementRequest) -> Option<Self> {
        let rounded = round_to_granule(request.bytes.max(1), request.alignment, GRANULE)?;
        Some(Self {
            rounded,
            alignment: request.alignment.max(GRANULE),
            freed_before: request.freed_before(),
        })
    }

    /// Returns the bytes of a request that fits every large enough chunk, as nearly all do.
    #[inline(always)]
    pub(super) const fn plain(request: &PlacementRequest) -> Option<u64> {
        // Separate branches: each is well predicted, and a combined condition would have to be computed.
        if request.alignment > GRANULE {
            return None;
        }
        if request.bytes > u64::MAX / 2 {
            return None;
        }
        if request.freed_before().is_some() {
            return None;
        }
        let bytes = if request.bytes == 0 { 1 } else { request.bytes };
        Some(whole_granules(bytes + (GRANULE - 1)))
    }

    /// Returns the bytes from `address`, a multiple of [`GRANULE`], up to the next aligned address.
    const fn padding_at(&self, address: u64) -> u64 {
        address.wrapping_neg() & (self.alignment - 1)
    }

    /// Returns the bytes from `address` up to the highest aligned address at which the block fits into `bytes` bytes.
    const fn most_before(&self, address: u64, bytes: u64) -> u64 {
        // At or above the first aligned address, because the request fits.
        let highest = address + (bytes - self.rounded);
        highest - (highest & (self.alignment - 1)) - address
    }

    /// Whether `bytes` bytes at `address` hold the block and the padding before it.
    pub(super) const fn fits(&self, address: u64, bytes: u64) -> bool {
        // The sum stays below 2^64: `of` has checked it.
        self.padding_at(address) + self.rounded <= bytes
    }

    /// Whether the request fits in a free chunk and accepts its count.
    pub(super) fn suits(&self, chunks: &Slab, id: ChunkId) -> bool {
        let chunk = &chunks[id];
        let in_time = |before| chunks.freed_at(id) <= before;
        self.fits(chunk.address, chunk.bytes) && self.freed_before.is_none_or(in_time)
    }
}

impl Bfc {
    /// Takes the smallest free chunk of at least this size, the lowest among equals, and cuts off the rest. Returns
    /// `None` without a change if this fast path does not apply.
    #[inline(always)]
    pub(super) fn take_plain(&mut self, rounded: u64) -> Option<Placement> {
        if !self.chunks.has_room_for(1) {
            cold_path();
            return None;
        }
        let (class, best) = self.bins.first_from(&mut self.chunks, SizeClass::of(rounded))?;
        let Chunk { bytes, state, .. } = self.chunks[best];
        if bytes < rounded || state != ChunkState::Free {
            cold_path();
            return None;
        }
        let large = is_large(&mut self.large_from, rounded);
        if !self.split.cuts(bytes, rounded) {
            self.bins.remove_first(&mut self.chunks, best, class);
            let chunk = &mut self.chunks[best];
            chunk.state = ChunkState::Live;
            return Some(Placement { address: chunk.address, bytes, slot: best.0 });
        }
        let rest = SizeClass::of(bytes - rounded);
        // The first chunk of a class stays the first if it shrinks.
        if rest != class {
            self.bins.remove_first(&mut self.chunks, best, class);
        }
        let (live, address) = match large {
            true => self.chunks.cut_high(best, bytes, rounded, ChunkState::Live),
            false => self.chunks.cut_low(best, bytes, rounded, ChunkState::Live),
        };
        if rest != class {
            self.bins.insert(&mut self.chunks, best, rest);
        }
        Some(Placement { address, bytes: rounded, slot: live.0 })
    }

    /// Places a request that [`take_plain`](Self::take_plain) does not serve: one that not every large chunk fits, or
    /// that the first chunk of the first class does not fit.
    #[cold]
    #[inline(never)]
    pub(super) fn take_otherwise(&mut self, request: &PlacementRequest) -> Option<ChunkId> {
        self.join_recent();
        self.take_special(&ChunkRequest::of(request)?)
    }

    /// Takes the smallest free chunk that fits with padding and count, the lowest among equals, and cuts off the rest.
    fn take_special(&mut self, request: &ChunkRequest) -> Option<ChunkId> {
        // The chunk may be cut into three. Pools of addresses without memory can exhaust the four billion slots.
        if !self.chunks.has_room_for(2) {
            return None;
        }
        let best =
            self.bins.best_fit(&mut self.chunks, request.rounded, |chunks, id| request.suits(chunks, id))?;
        self.unbin(best);
        let before = self.bytes_before(best, request);
        if before > 0 {
            let freed_at = self.chunks.freed_at(best);
            let front = self.cut_low(best, before, ChunkState::Free);
            self.leave(front, freed_at);
        }
        let mut live = best;
        if self.split.cuts(self.chunks[best].bytes, request.rounded) {
            // The rest of a pending chunk keeps its slot, so it stays pending. Upstream loses it, and it never merges
            // again.
            live = self.cut_low(best, request.rounded, ChunkState::Live);
            self.bin(best);
        }
        self.chunks[live].state = ChunkState::Live;
        Some(live)
    }

    /// Frees a new chunk that was cut off a chunk with this count.
    fn leave(&mut self, id: ChunkId, freed_at: u64) {
        self.chunks.set_free(id, freed_at);
        self.bin(id);
        if freed_at > 0 {
            self.pending.push(PendingFree { chunk: id, freed_at });
        }
    }

    /// Returns the bytes to leave free before the block: the padding, or for a block at the high end all spare bytes.
    fn bytes_before(&mut self, chunk: ChunkId, request: &ChunkRequest) -> u64 {
        let Chunk { address, bytes, .. } = self.chunks[chunk];
        if !self.is_large(request.rounded) || !self.split.cuts(bytes, request.rounded) {
            return request.padding_at(address);
        }
        request.most_before(address, bytes)
    }

    /// Whether a new block is cut from the high end.
    fn is_large(&mut self, rounded: u64) -> bool {
        is_large(&mut self.large_from, rounded)
    }

    /// As [`Slots::cut_low`](Slab::cut_low).
    fn cut_low(&mut self, id: ChunkId, bytes: u64, state: ChunkState) -> ChunkId {
        let whole = self.chunks[id].bytes;
        self.chunks.cut_low(id, whole, bytes, state).0
    }
}

/// Whether a new block is cut from the high end, where `large_from` is the minimum size of such blocks.
#[inline(always)]
fn is_large(large_from: &mut u64, rounded: u64) -> bool {
    let large = rounded >= *large_from;
    if large {
        cold_path();
        *large_from = (*large_from).max(rounded / 2);
    }
    large
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_padding_works_at_the_address_space_end() {
        let request = ChunkRequest::of(&PlacementRequest::new(300).with_alignment(4096)).unwrap();
        assert_eq!(request.rounded, 512);
        assert_eq!(request.padding_at(0), 0);
        assert_eq!(request.padding_at(256), 3840);
        assert_eq!(request.padding_at(u64::MAX - 255), 256);
        assert!(request.fits(256, 4352) && !request.fits(256, 4096));
    }

    #[test]
    fn a_need_that_leaves_the_address_space_is_none() {
        assert!(ChunkRequest::of(&PlacementRequest::new(u64::MAX)).is_none());
        assert!(ChunkRequest::of(&PlacementRequest::new(u64::MAX - 4096).with_alignment(1 << 63)).is_none());
        assert!(ChunkRequest::of(&PlacementRequest::new(u64::MAX - 4096).with_alignment(64)).is_some());
    }
}
