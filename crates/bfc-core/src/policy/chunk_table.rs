//! The chunks of regions that never merge with each other, and the free chunks in the order of best fit.
//!
//! The chunks of a region cover it without overlap and are linked in order of address. Free chunks are in an ordered
//! tree, where [`Bfc`](crate::Bfc) has lists by size class. The policies that use it reproduce originals with a tree,
//! and must choose the same chunk. A node holds eleven chunks, so the few hundred free chunks of a training run are two
//! or three nodes deep.
//!
//! [`Pytorch`](crate::Pytorch) has several sets of pools. A chunk belongs to one set, and a request searches one set.
//! The other policies have set 0 alone. `segments.rs` adds chunks of addresses without memory.

mod segments;

use std::collections::{BTreeMap, BTreeSet};

use crate::base::memory::Span;
use crate::base::placement::{Inconsistent, Placement};
use crate::policy::{NotAdded, NotLive, Piece};

/// No chunk: the end of a region.
const NONE: u32 = u32::MAX;

/// The contents of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    Vacant,
    Free,
    Live,
    /// Addresses without memory, in a segment.
    Unmapped,
}

/// A chunk of a region, live or free.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    state: SlotState,
    /// Whether its region is a segment, which is mapped in parts.
    in_segment: bool,
    set: u16,
    /// The number of its region, from the oldest on; 0 in set 0.
    age: u32,
    address: u64,
    bytes: u64,
    /// The chunk below in the same region.
    prev: u32,
    /// The chunk above in the same region.
    next: u32,
}

impl Chunk {
    /// Returns the end address. Regions are checked to lie in the address space.
    const fn end(&self) -> u64 {
        self.address.wrapping_add(self.bytes)
    }

    const fn as_free(&self, slot: u32) -> FreeChunk {
        FreeChunk { bytes: self.bytes, age: self.age, address: self.address, slot }
    }

    /// Whether it is the only chunk of its region or segment.
    const fn is_whole(&self) -> bool {
        self.prev == NONE && self.next == NONE
    }

    const fn is_region(&self) -> bool {
        self.is_whole() && !self.in_segment
    }
}

/// A free chunk. The order of the fields is the order of best fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FreeChunk {
    pub(crate) bytes: u64,
    age: u32,
    pub(crate) address: u64,
    pub(crate) slot: u32,
}

/// A region as the source delivered it, and the slot of its lowest chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Region {
    span: Span,
    first: u32,
}

/// A set of pools: a request searches one.
#[derive(Clone, Debug, Default)]
struct Set {
    free: BTreeSet<FreeChunk>,
    /// The bytes that are mapped and unmapped as one, for segments.
    handle: u64,
}

/// The regions of a policy and their chunks.
#[derive(Clone, Debug)]
pub(crate) struct ChunkTable {
    /// The slots of chunks, which are reused last-in first-out.
    slots: Vec<Chunk>,
    vacant: Vec<u32>,
    sets: Vec<Set>,
    /// The number of the newest region outside of set 0.
    newest: u32,
    /// The slots of unmapped chunks, by address.
    unmapped: BTreeMap<u64, u32>,
    /// The ranges of removed segments, which the caller has yet to take.
    emptied: Vec<Span>,
    /// In order of address.
    regions: Vec<Region>,
    /// Bytes of all regions, of segments only the mapped ones.
    reserved: u64,
}

impl Default for ChunkTable {
    /// A table without memory, with set 0.
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            vacant: Vec::new(),
            sets: vec![Set::default()],
            newest: 0,
            unmapped: BTreeMap::new(),
            emptied: Vec::new(),
            regions: Vec::new(),
            reserved: 0,
        }
    }
}

impl ChunkTable {
    /// Adds an empty set, whose segments are mapped in multiples of `handle` bytes. Returns its number; `None` if there
    /// are no numbers left.
    pub(crate) fn add_set(&mut self, handle: u64) -> Option<u16> {
        let set = u16::try_from(self.sets.len()).ok()?;
        self.sets.push(Set { free: BTreeSet::new(), handle });
        Some(set)
    }

    /// Iterates over the numbers of all sets.
    pub(crate) fn sets(&self) -> impl Iterator<Item = u16> + use<> {
        0..self.sets.len() as u16
    }

    /// Adds a free region to set 0.
    pub(crate) fn add_region(&mut self, span: Span) -> Result<(), NotAdded> {
        self.add_region_to(span, 0).map(|_| ())
    }

