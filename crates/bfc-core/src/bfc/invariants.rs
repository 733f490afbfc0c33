//! The rules that hold of a pool between any two calls, and one checker for all of them.

use std::collections::{HashMap, HashSet};

use super::arena::Arena;
use super::bins::{CLASS_COUNT, class_of};
use super::chunk::{ChunkId, GRANULE};
use crate::ledger::{Category, Tag};
use crate::owner::OwnerId;

/// What holds of every pool between any two calls. [`InvariantError::rule`] is an index into this list.
pub const INVARIANTS: [&str; 16] = [
    "regions are sorted by address, start at multiples of 256, hold at least 256 bytes and do not overlap",
    "the chunks of a region cover its whole granules from start to end without gap or overlap",
    "neighbours are linked both ways, and a region knows its first and its last chunk",
    "every chunk starts at a multiple of 256 and is a multiple of 256 bytes long, and not empty",
    "no two neighbouring chunks are both free for anyone",
    "the free chunks, and no others, are in the bins, each once in the class of its size, in order of size and then of \
     address; those of a list are linked both ways",
    "the bitmaps of the bins say exactly which classes are not empty and which are crowded, and every crowd belongs to \
     one class or is spare",
    "a chunk in use has a number of its own that was given out, at least one and at most all of its bytes asked for, \
     and no time of freeing; a free chunk has no number, no bytes asked for and no tag",
    "the figures for bytes in use, bytes requested and live allocations are the sums over the chunks in use",
    "the ledger holds, by owner and by category, exactly the bytes of the chunks in use",
    "the bytes reserved are the sum over the regions",
    "no peak is below its figure, and the largest allocation is within the peak of the bytes in use",
    "every slot of the slab is one chunk of one region, or once in the list of unused slots",
    "a chunk freed at a count that the frontier has not passed is in the queue of pending frees",
    "the index by address, once made, holds exactly the chunks in use",
    "the pool holds no more than its limit, unless the source delivered more than it was asked for",
];

/// A rule of [`INVARIANTS`] that does not hold: a fault in the allocator, or in a source that broke its promises.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rule {rule} does not hold ({}): {detail}", INVARIANTS[*rule])]
pub struct InvariantError {
    /// Which rule, as an index into [`INVARIANTS`].
    pub rule: usize,
    /// Where it fails.
    pub detail: String,
}

/// Fails unless `holds`; the detail is only written down on failure.
fn ensure(rule: usize, holds: bool, detail: impl FnOnce() -> String) -> Result<(), InvariantError> {
    if holds { Ok(()) } else { Err(InvariantError { rule, detail: detail() }) }
}

/// Checks rule 15, which needs what only the allocator knows.
pub(crate) fn check_limit(arena: &Arena, limit: u64, over_delivered: bool) -> Result<(), InvariantError> {
    let reserved = arena.reserved();
    ensure(15, reserved <= limit || over_delivered, || format!("{reserved} bytes of {limit}"))
}

impl Arena {
    /// Checks every rule but the last.
    pub(crate) fn check_invariants(&self) -> Result<(), InvariantError> {
        self.check_regions()?;
        let seen = self.check_chunks()?;
        self.check_slab(&seen)?;
        self.check_bins()?;
        self.check_use()?;
        self.check_figures()?;
        self.check_ledger()?;
        self.check_pending()?;
        self.check_index()
    }

    fn check_regions(&self) -> Result<(), InvariantError> {
        let regions = self.regions.as_slice();
        for region in regions {
            let sound = region.span.address.is_multiple_of(GRANULE)
                && region.span.bytes >= GRANULE
                && region.span.end().is_some();
            ensure(0, sound, || format!("{:?}", region.span))?;
        }
        for pair in regions.windows(2) {
            let apart = pair[0].span.end().is_some_and(|end| end <= pair[1].span.address);
            ensure(0, apart, || format!("{:?} and {:?}", pair[0].span, pair[1].span))?;
        }
        let sum: u64 = regions.iter().map(|region| region.span.bytes).sum();
        let reserved = self.figures.bytes_reserved;
        ensure(10, sum == reserved, || format!("regions hold {sum} bytes, {reserved} are accounted for"))
    }

