//! One attempt at a request, from the search to the out-of-memory report.

use super::supply::Shortfall;
use super::{LockedPool, PolicyAllocator, TimingCounter, placement_request};
use crate::accounting::retry::Refusal;
use crate::allocator::Request;
use crate::allocator::error::AllocError;
use crate::allocator::oom::{OomReport, RegionUse, Verdict};
use crate::allocator::request::WaitKey;
use crate::allocator::stats::Stats;
use crate::base::ledger::Tag;
use crate::base::memory::{Block, Span};
use crate::base::sync::ThreadNumber;
use crate::base::units::round_up;
use crate::policy::{ConfiguredPolicy, GRANULE, PlacementRequest, Policy, Release};
use crate::pool::growth::available;
use crate::source::error::SourceError;

/// A request with its rounded size, which the limit allows.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundedRequest {
    pub(super) placement: PlacementRequest,
    /// The minimum size of the block.
    pub(super) rounded: u64,
    pub(super) tag: Tag,
}

impl RoundedRequest {
    /// Whether a region holds the block and the padding before it.
    pub(super) const fn fits(&self, region: Span) -> bool {
        // The sum stays below 2^64: `Policy::rounded` has checked it.
        let padding = region.address.wrapping_neg() & (self.placement.alignment - 1);
        padding + self.rounded <= region.bytes
    }

    /// Returns the bytes missing behind a free chunk at the end of a region; `None` if it suffices, or beyond the end
    /// of the address space.
    pub(super) fn missing_at(&self, tail: Span) -> Option<u64> {
        let start = round_up(tail.address, self.placement.alignment.max(GRANULE))?;
        start.checked_add(self.rounded)?.checked_sub(tail.end()?).filter(|&missing| missing > 0)
    }

    /// Returns the bytes that suffice for any start of a region: with the largest possible padding.
    pub(super) const fn with_most_padding(&self) -> u64 {
        self.rounded + self.placement.alignment.saturating_sub(GRANULE)
    }
}

impl<P: ConfiguredPolicy> PolicyAllocator<P> {
    /// Serves a request that failed the fast path: from the caches, after a merge of pending frees, or by the slow path.
    #[inline(never)]
    pub(super) fn allocate_otherwise(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        match self.allocate_cached(request).or_else(|| self.allocate_timed(request)) {
            Some(block) => Ok(block.in_pairs()),
            None => self.allocate_slowly(request),
        }
    }

    /// Allocates the block if the pool has a counter, the request admits all frees, and a free chunk fits.
    #[inline]
    fn allocate_timed(&self, request: &Request<'_>) -> Option<Block> {
        let counter = self.timing.as_ref().filter(|_| !TimingCounter::binds(request))?;
        self.allocate_free(request, |state| counter.merge_ripe(&mut state.policy))
    }

    /// Makes room or waits for frees, or fails.
    #[cold]
    fn allocate_slowly(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        self.allocate_or_wait(request).map_err(|mut error| {
            if let AllocError::OutOfMemory(report) = &mut error {
                report.subject = request.contents.map(Into::into);
            }
            error
        })
    }

    fn allocate_or_wait(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        if request.bytes == 0 {
            return Ok(Block::EMPTY);
        }
        if !request.alignment.is_power_of_two() {
            let (allocator, alignment) = (self.name.clone(), request.alignment);
            return Err(AllocError::BadAlignment { allocator, alignment });
        }
        let thread = self.enter().ok_or_else(|| AllocError::Reentrant { allocator: self.name.clone() })?;
        let retry = self.config.retry && request.attributes.retry_on_failure;
        let in_full = !request.attributes.brief;
        let refusal = match self.attempt(request, thread, !retry && in_full) {
            Ok(block) => return Ok(block),
            Err(refusal) => refusal,
        };
        if !(retry && refusal.wait) {
            return Err(refusal.error);
        }
        let attempt = |last| self.attempt(request, thread, last && in_full);
        self.retry.allocate_as(self.wait_key_of(request), self.config.retry_timeout, attempt)
    }

    /// Makes one attempt. Only the `last` one computes the holders and the what-if answers.
    fn attempt(&self, request: &Request<'_>, thread: ThreadNumber, last: bool) -> Result<Block, Refusal> {
        let placement = self.placement_of(request);
        let state = &mut *self.state.lock();
        state.users.note(thread, &mut state.accounts, &self.retry);
        self.merge_ripe(state);
        match state.allocate(&placement, request.tag) {
            Some(block) => Ok(block),
            None => self.attempt_with_room(state, placement, request.tag, last),
        }
    }