    /// Adds a free region to a set. Returns the slot of its chunk.
    pub(crate) fn add_region_to(&mut self, span: Span, set: u16) -> Result<u32, NotAdded> {
        let first = self.add_chunk(span, set, SlotState::Free)?;
        self.reserved += span.bytes;
        Ok(first)
    }

    /// Adds a region or a segment with one chunk. Returns its slot.
    fn add_chunk(&mut self, span: Span, set: u16, state: SlotState) -> Result<u32, NotAdded> {
        let index = self.index_of_new(span)?;
        if set > 0 {
            self.newest = self.newest.checked_add(1).ok_or(NotAdded::Full)?;
        }
        let (in_segment, age) = (state == SlotState::Unmapped, if set > 0 { self.newest } else { 0 });
        let Span { address, bytes } = span;
        let chunk = Chunk { state, in_segment, set, age, address, bytes, prev: NONE, next: NONE };
        let first = self.insert(chunk);
        self.regions.insert(index, Region { span, first });
        self.store(first, chunk);
        Ok(first)
    }

    /// Returns the place of a new region among all, and checks that there is room for it.
    fn index_of_new(&self, span: Span) -> Result<usize, NotAdded> {
        let end = span.end().filter(|_| span.bytes > 0).ok_or(NotAdded::Bad)?;
        let index = self.regions.partition_point(|region| region.span.address < span.address);
        let below = index.checked_sub(1).and_then(|below| self.regions[below].span.end());
        let overlaps_above = self.regions.get(index).is_some_and(|above| above.span.address < end);
        if below.is_some_and(|below| below > span.address) || overlaps_above {
            return Err(NotAdded::Bad);
        }
        if !self.has_room_for(1) {
            return Err(NotAdded::Full);
        }
        Ok(index)
    }

    /// Moves an idle region to another set.
    pub(crate) fn move_region(&mut self, slot: u32, set: u16) {
        let chunk = self.slots[slot as usize];
        self.unlist(slot, &chunk);
        self.store(slot, Chunk { set, ..chunk });
    }

    /// Removes the lowest idle region for which `goes` is true.
    pub(crate) fn take_idle(&mut self, goes: impl Fn(Span) -> bool) -> Option<Span> {
        let idle = |region: &Region| goes(region.span) && self.is_idle(region);
        let index = self.regions.iter().position(idle)?;
        Some(self.take_region(index))
    }

    /// Removes the idle region at an address.
    pub(crate) fn take_idle_at(&mut self, address: u64) -> Option<Span> {
        let index = self.regions.binary_search_by_key(&address, |region| region.span.address).ok()?;
        self.is_idle(&self.regions[index]).then(|| self.take_region(index))
    }

    fn take_region(&mut self, index: usize) -> Span {
        let Region { span, first } = self.regions.remove(index);
        let chunk = self.slots[first as usize];
        self.unlist(first, &chunk);
        self.remove(first);
        self.reserved -= span.bytes;
        span
    }

