//! Bins: the free chunks, by size class.
//!
//! Bin `b` holds the free chunks of at least `256 << b` bytes that are too small for bin `b + 1`; the last is open
//! above. Within a bin, chunks are ordered by size and then by address, so that the first fitting one found from a bin
//! upward is the best fit, and the lowest address among equals.
//!
//! The bins are what a pool shows; the search goes by 3264 finer [size classes](size_class), of which a bin is a row.
//! Bitmaps of two levels skip the empty classes. The chunks of a class form a list in that same order, which runs
//! through the chunks themselves: a chunk leaves it without a search, and needs no memory beside its own. Entering is
//! quick too: of the chunks that became free in three of four recorded training runs, 98 in 100 found at most two in
//! their class; in the fourth, 80. A class in which a walk would be long is [crowded](crowd), and logarithmic from then
//! on, at 24 bytes a chunk: no sequence of requests makes each of its steps walk far. (A step still looks at each chunk
//! that is large enough but out of line or freed too late.)
//!
//! Measured over those runs (warm replays on address-only memory; geometric mean in ns per event, arena alone / pool;
//! 21 November 2026, one of two shared cores of an Intel Xeon at 2.6 GHz, on which `offset-allocator` 0.2, not
//! thread-safe and no best fit, takes 17; `cargo bench --bench replay` and `--bench allocate` time the pool alike):
//! one `BTreeSet` per bin, which this replaces, 45 / 61; a sorted `Vec` per class, 39 / 51; lists, 31 / 42, and 21 / 30
//! since the short way is inlined and no block or need is copied on it. With 10,000 blocks freed in random order a pair
//! takes 140 instead of 245. There, walks of up to 3 or up to 16 did no better than 8.

mod crowd;
mod size_class;

use super::chunk::{Chunk, ChunkId, GRANULE, Links, Slab};
use crowd::{Crowd, Member};
use size_class::{PER_WORD, WORD_COUNT};

pub(crate) use size_class::{CLASS_COUNT, class_of};

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

/// What a member of a crowd bears as the chunk before it.
const IN_CROWD: ChunkId = ChunkId::NO_LIST;

/// The longest walk along the list of a class: one in which a step would have to walk further becomes a crowd.
const LONGEST_WALK: usize = 8;

/// The free chunks of a pool. The list of a class runs through the chunks themselves.
#[derive(Clone, Debug)]
pub(crate) struct Bins {
    /// By class: the first chunk of its list, or the index of its crowd. Means nothing in an empty class.
    heads: Vec<ChunkId>,
    /// Bit `c` of the whole is set if and only if class `c` is not empty.
    occupied: [u64; WORD_COUNT],
    /// Bit `w` is set if and only if word `w` of `occupied` is not zero.
    words: u64,
    /// Bit `c` of the whole is set if and only if class `c` is crowded. A crowd stays one until it is empty.
    crowded: [u64; WORD_COUNT],
    crowds: Vec<Crowd>,
    /// Which of the crowds belong to no class.
    spare: Vec<ChunkId>,
}

impl Default for Bins {
    fn default() -> Self {
        Self {
            heads: vec![ChunkId::NONE; CLASS_COUNT],
            occupied: [0; WORD_COUNT],
            words: 0,
            crowded: [0; WORD_COUNT],
            crowds: Vec::new(),
            spare: Vec::new(),
        }
    }
}

impl Bins {
    /// Adds a free chunk, which is in no class.
    #[inline]
    pub(crate) fn insert(&mut self, chunks: &mut Slab, id: ChunkId) {
        let class = class_of(chunks[id].bytes);
        let (word, bit) = (class / PER_WORD, 1 << (class % PER_WORD));
        if self.occupied[word] & bit == 0 {
            self.occupied[word] |= bit;
            self.words |= 1 << word;
            self.heads[class] = id;
            chunks[id].links = Links::ALONE;
        } else if self.crowded[word] & bit == 0 {
            self.insert_in_list(chunks, id, class);
        } else {
            self.insert_in_crowd(chunks, id, class);
        }
    }

    /// Takes a free chunk out of its class.
    #[inline]
    pub(crate) fn remove(&mut self, chunks: &mut Slab, id: ChunkId) {
        let Links { before, after } = chunks[id].links;
        if before == IN_CROWD {
            self.remove_from_crowd(chunks, id);
            return;
        }
        if !after.is_none() {
            chunks[after].links.before = before;
        }
        if before.is_none() {
            let class = class_of(chunks[id].bytes);
            self.heads[class] = after;
            if after.is_none() {
                self.vacate(class);
            }
        } else {
            chunks[before].links.after = after;
        }
    }

    /// The first chunk of at least `least` bytes that `fits`, by size and then by address.
    #[inline]
    pub(crate) fn best_fit(
        &mut self,
        chunks: &mut Slab,
        least: u64,
        mut fits: impl FnMut(&Chunk) -> bool,
    ) -> Option<ChunkId> {
        let mut class = class_of(least);
        loop {
            class = self.occupied_from(class)?;
            if !self.is_crowded(class) {
                let mut id = self.heads[class];
                for _ in 0..LONGEST_WALK {
                    let chunk = &chunks[id];
                    // Only the first class may hold chunks that are smaller than asked for.
                    if chunk.bytes >= least && fits(chunk) {
                        return Some(id);
                    }
                    id = chunk.links.after;
                    if id.is_none() {
                        break;
                    }
                }
                if id.is_none() {
                    class += 1;
                    continue;
                }
                self.make_crowd(chunks, class);
            }
            let found = self.crowd(class).first(least, |id| fits(&chunks[id]));
            if found.is_some() {
                return found;
            }
            class += 1;
        }
    }

