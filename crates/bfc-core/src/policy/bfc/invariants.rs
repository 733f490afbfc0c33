//! The invariants of the policy between calls, and their checker.

use super::arena::Bfc;
use super::bins::SizeClass;
use super::chunk::{Chunk, ChunkId, ChunkState, GRANULE};
use crate::base::placement::Inconsistent;

/// The rules that hold between calls.
const RULES: &[&str] = &[
    "regions are sorted by address, start at multiples of 256, hold at least 256 bytes and do not overlap",
    "the chunks of a region cover its whole granules from start to end without gap or overlap",
    "the chunks of a region are linked both ways to a ring that its border closes",
    "every chunk starts at a multiple of 256 and is a multiple of 256 bytes long, and not empty",
    "no two neighboring chunks are both reusable, except deferred ones",
    "exactly the free chunks that are not deferred are in the bins, each once in the class of its size",
    "the chunks of a class are a list of heaps, in which children come after their parents, linked both ways",
    "the bitmaps of the bins mark exactly the non-empty classes",
    "the bytes reserved are the sum over the regions",
    "every slot of the slab is the dummy, the border of one region, one chunk of one region, or once among the unused \
     slots",
    "a chunk freed at a count that the frontier has not passed is in the queue of pending frees",
    "exactly the deferred chunks are in the list of blocks freed last, each once with its size",
];

/// Fails unless `holds`. Formats the detail only on failure.
#[inline]
fn ensure(rule: usize, holds: bool, detail: impl FnOnce() -> String) -> Result<(), Inconsistent> {
    Inconsistent::unless(holds, "bfc", RULES[rule], detail)
}

/// A set of slots. A table and not a hash set, because long random tests check after every step.
#[derive(Debug)]
struct SlotSet {
    holds: Vec<bool>,
    count: usize,
}

impl SlotSet {
    fn new(slots: usize) -> Self {
        Self { holds: vec![false; slots], count: 0 }
    }

    /// Adds a slot. Returns whether it is valid and new.
    fn insert(&mut self, id: ChunkId) -> bool {
        let new = self.holds.get_mut(id.0 as usize).is_some_and(|held| !std::mem::replace(held, true));
        self.count += usize::from(new);
        new
    }

    fn contains(&self, id: ChunkId) -> bool {
        self.holds.get(id.0 as usize).is_some_and(|&held| held)
    }
}

impl Bfc {
    /// Checks every rule.
    pub(super) fn check_rules(&self) -> Result<(), Inconsistent> {
        self.check_regions()?;
        let seen = self.check_chunks()?;
        self.check_slab(&seen)?;
        self.check_bins()?;
        self.check_recent()?;
        self.check_pending()
    }

    fn check_regions(&self) -> Result<(), Inconsistent> {
        let regions = self.regions.as_slice();
        for region in regions {
            let sound = region.span.address % GRANULE == 0
                && region.span.bytes >= GRANULE
                && region.span.end().is_some();
            ensure(0, sound, || format!("{:?}", region.span))?;
        }
        for pair in regions.windows(2) {
            let apart = pair[0].span.end().is_some_and(|end| end <= pair[1].span.address);
            ensure(0, apart, || format!("{:?} and {:?}", pair[0].span, pair[1].span))?;
        }
        let sum: u64 = regions.iter().map(|region| region.span.bytes).sum();
        let reserved = self.reserved;
        ensure(8, sum == reserved, || format!("regions hold {sum} bytes, {reserved} are accounted for"))
    }

    /// Walks every region. Returns the chunks and borders found.
    fn check_chunks(&self) -> Result<SlotSet, Inconsistent> {
        let mut seen = SlotSet::new(self.chunks.len());
        seen.insert(ChunkId::NONE);
        for region in self.regions.as_slice() {
            let border = region.border;
            let closed = seen.insert(border) && self.chunks[border].state == ChunkState::Border;
            ensure(2, closed, || format!("{border:?} is the border of {:?}", region.span))?;
            let (mut prev, mut at) = (border, region.span.address);
            for id in self.chunks_of(region) {
                let chunk = &self.chunks[id];
                let known = !matches!(chunk.state, ChunkState::Unused | ChunkState::Border);
                ensure(2, known, || format!("{prev:?} is followed by {id:?}, which is no chunk"))?;
                ensure(9, seen.insert(id), || format!("{id:?} is met twice"))?;
                ensure(1, chunk.address == at, || {
                    format!("{id:?} starts at {:#x}, not {at:#x}", chunk.address)
                })?;
                ensure(2, chunk.prev == prev, || format!("{id:?} follows {:?}, not {prev:?}", chunk.prev))?;
                let granular = at % GRANULE == 0 && chunk.bytes % GRANULE == 0 && chunk.bytes > 0;
                ensure(3, granular, || format!("{id:?} has {} bytes at {at:#x}", chunk.bytes))?;
                let both = self.chunks[prev].state == ChunkState::Free && chunk.state == ChunkState::Free;
                ensure(4, !both, || format!("{prev:?} and {id:?} at {at:#x}"))?;
                at = chunk.end();
                prev = id;
            }
            let end = region.span.address + region.usable();
            ensure(1, at == end, || format!("the chunks of a region end at {at:#x}, not {end:#x}"))?;
            let last = self.chunks[border].prev;
            ensure(2, prev == last, || format!("{prev:?} is last, not {last:?}"))?;
        }
        Ok(seen)
    }

