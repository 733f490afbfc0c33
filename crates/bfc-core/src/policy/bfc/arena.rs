//! The algorithm of best fit with coalescing, on addresses as plain numbers.

mod coalesce;
mod deferred;
mod resize;
mod search;
mod supply;

use super::bins::{Bins, SizeClass};
use super::chunk::{Chunk, ChunkId, ChunkState, GRANULE, Slab};
use super::options::{BfcOptions, CutRule, JoinRule, SplitRule};
use super::pending::PendingFrees;
use super::recent::{self, RecentFrees};
use super::region::{AllocationRegion, Regions};
use crate::base::memory::Span;
use crate::base::placement::{Inconsistent, Placement};
use crate::policy::{
    Capabilities, NotAdded, NotLive, Piece, PlacementRequest, Policy, PolicyStatus, Release, TimedPolicy,
    round_to_granule,
};

pub(super) use search::ChunkRequest;

/// The minimum size of a large block, in bytes. Smaller blocks have a [class](super::bins) for each size and never
/// count as large. The smallest pools of recorded runs are the same for any bound up to a mebibyte.
const LARGE_AT_LEAST: u64 = (16 << 10) + GRANULE;

/// Best fit with coalescing: places each block in the smallest free chunk that fits, the lowest among equals.
///
/// Regions are cut into chunks. Free neighbors merge immediately, or when [nothing else](JoinRule::Deferred) serves a
/// request. `bfc/invariants.rs` lists the rules.
#[derive(Clone, Debug)]
pub struct Bfc {
    pub(super) chunks: Slab,
    pub(super) bins: Bins,
    pub(super) regions: Regions,
    /// Chunks freed at a count that the frontier had not passed.
    pub(super) pending: PendingFrees,
    /// The blocks freed last that are not merged yet.
    pub(super) recent: RecentFrees,
    /// The largest block whose merge is deferred; 0 if all merge immediately.
    deferred_up_to: u64,
    /// Bytes of all regions.
    pub(super) reserved: u64,
    split: SplitRule,
    /// The minimum size of a block that is cut from the high end: half of the largest block, but above the small ones.
    /// Unreachable if no block is cut there.
    large_from: u64,
}

impl Default for Bfc {
    fn default() -> Self {
        Self::new(BfcOptions::default())
    }
}

impl Bfc {
    /// Creates a policy without regions.
    #[must_use]
    pub fn new(options: BfcOptions) -> Self {
        Self {
            chunks: Slab::new(),
            bins: Bins::default(),
            regions: Regions::default(),
            pending: PendingFrees::new(),
            recent: RecentFrees::default(),
            deferred_up_to: if options.join == JoinRule::Deferred { recent::LARGEST } else { 0 },
            reserved: 0,
            split: options.split,
            large_from: if options.cut == CutRule::LargeHigh { LARGE_AT_LEAST } else { u64::MAX },
        }
    }

    /// Iterates over the chunks of a region in order of address.
    pub(super) fn chunks_of(&self, region: &AllocationRegion) -> impl Iterator<Item = ChunkId> + '_ {
        let border = region.border;
        let some = move |id: ChunkId| (id != border).then_some(id);
        std::iter::successors(some(self.chunks[border].next), move |&id| some(self.chunks[id].next))
    }

    /// Returns the placement of a chunk in use.
    #[inline(always)]
    pub(super) fn place_of(&self, id: ChunkId) -> Placement {
        let Chunk { address, bytes, .. } = self.chunks[id];
        Placement { address, bytes, slot: id.0 }
    }

    /// Inserts a free chunk into its bin.
    fn bin(&mut self, id: ChunkId) {
        let class = SizeClass::of(self.chunks[id].bytes);
        self.bins.insert(&mut self.chunks, id, class);
    }

    /// Removes a free chunk from its bin.
    fn unbin(&mut self, id: ChunkId) {
        let class = SizeClass::of(self.chunks[id].bytes);
        self.bins.remove(&mut self.chunks, id, class);
    }
}

