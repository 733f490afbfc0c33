//! Blocks in the packed range that violate the packing: packed blocks after their lifetime, and guest blocks. Usually
//! there are none.

use std::collections::BTreeMap;

use crate::base::memory::Span;

/// The spans, as offsets from the start of the packed range.
#[derive(Clone, Debug, Default)]
pub(super) struct Intruders {
    /// By offset: the end and the slot.
    spans: BTreeMap<u64, (u64, u32)>,
}

impl Intruders {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }

    pub(super) fn add(&mut self, offset: u64, bytes: u64, slot: u32) {
        self.spans.insert(offset, (offset + bytes, slot));
    }

    pub(super) fn remove(&mut self, offset: u64) {
        self.spans.remove(&offset);
    }

    /// Whether an intruder overlaps this span. Intruders are disjoint, so only the last one that starts before the
    /// span's end can.
    pub(super) fn overlap(&self, offset: u64, bytes: u64) -> bool {
        let before_end = self.spans.range(..offset.saturating_add(bytes)).next_back();
        before_end.is_some_and(|(_, &(end, _))| end > offset)
    }

    /// Iterates over the slots with their spans.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, Span)> + '_ {
        self.spans.iter().map(|(&address, &(end, slot))| (slot, Span { address, bytes: end - address }))
    }

    /// Returns the span of a slot, by a linear search.
    pub(super) fn of_slot(&self, slot: u32) -> Option<Span> {
        self.iter().find(|&(other, _)| other == slot).map(|(_, span)| span)
    }
}
