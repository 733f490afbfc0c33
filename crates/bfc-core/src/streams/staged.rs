//! Page-locked pieces of uploads, and how long each stays allocated.
//!
//! A piece is reusable once the device has fetched it. Freeing it at that moment would make the pool's figures depend
//! on the speed of the device. Pieces are therefore freed in order of arrival: where the program waits for the device
//! anyway, or when there would be too many. The requests and live bytes then depend only on the program. A dry run
//! stores no bytes and keeps the same order.

use std::collections::VecDeque;

/// The most bytes of a piece. A large upload is cut into pieces; the device fetches one while the host writes the next.
pub const STAGED_PIECE: usize = 32 << 20;

/// The most bytes of live pieces: three full pieces.
const MOST_BYTES: usize = 3 * STAGED_PIECE;

/// The most live pieces, which bounds how far small uploads run ahead of the device.
const MOST_PIECES: usize = 64;

/// Live page-locked pieces of uploads, oldest first. `T` owns the memory until it is dropped: a
/// [`Transfer`](super::Transfer), or in a dry run the memory alone.
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
    /// Creates an empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self { pieces: VecDeque::new(), bytes: 0 }
    }

    /// Removes the oldest piece if a piece of `next` more bytes would exceed 96 MiB or 64 pieces. Call it until it
    /// returns `None`, before that piece allocates its memory.
    pub fn crowded_out(&mut self, next: usize) -> Option<T> {
        let crowded = self.bytes.saturating_add(next) > MOST_BYTES || self.pieces.len() >= MOST_PIECES;
        if crowded { self.oldest() } else { None }
    }

    /// Removes the oldest piece: when memory is short, or when the device has fetched all pieces.
    pub fn oldest(&mut self) -> Option<T> {
        let (bytes, piece) = self.pieces.pop_front()?;
        self.bytes -= bytes;
        Some(piece)
    }

    /// Adds a piece.
    pub fn push(&mut self, bytes: usize, piece: T) {
        self.bytes += bytes;
        self.pieces.push_back((bytes, piece));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the pieces that are live after each of these arrivals.
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