    /// Walks every region; gives the chunks met.
    fn check_chunks(&self) -> Result<HashSet<ChunkId>, InvariantError> {
        let mut seen = HashSet::new();
        for region in self.regions.as_slice() {
            let (mut prev, mut id, mut at) = (ChunkId::NONE, region.first, region.span.address);
            while !id.is_none() {
                let known = self.chunks.get(id).is_some();
                ensure(2, known, || format!("{prev:?} is followed by {id:?}, which is no chunk"))?;
                ensure(12, seen.insert(id), || format!("{id:?} is met twice"))?;
                let chunk = self.chunk(id);
                ensure(1, chunk.address == at, || {
                    format!("{id:?} starts at {:#x}, not {at:#x}", chunk.address)
                })?;
                ensure(2, chunk.prev == prev, || format!("{id:?} follows {:?}, not {prev:?}", chunk.prev))?;
                let granular =
                    at.is_multiple_of(GRANULE) && chunk.bytes.is_multiple_of(GRANULE) && chunk.bytes > 0;
                ensure(3, granular, || format!("{id:?} has {} bytes at {at:#x}", chunk.bytes))?;
                let for_anyone = |id: ChunkId| self.chunk(id).is_free() && self.chunk(id).freed_at == 0;
                let both = !prev.is_none() && for_anyone(prev) && for_anyone(id);
                ensure(4, !both, || format!("{prev:?} and {id:?} at {at:#x}"))?;
                at = chunk.end();
                (prev, id) = (id, chunk.next);
            }
            let end = region.span.address + region.usable();
            ensure(1, at == end, || format!("the chunks of a region end at {at:#x}, not {end:#x}"))?;
            ensure(2, prev == region.last, || format!("{prev:?} is last, not {:?}", region.last))?;
        }
        Ok(seen)
    }

    fn check_slab(&self, seen: &HashSet<ChunkId>) -> Result<(), InvariantError> {
        let (met, chunks) = (seen.len(), self.chunks.len());
        ensure(12, met == chunks, || format!("{chunks} chunks, but {met} in regions"))?;
        let (unused, slots) = (self.chunks.unused_list_length(), self.chunks.slot_count());
        ensure(12, unused + chunks == slots, || {
            format!("{chunks} chunks and {unused} unused of {slots} slots")
        })
    }

    fn check_bins(&self) -> Result<(), InvariantError> {
        ensure(6, self.bins.bitmaps_agree(), || format!("{:?}", self.bins))?;
        let free = self.chunks.iter().filter(|(_, chunk)| chunk.is_free()).count();
        let mut binned = 0;
        let mut last = (0, 0);
        for class in (0..CLASS_COUNT).filter(|&class| self.bins.is_occupied(class)) {
            let (binned_before, mut before) = (binned, ChunkId::NONE);
            // A list that runs in a circle is left after more steps than there are chunks.
            for id in self.bins.in_class(&self.chunks, class).take(free + 1) {
                binned += 1;
                let chunk =
                    self.chunks.get(id).filter(|chunk| chunk.is_free() && class_of(chunk.bytes) == class);
                let place = chunk.map(|chunk| (chunk.bytes, chunk.address)).filter(|place| *place > last);
                last = place.ok_or_else(|| InvariantError {
                    rule: 5,
                    detail: format!("{id:?} does not belong after {before:?} in class {class}"),
                })?;
                let linked = self.bins.is_crowded(class) || self.chunk(id).links.before == before;
                ensure(5, linked, || format!("{id:?} does not know that {before:?} is before it"))?;
                before = id;
            }
            ensure(6, binned > binned_before, || format!("class {class} is empty"))?;
        }
        ensure(5, binned == free, || format!("{free} chunks are free, {binned} are in bins"))
    }

