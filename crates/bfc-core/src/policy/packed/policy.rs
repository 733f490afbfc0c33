//! The `Policy` implementation, served by the packing or the fallback.

use super::{Packed, Slot};
use crate::base::memory::Span;
use crate::base::placement::PackingCounts;
use crate::base::placement::{Inconsistent, Placement};
use crate::policy::{
    Capabilities, NotAdded, NotLive, PackingFollower, Piece, PlacementRequest, Policy, PolicyStatus, Release,
};

impl<P: Policy + Clone> Policy for Packed<P> {
    fn name(&self) -> &'static str {
        "packed"
    }

    /// A packed request may find its offset free while a smaller one finds no room outside of the packing.
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            is_ordered_by_size: false,
            supports_caches: false,
            follows_packing: true,
            ..self.fallback.capabilities()
        }
    }

    fn rounded(&self, bytes: u64, alignment: u64) -> Option<u64> {
        self.fallback.rounded(bytes, alignment)
    }

    #[inline]
    fn place(&mut self, request: &PlacementRequest) -> Option<Placement> {
        match self.follow(request) {
            Some(place) => Some(place),
            None => self.depart(request),
        }
    }

    #[inline]
    fn placed(&self, slot: u32) -> Option<Placement> {
        let slots = self.script.len();
        if slot < slots {
            let span = self.span_of(slot)?;
            let range = self.range?;
            return Some(Placement { address: range.address + span.address, bytes: span.bytes, slot });
        }
        let place = self.fallback.placed(slot - slots)?;
        let is_range = self.range.is_some_and(|range| range.slot == place.slot);
        (!is_range).then_some(Placement { slot, ..place })
    }

    #[inline]
    fn free(&mut self, slot: u32) -> Result<(), NotLive> {
        match self.slots.get_mut(slot as usize) {
            Some(state @ Slot::Expected) => {
                *state = Slot::Free;
                self.live -= 1;
                Ok(())
            }
            Some(_) => self.free_intruder(slot),
            None => {
                let in_fallback = slot - self.script.len();
                if self.range.is_some_and(|range| range.slot == in_fallback) {
                    return Err(NotLive { slot });
                }
                self.fallback.free(in_fallback).map_err(|_| NotLive { slot })
            }
        }
    }

    fn add_region(&mut self, span: Span, join: bool) -> Result<(), NotAdded> {
        self.fallback.add_region(span, join)?;
        self.no_room = !self.take_range();
        Ok(())
    }

    fn idle_bytes(&self) -> u64 {
        let idle = self.fallback.idle_bytes();
        let Some(range) = self.range.filter(|_| self.live == 0) else { return idle };
        // The region of the range, if it holds nothing else.
        let mut home = None;
        let mut others = 0;
        self.fallback.visit(&mut |piece| {
            if piece.slot == Some(range.slot) {
                home = Some(piece.region);
            }
        });
        self.fallback.visit(&mut |piece| {
            let busy = piece.slot.is_some_and(|slot| slot != range.slot);
            others += u64::from(Some(piece.region) == home && busy);
        });
        let region = home.filter(|_| others == 0).and_then(|home| self.fallback.regions().get(home).copied());
        idle + region.map_or(0, |region| region.bytes)
    }

    #[inline]
    fn release(&mut self, release: Release) -> Option<Span> {
        match release {
            Release::Idle { at_most } => self.take_idle(at_most),
            // The fallback does not release the range by itself.
            other => self.fallback.release(other),
        }
    }

    fn status(&self) -> PolicyStatus {
        self.fallback.status()
    }

    fn regions(&self) -> Vec<Span> {
        self.fallback.regions()
    }

    fn largest_free_bytes(&self) -> u64 {
        self.fallback.largest_free_bytes().max(self.largest_hole())
    }

    /// An empty range counts with its free neighbors, because it is returned for a request without other room.
    fn largest_obtainable_bytes(&self) -> u64 {
        let Some(range) = self.range.filter(|_| self.live == 0) else {
            return self.fallback.largest_obtainable_bytes().max(self.largest_hole());
        };
        // Only the fallback knows the merged size. This runs between steps for waiting requests, so a clone is
        // affordable.
        let mut fallback = self.fallback.clone();
        let freed = fallback.free(range.slot);
        debug_assert!(freed.is_ok(), "the range is a block of the fallback");
        fallback.largest_obtainable_bytes()
    }

    fn visit(&self, visit: &mut dyn FnMut(Piece)) {
        let slots = self.script.len();
        self.fallback.visit(&mut |piece| match self.range {
            Some(range) if piece.slot == Some(range.slot) => {
                self.pieces(range, |span, slot| visit(Piece::new(piece.region, span, slot)));
            }
            _ => visit(Piece { slot: piece.slot.and_then(|slot| slot.checked_add(slots)), ..piece }),
        });
    }

    fn region_bytes(&self, rounded: u64, proposed: u64) -> u64 {
        let bytes = self.fallback.region_bytes(rounded, proposed);
        if self.range.is_some() || self.no_room {
            return bytes;
        }
        // The range, plus room for the request outside of the packing.
        let beside = self.unmet.filter(|unmet| !self.is_next(unmet));
        let beside = beside.map_or(0, |_| rounded.saturating_add(self.script.granule));
        bytes.max(self.script.capacity.saturating_add(beside))
    }

    fn merge_until_fit(&mut self, request: &PlacementRequest) -> bool {
        self.fallback.merge_until_fit(request) || self.make_way(request)
    }

    fn check(&self) -> Result<(), Inconsistent> {
        self.fallback.check()?;
        let wrong = |detail: String| Err(Inconsistent { policy: self.name(), detail });
        let live = self.live_in_range();
        if live.len() != self.live as usize {
            return wrong(format!("{} blocks are counted as live, {} are", self.live, live.len()));
        }
        for (slot, span) in self.intruders.iter() {
            if !matches!(self.slots[slot as usize], Slot::Overdue | Slot::Guest)
                || self.span_of(slot) != Some(span)
            {
                return wrong(format!("slot {slot} is no intruder at {span:?}"));
            }
        }
        let (passed, entries) = (self.position, &self.script.entries);
        let expected = (0..).zip(&self.slots).filter(|(_, slot)| **slot == Slot::Expected);
        for (slot, _) in expected {
            if slot >= passed || entries[slot as usize].gone_by < passed {
                return wrong(format!("slot {slot} is not to be live when {passed} allocations have passed"));
            }
        }
        let intruding = self.slots.iter().filter(|slot| matches!(slot, Slot::Overdue | Slot::Guest)).count();
        if intruding != self.intruders.len() {
            return wrong(format!("{intruding} slots hold intruders, {} are noted", self.intruders.len()));
        }
        let Some(range) = self.range else {
            return if live.is_empty() { Ok(()) } else { wrong("blocks are live in no range".to_owned()) };
        };
        if self.fallback.placed(range.slot) != Some(range) || range.bytes < self.script.capacity {
            return wrong(format!("the range is not the fallback's block {range:?}"));
        }
        let mut at = 0;
        for (slot, span) in live {
            if span.address < at || span.address + span.bytes > range.bytes {
                return wrong(format!(
                    "slot {slot} at {span:?} overlaps what ends at {at}, or leaves the range"
                ));
            }
            at = span.address + span.bytes;
        }
        Ok(())
    }

    fn packing_follower(&mut self) -> Option<&mut dyn PackingFollower> {
        Some(self)
    }

    fn boxed_clone(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

impl<P: Policy + Clone> PackingFollower for Packed<P> {
    fn begin_step(&mut self) {
        // Calls the inherent methods of the same names.
        Self::begin_step(self);
    }

    fn counts(&self) -> PackingCounts {
        Self::counts(self)
    }
}

impl<P: Policy> Packed<P> {
    /// Releases an idle region of the fallback, if necessary the one with the empty range.
    fn take_idle(&mut self, at_most: u64) -> Option<Span> {
        if let Some(span) = self.fallback.release(Release::Idle { at_most }) {
            return Some(span);
        }
        if !self.hand_range_back() {
            return None;
        }
        let span = self.fallback.release(Release::Idle { at_most });
        if span.is_none() {
            // That did not help; the range fits where it was.
            self.take_range();
        }
        span
    }

    #[cold]
    fn free_intruder(&mut self, slot: u32) -> Result<(), NotLive> {
        let span = self.span_of(slot).ok_or(NotLive { slot })?;
        self.intruders.remove(span.address);
        self.slots[slot as usize] = Slot::Free;
        self.live -= 1;
        Ok(())
    }
}
