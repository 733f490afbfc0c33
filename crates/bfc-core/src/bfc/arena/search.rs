//! Finding the best fit, and cutting out what is needed of it.

use super::super::bins::SizeClass;
use super::super::chunk::{Chunk, ChunkId, GRANULE, Slab, State};
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

    /// Whether every chunk that is large enough fits.
    #[inline]
    const fn is_plain(&self) -> bool {
        self.alignment == GRANULE && self.freed_before.is_none()
    }

    /// Bytes from `address`, a multiple of [`GRANULE`], up to the next address that is aligned as asked.
    pub(super) const fn padding_at(&self, address: u64) -> u64 {
        address.wrapping_neg() & (self.alignment - 1)
    }

    /// Bytes from `address` up to the highest aligned one from which `bytes` bytes there, in which the need fits, hold it.
    pub(super) const fn most_before(&self, address: u64, bytes: u64) -> u64 {
        // At or above the first aligned address, as the need fits.
        let highest = address + (bytes - self.rounded);
        highest - (highest & (self.alignment - 1)) - address
    }

    /// Whether `bytes` bytes at `address` hold the need and the padding before it.
    pub(super) const fn fits(&self, address: u64, bytes: u64) -> bool {
        // Both terms stay below 2^64 together: `of` has checked it.
        self.padding_at(address) + self.rounded <= bytes
    }

    /// Whether a free chunk holds the need, and was freed early enough for it.
    pub(super) fn suits(&self, chunks: &Slab, id: ChunkId) -> bool {
        let chunk = &chunks[id];
        let in_time = |before| chunks.freed_at(id) <= before;
        self.fits(chunk.address, chunk.bytes) && self.freed_before.is_none_or(in_time)
    }
}

impl Bfc {
    /// Takes the smallest free chunk that fits with its padding and was freed early enough, of equals the one at the
    /// lowest address, and cuts off what is not needed.
    #[inline(always)]
    pub(super) fn take(&mut self, fit: Fit) -> Option<ChunkId> {
        if !fit.is_plain() || !self.chunks.has_room() {
            return self.take_special(&{ fit });
        }
        let Fit { rounded, .. } = fit;
        let (class, best) = self.bins.first_from(&mut self.chunks, SizeClass::of(rounded))?;
        let Chunk { bytes, state, .. } = self.chunks[best];
        if bytes < rounded || state != State::Free {
            // Given a copy, so that the fit itself stays in registers.
            return self.take_special(&{ fit });
        }
        let large = self.is_large(rounded);
        if !self.split.cuts(bytes, rounded) {
            self.bins.remove_first(&mut self.chunks, best, class);
            self.chunks[best].state = State::Live;
            return Some(best);
        }
        let rest = SizeClass::of(bytes - rounded);
        // The first of its class stays the first if it becomes smaller.
        if rest != class {
            self.bins.remove_first(&mut self.chunks, best, class);
        }
        let live = match large {
            true => self.cut_high(best, rounded, State::Live),
            false => self.cut_low(best, rounded, State::Live),
        };
        if rest != class {
            self.bins.insert(&mut self.chunks, best, rest);
        }
        Some(live)
    }

    /// The same for a need that not every large chunk fits, or where the first chunk of the first class does not.
    #[inline(never)]
    fn take_special(&mut self, fit: &Fit) -> Option<ChunkId> {
        // The chunk may be cut into three. Four thousand million chunks are out of reach of real pools, but not of
        // pools of bare addresses.
        if !self.chunks.has_room_for(2) {
            return None;
        }
        let best = self.bins.best_fit(&mut self.chunks, fit.rounded, |chunks, id| fit.suits(chunks, id))?;
        self.unbin(best);
        let before = self.bytes_before(best, fit);
        if before > 0 {
            let freed_at = self.chunks.freed_at(best);
            let front = self.cut_low(best, before, State::Free);
            self.leave(front, freed_at);
        }
        let mut live = best;
        if self.split.cuts(self.chunks[best].bytes, fit.rounded) {
            // What is left of a chunk that waits for the frontier keeps its slot, so it waits on. (Upstream forgets it,
            // and it never joins its neighbours again.)
            live = self.cut_low(best, fit.rounded, State::Live);
            self.bin(best);
        }
        self.chunks[live].state = State::Live;
        Some(live)
    }

    /// Leaves a new chunk free that was cut off one freed at that count.
    pub(super) fn leave(&mut self, id: ChunkId, freed_at: u64) {
        self.chunks.set_free(id, freed_at);
        self.bin(id);
        if freed_at > 0 {
            self.pending.push(PendingFree { chunk: id, freed_at });
        }
    }

    /// Bytes of a chunk that fits to leave free before the block: the padding, or for a large block all there is to
    /// spare, as it is cut from the high end.
    fn bytes_before(&mut self, chunk: ChunkId, fit: &Fit) -> u64 {
        let Chunk { address, bytes, .. } = self.chunks[chunk];
        if !self.is_large(fit.rounded) || !self.split.cuts(bytes, fit.rounded) {
            return fit.padding_at(address);
        }
        fit.most_before(address, bytes)
    }

    /// Whether a block that is about to be placed is to be cut from the high end.
    #[inline]
    fn is_large(&mut self, rounded: u64) -> bool {
        let large = rounded >= self.large_from;
        if large {
            self.large_from = self.large_from.max(rounded / 2);
        }
        large
    }

    /// Makes the first `bytes` bytes of a chunk a chunk of its own, in no bin. The caller has seen to it that there is an
    /// unused slot.
    #[inline]
    pub(super) fn cut_low(&mut self, id: ChunkId, bytes: u64, state: State) -> ChunkId {
        let Chunk { address, prev, .. } = self.chunks[id];
        let front = self.chunks.insert(address, bytes, (prev, id), state);
        let whole = &mut self.chunks[id];
        debug_assert!(0 < bytes && bytes < whole.bytes);
        whole.address += bytes;
        whole.bytes -= bytes;
        whole.prev = front;
        self.chunks[prev].next = front;
        front
    }

    /// The same with the last `bytes` bytes.
    #[inline]
    pub(super) fn cut_high(&mut self, id: ChunkId, bytes: u64, state: State) -> ChunkId {
        let whole = &mut self.chunks[id];
        debug_assert!(0 < bytes && bytes < whole.bytes);
        whole.bytes -= bytes;
        let (address, next) = (whole.end(), whole.next);
        let back = self.chunks.insert(address, bytes, (id, next), state);
        self.chunks[id].next = back;
        self.chunks[next].prev = back;
        back
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
