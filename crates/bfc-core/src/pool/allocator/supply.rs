//! Regions in and out of a pool: growth from the source, and returns to it.

use super::slow_path::RoundedRequest;
use super::{LockedPool, PolicyAllocator};
use crate::base::memory::Span;
use crate::policy::{ConfiguredPolicy, GRANULE, NotAdded, Release, whole_granules};
use crate::pool::growth::{Growth, RegionRequest, available};
use crate::source::error::SourceError;
use crate::source::sub_allocator::SubAllocator;

/// Why the pool did not grow.
#[derive(Clone, Debug)]
pub(super) enum Shortfall {
    /// The limit leaves too little.
    Limit,
    /// The source failed.
    Source(SourceError),
}

impl<P: ConfiguredPolicy> PolicyAllocator<P> {
    /// Calls the source under the lock, with detection of calls back.
    pub(super) fn call_source<R>(
        &self,
        state: &LockedPool<P>,
        call: impl FnOnce(&dyn SubAllocator) -> R,
    ) -> R {
        self.reentrancy.call(self.stats_of(state), || call(&*self.source))
    }

    /// Extends the last region by the missing bytes, if the source supports it.
    pub(super) fn extend_in_place(&self, state: &mut LockedPool<P>, request: &RoundedRequest) -> bool {
        // Without a free tail this saves nothing: a new region merges wherever the source puts it.
        let tail =
            state.policy.status().tail.filter(|tail| tail.bytes > 0 && self.source.supports_coalescing());
        let Some(tail) = tail else { return false };
        let (Some(missing), Some(end)) = (request.missing_at(tail), tail.end()) else { return false };
        let reserved = state.policy.status().reserved_bytes;
        let available = available(self.limit.bytes, reserved);
        let Some(region) = state.growth.next_region(missing, reserved, available) else { return false };
        if state.policy.region_bytes(missing, region.bytes) > region.bytes {
            // The policy requires more than the missing bytes: a packing's range.
            return false;
        }
        let Ok(span) = self.take_region(state, GRANULE, region.bytes, missing) else { return false };
        if span.address != end {
            // SAFETY: the region has just come from the source, and no policy knows it.
            unsafe { self.give_back(state, span) };
            return false;
        }
        self.add(state, span, region, request).is_ok()
    }

    /// Takes a region that holds the request: as large as the growth rule prefers, or as much less as the source
    /// provides.
    pub(super) fn extend(
        &self,
        state: &mut LockedPool<P>,
        request: &RoundedRequest,
    ) -> Result<(), Shortfall> {
        if let Some(expanded) = self.expand(state, request) {
            return expanded;
        }
        let is_exact = state.policy.capabilities().exact_regions;
        // A source that honors the alignment leaves no padding before the block. One that does not is asked a second
        // time, for a region that suffices at any start. Upstream takes the first region and then finds no room in it.
        let (mut needed, mut alignment) = (request.rounded, request.placement.alignment.max(GRANULE));
        loop {
            let reserved = state.policy.status().reserved_bytes;
            let available = available(self.limit.bytes, reserved);
            let region = state.growth.next_region(needed, reserved, available);
            let region =
                region.ok_or_else(|| self.limit.too_small().map_or(Shortfall::Limit, Shortfall::Source))?;
            let wanted = state.policy.region_bytes(needed, region.bytes);
            if is_exact && wanted > available {
                return Err(Shortfall::Limit);
            }
            let bytes = wanted.clamp(needed, available);
            let least = if is_exact { bytes } else { needed };
            let span = match self.take_region(state, alignment, bytes, least) {
                // A source that cannot honor the alignment, such as driver memory, fails the same way.
                Err(Shortfall::Source(SourceError::BadRegion { .. })) if alignment > GRANULE => {
                    (alignment, needed) = (GRANULE, request.with_most_padding());
                    continue;
                }
                taken => taken?,
            };
            if !request.fits(span) && needed < request.with_most_padding() {
                // SAFETY: the region has just come from the source, and no policy knows it.
                unsafe { self.give_back(state, span) };
                needed = request.with_most_padding();
                continue;
            }
            return self.add(state, span, region, request);
        }
    }

    /// Adds a region to the policy.
    fn add(
        &self,
        state: &mut LockedPool<P>,
        span: Span,
        region: RegionRequest,
        request: &RoundedRequest,
    ) -> Result<(), Shortfall> {
        let join = self.source.supports_coalescing();
        match state.policy.add_region_for(span, join, &request.placement) {
            Ok(()) => {
                state.accounts.note_reserved(state.policy.status().reserved_bytes);
                state.growth.succeeded(region);
                Ok(())
            }
            Err(NotAdded::Full) => {
                // SAFETY: the region has just come from the source, and the policy rejected it.
                unsafe { self.give_back(state, span) };
                Err(Shortfall::Limit)
            }
            // The region overlaps a held one, so returning it could free live memory.
            Err(NotAdded::Bad) => Err(bad_region(span)),
        }
    }