    fn check_use(&self) -> Result<(), InvariantError> {
        let mut numbers = HashSet::new();
        for (id, chunk) in self.chunks.iter() {
            let sound = if chunk.is_free() {
                chunk.requested == 0 && chunk.tag == Tag::default()
            } else {
                (1..=self.last_allocation).contains(&chunk.allocation)
                    && (1..=chunk.bytes).contains(&chunk.requested)
                    && chunk.freed_at == 0
                    && numbers.insert(chunk.allocation)
            };
            ensure(7, sound, || format!("{id:?}: {chunk:?}"))?;
        }
        Ok(())
    }

    fn check_figures(&self) -> Result<(), InvariantError> {
        let (mut bytes, mut requested, mut live) = (0, 0, 0);
        for (_, chunk) in self.chunks.iter().filter(|(_, chunk)| !chunk.is_free()) {
            bytes += chunk.bytes;
            requested += chunk.requested;
            live += 1;
        }
        let figures = &self.figures;
        let sums = (bytes, requested, live);
        let said = (figures.bytes_in_use, figures.bytes_requested, figures.live_allocs);
        ensure(8, sums == said, || format!("chunks sum to {sums:?}, the figures say {said:?}"))?;
        let peaks = figures.peak_bytes_in_use >= figures.bytes_in_use
            && figures.peak_bytes_reserved >= figures.bytes_reserved
            && figures.largest_alloc_bytes <= figures.peak_bytes_in_use;
        ensure(11, peaks, || format!("{figures:?}"))
    }

    fn check_ledger(&self) -> Result<(), InvariantError> {
        let mut owners = HashMap::<OwnerId, u64>::new();
        let mut categories = [0; Category::COUNT];
        for (_, chunk) in self.chunks.iter().filter(|(_, chunk)| !chunk.is_free()) {
            *owners.entry(chunk.tag.owner).or_default() += chunk.bytes;
            categories[chunk.tag.category.index()] += chunk.bytes;
        }
        for category in Category::ALL {
            let (held, booked) = (categories[category.index()], self.ledger.category(category));
            ensure(9, held == booked, || {
                format!("{category:?} holds {held} bytes, the ledger says {booked}")
            })?;
        }
        for (owner, account) in self.ledger.owners() {
            let held = owners.remove(&owner).unwrap_or(0);
            ensure(9, held == account.own, || {
                format!("{owner} holds {held} bytes, the ledger says {}", account.own)
            })?;
        }
        ensure(9, owners.is_empty(), || format!("the ledger has no account for {owners:?}"))
    }

    fn check_pending(&self) -> Result<(), InvariantError> {
        let queued: HashSet<ChunkId> =
            self.pending.iter().filter(|free| self.is_pending(free)).map(|free| free.chunk).collect();
        for (id, chunk) in self.chunks.iter().filter(|(_, chunk)| chunk.freed_at > 0) {
            ensure(13, queued.contains(&id), || format!("{id:?} was freed at {}", chunk.freed_at))?;
        }
        for free in self.pending.iter() {
            let bounded = self.pending.may_have_ripe(free.freed_at.saturating_add(1));
            ensure(13, bounded, || format!("{free:?} is older than the queue says"))?;
        }
        Ok(())
    }

    fn check_index(&self) -> Result<(), InvariantError> {
        let Some(index) = &self.index else { return Ok(()) };
        let live = self.chunks.iter().filter(|(_, chunk)| !chunk.is_free());
        for (id, chunk) in live {
            let found = index.get(&chunk.address);
            ensure(14, found == Some(&id), || format!("{id:?} at {:#x} is not found", chunk.address))?;
        }
        let (indexed, live) = (index.len() as u64, self.figures.live_allocs);
        ensure(14, indexed == live, || format!("{indexed} chunks are indexed, {live} are live"))
    }
}
