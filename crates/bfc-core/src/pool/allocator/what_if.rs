//! Answers to what-if questions, found on copies of a pool's policy.

use std::borrow::Cow;
use std::collections::HashSet;

use super::cached::MergedAccounts;
use super::slow_path::RoundedRequest;
use super::{LockedPool, PolicyAllocator, placement_request};
use crate::accounting::number;
use crate::allocator::Request;
use crate::allocator::oom::{CheckpointedScope, HOLDERS, Holdings, OomReport, Verdict, WhatIf};
use crate::base::ledger::Category;
use crate::base::memory::{Block, Span};
use crate::policy::{ConfiguredPolicy, GRANULE, PlacementRequest, Policy, Release};
use crate::pool::growth::available;
use crate::pool::info::{ChunkInfo, chunk_infos};
use crate::pool::timing::merge_all;

impl<P: ConfiguredPolicy> PolicyAllocator<P> {
    /// Whether the request would fit if these blocks were free, on a copy of the policy. Assumes that the source can
    /// replace regions that become idle.
    pub(super) fn what_if_freed(&self, request: &Request<'_>, freed: &[Block]) -> Option<bool> {
        self.write(|state| {
            let placement = placement_request(request);
            let cached = self.accounts_of(state).cached;
            let slots = self.slots_of(state, freed);
            self.fits_without(state, &cached, &placement, slots.into_iter())
        })
    }

    /// Builds the complete report: the holders, the memory of other processes, and the what-if answers. All figures
    /// come from one snapshot. `short` is whether the source, not the limit, left too little.
    #[cold]
    pub(super) fn full_report(
        &self,
        state: &LockedPool<P>,
        request: &RoundedRequest,
        verdict: Verdict,
        short: bool,
    ) -> OomReport {
        let MergedAccounts { sum, cached } = self.accounts_of(state);
        let stats = self.stats_with(state, sum.figures.clone());
        let mut report = self.report(state, stats, request, verdict);
        let chunks = chunk_infos(&state.policy, &sum);
        let live: Vec<&ChunkInfo> = chunks.iter().filter(|chunk| chunk.in_use()).collect();
        report.holders = sum.ledger.largest_holders(HOLDERS);
        report.holdings = Holdings::sum(live.iter().map(|chunk| (chunk.tag, chunk.bytes)));
        for chunk in chunks.iter().filter(|chunk| chunk.is_pending()) {
            report.pending.blocks += 1;
            report.pending.bytes += chunk.bytes;
        }
        report.reserved_by_others = self.reserved_by_others(state);
        report.what_if = self.what_if(state, &cached, request, short, &live);
        report
    }

    fn reserved_by_others(&self, state: &LockedPool<P>) -> Option<u64> {
        let used = self.call_source(state, |source| {
            Some(source.total_bytes()?.saturating_sub(source.available_bytes()?))
        });
        Some(used?.saturating_sub(state.policy.status().reserved_bytes))
    }

    fn what_if(
        &self,
        state: &LockedPool<P>,
        cached: &HashSet<u32>,
        request: &RoundedRequest,
        short: bool,
        live: &[&ChunkInfo],
    ) -> WhatIf {
        let placement = &request.placement;
        WhatIf {
            compacted: self.fits_compacted(state, placement, live),
            one_region: self.fits_in_one_region(state, placement, short, live),
            trimmed: self.fits_trimmed(state, cached, request, short),
            pending_done: state
                .policy
                .status()
                .has_pending
                .then(|| self.fits_when_done(state, cached, placement)),
            split: self.fits_with_other_splits(state, placement, live),
            checkpointed: self.fits_checkpointed(state, cached, placement, live),
        }
    }

    /// Whether a request fits on a copy of the policy after these slots are free.
    fn fits_without(
        &self,
        state: &LockedPool<P>,
        cached: &HashSet<u32>,
        request: &PlacementRequest,
        slots: impl Iterator<Item = u32>,
    ) -> bool {
        let mut policy = state.policy_without(cached);
        let idle = policy.idle_bytes();
        for slot in slots {
            // A slot without a block frees nothing.
            let _ = policy.free(slot);
        }
        self.fits_in(&mut *policy, request, idle)
    }

    /// Whether a request fits in a policy, or in place of regions that became idle.
    fn fits_in(&self, policy: &mut dyn Policy, request: &PlacementRequest, idle_before: u64) -> bool {
        if policy.place(request).is_some()
            || (policy.merge_until_fit(request) && policy.place(request).is_some())
        {
            return true;
        }
        let Some(rounded) = policy.rounded(request.bytes, request.alignment) else { return false };
        let idle = policy.idle_bytes();
        let room = available(self.limit.bytes, policy.status().reserved_bytes).saturating_add(idle);
        self.replaces_idle(policy) && idle > idle_before && least_region(policy, rounded) <= room
    }

    fn fits_when_done(
        &self,
        state: &LockedPool<P>,
        cached: &HashSet<u32>,
        request: &PlacementRequest,
    ) -> bool {
        let mut policy = state.policy_without(cached);
        let idle = policy.idle_bytes();
        merge_all(&mut *policy);
        self.fits_in(&mut *policy, request, idle)
    }

    /// Blocks keep their granted bytes: they move and are not allocated again.
    fn fits_compacted(
        &self,
        state: &LockedPool<P>,
        request: &PlacementRequest,
        live: &[&ChunkInfo],
    ) -> Option<bool> {
        let requests = largest_first(live).into_iter().map(PlacementRequest::new);
        self.fits_replaced(self.fresh(&self.config.options), &state.policy.regions(), request, requests)
    }