    fn check_slab(&self, seen: &SlotSet) -> Result<(), Inconsistent> {
        let (met, slots) = (seen.count, self.chunks.len());
        // Duplicate free slots make the list longer than the slab allows.
        let unused = self.chunks.unused_slots().take(slots);
        let unused = unused.filter(|id| self.chunks[*id].state == ChunkState::Unused).count();
        ensure(9, met + unused == slots, || format!("{met} met and {unused} unused of {slots} slots"))
    }

    fn check_bins(&self) -> Result<(), Inconsistent> {
        let free = self.chunks.chunks().filter(|(_, chunk)| is_binned(chunk)).count();
        let mut binned = SlotSet::new(self.chunks.len());
        self.check_classes(&mut binned)?;
        let binned = binned.count;
        ensure(5, binned == free, || format!("{free} chunks are free, {binned} are in bins"))
    }

    fn check_classes(&self, binned: &mut SlotSet) -> Result<(), Inconsistent> {
        let bins = &self.bins;
        ensure(7, bins.bitmaps_agree(), || format!("{bins:?}"))?;
        // The bitmaps were checked just before. A class that they omit is missing in the total count.
        let first = bins.occupied_from(SizeClass::of(1));
        let occupied = std::iter::successors(first, |class| bins.occupied_from(class.next()?));
        for class in occupied {
            for (nth, id) in bins.in_class(&self.chunks, class).enumerate() {
                let chunk = &self.chunks[id];
                let belongs = is_binned(chunk) && SizeClass::of(chunk.bytes) == class && binned.insert(id);
                ensure(5, belongs, || format!("{id:?} does not belong into {class:?}"))?;
                let above = chunk.links.above;
                ensure(6, (nth == 0) == above.is_none(), || format!("{id:?} comes after {above:?}"))?;
                for below in [chunk.links.child, chunk.sibling] {
                    let linked = below.is_none() || self.chunks[below].links.above == id;
                    ensure(6, linked, || format!("{below:?} does not know that it comes after {id:?}"))?;
                }
                let child = chunk.links.child;
                let ordered = child.is_none()
                    || heap_children(&self.chunks, child)
                        .all(|child| chunk.rank() < self.chunks[child].rank());
                ensure(6, ordered, || format!("a child of {id:?} should come before it"))?;
            }
        }
        Ok(())
    }

    fn check_recent(&self) -> Result<(), Inconsistent> {
        let mut listed = SlotSet::new(self.chunks.len());
        for (id, bytes) in self.recent.iter() {
            let chunk = self.chunks.get(id.0 as usize);
            let belongs =
                chunk.is_some_and(|chunk| chunk.state == ChunkState::Recent && chunk.bytes == bytes);
            ensure(11, belongs && listed.insert(id), || format!("{id:?} of {bytes} bytes is {chunk:?}"))?;
        }
        let recent = self.chunks.chunks().filter(|(_, chunk)| chunk.state == ChunkState::Recent).count();
        ensure(11, recent == listed.count, || {
            format!("{recent} were freed last, {} are listed", listed.count)
        })
    }

    fn check_pending(&self) -> Result<(), Inconsistent> {
        let mut queued = SlotSet::new(self.chunks.len());
        for free in self.pending.iter().filter(|free| self.is_pending(free)) {
            queued.insert(free.chunk);
        }
        for (id, _) in self.chunks.chunks().filter(|(_, chunk)| chunk.state == ChunkState::Pending) {
            let freed_at = self.chunks.freed_at(id);
            ensure(10, freed_at > 0 && queued.contains(id), || format!("{id:?} was freed at {freed_at}"))?;
        }
        for free in self.pending.iter() {
            let bounded = self.pending.may_have_ripe(free.freed_at.saturating_add(1));
            ensure(10, bounded, || format!("{free:?} is older than the queue says"))?;
        }
        Ok(())
    }
}

/// Whether a chunk belongs into a bin.
const fn is_binned(chunk: &Chunk) -> bool {
    matches!(chunk.state, ChunkState::Free | ChunkState::Pending)
}

/// Iterates over a child and its later siblings.
fn heap_children(chunks: &[Chunk], child: ChunkId) -> impl Iterator<Item = ChunkId> + '_ {
    let some = |id: ChunkId| (!id.is_none()).then_some(id);
    std::iter::successors(Some(child), move |&id| some(chunks[id].sibling)).take(chunks.len())
}