impl Policy for Bfc {
    fn name(&self) -> &'static str {
        "bfc"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { supports_caches: true, ..Capabilities::default() }
    }

    #[inline]
    fn rounded(&self, bytes: u64, alignment: u64) -> Option<u64> {
        round_to_granule(bytes, alignment, GRANULE)
    }

    #[inline(always)]
    fn place(&mut self, request: &PlacementRequest) -> Option<Placement> {
        if let Some(rounded) = ChunkRequest::plain(request) {
            if let Some(place) = self.take_recent(rounded) {
                return Some(place);
            }
            if let Some(place) = self.take_plain(rounded) {
                return Some(place);
            }
        }
        // Passes a copy, so that the request and the placement stay in registers instead of memory.
        let request = *request;
        self.take_otherwise(&request).map(|id| self.place_of(id))
    }

    #[inline]
    fn placed(&self, slot: u32) -> Option<Placement> {
        let chunk = self.chunks.live(ChunkId(slot))?;
        Some(Placement { address: chunk.address, bytes: chunk.bytes, slot })
    }

    #[inline(always)]
    fn free(&mut self, slot: u32) -> Result<(), NotLive> {
        let id = ChunkId(slot);
        let Some(&Chunk { bytes, .. }) = self.chunks.live(id) else { return Err(NotLive { slot }) };
        if let Some(id) = self.defer(id, bytes) {
            self.join_and_bin(id);
        }
        Ok(())
    }

    fn resize(&mut self, slot: u32, bytes: u64) -> Option<Placement> {
        let rounded = self.rounded(bytes.max(1), GRANULE)?;
        self.resize_live(ChunkId(slot), rounded)
    }

    fn add_region(&mut self, span: Span, join: bool) -> Result<(), NotAdded> {
        self.add(span, join)
    }

    fn idle_bytes(&self) -> u64 {
        let idle = self.regions.as_slice().iter().filter(|region| self.is_idle(region));
        idle.map(|region| region.span.bytes).sum()
    }

    // Inlined: every free calls this with a constant.
    #[inline]
    fn release(&mut self, release: Release) -> Option<Span> {
        match release {
            Release::Idle { at_most } => self.take_idle(at_most),
            Release::Tail { bytes } => self.cut_last(bytes),
            Release::Unwanted | Release::BeforeGrowth => None,
        }
    }

    fn status(&self) -> PolicyStatus {
        PolicyStatus {
            reserved_bytes: self.reserved,
            tail: self.last_tail(),
            has_pending: self.pending.iter().any(|free| self.is_pending(free)),
        }
    }

    fn regions(&self) -> Vec<Span> {
        self.regions.as_slice().iter().map(|region| region.span).collect()
    }

    fn largest_free_bytes(&self) -> u64 {
        self.bins.largest(&self.chunks).max(self.largest_recent())
    }

    fn visit(&self, visit: &mut dyn FnMut(Piece)) {
        for (index, region) in self.regions.as_slice().iter().enumerate() {
            for (id, span) in self.spans_of(region) {
                let chunk = &self.chunks[id];
                let slot = (chunk.state == ChunkState::Live).then_some(id.0);
                let freed_at = self.chunks.freed_at(id);
                visit(Piece { freed_at, ..Piece::new(index, span, slot) });
            }
        }
    }

    /// Merges pending frees regardless of the frontier, unless the request is bound to earlier frees.
    fn merge_until_fit(&mut self, request: &PlacementRequest) -> bool {
        request.freed_before().is_none()
            && ChunkRequest::of(request).is_some_and(|request| self.merge_until(&request))
    }

    #[inline]
    fn timed(&mut self) -> Option<&mut dyn TimedPolicy> {
        Some(self)
    }

    fn check(&self) -> Result<(), Inconsistent> {
        self.check_rules()
    }

    fn boxed_clone(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}