    fn attempt_with_room(
        &self,
        state: &mut LockedPool<P>,
        placement: PlacementRequest,
        tag: Tag,
        last: bool,
    ) -> Result<Block, Refusal> {
        let Some(rounded) = state.policy.rounded(placement.bytes, placement.alignment) else {
            let (allocator, bytes, alignment) = (self.name.clone(), placement.bytes, placement.alignment);
            return Err(Refusal { error: AllocError::TooLarge { allocator, bytes, alignment }, wait: false });
        };
        let request = RoundedRequest { placement, rounded, tag };
        if let Some(block) = self.allocate_from_caches(state, &request) {
            return Ok(block);
        }
        self.make_room(state, &request).or_else(|cause| {
            // Before the last search of the caches: a thread that freed into one may have ended, and then no request
            // waits for it.
            let can_free = self.could_be_freed(state);
            // Other threads may have freed while the source was called.
            let found = self.allocate_from_caches(state, &request);
            found.ok_or_else(|| self.refuse(state, &request, cause, can_free, last))
        })
    }

    /// Makes room and retries, in upstream's order: grow, merge pending memory, return the regions that the policy gives
    /// up first and then all idle ones, and grow in their place.
    fn make_room(&self, state: &mut LockedPool<P>, request: &RoundedRequest) -> Result<Block, Shortfall> {
        if self.has_place_for(state, request) {
            self.release_unwanted(state, Release::BeforeGrowth);
        }
        let mut cause = match self.extend_and_allocate(state, request) {
            Ok(block) => return Ok(block),
            Err(cause) => cause,
        };
        if state.policy.merge_until_fit(&request.placement) {
            return state.allocate(&request.placement, request.tag).ok_or(cause);
        }
        if self.release_first_for(state, request) {
            cause = match self.extend_and_allocate(state, request) {
                Ok(block) => return Ok(block),
                Err(cause) => cause,
            };
        }
        let releases = self.config.garbage_collection || self.releases_before_failure(&state.policy);
        if releases && self.release_for(state, request) {
            cause = match self.extend_and_allocate(state, request) {
                Ok(block) => return Ok(block),
                Err(cause) => cause,
            };
        }
        Err(cause)
    }

    /// Returns idle regions if a larger one in their place could hold the request, or if the policy keeps none before a
    /// failure. Returns whether there were any.
    fn release_for(&self, state: &mut LockedPool<P>, request: &RoundedRequest) -> bool {
        let goes = self.releases_before_failure(&state.policy) || self.has_place_for(state, request);
        goes && self.release_idle(state, 0) > 0
    }

    fn releases_before_failure(&self, policy: &P) -> bool {
        policy.capabilities().releases_before_failure
    }

    /// Whether the limit leaves enough for the request, after returning idle regions. If not, the pool keeps them for
    /// other requests.
    fn has_place_for(&self, state: &LockedPool<P>, request: &RoundedRequest) -> bool {
        let unreserved = available(self.limit.bytes, state.policy.status().reserved_bytes);
        request.rounded <= unreserved.saturating_add(state.policy.idle_bytes())
    }

    /// Whether the pool may return idle regions for a larger one.
    pub(super) fn replaces_idle(&self, policy: &dyn Policy) -> bool {
        self.config.garbage_collection
            || self.merges_regions()
            || policy.capabilities().releases_before_growth
            || policy.capabilities().releases_before_failure
    }

    fn merges_regions(&self) -> bool {
        self.config.region_merging && !self.source.supports_coalescing()
    }

    fn extend_and_allocate(
        &self,
        state: &mut LockedPool<P>,
        request: &RoundedRequest,
    ) -> Result<Block, Shortfall> {
        if self.extend_in_place(state, request) {
            if let Some(block) = state.allocate(&request.placement, request.tag) {
                return Ok(block);
            }
        }
        if self.merges_regions() {
            self.release_for(state, request);
        }
        self.extend(state, request)?;
        state.allocate(&request.placement, request.tag).ok_or(Shortfall::Limit)
    }

    /// Converts a request for the policy, bound to the frees that it admits.
    fn placement_of(&self, request: &Request<'_>) -> PlacementRequest {
        let placement = placement_request(request);
        if self.timing.is_some() { TimingCounter::bind(placement, request) } else { placement }
    }

    /// Returns the key of a waiting request. Comparable requests differ only in their bytes.
    pub(super) fn wait_key_of(&self, request: &Request<'_>) -> WaitKey {
        let bytes = request.bytes;
        let is_bound = self.timing.is_some() && TimingCounter::binds(request);
        let comparable = !is_bound && self.state.lock().policy.capabilities().is_ordered_by_size;
        let class = u64::from(request.alignment.trailing_zeros());
        WaitKey { bytes, class: comparable.then_some(class) }
    }

