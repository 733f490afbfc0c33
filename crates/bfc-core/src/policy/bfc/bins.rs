//! Bins: the free chunks, by size class.
//!
//! Bin `b` holds the free chunks of at least `256 << b` bytes that are too small for bin `b + 1`; the last is open
//! above. The bins are what a pool shows; the search goes by finer [size classes](size_class), and bitmaps of two levels
//! skip the empty ones. The chunks of a class are [heaps](heap) in the order of size and then of address, of which a search
//! puts the first in front, so that the first fitting chunk found from a class upward is the best fit, and the lowest address among
//! equals.
//!
//! In four recorded training runs 61 to 87 of 100 placed chunks come from a class that holds no other, and at most 53
//! are free at a time, so everything lies in the nearest cache. Sixteen instructions that do nothing, added to each call,
//! did not slow it down: so it seems to wait for what was just written more than for instructions (a guess; the machine
//! has no counters), and for branches that were foretold wrong: a trace that repeats itself every hundred events takes a
//! fifth less. Hence sizes and classes travel in registers, small sizes share a row of the bitmap, the rest of a cut chunk
//! keeps its slot and, if it can, its class, and what is as likely as not is chosen without a branch (whether a row is empty
//! now: 5 % of a warm replay; which of two chunks is the first: 1 %).
//!
//! Measured on warm replays of those runs and one of our own, address-only memory, 16 GiB pool, interleaved with
//! `offset-allocator` 0.2 (not thread-safe, no best fit) on one of two shared cores of an Intel Xeon at 2.8 GHz, 21
//! November 2026, as parts of its time. Best of six replays, median over nine fresh pools, cut from the low end, by a loop
//! of its own that is not kept: sorted lists with ordered sets for crowded classes, which this replaces, 0.92; this 0.52
//! (cold 0.58). Medians of `cargo run --release` in `benches/peers/alloc`: 0.61 (cold 0.65) beside other work, 0.71 (0.75)
//! on a quiet machine; those with classes always in order. As they are now, on 22 November beside other work: 10,000 blocks
//! freed in random order 0.76 and 0.78 (1.20 and 1.43 before), a million 0.37 and 0.65 (1.55); a warm replay takes 6 to
//! 11 % more than before.
//!
//! Tried, with no gain above the noise of some 3 %: no bounds checks (unsafe; 8 % in an early version, nothing in the
//! next); the second bitmap written only when a row fills; a look for the exact class before the bitmap; a mark on
//! classes with more than one chunk instead of links in each; leaving a chunk that grows within its class where it is.
//! Placing by a call that is not inlined: a fifth slower. Without gain too: choosing between the class's row and a later one
//! without a branch (both are then waited for), freeing in one piece with the pool's part, the chunk that entered last kept
//! out of the bins (36 to 57 of 100 would be taken out again next).
//!
//! On an EPYC (Zen 5, 24 November 2026) it is the number of steps that counts: sixteen of arithmetic more an event take the time of
//! sixteen at eight a cycle, four pools that take turns are no quicker than one, and ten events that repeat take what a whole
//! run does. So what seldom happens lies out of the way. There, without gain: a row's bit cleared by the search that finds the row empty (3 steps of 142 less), the first
//! chunk handed on by the search as it read it (4 more), a need compared in fewer steps, freeing in one piece with its caller
//! (2 less, as more is then put aside).
//!
//! Known limit: in a class above 16 KiB, which holds several sizes, a search may have to look at every chunk of the class
//! that is too small: a heap says which is the smallest, not which is the next. The figure above for a million blocks is of
//! all freed and then placed anew; with single frees and placements by turns among so many, classes are crowded for good, and
//! a pair took 2.5 times as long as with `offset-allocator` when that was measured, with classes always in order.

mod heap;
mod size_class;

use std::hint::cold_path;

use super::chunk::{Chunk, ChunkId, GRANULE, Links, Slab};
use size_class::{COLUMNS, ROWS};

pub(crate) use size_class::SizeClass;

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

/// The free chunks of a pool. What it says of them runs through the chunks themselves, which are passed to every call.
#[derive(Clone, Debug)]
pub(crate) struct Bins {
    /// By class: the first of its heaps, nobody in an empty class.
    lists: Box<[ChunkId; ROWS * COLUMNS]>,
    /// By row: bit `c` is set if and only if the class in column `c` is not empty.
    occupied: [u64; ROWS],
    /// Bit `r` is set if and only if row `r` is not empty.
    rows: u64,
}

impl Default for Bins {
    fn default() -> Self {
        let lists = Box::new([ChunkId::NONE; ROWS * COLUMNS]);
        Self { lists, occupied: [0; ROWS], rows: 0 }
    }
}

impl Bins {
    /// Adds a free chunk, which is in no class, to the class of its size.
    #[inline(always)]
    pub(crate) fn insert(&mut self, chunks: &mut [Chunk], id: ChunkId, class: SizeClass) {
        debug_assert_eq!(class, SizeClass::of(chunks[id].bytes));
        // The same steps for an empty class, whose list begins with nobody: whether it is empty can hardly be foretold.
        self.occupied[class.row as usize % ROWS] |= 1 << class.column;
        self.rows |= 1 << class.row;
        let list = &mut self.lists[class.index()];
        heap::push(chunks, *list, id);
        *list = id;
    }

