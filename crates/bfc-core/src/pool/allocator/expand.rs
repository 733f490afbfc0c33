//! Growth of segments: memory mapped into reserved ranges of addresses.

use super::slow_path::RoundedRequest;
use super::supply::{Shortfall, bad_region};
use super::{LockedPool, PolicyAllocator};
use crate::base::memory::Span;
use crate::policy::{ConfiguredPolicy, ExpandingPolicy, NotAdded, PlacementRequest, Policy};
use crate::pool::growth::available;
use crate::source::error::SourceError;

impl<P: ConfiguredPolicy> PolicyAllocator<P> {
    /// Maps memory for a request. `None` if the policy or the source has no segments.
    pub(super) fn expand(
        &self,
        state: &mut LockedPool<P>,
        request: &RoundedRequest,
    ) -> Option<Result<(), Shortfall>> {
        let request = &request.placement;
        let handle = expanding(state)?.handle_bytes(request)?;
        if !self.source.supports_segments() {
            return None;
        }
        let spans = match self.spans_to_map(state, request, handle) {
            Ok(spans) => spans,
            Err(shortfall) => return Some(Err(shortfall)),
        };
        // Spans before a failure stay mapped, as upstream.
        let mapped = spans.into_iter().try_for_each(|span| self.map(state, span, handle));
        if let (Err(_), Some(segments)) = (&mapped, expanding(state)) {
            segments.forget_growth();
        }
        Some(mapped)
    }

    /// Returns the spans to map, if need be in a new segment.
    fn spans_to_map(
        &self,
        state: &mut LockedPool<P>,
        request: &PlacementRequest,
        handle: u64,
    ) -> Result<Vec<Span>, Shortfall> {
        let find = |state: &mut LockedPool<P>| expanding(state)?.spans_to_map(request);
        if let Some(spans) = find(state) {
            return Ok(spans);
        }
        // An eighth more than there is memory, because live blocks may leave gaps.
        let memory = self.call_source(state, |source| source.total_bytes()).unwrap_or(self.limit.bytes);
        let exhausted = || Shortfall::Source(SourceError::Exhausted { bytes: memory });
        let bytes = memory.checked_add(memory / 8).and_then(|bytes| bytes.checked_next_multiple_of(handle));
        let rounded = state.policy.rounded(request.bytes, request.alignment).unwrap_or(u64::MAX);
        let bytes = bytes.filter(|&bytes| rounded <= bytes).ok_or_else(exhausted)?;
        let range = self.call_source(state, |source| source.reserve(bytes)).map_err(Shortfall::Source)?;
        let segments = expanding(state).ok_or(Shortfall::Limit)?;
        segments.add_segment(range, request).map_err(|error| match error {
            NotAdded::Full => Shortfall::Limit,
            NotAdded::Bad => bad_region(range),
        })?;
        find(state).ok_or(Shortfall::Limit)
    }

    /// Releases the ranges of segments that left with their last memory.
    pub(super) fn release_empty_segments(&self, state: &mut LockedPool<P>) {
        while let Some(range) = expanding(state).and_then(|segments| segments.take_emptied()) {
            self.call_source(state, |source| {
                // SAFETY: the source has reserved the range, and nothing is mapped in it. The policy has just removed it.
                unsafe { source.release_range(range) }
            });
        }
    }

    fn map(&self, state: &mut LockedPool<P>, span: Span, handle: u64) -> Result<(), Shortfall> {
        if span.bytes > available(self.limit.bytes, state.policy.status().reserved_bytes) {
            return Err(Shortfall::Limit);
        }
        self.call_source(state, |source| {
            // SAFETY: the span lies in a segment, which the source has reserved, and the policy has it as unmapped.
            unsafe { source.map(span, handle) }
        })
        .map_err(Shortfall::Source)?;
        let mapped = expanding(state).ok_or(NotAdded::Bad).and_then(|segments| segments.map(span));
        if mapped.is_err() {
            // SAFETY: the source has just mapped the span, and no policy knows it as mapped.
            unsafe { self.give_back(state, span) };
            return Err(Shortfall::Limit);
        }
        state.accounts.note_reserved(state.policy.status().reserved_bytes);
        Ok(())
    }
}

fn expanding<P: Policy>(state: &mut LockedPool<P>) -> Option<&mut dyn ExpandingPolicy> {
    state.policy.expanding()
}