    /// Returns the largest size that a request can have now: the largest free chunk, or what the pool can take from the
    /// source after returning idle regions, if that is more.
    #[cold]
    pub(super) fn max_satisfiable_bytes_of(&self, state: &LockedPool<P>) -> u64 {
        if state.policy.status().has_pending {
            return u64::MAX;
        }
        let idle = if self.replaces_idle(&state.policy) { state.policy.idle_bytes() } else { 0 };
        let unreserved = available(self.limit.bytes, state.policy.status().reserved_bytes);
        unreserved.saturating_add(idle).max(state.policy.largest_obtainable_bytes())
    }

    /// Builds the error of a request. `can_free` is whether waiting could help.
    #[cold]
    fn refuse(
        &self,
        state: &LockedPool<P>,
        request: &RoundedRequest,
        cause: Shortfall,
        can_free: bool,
        last: bool,
    ) -> Refusal {
        let wait = request.rounded <= self.limit.bytes && can_free;
        let error = match cause {
            Shortfall::Source(error) if !matches!(error, SourceError::Exhausted { .. }) => {
                AllocError::Source { allocator: self.name.clone(), error }
            }
            cause => {
                let verdict = self.verdict(state, request, &cause);
                let report = if last || !wait {
                    self.full_report(state, request, verdict, matches!(cause, Shortfall::Source(_)))
                } else {
                    self.report(state, self.stats_of(state), request, verdict)
                };
                AllocError::OutOfMemory(Box::new(report))
            }
        };
        Refusal { error, wait }
    }

    /// Whether waiting can help: another thread may free a live block, or frees are pending.
    fn could_be_freed(&self, state: &LockedPool<P>) -> bool {
        let live = state.accounts.figures.bytes_in_use > 0;
        let others = || self.retry.others_may_free(|| self.has_orphaned_blocks_of(state, &[]));
        (live && others()) || state.policy.status().has_pending
    }

    /// Builds the part of the report that costs little.
    pub(super) fn report(
        &self,
        state: &LockedPool<P>,
        stats: Stats,
        request: &RoundedRequest,
        verdict: Verdict,
    ) -> OomReport {
        let original = Request::new(request.placement.bytes)
            .with_alignment(request.placement.alignment)
            .with_tag(request.tag);
        let status = state.policy.status();
        let tail = status.tail.filter(|_| self.source.supports_coalescing()).map(|tail| tail.bytes);
        let unreserved = available(self.limit.bytes, status.reserved_bytes);
        let free = stats.free_bytes();
        let (usable, largest_free) = if state.policy.capabilities().separates_requests {
            (&state.policy as &dyn Policy).free_and_largest_for(&request.placement)
        } else {
            (free, state.policy.largest_free_bytes())
        };
        OomReport {
            rounded: request.rounded,
            limit: Some(self.limit.bytes),
            limit_origin: self.limit.origin(self.config.limit_origin.as_ref()),
            reserved: stats.bytes_reserved,
            in_use: stats.bytes_in_use,
            free,
            largest_free,
            unusable: free.saturating_sub(usable),
            regions: RegionUse::new(stats.regions, unreserved, tail),
            ..OomReport::new(self.name.clone(), &original, verdict)
        }
    }

    /// Builds the report of a request that failed outside of this pool, whose memory may suffice.
    pub(super) fn refusal_of(&self, request: &Request<'_>, verdict: Verdict) -> Option<OomReport> {
        let placement = self.placement_of(request);
        let mut report = self.write(|state| {
            let rounded = state.policy.rounded(placement.bytes, placement.alignment)?;
            let request = RoundedRequest { placement, rounded, tag: request.tag };
            Some(self.full_report(state, &request, verdict, false))
        })??;
        report.subject = request.contents.map(Into::into);
        Some(report)
    }

    fn verdict(&self, state: &LockedPool<P>, request: &RoundedRequest, cause: &Shortfall) -> Verdict {
        if request.rounded > self.limit.bytes {
            return Verdict::OverLimit;
        }
        let obtainable = match cause {
            Shortfall::Limit => available(self.limit.bytes, state.policy.status().reserved_bytes),
            Shortfall::Source(_) => 0,
        };
        let within_reach =
            (&state.policy as &dyn Policy).free_bytes_for(&request.placement).saturating_add(obtainable);
        if request.rounded <= within_reach {
            Verdict::Fragmented
        } else if request.rounded <= (&state.policy as &dyn Policy).free_bytes().saturating_add(obtainable) {
            if state.policy.capabilities().separates_requests { Verdict::Separated } else { Verdict::Pinned }
        } else {
            Verdict::Exhausted
        }
    }
}