    /// Iterates over the free chunks of set 0 of at least `bytes` bytes, the best fit first.
    pub(crate) fn free_from(&self, bytes: u64) -> impl Iterator<Item = FreeChunk> + '_ {
        self.free_in(0, bytes)
    }

    /// Iterates over the free chunks of a set of at least `bytes` bytes, the best fit first. The largest is the last.
    pub(crate) fn free_in(&self, set: u16, bytes: u64) -> impl DoubleEndedIterator<Item = FreeChunk> + '_ {
        let least = FreeChunk { bytes, age: 0, address: 0, slot: 0 };
        self.sets[usize::from(set)].free.range(least..).copied()
    }

    /// Returns the free chunk of a slot, if any.
    pub(crate) fn free_chunk(&self, slot: u32) -> Option<FreeChunk> {
        let chunk = self.slots.get(slot as usize).filter(|chunk| chunk.state == SlotState::Free)?;
        Some(chunk.as_free(slot))
    }

    /// Whether a chunk is the only one of its region.
    pub(crate) fn is_region(&self, slot: u32) -> bool {
        self.slots[slot as usize].is_region()
    }

    /// Returns the set of a chunk.
    pub(crate) fn set_of(&self, slot: u32) -> u16 {
        self.slots[slot as usize].set
    }

    /// Returns the set of the region that contains `address`.
    pub(crate) fn set_at(&self, address: u64) -> Option<u16> {
        self.region_at(address).map(|region| self.set_of(region.first))
    }

    /// Whether the table has slots for `count` more chunks.
    pub(crate) fn has_room_for(&self, count: usize) -> bool {
        self.slots.len() - self.vacant.len() + count < NONE as usize
    }

    /// Allocates `bytes` bytes from `start` on in a free chunk. The rest stays free. The caller has checked
    /// [`has_room_for`](Self::has_room_for) two chunks.
    pub(crate) fn carve(&mut self, slot: u32, start: u64, bytes: u64) -> Placement {
        let whole = self.slots[slot as usize];
        let (before, behind) = (start - whole.address, whole.end() - start - bytes);
        self.unlist(slot, &whole);
        let mut live = Chunk { state: SlotState::Live, address: start, bytes, ..whole };
        let mut live_slot = slot;
        if before > 0 {
            live.prev = slot;
            live_slot = self.insert(live);
            self.store(slot, Chunk { bytes: before, next: live_slot, ..whole });
        }
        if behind > 0 {
            let rest = Chunk { address: start + bytes, bytes: behind, prev: live_slot, ..whole };
            live.next = self.insert(rest);
            self.store(live.next, rest);
        }
        self.slots[live_slot as usize] = live;
        self.link_back(whole.next, if behind > 0 { live.next } else { live_slot });
        Placement { address: start, bytes, slot: live_slot }
    }

    /// Returns the live block of a slot that the caller passed, if any.
    pub(crate) fn live(&self, slot: u32) -> Option<Placement> {
        let chunk = self.slots.get(slot as usize).filter(|chunk| chunk.state == SlotState::Live)?;
        Some(Placement { address: chunk.address, bytes: chunk.bytes, slot })
    }

    /// Frees a block and merges it with its free neighbors in the region. The lowest chunk keeps its slot. Returns the
    /// result.
    pub(crate) fn free(&mut self, slot: u32) -> Result<FreeChunk, NotLive> {
        self.live(slot).ok_or(NotLive { slot })?;
        Ok(self.merge(slot, SlotState::Free))
    }

    /// Makes a live chunk free or unmapped, and merges it with such neighbors. The lowest chunk keeps its slot. Returns
    /// the result.
    #[inline]
    fn merge(&mut self, slot: u32, state: SlotState) -> FreeChunk {
        let mut slot = slot;
        let mut chunk = Chunk { state, ..self.slots[slot as usize] };
        if let Some(prev) = self.take(chunk.prev, state) {
            self.remove(slot);
            slot = chunk.prev;
            chunk = Chunk { bytes: prev.bytes + chunk.bytes, next: chunk.next, ..prev };
        }
        if let Some(next) = self.take(chunk.next, state) {
            self.remove(chunk.next);
            chunk.bytes += next.bytes;
            chunk.next = next.next;
        }
        self.link_back(chunk.next, slot);
        self.store(slot, chunk);
        chunk.as_free(slot)
    }

    /// Returns the bytes of idle regions, and of the idle parts of segments.
    pub(crate) fn idle_bytes(&self) -> u64 {
        let regions = self.regions.iter().filter(|region| self.is_idle(region)).map(|region| region.span);
        regions.chain(self.idle_handles().map(|(_, span)| span)).map(|span| span.bytes).sum()
    }

    /// Returns the bytes of all regions.
    pub(crate) const fn reserved_bytes(&self) -> u64 {
        self.reserved
    }

    /// Returns the regions in order of address.
    pub(crate) fn regions(&self) -> Vec<Span> {
        let mut regions = Vec::with_capacity(self.regions.len());
        for region in &self.regions {
            if self.is_segment(region) {
                self.mapped_parts(region, &mut regions);
            } else {
                regions.push(region.span);
            }
        }
        regions
    }

    /// Returns the region, or the whole segment, that contains `address`.
    pub(crate) fn region_of(&self, address: u64) -> Option<Span> {
        self.region_at(address).map(|region| region.span)
    }

    fn region_at(&self, address: u64) -> Option<&Region> {
        let above = self.regions.partition_point(|region| region.span.address <= address);
        let region = &self.regions[above.checked_sub(1)?];
        (address - region.span.address < region.span.bytes).then_some(region)
    }

    /// Returns the size of the largest free chunk, or 0.
    pub(crate) fn largest_free_bytes(&self) -> u64 {
        self.sets.iter().filter_map(|set| set.free.last()).map(|chunk| chunk.bytes).max().unwrap_or(0)
    }

    /// Visits every chunk of every region, in order of address.
    pub(crate) fn visit(&self, visit: &mut dyn FnMut(Piece)) {
        let mut index = 0;
        for region in &self.regions {
            let (mut slot, mut is_mapped) = (region.first, false);
            while slot != NONE {
                let Chunk { state, address, bytes, next, .. } = self.slots[slot as usize];
                // Each mapped part of a segment is a region.
                index += usize::from(is_mapped && state == SlotState::Unmapped);
                is_mapped = state != SlotState::Unmapped;
                if is_mapped {
                    let live = (state == SlotState::Live).then_some(slot);
                    visit(Piece::new(index, Span { address, bytes }, live));
                }
                slot = next;
            }
            index += usize::from(is_mapped);
        }
    }

    /// Checks that chunks cover their regions and have correct neighbors, that no two free or unmapped ones touch, and
    /// that the free and unmapped chunks and the sums are correct.
    pub(crate) fn check(&self, policy: &'static str) -> Result<(), Inconsistent> {
        let wrong = |detail: String| Err(Inconsistent { policy, detail });
        let (mut chunks, mut free, mut unmapped, mut reserved) = (0, 0, 0, 0);
        for region in &self.regions {
            let (mut slot, mut prev, mut address) = (region.first, NONE, region.span.address);
            let mut prev_state = SlotState::Live;
            let first = self.slots[region.first as usize];
            while slot != NONE {
                let chunk = self.slots[slot as usize];
                let is_free = chunk.state == SlotState::Free;
                let is_unmapped = chunk.state == SlotState::Unmapped;
                let linked = chunk.address == address && chunk.prev == prev && chunk.bytes > 0;
                let alike =
                    (chunk.set, chunk.in_segment, chunk.age) == (first.set, first.in_segment, first.age);
                let merged = chunk.state == SlotState::Live || chunk.state != prev_state;
                let placed = !is_unmapped || (chunk.in_segment && self.unmapped.get(&address) == Some(&slot));
                if !linked || !alike || !merged || !placed || chunk.state == SlotState::Vacant {
                    return wrong(format!(
                        "slot {slot} is {chunk:?} after slot {prev}, which ends at {address:#x}"
                    ));
                }
                if is_free && !self.sets[usize::from(chunk.set)].free.contains(&chunk.as_free(slot)) {
                    return wrong(format!("slot {slot} is free and not in order: {chunk:?}"));
                }
                chunks += 1;
                free += usize::from(is_free);
                unmapped += usize::from(is_unmapped);
                reserved += if is_unmapped { 0 } else { chunk.bytes };
                (prev, prev_state, address, slot) = (slot, chunk.state, chunk.end(), chunk.next);
            }
            if region.span.end() != Some(address) {
                return wrong(format!("{:x?} is covered up to {address:#x}", region.span));
            }
        }
        let sums = (chunks + self.vacant.len(), free, unmapped, reserved);
        let free = self.sets.iter().map(|set| set.free.len()).sum();
        let said = (self.slots.len(), free, self.unmapped.len(), self.reserved);
        if sums == said { Ok(()) } else { wrong(format!("{sums:?} by sum, {said:?} by figure")) }
    }

    fn is_idle(&self, region: &Region) -> bool {
        let first = &self.slots[region.first as usize];
        first.state == SlotState::Free && first.is_region()
    }

    /// Stores a free or unmapped chunk in its slot and among its like.
    #[inline]
    fn store(&mut self, slot: u32, chunk: Chunk) {
        self.slots[slot as usize] = chunk;
        if chunk.state == SlotState::Unmapped {
            self.unmapped.insert(chunk.address, slot);
        } else {
            self.sets[usize::from(chunk.set)].free.insert(chunk.as_free(slot));
        }
    }

    /// Removes a chunk from those of its state, free or unmapped.
    #[inline]
    fn unlist(&mut self, slot: u32, chunk: &Chunk) {
        if chunk.state == SlotState::Unmapped {
            self.unmapped.remove(&chunk.address);
        } else {
            self.sets[usize::from(chunk.set)].free.remove(&chunk.as_free(slot));
        }
    }

    /// Returns a neighbor that has this state, free or unmapped, and removes it from those of this state.
    #[inline]
    fn take(&mut self, slot: u32, state: SlotState) -> Option<Chunk> {
        let chunk = *self.slots.get(slot as usize).filter(|chunk| chunk.state == state)?;
        self.unlist(slot, &chunk);
        Some(chunk)
    }

    /// Sets the chunk below a neighbor, if there is one.
    fn link_back(&mut self, slot: u32, prev: u32) {
        if let Some(chunk) = self.slots.get_mut(slot as usize) {
            chunk.prev = prev;
        }
    }

    fn insert(&mut self, chunk: Chunk) -> u32 {
        match self.vacant.pop() {
            Some(slot) => {
                self.slots[slot as usize] = chunk;
                slot
            }
            None => {
                self.slots.push(chunk);
                (self.slots.len() - 1) as u32
            }
        }
    }

    fn remove(&mut self, slot: u32) {
        self.slots[slot as usize].state = SlotState::Vacant;
        self.vacant.push(slot);
    }
}