    /// Takes a free chunk out of the class of its size.
    #[inline(always)]
    pub(crate) fn remove(&mut self, chunks: &mut [Chunk], id: ChunkId, class: SizeClass) {
        debug_assert_eq!(class, SizeClass::of(chunks[id].bytes));
        let Chunk { links: Links { above, child }, sibling, .. } = chunks[id];
        // Alone, as most are.
        if above.is_none() && child.is_none() && sibling.is_none() {
            return self.vacate(class);
        }
        self.remove_from_heap(chunks, id, class);
    }

    /// The same for a chunk that is not alone in its class: in a call, so that the registers are there for those that are.
    #[cold]
    #[inline(never)]
    fn remove_from_heap(&mut self, chunks: &mut [Chunk], id: ChunkId, class: SizeClass) {
        let front = chunks[id].links.above.is_none();
        let heir = heap::remove(chunks, id);
        if front {
            self.lists[class.index()] = heir;
        }
    }

    /// Takes the first chunk, as [`first_from`](Self::first_from) found it, out of its class.
    #[inline(always)]
    pub(crate) fn remove_first(&mut self, chunks: &mut [Chunk], first: ChunkId, class: SizeClass) {
        debug_assert!(self.lists[class.index()] == first);
        let Chunk { links: Links { child, .. }, sibling, .. } = chunks[first];
        if child.is_none() && sibling.is_none() {
            return self.vacate(class);
        }
        cold_path();
        self.lists[class.index()] = heap::remove_first(chunks, first);
    }

    /// The first class from `class` up that is not empty.
    #[inline]
    pub(crate) fn occupied_from(&self, class: SizeClass) -> Option<SizeClass> {
        let here = self.occupied[class.row as usize % ROWS] >> class.column;
        if here != 0 {
            let column = (class.column + here.trailing_zeros()) % COLUMNS as u32;
            return Some(SizeClass { row: class.row, column });
        }
        let above = self.rows & (!1 << class.row);
        if above == 0 {
            return None;
        }
        let row = above.trailing_zeros() % ROWS as u32;
        Some(SizeClass { row, column: self.occupied[row as usize].trailing_zeros() % COLUMNS as u32 })
    }

    /// The first class from `class` up that is not empty, and its first chunk.
    #[inline(always)]
    pub(crate) fn first_from(
        &mut self,
        chunks: &mut [Chunk],
        class: SizeClass,
    ) -> Option<(SizeClass, ChunkId)> {
        let class = self.occupied_from(class)?;
        let list = &mut self.lists[class.index()];
        if !chunks[*list].sibling.is_none() {
            // Out of the way of four in five that need it not.
            cold_path();
            *list = heap::bring_first(chunks, *list);
        }
        Some((class, *list))
    }

    /// The first chunk of at least `least` bytes that `fits`, by size and then by address.
    pub(crate) fn best_fit(
        &mut self,
        chunks: &mut Slab,
        least: u64,
        fits: impl Fn(&Slab, ChunkId) -> bool,
    ) -> Option<ChunkId> {
        let mut from = SizeClass::of(least);
        loop {
            let (class, root) = self.first_from(chunks, from)?;
            // Only the first class may hold chunks that are smaller than asked for.
            let found = heap::first(chunks, root, |id| chunks[id].bytes >= least && fits(chunks, id));
            if found.is_some() {
                return found;
            }
            from = class.next()?;
        }
    }

    /// The size of the largest free chunk, or 0.
    pub(crate) fn largest(&self, chunks: &[Chunk]) -> u64 {
        let row = self.rows.checked_ilog2();
        let last = row.map(|row| SizeClass { row, column: self.occupied[row as usize].ilog2() });
        let sizes =
            last.into_iter().flat_map(|class| self.in_class(chunks, class)).map(|id| chunks[id].bytes);
        sizes.max().unwrap_or(0)
    }

    /// The free chunks of one class, in no order.
    pub(crate) fn in_class<'a>(
        &'a self,
        chunks: &'a [Chunk],
        class: SizeClass,
    ) -> impl Iterator<Item = ChunkId> + 'a {
        let list = self.is_occupied(class).then(|| self.lists[class.index()]);
        list.into_iter().flat_map(|list| heap::members(chunks, list))
    }

    /// What the bitmap says of a class.
    pub(crate) const fn is_occupied(&self, class: SizeClass) -> bool {
        self.occupied[class.row as usize] >> class.column & 1 == 1
    }

    /// Whether the bitmaps agree with each other.
    pub(crate) fn bitmaps_agree(&self) -> bool {
        (0..ROWS).all(|row| (self.rows >> row & 1 == 1) == (self.occupied[row] != 0))
    }

    #[inline]
    fn vacate(&mut self, class: SizeClass) {
        let row = &mut self.occupied[class.row as usize % ROWS];
        debug_assert!(*row >> class.column & 1 == 1 && self.rows >> class.row & 1 == 1);
        *row ^= 1 << class.column;
        // Without a branch: whether others are left in the row can hardly be foretold.
        self.rows ^= u64::from(*row == 0) << class.row;
        self.lists[class.index()] = ChunkId::NONE;
    }
}

#[cfg(test)]
mod tests;
