//! Free chunks in the order of best fit: the smallest first, the lowest among equals.
//!
//! An ordered tree, where [`Bfc`](crate::Bfc) has lists by size class. The policies that use it reproduce originals
//! with a tree, and must choose the same chunk. A node holds eleven chunks, so the few hundred free chunks of a
//! training run are two or three nodes deep.

use std::collections::BTreeSet;

/// A free chunk. The order of the fields is the order of best fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FreePiece {
    /// The size.
    pub(crate) bytes: u64,
    /// The address.
    pub(crate) address: u64,
    /// The policy's number of the chunk.
    pub(crate) slot: u32,
}

/// Free chunks sorted by size and address.
#[derive(Clone, Debug, Default)]
pub(crate) struct BestFit {
    pieces: BTreeSet<FreePiece>,
}

impl BestFit {
    pub(crate) fn insert(&mut self, piece: FreePiece) {
        let new = self.pieces.insert(piece);
        debug_assert!(new, "{piece:?} was free already");
    }

    pub(crate) fn remove(&mut self, piece: FreePiece) {
        let known = self.pieces.remove(&piece);
        debug_assert!(known, "{piece:?} was not free");
    }

    pub(crate) fn contains(&self, piece: FreePiece) -> bool {
        self.pieces.contains(&piece)
    }

    /// Iterates over the chunks of at least `bytes` bytes, the best fit first.
    pub(crate) fn at_least(&self, bytes: u64) -> impl Iterator<Item = FreePiece> + '_ {
        self.pieces.range(FreePiece { bytes, address: 0, slot: 0 }..).copied()
    }

    /// Returns the size of the largest chunk, or 0.
    pub(crate) fn largest_bytes(&self) -> u64 {
        self.pieces.last().map_or(0, |piece| piece.bytes)
    }

    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(bytes: u64, address: u64) -> FreePiece {
        FreePiece { bytes, address, slot: address as u32 }
    }

    #[test]
    fn the_smallest_that_fits_comes_first_and_of_equals_the_lowest() {
        let mut order = BestFit::default();
        for (bytes, address) in [(512, 7), (256, 9), (512, 3), (1024, 1)] {
            order.insert(piece(bytes, address));
        }
        let from =
            |bytes| order.at_least(bytes).map(|piece| (piece.bytes, piece.address)).collect::<Vec<_>>();
        assert_eq!(from(1), [(256, 9), (512, 3), (512, 7), (1024, 1)]);
        assert_eq!(from(257), [(512, 3), (512, 7), (1024, 1)]);
        assert_eq!(from(1025), []);
        assert_eq!((order.largest_bytes(), order.len()), (1024, 4));
    }
}
