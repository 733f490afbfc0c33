//! One attempt at a request, from the search to the out-of-memory report.

use super::supply::Shortfall;
use super::{PolicyAllocator, State, placement_request};
use crate::accounting::retry::Refusal;
use crate::allocator::Request;
use crate::allocator::error::AllocError;
use crate::allocator::oom::{OomReport, Verdict};
use crate::allocator::request::WaitKey;
use crate::allocator::stats::Stats;
use crate::base::ledger::Tag;
use crate::base::memory::{Block, Span};
use crate::base::sync::ThreadNumber;
use crate::base::units::round_up;
use crate::policy::{GRANULE, PlacementRequest, Policy, Release};
use crate::pool::configs::ConfiguredPolicy;
use crate::pool::growth::available;
use crate::source::error::SourceError;

/// A request that the pool can meet in principle.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundedRequest {
    pub(super) need: PlacementRequest,
    /// The bytes that a block needs at least.
    pub(super) rounded: u64,
    pub(super) tag: Tag,
}

impl RoundedRequest {
    /// Whether a region holds the block and the padding before it.
    pub(super) const fn fits(&self, region: Span) -> bool {
        // Both terms stay below 2^64 together: `Policy::rounded` has checked it.
        let padding = region.address.wrapping_neg() & (self.need.alignment - 1);
        padding + self.rounded <= region.bytes
    }

    /// The bytes that are missing behind a free piece at the end of a region; `None` if it suffices, or if the address
    /// space ends before.
    pub(super) fn missing_at(&self, tail: Span) -> Option<u64> {
        let start = round_up(tail.address, self.need.alignment.max(GRANULE))?;
        start.checked_add(self.rounded)?.checked_sub(tail.end()?).filter(|&missing| missing > 0)
    }

    /// The bytes that suffice wherever a region starts: with the largest padding there can be.
    pub(super) const fn with_most_padding(&self) -> u64 {
        self.rounded + self.need.alignment.saturating_sub(GRANULE)
    }
}

impl<P: ConfiguredPolicy> PolicyAllocator<P> {
    /// Answers what could not be answered at once: from the caches, or slowly.
    #[inline(never)]
    pub(super) fn allocate_otherwise(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        match self.allocate_cached(request) {
            Some(block) => Ok(block.in_pairs()),
            None => self.allocate_slowly(request),
        }
    }

    /// Answers by an error, by making room, or by waiting for frees.
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

    /// Tries once. Only the `last` attempt works out who holds the memory, and what would have made room.
    fn attempt(&self, request: &Request<'_>, thread: ThreadNumber, last: bool) -> Result<Block, Refusal> {
        let need = placement_request(request, request.attributes.freed_before.map(|count| count()));
        let state = &mut *self.state.lock();
        state.users.note(thread, &mut state.accounts, &self.retry);
        state.policy.merge_ripe(self.frontier.get());
        match state.allocate(&need, request.tag) {
            Some(block) => Ok(block),
            None => self.attempt_with_room(state, need, request.tag, last),
        }
    }

    fn attempt_with_room(
        &self,
        state: &mut State<P>,
        need: PlacementRequest,
        tag: Tag,
        last: bool,
    ) -> Result<Block, Refusal> {
        self.refuse_damaged(state)?;
        let Some(rounded) = state.policy.rounded(need.bytes, need.alignment) else {
            let (allocator, bytes, alignment) = (self.name.clone(), need.bytes, need.alignment);
            return Err(Refusal { error: AllocError::TooLarge { allocator, bytes, alignment }, wait: false });
        };
        let wanted = RoundedRequest { need, rounded, tag };
        if let Some(block) = self.allocate_from_caches(state, &wanted) {
            return Ok(block);
        }
        self.make_room(state, &wanted).or_else(|cause| {
            self.refuse_damaged(state)?;
            // Before the last look at the caches: who has freed into one may have ended, and then nobody waits for it.
            let hope = self.could_be_freed(state);
            // While the source was asked, other threads may have freed.
            let found = self.allocate_from_caches(state, &wanted);
            found.ok_or_else(|| self.refuse(state, &wanted, cause, hope, last))
        })
    }

    /// Neither growing nor waiting mends a policy that found its bookkeeping overwritten.
    fn refuse_damaged(&self, state: &State<P>) -> Result<(), Refusal> {
        let Some(error) = state.policy.status().damage else { return Ok(()) };
        let error = AllocError::Damaged { allocator: self.name.clone(), error };
        Err(Refusal { error, wait: false })
    }

    /// Makes room and tries again, in upstream's order: grow, join what the frontier has not passed, give back idle
    /// regions and grow in their place.
    fn make_room(&self, state: &mut State<P>, wanted: &RoundedRequest) -> Result<Block, Shortfall> {
        if self.has_place_for(state, wanted) {
            self.release_unwanted(state, Release::BeforeGrowth);
        }
        let mut cause = match self.extend_and_allocate(state, wanted) {
            Ok(block) => return Ok(block),
            Err(cause) => cause,
        };
        if wanted.need.freed_before.is_none() && state.policy.merge_until_fit(&wanted.need) {
            return state.allocate(&wanted.need, wanted.tag).ok_or(cause);
        }
        if self.config.garbage_collection && self.release_for(state, wanted) {
            cause = match self.extend_and_allocate(state, wanted) {
                Ok(block) => return Ok(block),
                Err(cause) => cause,
            };
        }
        Err(cause)
    }

    /// Gives idle regions back if a larger one in their place could hold what is wanted; whether there were any.
    fn release_for(&self, state: &mut State<P>, wanted: &RoundedRequest) -> bool {
        self.has_place_for(state, wanted) && self.release_idle(state, 0) > 0
    }