    /// `None` if one region covers the limit already, if the policy sizes its regions by its own rule, or if the source
    /// has no more memory.
    fn fits_in_one_region(
        &self,
        state: &LockedPool<P>,
        request: &PlacementRequest,
        short: bool,
        live: &[&ChunkInfo],
    ) -> Option<bool> {
        let (regions, whole) = (state.policy.regions(), available(self.limit.bytes, 0));
        let first = regions.first().filter(|first| first.bytes < whole && !short)?;
        if state.policy.region_bytes(GRANULE, whole) != whole {
            return None;
        }
        let region = Span { address: first.address, bytes: whole };
        let requests = by_age(live).into_iter().map(of_chunk);
        self.fits_replaced(P::configured(&self.config.options), &[region], request, requests)
    }

    fn fits_with_other_splits(
        &self,
        state: &LockedPool<P>,
        request: &PlacementRequest,
        live: &[&ChunkInfo],
    ) -> Vec<(Cow<'static, str>, bool)> {
        let by_age = by_age(live);
        let answer = |(name, options)| {
            let requests = by_age.iter().map(|chunk| of_chunk(chunk));
            let (fresh, regions) = (self.fresh(&options), state.policy.regions());
            Some((Cow::Borrowed(name), self.fits_replaced(fresh, &regions, request, requests)?))
        };
        P::other_splits(&self.config.options).into_iter().filter_map(answer).collect()
    }

    /// Returns a policy without regions, as this pool would create it from these options.
    fn fresh(&self, options: &P::Options) -> P {
        if self.config.allow_growth { P::configured_to_grow(options) } else { P::configured(options) }
    }

    /// Whether a request fits in a new policy over these regions, after the requests of the live blocks. `None` for
    /// policies whose placements depend on more than the sizes of the requests.
    fn fits_replaced(
        &self,
        mut fresh: P,
        regions: &[Span],
        request: &PlacementRequest,
        live: impl Iterator<Item = PlacementRequest>,
    ) -> Option<bool> {
        if fresh.capabilities().follows_packing || fresh.capabilities().separates_requests {
            return None;
        }
        for &region in regions {
            fresh.add_region(region, self.source.supports_coalescing()).ok()?;
        }
        for request in live {
            if fresh.place(&request).is_none() {
                return Some(false);
            }
        }
        Some(self.fits_in(&mut fresh, request, 0))
    }

    /// If the source is out of memory, its reuse of returned regions is unknown.
    fn fits_trimmed(
        &self,
        state: &LockedPool<P>,
        cached: &HashSet<u32>,
        request: &RoundedRequest,
        short: bool,
    ) -> Option<bool> {
        let mut policy = state.policy_without(cached);
        let mut trimmed = 0;
        while let Some(Span { bytes, .. }) = policy.release(Release::Idle { at_most: u64::MAX }) {
            trimmed += bytes;
        }
        if trimmed == 0 {
            return Some(false);
        }
        let least = least_region(&*policy, request.rounded);
        let fits = least <= available(self.limit.bytes, policy.status().reserved_bytes);
        (!(fits && short)).then_some(fits)
    }

    fn fits_checkpointed(
        &self,
        state: &LockedPool<P>,
        cached: &HashSet<u32>,
        request: &PlacementRequest,
        live: &[&ChunkInfo],
    ) -> Option<CheckpointedScope> {
        let kept = live.iter().filter(|chunk| chunk.tag.category == Category::Activation);
        let sums = Holdings::sum(kept.clone().map(|chunk| (chunk.tag, chunk.bytes)));
        let (scope, bytes) = *sums.by_scope().first()?;
        let of_scope = kept.filter(|chunk| chunk.tag.owner.parent() == scope);
        let blocks: Vec<u64> = of_scope.map(|chunk| chunk.address).collect();
        let mut slots = Vec::with_capacity(blocks.len());
        state.policy.visit(&mut |piece| {
            let freed = blocks.binary_search(&piece.span.address).is_ok();
            slots.extend(piece.slot.filter(|_| freed));
        });
        Some(CheckpointedScope {
            scope,
            bytes,
            fits: self.fits_without(state, cached, request, slots.into_iter()),
        })
    }
}

/// Returns the bytes of the smallest region for a block.
fn least_region(policy: &dyn Policy, rounded: u64) -> u64 {
    if policy.capabilities().exact_regions { policy.region_bytes(rounded, rounded) } else { rounded }
}

/// Returns the sizes of blocks, the largest first. Like [`by_age`], a free function, so that it is compiled once and not
/// for each policy.
fn largest_first(live: &[&ChunkInfo]) -> Vec<u64> {
    let mut sizes: Vec<u64> = live.iter().map(|chunk| chunk.bytes).collect();
    sizes.sort_by_key(|&bytes| std::cmp::Reverse(bytes));
    sizes
}

/// Returns blocks in order of allocation.
fn by_age<'a>(live: &[&'a ChunkInfo]) -> Vec<&'a ChunkInfo> {
    let mut by_age = live.to_vec();
    by_age.sort_by_key(|chunk| number::with_thread_index(chunk.id, 0));
    by_age
}

/// Returns the request of a live block, as far as it is known: its alignment is not.
fn of_chunk(chunk: &ChunkInfo) -> PlacementRequest {
    PlacementRequest::new(chunk.requested)
}
