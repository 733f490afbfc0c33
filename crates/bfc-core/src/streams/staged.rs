//! Uploads on their way through page-locked memory, and how long each keeps it.
//!
//! A piece's memory is free once the device has fetched it. Given back as soon as that is seen, it would leave a pool whose
//! figures tell how fast the device was. So pieces leave in the order in which they came, where the program waits for the device anyway, or
//! where they would become too many: what the pool is asked for, and what is live at each request, follows from the program alone.
//! A dry run keeps no bytes and the same order.

use std::collections::VecDeque;

/// The most bytes of a piece: large uploads are cut into such, of which the device fetches one while the host writes the next.
pub const STAGED_PIECE: usize = 32 << 20;

/// The most bytes that are kept, which is three full pieces.
const MOST_BYTES: usize = 3 * STAGED_PIECE;

/// The most pieces that are kept: so many small uploads the host may be ahead of the device.
const MOST_PIECES: usize = 64;

/// Pieces of uploads that have page-locked memory, oldest first. `T` is whoever has the memory until it is dropped: a
/// [`Transfer`](super::Transfer), or for a dry run the memory alone.
///
/// ```
/// use bfc_core::StagedPieces;
/// let mut staged = StagedPieces::new();
/// for piece in 0..64 {
///     assert_eq!(staged.crowded_out(1000), None);
///     staged.push(1000, piece);
/// }
/// assert_eq!(staged.crowded_out(1000), Some(0));
/// staged.push(1000, 64);
/// assert_eq!(staged.oldest(), Some(1));
/// ```
#[derive(Debug)]
pub struct StagedPieces<T> {
    pieces: VecDeque<(usize, T)>,
    bytes: usize,
}

impl<T> Default for StagedPieces<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> StagedPieces<T> {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { pieces: VecDeque::new(), bytes: 0 }
    }

    /// Takes the oldest piece out if there would be too many with one of so many bytes more: 96 MiB, or 64 pieces. To be asked again
    /// until it has none, before that one takes its memory.
    pub fn crowded_out(&mut self, next: usize) -> Option<T> {
        let crowded = self.bytes.saturating_add(next) > MOST_BYTES || self.pieces.len() >= MOST_PIECES;
        if crowded { self.oldest() } else { None }
    }

    /// Takes the oldest piece out: for memory that there is too little of, and where all have been fetched.
    pub fn oldest(&mut self) -> Option<T> {
        let (bytes, piece) = self.pieces.pop_front()?;
        self.bytes -= bytes;
        Some(piece)
    }

    /// Adds a piece of so many bytes.
    pub fn push(&mut self, bytes: usize, piece: T) {
        self.bytes += bytes;
        self.pieces.push_back((bytes, piece));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces that are kept after each of these has come.
    fn kept(pieces: &[usize]) -> Vec<Vec<usize>> {
        let mut staged = StagedPieces::new();
        let after = |&bytes: &usize| {
            while staged.crowded_out(bytes).is_some() {}
            staged.push(bytes, bytes);
            staged.pieces.iter().map(|&(_, piece)| piece).collect()
        };
        pieces.iter().map(after).collect()
    }

    #[test]
    fn at_most_three_full_staging_buffers_are_kept() {
        const FULL: usize = STAGED_PIECE;
        let kept = kept(&[FULL, FULL, FULL, FULL, 1, 1]);
        assert_eq!(kept[2], [FULL; 3]);
        assert_eq!(kept[3], [FULL; 3]);
        assert_eq!(kept[4], [FULL, FULL, 1]);
        assert_eq!(kept[5], [FULL, FULL, 1, 1]);
    }

    #[test]
    fn a_piece_of_any_size_finds_room() {
        assert_eq!(kept(&[5, 1 << 40]).last().unwrap(), &[1 << 40]);
        assert_eq!(kept(&[usize::MAX, 7]).last().unwrap(), &[7]);
    }

    #[test]
    fn of_small_pieces_no_more_than_64_are_kept() {
        let kept = kept(&[10; 200]);
        assert_eq!((kept[62].len(), kept[63].len(), kept[199].len()), (63, 64, 64));
    }
}