    /// Whether the limit leaves enough for what is wanted, in place of idle regions too. If not, these are kept: a request
    /// that cannot be met so has no use for them, and others have.
    fn has_place_for(&self, state: &State<P>, wanted: &RoundedRequest) -> bool {
        let unreserved = available(self.config.limit, state.policy.status().reserved_bytes);
        wanted.rounded <= unreserved.saturating_add(state.policy.idle_bytes())
    }

    /// Whether idle regions are given back for a larger one in their place, at whatever point of an attempt.
    pub(super) fn replaces_idle(&self, policy: &dyn Policy) -> bool {
        self.config.garbage_collection
            || self.merges_regions()
            || policy.capabilities().releases_before_growth
    }

    fn merges_regions(&self) -> bool {
        self.config.region_merging && !self.source.supports_coalescing()
    }

    fn extend_and_allocate(&self, state: &mut State<P>, wanted: &RoundedRequest) -> Result<Block, Shortfall> {
        if self.extend_in_place(state, wanted)
            && let Some(block) = state.allocate(&wanted.need, wanted.tag)
        {
            return Ok(block);
        }
        if self.merges_regions() {
            self.release_for(state, wanted);
        }
        self.extend(state, wanted)?;
        state.allocate(&wanted.need, wanted.tag).ok_or(Shortfall::Limit)
    }

    /// What a request waits for. Those that may be compared differ in nothing but their bytes.
    pub(super) fn wait_key_of(&self, request: &Request<'_>) -> WaitKey {
        let bytes = request.bytes;
        let comparable = request.attributes.freed_before.is_none()
            && self.state.lock().policy.capabilities().is_ordered_by_size;
        let class = u64::from(request.alignment.trailing_zeros());
        WaitKey { bytes, class: comparable.then_some(class) }
    }

    /// The most bytes for which any request may be served now: the largest free piece or, if more, what can be taken
    /// from the source, in place of idle regions too.
    #[cold]
    pub(super) fn max_satisfiable_bytes_of(&self, state: &State<P>) -> u64 {
        if state.policy.status().has_pending {
            return u64::MAX;
        }
        let idle = if self.replaces_idle(&state.policy) { state.policy.idle_bytes() } else { 0 };
        let unreserved = available(self.config.limit, state.policy.status().reserved_bytes);
        unreserved.saturating_add(idle).max(state.policy.largest_obtainable_bytes())
    }

    /// `hope` is whether waiting could help a request that may be met at all.
    #[cold]
    fn refuse(
        &self,
        state: &State<P>,
        wanted: &RoundedRequest,
        cause: Shortfall,
        hope: bool,
        last: bool,
    ) -> Refusal {
        let wait = wanted.rounded <= self.config.limit && hope;
        let error = match cause {
            Shortfall::Source(error) if !matches!(error, SourceError::Exhausted { .. }) => {
                AllocError::Source { allocator: self.name.clone(), error }
            }
            cause => {
                let verdict = self.verdict(state, wanted, &cause);
                let report = if last || !wait {
                    self.full_report(state, wanted, verdict, matches!(cause, Shortfall::Source(_)))
                } else {
                    self.report(state, self.stats_of(state), wanted, verdict)
                };
                AllocError::OutOfMemory(Box::new(report))
            }
        };
        Refusal { error, wait }
    }

    /// Whether waiting can help: memory is live that another thread may free, or frees wait for the frontier.
    fn could_be_freed(&self, state: &State<P>) -> bool {
        let live = state.accounts.figures.bytes_in_use > 0;
        let others = || self.retry.others_may_free(|| self.has_orphaned_blocks_of(state, &[]));
        (live && others()) || state.policy.status().has_pending
    }

    /// What takes no time to tell.
    pub(super) fn report(
        &self,
        state: &State<P>,
        stats: Stats,
        wanted: &RoundedRequest,
        verdict: Verdict,
    ) -> OomReport {
        let request = Request::new(wanted.need.bytes).with_alignment(wanted.need.alignment);
        OomReport {
            rounded: wanted.rounded,
            limit: Some(self.config.limit),
            limit_origin: self.config.limit_origin.clone(),
            reserved: stats.bytes_reserved,
            in_use: stats.bytes_in_use,
            free: stats.free_bytes(),
            largest_free: state.policy.largest_free_bytes(),
            ..OomReport::new(self.name.clone(), &request.with_tag(wanted.tag), verdict)
        }
    }

    /// The report on a request that is refused for another reason than this pool's, whose memory may suffice.
    pub(super) fn refusal_of(&self, request: &Request<'_>, verdict: Verdict) -> Option<OomReport> {
        let need = placement_request(request, request.attributes.freed_before.map(|count| count()));
        let mut report = self.write(|state| {
            let rounded = state.policy.rounded(need.bytes, need.alignment)?;
            let wanted = RoundedRequest { need, rounded, tag: request.tag };
            Some(self.full_report(state, &wanted, verdict, false))
        })??;
        report.subject = request.contents.map(Into::into);
        Some(report)
    }

    fn verdict(&self, state: &State<P>, wanted: &RoundedRequest, cause: &Shortfall) -> Verdict {
        if wanted.rounded > self.config.limit {
            return Verdict::OverLimit;
        }
        let obtainable = match cause {
            Shortfall::Limit => available(self.config.limit, state.policy.status().reserved_bytes),
            Shortfall::Source(_) => 0,
        };
        let within_reach =
            (&state.policy as &dyn Policy).free_bytes(wanted.need.freed_before).saturating_add(obtainable);
        if wanted.rounded <= within_reach {
            Verdict::Fragmented
        } else if wanted.rounded <= (&state.policy as &dyn Policy).free_bytes(None).saturating_add(obtainable)
        {
            Verdict::Pinned
        } else {
            Verdict::Exhausted
        }
    }
}