/// The methods of [`Policy`](crate::Policy) that a field `chunks` of this table answers alone.
macro_rules! answered_by_chunks {
    () => {
        fn placed(&self, slot: u32) -> Option<Placement> {
            self.chunks.live(slot)
        }

        /// Adds a region, without merging: regions return to the source unchanged.
        fn add_region(&mut self, span: Span, _join: bool) -> Result<(), NotAdded> {
            self.chunks.add_region(span)
        }

        fn idle_bytes(&self) -> u64 {
            self.chunks.idle_bytes()
        }

        fn status(&self) -> PolicyStatus {
            PolicyStatus { reserved_bytes: self.chunks.reserved_bytes(), ..PolicyStatus::default() }
        }

        fn regions(&self) -> Vec<Span> {
            self.chunks.regions()
        }

        fn largest_free_bytes(&self) -> u64 {
            self.chunks.largest_free_bytes()
        }

        fn visit(&self, visit: &mut dyn FnMut(Piece)) {
            self.chunks.visit(visit);
        }

        fn boxed_clone(&self) -> Box<dyn Policy> {
            Box::new(self.clone())
        }
    };
}
pub(crate) use answered_by_chunks;

#[cfg(test)]
mod tests {
    use super::*;

    fn table(spans: &[(u64, u64)]) -> ChunkTable {
        let mut table = ChunkTable::default();
        for &(address, bytes) in spans {
            table.add_region(Span { address, bytes }).unwrap();
        }
        table
    }

