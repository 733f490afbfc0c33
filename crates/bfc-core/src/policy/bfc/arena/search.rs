//! Finding the best fit, and cutting out what is needed of it.

use std::hint::cold_path;

use super::super::bins::SizeClass;
use super::super::chunk::{Chunk, ChunkId, GRANULE, Slab, State, whole_granules};
use super::super::pending::PendingFree;
use super::Bfc;
use crate::base::placement::Placement;
use crate::policy::{PlacementRequest, round_to_granule};

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
    pub(super) fn of(need: &PlacementRequest) -> Option<Self> {
        let rounded = round_to_granule(need.bytes.max(1), need.alignment, GRANULE)?;
        Some(Self { rounded, alignment: need.alignment.max(GRANULE), freed_before: need.freed_before })
    }

    /// What a need takes in whole granules that fits every chunk which is large enough, as nearly all do.
    #[inline(always)]
    pub(super) const fn plain(need: &PlacementRequest) -> Option<u64> {
        // One by one: each is foretold, and all in one number would have to be worked out.
        if need.alignment > GRANULE {
            return None;
        }
        if need.bytes > u64::MAX / 2 {
            return None;
        }
        if need.freed_before.is_some() {
            return None;
        }
        let bytes = if need.bytes == 0 { 1 } else { need.bytes };
        Some(whole_granules(bytes + (GRANULE - 1)))
    }

    /// Bytes from `address`, a multiple of [`GRANULE`], up to the next address that is aligned as asked.
    const fn padding_at(&self, address: u64) -> u64 {
        address.wrapping_neg() & (self.alignment - 1)
    }

    /// Bytes from `address` up to the highest aligned one from which `bytes` bytes there, in which the need fits, hold it.
    const fn most_before(&self, address: u64, bytes: u64) -> u64 {
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
    /// Takes the smallest free chunk of so many bytes, of equals the one at the lowest address, and cuts off what is not
    /// needed. `None`, and nothing was taken, where that takes more thought.
    #[inline(always)]
    pub(super) fn take_plain(&mut self, rounded: u64) -> Option<Placement> {
        if !self.chunks.has_room_for(1) {
            cold_path();
            return None;
        }
        let (class, best) = self.bins.first_from(&mut self.chunks, SizeClass::of(rounded))?;
        let Chunk { bytes, state, .. } = self.chunks[best];
        if bytes < rounded || state != State::Free {
            cold_path();
            return None;
        }
        let large = is_large(&mut self.large_from, rounded);
        if !self.split.cuts(bytes, rounded) {
            self.bins.remove_first(&mut self.chunks, best, class);
            let chunk = &mut self.chunks[best];
            chunk.state = State::Live;
            return Some(Placement { address: chunk.address, bytes, slot: best.0 });
        }
        let rest = SizeClass::of(bytes - rounded);
        // The first of its class stays the first if it becomes smaller.
        if rest != class {
            self.bins.remove_first(&mut self.chunks, best, class);
        }
        let (live, address) = match large {
            true => self.chunks.cut_high(best, bytes, rounded, State::Live),
            false => self.chunks.cut_low(best, bytes, rounded, State::Live),
        };
        if rest != class {
            self.bins.insert(&mut self.chunks, best, rest);
        }
        Some(Placement { address, bytes: rounded, slot: live.0 })
    }

    /// Places a need that [`take_plain`](Self::take_plain) does not serve: one that not every large chunk fits, or that
    /// the first chunk of the first class does not.
    #[cold]
    #[inline(never)]
    pub(super) fn take_otherwise(&mut self, need: &PlacementRequest) -> Option<ChunkId> {
        self.join_recent();
        self.take_special(&Fit::of(need)?)
    }

    /// Takes the smallest free chunk that fits with its padding and was freed early enough, of equals the one at the
    /// lowest address, and cuts off what is not needed.
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
    fn leave(&mut self, id: ChunkId, freed_at: u64) {
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
    fn is_large(&mut self, rounded: u64) -> bool {
        is_large(&mut self.large_from, rounded)
    }

    /// As [`Slots::cut_low`](Slab::cut_low).
    fn cut_low(&mut self, id: ChunkId, bytes: u64, state: State) -> ChunkId {
        let whole = self.chunks[id].bytes;
        self.chunks.cut_low(id, whole, bytes, state).0
    }
}

/// Whether a block that is about to be placed is to be cut from the high end, where those from `large_from` bytes on are.
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
        let fit = Fit::of(&PlacementRequest::new(300).with_alignment(4096)).unwrap();
        assert_eq!(fit.rounded, 512);
        assert_eq!(fit.padding_at(0), 0);
        assert_eq!(fit.padding_at(256), 3840);
        assert_eq!(fit.padding_at(u64::MAX - 255), 256);
        assert!(fit.fits(256, 4352) && !fit.fits(256, 4096));
    }

    #[test]
    fn a_need_that_leaves_the_address_space_is_none() {
        assert!(Fit::of(&PlacementRequest::new(u64::MAX)).is_none());
        assert!(Fit::of(&PlacementRequest::new(u64::MAX - 4096).with_alignment(1 << 63)).is_none());
        assert!(Fit::of(&PlacementRequest::new(u64::MAX - 4096).with_alignment(64)).is_some());
    }
}
