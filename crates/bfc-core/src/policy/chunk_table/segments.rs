//! Segments: ranges of addresses whose memory is mapped and unmapped in parts.
//!
//! ```text
//! segment:  | live | free | unmapped | live | unmapped                  |
//! regions:  |-- region 0 -|          |- 1 --|
//! ```
//!
//! A segment belongs to one set. Its unmapped addresses are chunks too, so that a search sees how far a free chunk can
//! grow.

use super::{Chunk, ChunkTable, FreeChunk, NONE, Region, SlotState};
use crate::base::memory::Span;
use crate::policy::NotAdded;

impl ChunkTable {
    /// Adds a range of addresses without memory to a set.
    pub(crate) fn add_segment(&mut self, span: Span, set: u16) -> Result<(), NotAdded> {
        self.add_chunk(span, set, SlotState::Unmapped).map(|_| ())
    }

    /// Whether a chunk lies in a segment.
    pub(crate) fn is_in_segment(&self, slot: u32) -> bool {
        self.slots[slot as usize].in_segment
    }

    /// Returns the size of a free chunk together with the unmapped addresses behind it.
    pub(crate) fn bytes_with_growth(&self, chunk: &FreeChunk) -> u64 {
        let next = self.slots.get(self.slots[chunk.slot as usize].next as usize);
        let unmapped = next.filter(|next| next.state == SlotState::Unmapped);
        chunk.bytes + unmapped.map_or(0, |next| next.bytes)
    }

    /// Returns the lowest run of free and unmapped chunks of a set that holds `bytes` bytes and is not mapped throughout:
    /// its first chunk, and the spans to map, from the lowest on.
    pub(crate) fn lowest_run(&self, set: u16, bytes: u64) -> Option<(u32, Vec<Span>)> {
        let handle = self.handle_of(set);
        let mut of_set = self.unmapped.values().copied().filter(|&slot| self.set_of(slot) == set);
        of_set.find_map(|slot| {
            let below = self.slots[slot as usize].prev;
            let first = if self.free_chunk(below).is_some() { below } else { slot };
            Some((first, self.spans_to_map(first, bytes, handle)?))
        })
    }

    /// Returns the spans to map so that the chunk and those behind it become one free chunk of at least `bytes` bytes;
    /// `None` if a live block is in the way.
    fn spans_to_map(&self, first: u32, bytes: u64, handle: u64) -> Option<Vec<Span>> {
        let (mut slot, mut missing, mut spans) = (first, bytes, Vec::new());
        while missing > 0 {
            let chunk = self.slots.get(slot as usize)?;
            let usable = match chunk.state {
                SlotState::Free => chunk.bytes,
                SlotState::Unmapped => missing.checked_next_multiple_of(handle)?.min(chunk.bytes),
                SlotState::Live | SlotState::Vacant => return None,
            };
            if chunk.state == SlotState::Unmapped {
                spans.push(Span { address: chunk.address, bytes: usable });
            }
            missing = missing.saturating_sub(usable);
            slot = chunk.next;
        }
        Some(spans)
    }

    /// Marks the lower end of an unmapped chunk as mapped, and merges it with its free neighbors. Returns the result.
    pub(crate) fn map(&mut self, span: Span) -> Result<FreeChunk, NotAdded> {
        let Some(&slot) = self.unmapped.get(&span.address) else { return Err(NotAdded::Bad) };
        let whole = self.slots[slot as usize];
        if span.bytes == 0 || span.bytes > whole.bytes {
            return Err(NotAdded::Bad);
        }
        if !self.has_room_for(1) {
            return Err(NotAdded::Full);
        }
        self.unlist(slot, &whole);
        let mut mapped = Chunk { state: SlotState::Live, bytes: span.bytes, ..whole };
        if span.bytes < whole.bytes {
            let (address, bytes) = (span.address + span.bytes, whole.bytes - span.bytes);
            let rest = Chunk { address, bytes, prev: slot, ..whole };
            mapped.next = self.insert(rest);
            self.store(mapped.next, rest);
            self.link_back(whole.next, mapped.next);
        }
        self.slots[slot as usize] = mapped;
        self.reserved += span.bytes;
        Ok(self.merge(slot, SlotState::Free))
    }

    /// Unmaps whole handles of at most this many bytes in a free chunk. Returns their span. A segment without mapped
    /// memory leaves the table: see [`take_emptied`](Self::take_emptied).
    pub(crate) fn unmap_idle(&mut self, at_most: u64) -> Option<Span> {
        let mut idle = self.idle_handles().filter_map(|(slot, span)| {
            let bytes = span.bytes.min(at_most - at_most % self.handle_of(self.set_of(slot)));
            (bytes > 0).then_some((slot, Span { bytes, ..span }))
        });
        let (slot, span) = idle.next().filter(|_| self.has_room_for(2))?;
        drop(idle);
        let place = self.carve(slot, span.address, span.bytes);
        self.reserved -= span.bytes;
        let unmapped = self.merge(place.slot, SlotState::Unmapped).slot;
        if self.slots[unmapped as usize].is_whole() {
            self.remove_segment(unmapped);
        }
        Some(span)
    }

    fn remove_segment(&mut self, slot: u32) {
        let chunk = self.slots[slot as usize];
        self.unlist(slot, &chunk);
        self.remove(slot);
        self.regions.retain(|region| region.first != slot);
        self.emptied.push(Span { address: chunk.address, bytes: chunk.bytes });
    }

    /// Returns the range of a segment that has left, once.
    pub(crate) fn take_emptied(&mut self) -> Option<Span> {
        self.emptied.pop()
    }

    /// Returns the whole handles in free chunks of segments, each with the slot of the chunk.
    pub(super) fn idle_handles(&self) -> impl Iterator<Item = (u32, Span)> + '_ {
        let sets = self.sets().filter(|&set| self.handle_of(set) > 0);
        sets.flat_map(move |set| {
            let handle = self.handle_of(set);
            self.free_in(set, handle).filter(|chunk| self.is_in_segment(chunk.slot)).filter_map(
                move |chunk| {
                    let segment = self.region_of(chunk.address)?.address;
                    let offset = chunk.address - segment;
                    let start = offset.checked_next_multiple_of(handle)?;
                    let end = (offset + chunk.bytes) / handle * handle;
                    let bytes = end.checked_sub(start).filter(|&bytes| bytes > 0)?;
                    Some((chunk.slot, Span { address: segment + start, bytes }))
                },
            )
        })
    }

    /// Returns the bytes that are mapped and unmapped as one in a set; 0 without segments.
    pub(crate) fn handle_of(&self, set: u16) -> u64 {
        self.sets[usize::from(set)].handle
    }

    pub(super) fn is_segment(&self, region: &Region) -> bool {
        self.slots[region.first as usize].in_segment
    }

    /// Adds the mapped parts of a segment to the regions.
    pub(super) fn mapped_parts(&self, segment: &Region, regions: &mut Vec<Span>) {
        let (mut slot, mut end) = (segment.first, None);
        while slot != NONE {
            let chunk = &self.slots[slot as usize];
            let is_mapped = chunk.state != SlotState::Unmapped;
            match regions.last_mut().filter(|last| end.is_some() && last.end() == end) {
                Some(part) if is_mapped => part.bytes += chunk.bytes,
                _ if is_mapped => regions.push(Span { address: chunk.address, bytes: chunk.bytes }),
                _ => {}
            }
            end = is_mapped.then(|| chunk.end());
            slot = chunk.next;
        }
    }
}
