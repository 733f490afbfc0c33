//! Bins: the free chunks, by size class.
//!
//! Bin `b` holds the free chunks of at least `256 << b` bytes that are too small for bin `b + 1`; the last is open
//! above. Within a bin, chunks are ordered by size and then by address, so that the first fitting one found from a bin
//! upward is the best fit, and the lowest address among equals. A word with a bit for each non-empty bin skips the rest.

use std::collections::BTreeSet;

use super::chunk::{Chunk, ChunkId, GRANULE};

/// How many bins there are.
pub(crate) const BIN_COUNT: usize = 21;

/// The bin of chunks of `bytes` bytes.
pub(crate) const fn bin_of(bytes: u64) -> usize {
    let granules = if bytes < GRANULE { 1 } else { bytes / GRANULE };
    let bin = granules.ilog2() as usize;
    if bin < BIN_COUNT { bin } else { BIN_COUNT - 1 }
}

/// The smallest size of a bin's chunks, in bytes.
pub(crate) const fn bin_floor(bin: usize) -> u64 {
    GRANULE << bin
}

/// A free chunk as the bins order it: by size, then by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FreeChunk {
    pub(crate) bytes: u64,
    pub(crate) address: u64,
    pub(crate) id: ChunkId,
}

impl FreeChunk {
    pub(crate) const fn new(id: ChunkId, chunk: &Chunk) -> Self {
        Self { bytes: chunk.bytes, address: chunk.address, id }
    }
}

/// The free chunks of a pool. Asked and told in terms of [`FreeChunk`] alone, so that the order can be kept otherwise.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bins {
    bins: [BTreeSet<FreeChunk>; BIN_COUNT],
    /// Bit `b` is set if and only if bin `b` is not empty.
    occupied: u32,
}

impl Bins {
    pub(crate) fn insert(&mut self, chunk: FreeChunk) {
        let bin = bin_of(chunk.bytes);
        let fresh = self.bins[bin].insert(chunk);
        debug_assert!(fresh, "{chunk:?} was in its bin already");
        self.occupied |= 1 << bin;
    }

    pub(crate) fn remove(&mut self, chunk: FreeChunk) {
        let bin = bin_of(chunk.bytes);
        let found = self.bins[bin].remove(&chunk);
        debug_assert!(found, "{chunk:?} was not in its bin");
        if self.bins[bin].is_empty() {
            self.occupied &= !(1 << bin);
        }
    }

    /// The first chunk of at least `least` bytes that `fits`, by size and then by address.
    pub(crate) fn best_fit(&self, least: u64, mut fits: impl FnMut(&FreeChunk) -> bool) -> Option<FreeChunk> {
        let first = bin_of(least);
        if self.is_occupied(first) {
            // Only here may chunks be smaller than asked for; the range starts beyond them.
            let from = FreeChunk { bytes: least, address: 0, id: ChunkId(0) };
            if let Some(chunk) = self.bins[first].range(from..).find(|chunk| fits(chunk)) {
                return Some(*chunk);
            }
        }
        let mut rest = self.occupied & !((2 << first) - 1);
        while rest != 0 {
            let bin = rest.trailing_zeros() as usize;
            if let Some(chunk) = self.bins[bin].iter().find(|chunk| fits(chunk)) {
                return Some(*chunk);
            }
            rest &= rest - 1;
        }
        None
    }

    /// The size of the largest free chunk, or 0.
    pub(crate) fn largest(&self) -> u64 {
        let Some(bin) = self.occupied.checked_ilog2() else { return 0 };
        self.bins[bin as usize].last().map_or(0, |chunk| chunk.bytes)
    }

    /// All free chunks by size and then by address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &FreeChunk> {
        self.bins.iter().flatten()
    }

    /// The free chunks of one bin by size and then by address.
    pub(crate) fn in_bin(&self, bin: usize) -> impl Iterator<Item = &FreeChunk> {
        self.bins.get(bin).into_iter().flatten()
    }

    pub(crate) fn contains(&self, chunk: &FreeChunk) -> bool {
        self.bins[bin_of(chunk.bytes)].contains(chunk)
    }

    /// What the bitmap says of a bin.
    pub(crate) const fn is_occupied(&self, bin: usize) -> bool {
        self.occupied & (1 << bin) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Upstream's `Log2FloorNonZeroSlow` and the examples often got wrong in articles on the allocator.
    #[test]
    fn a_bin_is_the_floor_of_the_binary_logarithm_of_the_granules() {
        let cases = [
            (0, 0),
            (256, 0),
            (511, 0),
            (512, 1),
            (1023 * 256, 9),
            (1024 * 256, 10),
            (1025 * 256, 10),
            (1 << 20, 12),
            ((256 << 20) - 1, 19),
            (256 << 20, 20),
            (u64::MAX, 20),
        ];
        for (bytes, bin) in cases {
            assert_eq!(bin_of(bytes), bin, "{bytes} bytes");
        }
        for bin in 0..BIN_COUNT {
            assert_eq!(bin_of(bin_floor(bin)), bin);
        }
    }

    fn free(bytes: u64, address: u64) -> FreeChunk {
        FreeChunk { bytes, address, id: ChunkId((address / 256) as u32) }
    }

    #[test]
    fn the_best_fit_is_the_smallest_then_the_lowest_that_fits() {
        let mut bins = Bins::default();
        for chunk in [free(768, 0), free(512, 4096), free(512, 1024), free(1024, 8192), free(4096, 16384)] {
            bins.insert(chunk);
        }
        assert_eq!(bins.best_fit(512, |_| true), Some(free(512, 1024)));
        assert_eq!(bins.best_fit(512, |chunk| chunk.address > 1024), Some(free(512, 4096)));
        assert_eq!(bins.best_fit(768, |_| true), Some(free(768, 0)), "768 lies behind 512 in the same bin");
        assert_eq!(bins.best_fit(1280, |_| true), Some(free(4096, 16384)));
        assert_eq!(bins.best_fit(8192, |_| true), None);
        assert_eq!(bins.largest(), 4096);
    }

    #[test]
    fn the_bitmap_follows_the_last_chunk_in_and_out() {
        let mut bins = Bins::default();
        let chunk = free(1 << 40, 0);
        assert_eq!(bins.largest(), 0);
        bins.insert(chunk);
        assert!(bins.is_occupied(20));
        assert_eq!(bins.best_fit(256, |_| true), Some(chunk));
        bins.remove(chunk);
        assert!(!bins.is_occupied(20));
        assert_eq!(bins.best_fit(256, |_| true), None);
    }
}
