//! Bins of free chunks by size, and the search for the best fit.
//!
//! Bin `b` holds the free chunks of at least `256 << b` bytes that are too small for bin `b + 1`; the last is
//! unbounded. Pools display bins. The search uses finer [size classes](size_class), and bitmaps of two levels skip the
//! empty ones. The chunks of a class are [heaps](heap), ordered by size and then by address. A search moves the first
//! of a class to the front, so the first fitting chunk from a class upward is the best fit, and the lowest among
//! equals.
//!
//! In four recorded training runs 61 to 87 of 100 placed chunks come from a class with no other chunk, and at most 53
//! are free at a time. The data then fits into the nearest cache, and the time goes into dependent loads and
//! mispredicted branches. Hence four rules of the code:
//!
//! - Sizes and classes travel in registers.
//! - Small sizes share a row of the bitmap.
//! - The rest of a cut chunk keeps its slot and, if possible, its class.
//! - Unpredictable choices are made without a branch, and rare cases are out of line.
//!
//! Known limit: a class above 16 KiB holds several sizes. A search may visit every chunk of the class that is too
//! small, because a heap gives the smallest chunk, not the next one.

mod heap;
mod size_class;

use super::chunk::{Chunk, ChunkId, GRANULE, Links, Slab};
use crate::base::hint::cold_path;
use size_class::{COLUMNS, ROWS};

pub(crate) use size_class::SizeClass;

/// The number of bins.
pub(crate) const BIN_COUNT: usize = 21;

/// Returns the bin of chunks of `bytes` bytes.
pub(crate) const fn bin_of(bytes: u64) -> usize {
    let granules = if bytes < GRANULE { 1 } else { bytes / GRANULE };
    let bin = granules.ilog2() as usize;
    if bin < BIN_COUNT { bin } else { BIN_COUNT - 1 }
}

/// Returns the smallest chunk size of a bin, in bytes.
pub(crate) const fn bin_floor(bin: usize) -> u64 {
    GRANULE << bin
}

/// The free chunks of a pool. The lists run through the chunks themselves, which every call receives.
#[derive(Clone, Debug)]
pub(crate) struct Bins {
    /// The first heap of each class; `NONE` for an empty class.
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
    /// Inserts a free chunk into the class of its size.
    #[inline(always)]
    pub(crate) fn insert(&mut self, chunks: &mut [Chunk], id: ChunkId, class: SizeClass) {
        debug_assert_eq!(class, SizeClass::of(chunks[id].bytes));
        // Runs the same steps for an empty class, because a branch on it would be unpredictable.
        self.occupied[class.row as usize % ROWS] |= 1 << class.column;
        self.rows |= 1 << class.row;
        let list = &mut self.lists[class.index()];
        heap::push(chunks, *list, id);
        *list = id;
    }

    /// Removes a free chunk from the class of its size.
    #[inline(always)]
    pub(crate) fn remove(&mut self, chunks: &mut [Chunk], id: ChunkId, class: SizeClass) {
        debug_assert_eq!(class, SizeClass::of(chunks[id].bytes));
        let Chunk { links: Links { above, child }, sibling, .. } = chunks[id];
        // The chunk is alone in its class, as most are.
        if above.is_none() && child.is_none() && sibling.is_none() {
            return self.vacate(class);
        }
        self.remove_from_heap(chunks, id, class);
    }

    /// Removes a chunk that is not alone in its class. Out of line, so that the common case keeps its registers.
    #[cold]
    #[inline(never)]
    fn remove_from_heap(&mut self, chunks: &mut [Chunk], id: ChunkId, class: SizeClass) {
        let front = chunks[id].links.above.is_none();
        let heir = heap::remove(chunks, id);
        if front {
            self.lists[class.index()] = heir;
        }
    }

    /// Removes the first chunk of a class, as found by [`first_from`](Self::first_from).
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

    /// Returns the first non-empty class from `class` up.
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

    /// Returns the first non-empty class from `class` up, and its first chunk.
    #[inline(always)]
    pub(crate) fn first_from(
        &mut self,
        chunks: &mut [Chunk],
        class: SizeClass,
    ) -> Option<(SizeClass, ChunkId)> {
        let class = self.occupied_from(class)?;
        let list = &mut self.lists[class.index()];
        if !chunks[*list].sibling.is_none() {
            // Out of line, because four in five searches skip it.
            cold_path();
            *list = heap::bring_first(chunks, *list);
        }
        Some((class, *list))
    }

    /// Returns the first chunk of at least `least` bytes that `fits`, by size and then by address.
    pub(crate) fn best_fit(
        &mut self,
        chunks: &mut Slab,
        least: u64,
        fits: impl Fn(&Slab, ChunkId) -> bool,
    ) -> Option<ChunkId> {
        let mut from = SizeClass::of(least);
        loop {
            let (class, root) = self.first_from(chunks, from)?;
            // Only the first class can contain chunks that are too small.
            let found = heap::first(chunks, root, |id| chunks[id].bytes >= least && fits(chunks, id));
            if found.is_some() {
                return found;
            }
            from = class.next()?;
        }
    }

    /// Returns the size of the largest free chunk, or 0.
    pub(crate) fn largest(&self, chunks: &[Chunk]) -> u64 {
        let row = self.rows.checked_ilog2();
        let last = row.map(|row| SizeClass { row, column: self.occupied[row as usize].ilog2() });
        let sizes =
            last.into_iter().flat_map(|class| self.in_class(chunks, class)).map(|id| chunks[id].bytes);
        sizes.max().unwrap_or(0)
    }

    /// Iterates over the free chunks of one class, unordered.
    pub(crate) fn in_class<'a>(
        &'a self,
        chunks: &'a [Chunk],
        class: SizeClass,
    ) -> impl Iterator<Item = ChunkId> + 'a {
        let list = self.is_occupied(class).then(|| self.lists[class.index()]);
        list.into_iter().flat_map(|list| heap::members(chunks, list))
    }

    /// Whether the bitmap marks a class as occupied.
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
        // Without a branch, because the remaining occupancy of the row is unpredictable.
        self.rows ^= u64::from(*row == 0) << class.row;
        self.lists[class.index()] = ChunkId::NONE;
    }
}

#[cfg(test)]
mod tests;
