//! The packed range: taking it from the fallback, returning it, and placing guests in it.

use super::script::Script;
use super::{Packed, Slot};
use crate::base::memory::Span;
use crate::base::placement::Placement;
use crate::base::units::round_up;
use crate::policy::{PlacementRequest, Policy};

impl<P: Policy> Packed<P> {
    /// Takes the packed range from the fallback, if it has room for the range and the pending request.
    pub(super) fn take_range(&mut self) -> bool {
        if self.range.is_some() || self.script.capacity == 0 {
            return self.range.is_some();
        }
        let request = PlacementRequest::new(self.script.capacity).with_alignment(self.script.alignment);
        let Some(range) = self.fallback.place(&request) else { return false };
        if let Some(unmet) = self.unmet.filter(|unmet| !self.is_next(unmet)) {
            match self.fallback.place(&unmet) {
                Some(place) => self.free_in_fallback(place.slot),
                None => {
                    self.free_in_fallback(range.slot);
                    return false;
                }
            }
        }
        self.range = Some(range);
        self.unmet = None;
        true
    }

    /// Returns the empty packed range to the fallback. Returns whether it did.
    pub(super) fn hand_range_back(&mut self) -> bool {
        if self.live > 0 {
            return false;
        }
        let Some(range) = self.range.take() else { return false };
        self.free_in_fallback(range.slot);
        true
    }

    /// Returns the largest empty span of the range, or 0.
    pub(super) fn largest_hole(&self) -> u64 {
        let mut largest = 0;
        if let Some(range) = self.range {
            self.pieces(range, |span, slot| {
                largest = if slot.is_none() { span.bytes.max(largest) } else { largest }
            });
        }
        largest
    }

    fn free_in_fallback(&mut self, slot: u32) {
        let freed = self.fallback.free(slot);
        debug_assert!(freed.is_ok(), "the block has just been placed, or is the range");
    }

    /// Whether the packing expects this request next.
    pub(super) fn is_next(&self, request: &PlacementRequest) -> bool {
        let next = self.script.entries.get(self.position as usize).or(self.script.entries.first());
        let packed = next.filter(|entry| entry.offset != Script::NOWHERE);
        packed.is_some_and(|entry| entry.bytes == request.bytes && entry.is_aligned(request))
            && self.can_pack(request)
    }

    /// Whether a block of this size is possible without more memory: in the fallback with the range's memory, or in a
    /// hole of the range.
    pub(super) fn make_way(&mut self, request: &PlacementRequest) -> bool {
        if self.hand_range_back() {
            if let Some(place) = self.fallback.place(request) {
                self.free_in_fallback(place.slot);
                return true;
            }
            return self.fallback.merge_until_fit(request);
        }
        // A guest uses the slot of a packed block that is not live.
        self.admit_guest = self.slots.contains(&Slot::Free) && self.hole(request).is_some();
        self.admit_guest
    }

    /// Places a block outside of the packing.
    pub(super) fn place_aside(&mut self, request: &PlacementRequest) -> Option<Placement> {
        let slots = self.script.len();
        let place = self.fallback.place(request);
        if let Some(place) = place {
            self.unmet = None;
            if let Some(slot) = place.slot.checked_add(slots) {
                return Some(Placement { slot, ..place });
            }
            self.free_in_fallback(place.slot);
            return None;
        }
        let guest = if std::mem::take(&mut self.admit_guest) { self.place_guest(request) } else { None };
        self.unmet = if guest.is_none() { Some(*request) } else { None };
        guest
    }

    /// Places a block in a hole of the packed range, in the slot of a packed block that is not live.
    fn place_guest(&mut self, request: &PlacementRequest) -> Option<Placement> {
        let range = self.range?;
        let (offset, bytes) = self.hole(request)?;
        let slot = self.slots.iter().rposition(|&slot| slot == Slot::Free)?;
        self.slots[slot] = Slot::Guest;
        self.live += 1;
        self.intruders.add(offset, bytes, slot as u32);
        Some(Placement { address: range.address + offset, bytes, slot: slot as u32 })
    }

    /// Returns the lowest hole of the range that fits this request: its offset and the bytes to take.
    fn hole(&self, request: &PlacementRequest) -> Option<(u64, u64)> {
        let range = self.range?;
        let bytes = round_up(request.bytes, self.script.granule)?;
        let alignment = request.alignment.max(self.script.granule);
        let mut found = None;
        self.pieces(range, |span, slot| {
            let aligned = round_up(span.address, alignment);
            let fits = aligned.filter(|&address| {
                let end = address.checked_add(bytes);
                end.is_some_and(|end| end <= span.address + span.bytes)
            });
            if let (None, None, Some(address)) = (slot, found, fits) {
                found = Some((address - range.address, bytes));
            }
        });
        found
    }

    /// Visits the range in order, with the slots of live blocks.
    pub(super) fn pieces(&self, range: Placement, mut show: impl FnMut(Span, Option<u32>)) {
        let mut at = range.address;
        for (slot, span) in self.live_in_range() {
            let address = range.address + span.address;
            if address > at {
                show(Span { address: at, bytes: address - at }, None);
            }
            show(Span { address, ..span }, Some(slot));
            at = address + span.bytes;
        }
        let end = range.address + range.bytes;
        if end > at {
            show(Span { address: at, bytes: end - at }, None);
        }
    }

    /// Returns the live blocks in the range, by offset.
    pub(super) fn live_in_range(&self) -> Vec<(u32, Span)> {
        let expected =
            (0..).zip(&self.slots).filter(|(_, slot)| **slot == Slot::Expected).map(|(slot, _)| {
                let entry = &self.script.entries[slot as usize];
                (slot, Span { address: entry.offset, bytes: entry.granted })
            });
        let mut live: Vec<(u32, Span)> = expected.chain(self.intruders.iter()).collect();
        live.sort_unstable_by_key(|(_, span)| span.address);
        live
    }

    /// Returns the span of a live slot of the packing, relative to the range.
    pub(super) fn span_of(&self, slot: u32) -> Option<Span> {
        let entry = self.script.entries.get(slot as usize)?;
        match self.slots[slot as usize] {
            Slot::Free => None,
            Slot::Expected | Slot::Overdue => Some(Span { address: entry.offset, bytes: entry.granted }),
            Slot::Guest => self.intruders.of_slot(slot),
        }
    }
}
