//! The free chunks of a space with two ends, by the end that they belong to.
//!
//! Each region is blocks and holes of the lower end, then a gap, then blocks and holes of the upper end. An end's holes
//! serve that end alone; the gap serves both, each from its own side. See [`Ends`](super::Ends) for what that promises.

use super::bins::{Bins, SizeClass};
use super::chunk::{Chunk, ChunkId, HighestFirst, Side, Slab};
use super::options::SplitRule;
use super::two_ends::{EndRule, HoleOrder, HoleSplit};
use crate::policy::End;

/// The free chunks of both ends and between them. The pool's common bins stay empty beside it.
#[derive(Clone, Debug)]
pub(crate) struct Partition {
    pub(super) lower: Holes,
    pub(super) upper: Holes,
    /// Of each region at most one, in the order of their addresses.
    pub(super) gaps: Vec<ChunkId>,
    lower_split: HoleSplit,
    upper_split: HoleSplit,
}

impl Partition {
    pub(super) fn new(lower: EndRule, upper: EndRule) -> Self {
        Self {
            lower: Holes::new(lower.order),
            upper: Holes::new(upper.order),
            gaps: Vec::new(),
            lower_split: lower.split,
            upper_split: upper.split,
        }
    }

    /// When a hole of this end is cut, in a pool that cuts by `rule`.
    pub(super) const fn split(&self, end: End, rule: SplitRule) -> SplitRule {
        let split = match end {
            End::Lower => self.lower_split,
            End::Upper => self.upper_split,
        };
        match split {
            HoleSplit::AsPool => rule,
            HoleSplit::Always => SplitRule::Always,
        }
    }

    pub(super) const fn holes(&self, end: End) -> &Holes {
        match end {
            End::Lower => &self.lower,
            End::Upper => &self.upper,
        }
    }

    /// The free chunk of at least `least` bytes to take for a block at this end: the best fit of its holes or, if none
    /// `fits`, a gap; of several regions' gaps the one that is nearest to the end.
    pub(super) fn find(
        &mut self,
        chunks: &mut Slab,
        end: End,
        least: u64,
        fits: impl Fn(&Slab, ChunkId) -> bool,
    ) -> Option<ChunkId> {
        let holes = match end {
            End::Lower => &mut self.lower,
            End::Upper => &mut self.upper,
        };
        if let Some(hole) = holes.best_fit(chunks, least, &fits) {
            return Some(hole);
        }
        let gap = |&&gap: &&ChunkId| chunks[gap].bytes >= least && fits(chunks, gap);
        match end {
            End::Lower => self.gaps.iter().find(gap).copied(),
            End::Upper => self.gaps.iter().rev().find(gap).copied(),
        }
    }

    /// Adds a free chunk.
    pub(super) fn insert(&mut self, chunks: &mut [Chunk], id: ChunkId) {
        match chunks[id].side {
            Side::Lower => self.lower.insert(chunks, id),
            Side::Upper => self.upper.insert(chunks, id),
            Side::Gap => self.gaps.insert(self.gaps_below(chunks, chunks[id].address), id),
        }
    }

    /// Takes a free chunk out.
    pub(super) fn remove(&mut self, chunks: &mut [Chunk], id: ChunkId) {
        match chunks[id].side {
            Side::Lower => self.lower.remove(chunks, id),
            Side::Upper => self.upper.remove(chunks, id),
            Side::Gap => {
                let index = self.gaps_below(chunks, chunks[id].address);
                debug_assert_eq!(self.gaps.get(index), Some(&id));
                self.gaps.remove(index);
            }
        }
    }

    /// The size of the largest free chunk that a block at this end may have, or 0.
    pub(super) fn largest(&self, chunks: &[Chunk], end: End) -> u64 {
        let gaps = self.gaps.iter().map(|&gap| chunks[gap].bytes);
        gaps.chain([self.holes(end).largest(chunks)]).max().unwrap_or(0)
    }

    fn gaps_below(&self, chunks: &[Chunk], address: u64) -> usize {
        self.gaps.partition_point(|&gap| chunks[gap].address < address)
    }
}

/// The holes of one end: free chunks between its blocks.
#[derive(Clone, Debug)]
pub(crate) enum Holes {
    LowestFirst(Bins),
    HighestFirst(Bins<HighestFirst>),
}

/// Does the same with the bins, whatever their order.
macro_rules! with_bins {
    ($holes:expr, $bins:ident => $work:expr) => {
        match $holes {
            Holes::LowestFirst($bins) => $work,
            Holes::HighestFirst($bins) => $work,
        }
    };
}
pub(super) use with_bins;

impl Holes {
    fn new(order: HoleOrder) -> Self {
        match order {
            HoleOrder::LowestFirst => Self::LowestFirst(Bins::default()),
            HoleOrder::HighestFirst => Self::HighestFirst(Bins::default()),
        }
    }

    fn best_fit(
        &mut self,
        chunks: &mut Slab,
        least: u64,
        fits: impl Fn(&Slab, ChunkId) -> bool,
    ) -> Option<ChunkId> {
        with_bins!(self, bins => bins.best_fit(chunks, least, fits))
    }

    fn insert(&mut self, chunks: &mut [Chunk], id: ChunkId) {
        let class = SizeClass::of(chunks[id].bytes);
        with_bins!(self, bins => bins.insert(chunks, id, class));
    }

    fn remove(&mut self, chunks: &mut [Chunk], id: ChunkId) {
        let class = SizeClass::of(chunks[id].bytes);
        with_bins!(self, bins => bins.remove(chunks, id, class));
    }

    fn largest(&self, chunks: &[Chunk]) -> u64 {
        with_bins!(self, bins => bins.largest(chunks))
    }
}
