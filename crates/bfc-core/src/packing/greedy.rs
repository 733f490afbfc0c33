//! Greedy placement of blocks with alignments or gaps: each block in sequence at the lowest offset where all of its
//! pieces are free.
//!
//! A block that ended above the goal was placed too late, because other blocks took its space. All such blocks move to
//! the front, and all blocks are placed again: squeaky wheel optimization (Joslin and Clements, 1999).

use super::pieces::Piece;
use super::problem::{Offsets, Order};
use super::solve::Search;

/// The placements of each initial order.
const ROUNDS: u32 = 24;

/// Places the blocks in several orders. The first placement stacks all blocks if it would exceed the effort.
pub(super) fn greedy(search: &mut Search<'_>, pieces: Vec<Piece>) {
    let sizes = &search.problem.sizes;
    let mut by_block = vec![Vec::new(); sizes.len()];
    for piece in pieces {
        by_block[piece.block as usize].push(piece);
    }
    for order in Order::ALL {
        let mut order = order.of(search.problem);
        for _ in 0..ROUNDS {
            let mut taken = Taken { pieces: Vec::new(), steps: 0 };
            let offsets = taken.place(&by_block, &order, search.steps_left());
            search.steps += taken.steps;
            let offsets = offsets.unwrap_or_else(|| stacked(&by_block));
            let (late, others): (Vec<u32>, Vec<u32>) = order
                .iter()
                .partition(|&&block| offsets[block as usize] + sizes[block as usize] > search.goal);
            order = [late, others].concat();
            search.offer(Offsets::of(offsets, sizes));
            search.report();
            if search.is_over() {
                return;
            }
        }
    }
}

/// Stacks all blocks: valid for any lifetimes.
fn stacked(by_block: &[Vec<Piece>]) -> Vec<u64> {
    let mut end: u64 = 0;
    let next = |pieces: &Vec<Piece>| {
        let Some(first) = pieces.first() else { return 0 };
        let offset = end.next_multiple_of(first.alignment);
        end = offset + pieces.iter().map(|piece| piece.high).max().unwrap_or(0);
        offset
    };
    by_block.iter().map(next).collect()
}

/// The placed pieces.
struct Taken {
    /// In order of their first bytes, which are absolute offsets here.
    pieces: Vec<Piece>,
    /// The comparisons so far: the measure of effort.
    steps: u64,
}

impl Taken {
    /// Places the blocks in this order. Returns their offsets, or `None` after more than `most_steps`.
    fn place(&mut self, by_block: &[Vec<Piece>], order: &[u32], most_steps: u64) -> Option<Vec<u64>> {
        let mut offsets = vec![0; by_block.len()];
        for &block in order {
            let pieces = &by_block[block as usize];
            let mut offset = 0;
            // Each blocked piece moves the offset up. The search ends after a round without a move.
            loop {
                let before = offset;
                for piece in pieces {
                    offset = self.lowest(piece, offset);
                }
                if self.steps > most_steps {
                    return None;
                }
                if offset == before {
                    break;
                }
            }
            for piece in pieces {
                let placed = Piece { low: offset + piece.low, high: offset + piece.high, ..*piece };
                let place = self.pieces.partition_point(|other| other.low < placed.low);
                self.pieces.insert(place, placed);
            }
            offsets[block as usize] = offset;
        }
        Some(offsets)
    }

    /// Returns the lowest aligned offset from `least` on at which the bytes of the piece are free.
    fn lowest(&mut self, piece: &Piece, least: u64) -> u64 {
        self.steps += self.pieces.len() as u64;
        let mut offset = least;
        // A passed piece never blocks a higher offset, because the pieces are in order.
        for other in self.pieces.iter().filter(|other| other.start < piece.end && piece.start < other.end) {
            if other.low < offset + piece.high && offset + piece.low < other.high {
                offset = (other.high - piece.low).next_multiple_of(piece.alignment);
            }
        }
        offset
    }
}
