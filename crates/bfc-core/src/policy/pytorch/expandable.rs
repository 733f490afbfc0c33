//! `expandable_segments:True`: the memory of a set is mapped into segments, which grow at their ends and in their gaps.

use super::{Pytorch, rounding};
use crate::base::memory::Span;
use crate::policy::sealed::Sealed;
use crate::policy::{NotAdded, PlacementRequest, Policy};

/// The methods of a policy that maps memory into reserved ranges of addresses. Only [`Pytorch`] implements it.
pub trait ExpandingPolicy: Sealed {
    /// Returns the bytes of a handle: memory for the request is mapped and unmapped in such pieces.
    fn handle_bytes(&mut self, request: &PlacementRequest) -> Option<u64>;

    /// Returns the spans to [map](Self::map) for a request that found no place, in this order. `None` if no segment of
    /// its set has enough addresses.
    fn spans_to_map(&mut self, request: &PlacementRequest) -> Option<Vec<Span>>;

    /// Adds a reserved range of addresses to the set of the request.
    ///
    /// # Errors
    /// See [`NotAdded`].
    fn add_segment(&mut self, range: Span, request: &PlacementRequest) -> Result<(), NotAdded>;

    /// Returns the range of a segment that left with its last memory. It then belongs to the caller.
    fn take_emptied(&mut self) -> Option<Span>;

    /// Learns that the source has mapped one of the spans.
    ///
    /// # Errors
    /// Fails if the span is not the start of unmapped addresses.
    fn map(&mut self, span: Span) -> Result<(), NotAdded>;

    /// Forgets for which request the policy grows, because the source failed. Mapped spans stay free memory.
    fn forget_growth(&mut self);
}

impl Sealed for Pytorch {}

impl ExpandingPolicy for Pytorch {
    fn handle_bytes(&mut self, request: &PlacementRequest) -> Option<u64> {
        let set = self.set_of(request)?;
        Some(self.chunks.handle_of(set))
    }

    fn spans_to_map(&mut self, request: &PlacementRequest) -> Option<Vec<Span>> {
        let padding = request.alignment.saturating_sub(rounding::STEP);
        let bytes = self.rounded(request.bytes, request.alignment)?.checked_add(padding)?;
        let set = self.set_of(request)?;
        let (first, spans) = self.chunks.lowest_run(set, bytes)?;
        // Without a span, the first chunk is free and large enough.
        self.fresh = Some(first);
        Some(spans)
    }

    fn add_segment(&mut self, range: Span, request: &PlacementRequest) -> Result<(), NotAdded> {
        let set = self.set_of(request).ok_or(NotAdded::Full)?;
        self.chunks.add_segment(range, set)
    }

    fn take_emptied(&mut self) -> Option<Span> {
        self.chunks.take_emptied()
    }

    fn map(&mut self, span: Span) -> Result<(), NotAdded> {
        self.fresh = Some(self.chunks.map(span)?.slot);
        Ok(())
    }

    fn forget_growth(&mut self) {
        self.fresh = None;
    }
}