    /// The size of the largest free chunk, or 0.
    pub(crate) fn largest(&self, chunks: &Slab) -> u64 {
        let word = self.words.checked_ilog2().map(|word| word as usize);
        let class = word.map(|word| word * PER_WORD + self.occupied[word].ilog2() as usize);
        let last = class.and_then(|class| match self.is_crowded(class) {
            true => self.crowd(class).iter().next_back(),
            false => self.list(chunks, class).last(),
        });
        last.map_or(0, |id| chunks[id].bytes)
    }

    /// All free chunks by size and then by address.
    #[cfg(test)]
    fn iter<'a>(&'a self, chunks: &'a Slab) -> impl Iterator<Item = ChunkId> + 'a {
        (0..CLASS_COUNT).flat_map(|class| self.in_class(chunks, class))
    }

    /// The free chunks of one class by size and then by address.
    pub(crate) fn in_class<'a>(
        &'a self,
        chunks: &'a Slab,
        class: usize,
    ) -> impl Iterator<Item = ChunkId> + 'a {
        let occupied = self.is_occupied(class);
        let list = (occupied && !self.is_crowded(class)).then(|| self.list(chunks, class));
        let crowd = (occupied && self.is_crowded(class)).then(|| self.crowd(class).iter());
        list.into_iter().flatten().chain(crowd.into_iter().flatten())
    }

    /// The first class from `class` up that is not empty.
    #[inline]
    fn occupied_from(&self, class: usize) -> Option<usize> {
        let word = class / PER_WORD;
        let here = self.occupied.get(word)? >> (class % PER_WORD);
        if here != 0 {
            return Some(class + here.trailing_zeros() as usize);
        }
        let above = self.words & (!1 << word);
        let word = (above != 0).then_some(above.trailing_zeros() as usize)?;
        Some(word * PER_WORD + self.occupied[word].trailing_zeros() as usize)
    }

    fn vacate(&mut self, class: usize) {
        let word = class / PER_WORD;
        self.occupied[word] &= !(1 << (class % PER_WORD));
        if self.occupied[word] == 0 {
            self.words &= !(1 << word);
        }
    }

    /// What the bitmap says of a class.
    pub(crate) const fn is_occupied(&self, class: usize) -> bool {
        self.occupied[class / PER_WORD] & (1 << (class % PER_WORD)) != 0
    }

    /// Whether the chunks of a class are a crowd.
    pub(crate) const fn is_crowded(&self, class: usize) -> bool {
        self.crowded[class / PER_WORD] & (1 << (class % PER_WORD)) != 0
    }

    /// Whether the bitmaps and the crowds agree with each other.
    pub(crate) fn bitmaps_agree(&self) -> bool {
        let words = (0..WORD_COUNT).all(|word| (self.words >> word & 1 == 1) == (self.occupied[word] != 0));
        let within =
            self.crowded.iter().zip(&self.occupied).all(|(crowded, occupied)| crowded & !occupied == 0);
        let crowded: u32 = self.crowded.iter().map(|word| word.count_ones()).sum();
        words && within && self.crowds.len() == crowded as usize + self.spare.len()
    }

    /// The list of a class that is neither empty nor crowded.
    #[inline]
    fn list<'a>(&self, chunks: &'a Slab, class: usize) -> impl Iterator<Item = ChunkId> + 'a {
        std::iter::successors(Some(self.heads[class]), |id| {
            let after = chunks[*id].links.after;
            (!after.is_none()).then_some(after)
        })
    }

    fn insert_in_list(&mut self, chunks: &mut Slab, id: ChunkId, class: usize) {
        let place = |chunk: &Chunk| (chunk.bytes, chunk.address);
        let own = place(&chunks[id]);
        let (mut before, mut after) = (ChunkId::NONE, self.heads[class]);
        for _ in 0..LONGEST_WALK {
            if after.is_none() || own < place(&chunks[after]) {
                chunks[id].links = Links { before, after };
                if !after.is_none() {
                    chunks[after].links.before = id;
                }
                if before.is_none() {
                    self.heads[class] = id;
                } else {
                    chunks[before].links.after = id;
                }
                return;
            }
            (before, after) = (after, chunks[after].links.after);
        }
        self.make_crowd(chunks, class);
        self.insert_in_crowd(chunks, id, class);
    }

    fn crowd(&self, class: usize) -> &Crowd {
        &self.crowds[self.heads[class].0 as usize]
    }

    /// Makes the list of a class a crowd.
    #[cold]
    fn make_crowd(&mut self, chunks: &mut Slab, class: usize) {
        let index = self.spare.pop().unwrap_or_else(|| {
            self.crowds.push(Crowd::new());
            ChunkId((self.crowds.len() - 1) as u32)
        });
        let mut next = std::mem::replace(&mut self.heads[class], index);
        self.crowded[class / PER_WORD] |= 1 << (class % PER_WORD);
        while !next.is_none() {
            let id = next;
            next = chunks[id].links.after;
            self.insert_in_crowd(chunks, id, class);
        }
    }

    #[inline(never)]
    fn insert_in_crowd(&mut self, chunks: &mut Slab, id: ChunkId, class: usize) {
        chunks[id].links = Links { before: IN_CROWD, after: ChunkId::NONE };
        self.crowds[self.heads[class].0 as usize].insert(Member::new(id, &chunks[id]));
    }

    #[inline(never)]
    fn remove_from_crowd(&mut self, chunks: &Slab, id: ChunkId) {
        let class = class_of(chunks[id].bytes);
        let crowd = self.heads[class];
        if self.crowds[crowd.0 as usize].remove(Member::new(id, &chunks[id])) {
            self.spare.push(crowd);
            self.crowded[class / PER_WORD] &= !(1 << (class % PER_WORD));
            self.vacate(class);
        }
    }
}

#[cfg(test)]
mod tests;
