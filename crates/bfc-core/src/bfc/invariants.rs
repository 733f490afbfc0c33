//! The rules that hold of the policy between any two calls, and one checker for all of them.

use std::collections::HashSet;

use super::arena::Bfc;
use super::bins::{CLASS_COUNT, class_of};
use super::chunk::{ChunkId, GRANULE};
use crate::policy::Inconsistent;

/// What holds between any two calls.
const RULES: [&str; 11] = [
    "regions are sorted by address, start at multiples of 256, hold at least 256 bytes and do not overlap",
    "the chunks of a region cover its whole granules from start to end without gap or overlap",
    "neighbours are linked both ways, and a region knows its first and its last chunk",
    "every chunk starts at a multiple of 256 and is a multiple of 256 bytes long, and not empty",
    "no two neighbouring chunks are both free for anyone",
    "the free chunks, and no others, are in the bins, each once in the class of its size, in order of size and then of \
     address; those of a list are linked both ways",
    "the bitmaps of the bins say exactly which classes are not empty and which are crowded, and every crowd belongs to \
     one class or is spare",
    "a chunk in use has no time of freeing, and the bytes in use are the sum over the chunks in use",
    "the bytes reserved are the sum over the regions",
    "every slot of the slab is one chunk of one region, or once in the list of unused slots",
    "a chunk freed at a count that the frontier has not passed is in the queue of pending frees",
];

/// Fails unless `holds`; the detail is only written down on failure.
fn ensure(rule: usize, holds: bool, detail: impl FnOnce() -> String) -> Result<(), Inconsistent> {
    if holds { Ok(()) } else { Err(broken(rule, &detail())) }
}

fn broken(rule: usize, detail: &str) -> Inconsistent {
    Inconsistent { policy: "bfc", detail: format!("{} (but {detail})", RULES[rule]) }
}

impl Bfc {
    /// Checks every rule.
    pub(super) fn check_rules(&self) -> Result<(), Inconsistent> {
        self.check_regions()?;
        let seen = self.check_chunks()?;
        self.check_slab(&seen)?;
        self.check_bins()?;
        self.check_use()?;
        self.check_pending()
    }

    fn check_regions(&self) -> Result<(), Inconsistent> {
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
        let reserved = self.reserved;
        ensure(8, sum == reserved, || format!("regions hold {sum} bytes, {reserved} are accounted for"))
    }

    /// Walks every region; gives the chunks met.
    fn check_chunks(&self) -> Result<HashSet<ChunkId>, Inconsistent> {
        let mut seen = HashSet::new();
        for region in self.regions.as_slice() {
            let (mut prev, mut id, mut at) = (ChunkId::NONE, region.first, region.span.address);
            while !id.is_none() {
                let known = self.chunks.get(id).is_some();
                ensure(2, known, || format!("{prev:?} is followed by {id:?}, which is no chunk"))?;
                ensure(9, seen.insert(id), || format!("{id:?} is met twice"))?;
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

    fn check_slab(&self, seen: &HashSet<ChunkId>) -> Result<(), Inconsistent> {
        let (met, chunks) = (seen.len(), self.chunks.len());
        ensure(9, met == chunks, || format!("{chunks} chunks, but {met} in regions"))?;
        let (unused, slots) = (self.chunks.unused_list_length(), self.chunks.slot_count());
        ensure(9, unused + chunks == slots, || {
            format!("{chunks} chunks and {unused} unused of {slots} slots")
        })
    }

    fn check_bins(&self) -> Result<(), Inconsistent> {
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
                last = place.ok_or_else(|| {
                    broken(5, &format!("{id:?} does not belong after {before:?} in class {class}"))
                })?;
                let linked = self.bins.is_crowded(class) || self.chunk(id).links.before == before;
                ensure(5, linked, || format!("{id:?} does not know that {before:?} is before it"))?;
                before = id;
            }
            ensure(6, binned > binned_before, || format!("class {class} is empty"))?;
        }
        ensure(5, binned == free, || format!("{free} chunks are free, {binned} are in bins"))
    }

    fn check_use(&self) -> Result<(), Inconsistent> {
        let mut sum = 0;
        for (id, chunk) in self.chunks.iter().filter(|(_, chunk)| !chunk.is_free()) {
            ensure(7, chunk.freed_at == 0, || {
                format!("{id:?} is in use, and was freed at {}", chunk.freed_at)
            })?;
            sum += chunk.bytes;
        }
        let said = self.in_use;
        ensure(7, sum == said, || format!("chunks sum to {sum} bytes, {said} are accounted for"))
    }

    fn check_pending(&self) -> Result<(), Inconsistent> {
        let queued: HashSet<ChunkId> =
            self.pending.iter().filter(|free| self.is_pending(free)).map(|free| free.chunk).collect();
        for (id, chunk) in self.chunks.iter().filter(|(_, chunk)| chunk.freed_at > 0) {
            ensure(10, queued.contains(&id), || format!("{id:?} was freed at {}", chunk.freed_at))?;
        }
        for free in self.pending.iter() {
            let bounded = self.pending.may_have_ripe(free.freed_at.saturating_add(1));
            ensure(10, bounded, || format!("{free:?} is older than the queue says"))?;
        }
        Ok(())
    }
}