    /// Takes a region of `bytes` bytes, or of fewer but at least `needed`. It is smaller if the source has less. It is
    /// also smaller if the source delivers more than requested and thus exceeds the limit.
    fn take_region(
        &self,
        state: &LockedPool<P>,
        alignment: u64,
        bytes: u64,
        needed: u64,
    ) -> Result<Span, Shortfall> {
        let most = self.limit.bytes.saturating_sub(state.policy.status().reserved_bytes);
        let mut bytes = bytes;
        loop {
            match self.call_source(state, |source| source.allocate(alignment, bytes)) {
                Ok(span) => {
                    let sound = span.address % GRANULE == 0 && span.bytes >= bytes;
                    let sound = sound && span.end().is_some();
                    let excess = span.bytes.saturating_sub(most);
                    if sound && excess == 0 {
                        return Ok(span);
                    }
                    // SAFETY: the region has just come from the source, and no policy knows it.
                    unsafe { self.give_back(state, span) };
                    if !sound {
                        return Err(bad_region(span));
                    }
                    bytes = whole_granules(bytes.saturating_sub(excess));
                    if bytes < needed.max(1) {
                        return Err(Shortfall::Limit);
                    }
                }
                Err(error @ SourceError::Exhausted { .. }) => {
                    bytes = Growth::smaller(bytes, needed).ok_or(Shortfall::Source(error))?;
                }
                Err(error) => return Err(Shortfall::Source(error)),
            }
        }
    }

    /// Returns idle regions while `keep` bytes stay reserved. Returns the bytes released.
    pub(super) fn release_idle(&self, state: &mut LockedPool<P>, keep: u64) -> u64 {
        let mut bytes = 0;
        loop {
            let at_most = state.policy.status().reserved_bytes.saturating_sub(keep);
            let Some(span) = state.policy.release(Release::Idle { at_most }) else { break };
            bytes += span.bytes;
            self.give_back_released(state, span);
        }
        self.release_empty_segments(state);
        bytes
    }

    /// Returns the free end of the last region, as far as the source allows and while `keep` bytes stay reserved.
    /// Returns the bytes released.
    pub(super) fn release_tail(&self, state: &mut LockedPool<P>, keep: u64) -> u64 {
        let at_most = whole_granules(state.policy.status().reserved_bytes.saturating_sub(keep));
        let tail = state.policy.status().tail.map(|tail| (tail.bytes.min(at_most), tail.end()));
        let Some((bytes, Some(end))) = tail else { return 0 };
        let tail = Span { address: end - bytes, bytes };
        let boundary = self.call_source(state, |source| source.boundary_in(tail));
        let bytes =
            boundary.filter(|&address| tail.address <= address && address < end).map(|address| end - address);
        let Some(span) = bytes.and_then(|bytes| state.policy.release(Release::Tail { bytes })) else {
            return 0;
        };
        state.accounts.note_reserved(state.policy.status().reserved_bytes);
        // SAFETY: the policy has just removed the end of its last region, in which no block was live. The source has
        // confirmed that it takes this end alone.
        unsafe { self.give_back(state, span) };
        span.bytes
    }

    /// Returns regions that the policy releases.
    #[inline]
    pub(super) fn release_unwanted(&self, state: &mut LockedPool<P>, unwanted: Release) {
        while let Some(span) = state.policy.release(unwanted) {
            self.give_back_released(state, span);
        }
    }

    /// Returns the regions that the policy gives up first for this request. Returns whether there were any.
    pub(super) fn release_first_for(&self, state: &mut LockedPool<P>, request: &RoundedRequest) -> bool {
        let released = state.policy.release_for(&request.placement);
        for &span in &released {
            self.give_back_released(state, span);
        }
        !released.is_empty()
    }

    /// Returns a region to the source that the policy has just released.
    fn give_back_released(&self, state: &mut LockedPool<P>, span: Span) {
        state.accounts.note_reserved(state.policy.status().reserved_bytes);
        // SAFETY: the policy has just removed the region, in which no block was live.
        unsafe { self.give_back(state, span) };
    }

    /// Returns a region to the source.
    ///
    /// # Safety
    /// The region came from the source, no policy holds it, and nothing uses it.
    pub(super) unsafe fn give_back(&self, state: &LockedPool<P>, span: Span) {
        self.call_source(state, |source| {
            // SAFETY: guaranteed by the caller.
            unsafe { source.free(span) }
        });
    }
}

pub(super) fn bad_region(span: Span) -> Shortfall {
    Shortfall::Source(SourceError::BadRegion { address: span.address, bytes: span.bytes })
}