    #[test]
    fn the_smallest_that_fits_comes_first_and_of_equals_the_lowest() {
        let table = table(&[(7000, 512), (9000, 256), (3000, 512), (1000, 1024)]);
        let from =
            |bytes| table.free_from(bytes).map(|chunk| (chunk.bytes, chunk.address)).collect::<Vec<_>>();
        assert_eq!(from(1), [(256, 9000), (512, 3000), (512, 7000), (1024, 1000)]);
        assert_eq!(from(257), [(512, 3000), (512, 7000), (1024, 1000)]);
        assert_eq!(from(1025), []);
        assert_eq!(table.largest_free_bytes(), 1024);
    }

    #[test]
    fn regions_stand_in_the_order_of_their_addresses() {
        let table = table(&[(4096, 1024), (0, 512), (512, 512)]);
        assert_eq!(table.regions().iter().map(|span| span.address).collect::<Vec<_>>(), [0, 512, 4096]);
        assert_eq!(table.reserved_bytes(), 2048);
        let start = |address| table.region_of(address).map(|span| span.address);
        assert_eq!(
            [0, 511, 512, 1023, 1024, 4095, 4096, 5120].map(start),
            [Some(0), Some(0), Some(512), Some(512), None, None, Some(4096), None]
        );
    }

    #[test]
    fn an_invalid_region_is_refused() {
        let table = table(&[(1024, 1024), (4096, 1024)]);
        let spans = [
            (0, 0),
            (8192, 0),
            (1024, 1),
            (0, 1025),
            (2047, 1),
            (3000, 1097),
            (u64::MAX, 1),
            (5120, u64::MAX),
        ];
        let add = |address, bytes| table.clone().add_region(Span { address, bytes });
        for (address, bytes) in spans {
            assert_eq!(add(address, bytes), Err(NotAdded::Bad), "{bytes} at {address}");
        }
        assert_eq!(add(2048, 2048), Ok(()));
        assert_eq!(add(5120, u64::MAX - 5120), Ok(()));
    }
}
