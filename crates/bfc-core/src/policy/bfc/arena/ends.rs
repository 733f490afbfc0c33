//! Placing at two ends: whose a free chunk is, and from which side a block is cut.

use super::super::chunk::{Chunk, ChunkId, Side, State};
use super::super::options::SplitRule;
use super::{Bfc, Fit};
use crate::policy::{End, Need};

impl Bfc {
    /// Takes a free chunk for a block at this end, and cuts off what is not needed. `None` also in a space with one end,
    /// whose free chunks are in the common bins.
    #[cold]
    pub(super) fn take_at_end(&mut self, need: &Need) -> Option<ChunkId> {
        let (fit, end) = (&Fit::of(need)?, need.end);
        if self.partition.is_none() || !self.chunks.has_room_for(2) {
            return None;
        }
        let partition = self.partition.as_mut()?;
        let best = partition.find(&mut self.chunks, end, fit.rounded, |chunks, id| fit.suits(chunks, id))?;
        let from_gap = self.chunks[best].side == Side::Gap;
        // A rest of the gap may be of use to the other end, so it does not become part of the block.
        let split = if from_gap { SplitRule::Always } else { partition.split(end, self.split) };
        self.unbin(best);
        let live = match end {
            End::Lower => self.cut_from_low(best, fit, split),
            End::Upper => self.cut_from_high(best, fit, split),
        };
        let chunk = &mut self.chunks[live];
        (chunk.state, chunk.side) = (State::Live, end.into());
        if from_gap && live == best {
            self.open_gap_behind(live, end);
        }
        Some(live)
    }

    /// Cuts a free chunk into padding, which becomes a hole of the lower end, the block, and a rest.
    fn cut_from_low(&mut self, id: ChunkId, fit: &Fit, split: SplitRule) -> ChunkId {
        let freed_at = self.chunks.freed_at(id);
        let padding = fit.padding_at(self.chunks[id].address);
        if padding > 0 {
            let front = self.cut_low(id, padding, State::Free);
            self.chunks[front].side = Side::Lower;
            self.leave(front, freed_at);
        }
        if !split.cuts(self.chunks[id].bytes, fit.rounded) {
            return id;
        }
        let live = self.cut_low(id, fit.rounded, State::Live);
        self.bin(id);
        live
    }

    /// Cuts a free chunk into a rest, the block, and what its alignment leaves behind it, which becomes a hole of the
    /// upper end. A chunk that is not to be cut is handed out whole from its first aligned address on.
    fn cut_from_high(&mut self, id: ChunkId, fit: &Fit, split: SplitRule) -> ChunkId {
        let freed_at = self.chunks.freed_at(id);
        let Chunk { address, bytes, .. } = self.chunks[id];
        let padding = fit.padding_at(address);
        let before = match split.cuts(bytes - padding, fit.rounded) {
            true => fit.most_before(address, bytes),
            false => padding,
        };
        if split.cuts(bytes - before, fit.rounded) {
            let back = self.cut_high(id, bytes - before - fit.rounded, State::Free);
            self.chunks[back].side = Side::Upper;
            self.leave(back, freed_at);
        }
        if before == 0 {
            return id;
        }
        let live = self.cut_high(id, self.chunks[id].bytes - before, State::Live);
        self.bin(id);
        live
    }

    /// Joins a chunk that is free for anyone, and filed nowhere, with its neighbours that are, and files the result
    /// under the end it belongs to.
    pub(super) fn join_at_ends(&mut self, id: ChunkId) {
        let mut id = id;
        let Chunk { prev, next, .. } = self.chunks[id];
        if self.chunks[next].state == State::Free {
            self.take_beside(id, next);
            id = self.join_to_next(id, next);
        }
        if self.chunks[prev].state == State::Free {
            self.take_beside(id, prev);
            id = self.join_to_prev(id, prev);
        }
        self.chunks[id].side = self.side_of_free(id);
        self.bin(id);
    }

    /// Takes a free neighbour that a chunk is about to be joined to out of where the search finds it, and gives it the
    /// side of both.
    pub(super) fn take_beside(&mut self, id: ChunkId, neighbour: ChunkId) {
        self.unbin(neighbour);
        let side = self.chunks[id].side;
        let neighbour = &mut self.chunks[neighbour];
        neighbour.side = neighbour.side.joined(side);
    }

    /// The side that a free chunk belongs to: its own, or the gap if nothing of its own lies between it and where the
    /// other end begins. A gap that it may not be joined with yet, as the frontier has not passed it, parts them too: so
    /// there are never two.
    pub(in super::super) fn side_of_free(&self, id: ChunkId) -> Side {
        let Chunk { side, prev, next, .. } = self.chunks[id];
        let towards_gap = match side {
            Side::Gap => return Side::Gap,
            Side::Lower => next,
            Side::Upper => prev,
        };
        let beside = &self.chunks[towards_gap];
        let is_gap = beside.is_free() && beside.side == Side::Gap;
        if is_gap || beside.side == side { side } else { Side::Gap }
    }

    /// After a block has used up the gap: a hole of the other end that the gap parted from it, as it could not be joined
    /// with the gap yet, is now where the gap was.
    fn open_gap_behind(&mut self, live: ChunkId, end: End) {
        let Chunk { prev, next, .. } = self.chunks[live];
        let (beside, other) = match end {
            End::Lower => (next, Side::Upper),
            End::Upper => (prev, Side::Lower),
        };
        let Chunk { state, side, .. } = self.chunks[beside];
        if state == State::Free && side == other {
            self.unbin(beside);
            self.join_at_ends(beside);
        }
    }
}
