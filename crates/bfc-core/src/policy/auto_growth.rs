//! Paddle's auto-growth best fit as a policy: each region has the size of its request.

mod block;
mod check;
mod options;

pub use options::{AutoGrowthOptions, AutoGrowthOptionsError};

use crate::base::memory::Span;
use crate::base::placement::{Inconsistent, Placement};
use crate::base::units::round_up;
use crate::policy::best_fit::BestFit;
use crate::policy::region_table::{RegionTable, TableRegion};
use crate::policy::{
    Capabilities, NotAdded, NotLive, Piece, PlacementRequest, Policy, PolicyStatus, Release,
};
use block::{Block, Blocks, NONE, State};

/// The policy's name.
const NAME: &str = "auto-growth";

/// Placement as Paddle's auto-growth best fit.
///
/// A block is cut from the upper end of the smallest free block that fits; the rest stays free below. A freed block
/// merges with its free neighbors in the region. Idle regions return to the source on demand, or at every free or
/// before each growth, as the options specify.
///
/// Source: `AutoGrowthBestFitAllocator` in Paddle's memory/allocation. Here requests also have alignments: bytes above
/// an aligned block stay free.
///
///
/// ```
/// use bfc_core::{AutoGrowth, AutoGrowthOptions, PlacementRequest, Policy, Span};
/// let mut policy = AutoGrowth::new(AutoGrowthOptions::gpu());
/// assert_eq!(policy.region_bytes(1024, 1 << 20), 1024);
/// policy.add_region(Span { address: 0, bytes: 4096 }, false)?;
/// let place = policy.place(&PlacementRequest::new(1000)).expect("there is room");
/// assert_eq!((place.address, place.bytes), (3072, 1024));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct AutoGrowth {
    options: AutoGrowthOptions,
    blocks: Blocks,
    free: BestFit,
    regions: RegionTable,
    free_bytes: u64,
    /// Idle regions, so that a free without any skips the search.
    idle_regions: usize,
}

impl AutoGrowth {
    /// Removes one idle region of at most this many bytes.
    fn take_idle(&mut self, at_most: u64) -> Option<Span> {
        if self.idle_regions == 0 {
            return None;
        }
        let small = |region: &TableRegion| region.span.bytes <= at_most;
        let mut regions = self.regions.as_slice().iter();
        let index = regions.position(|region| small(region) && self.is_idle(region))?;
        let TableRegion { span, first } = self.regions.remove(index);
        self.free.remove(self.blocks[first].as_free(first));
        self.blocks.remove(first);
        self.free_bytes -= span.bytes;
        self.idle_regions -= 1;
        Some(span)
    }

    /// Creates an allocator without memory.
    #[must_use]
    pub fn new(options: AutoGrowthOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Returns the options.
    #[must_use]
    pub const fn options(&self) -> &AutoGrowthOptions {
        &self.options
    }

    /// Returns the best fit and the block's start in it: as high as the alignment allows.
    fn find(&self, rounded: u64, alignment: u64) -> Option<(u32, u64)> {
        self.free.at_least(rounded).find_map(|piece| {
            let highest = piece.address + (piece.bytes - rounded);
            let start = highest & !(alignment - 1);
            (start >= piece.address).then_some((piece.slot, start))
        })
    }

    /// Cuts `rounded` bytes from `start` on out of a free block.
    fn carve(&mut self, slot: u32, start: u64, rounded: u64) -> Placement {
        let whole = self.blocks[slot];
        let (before, behind) = (start - whole.address, whole.end() - start - rounded);
        self.free.remove(whole.as_free(slot));
        self.idle_regions -= usize::from(whole.is_idle_region());

        let mut live = Block { state: State::Live, address: start, bytes: rounded, ..whole };
        let mut live_slot = slot;
        if before > 0 {
            live.prev = slot;
            live_slot = self.blocks.insert(live);
            let rest = Block { bytes: before, next: live_slot, ..whole };
            self.blocks[slot] = rest;
            self.free.insert(rest.as_free(slot));
        }
        if behind > 0 {
            let rest = Block { address: start + rounded, bytes: behind, prev: live_slot, ..whole };
            live.next = self.blocks.insert(rest);
            self.free.insert(rest.as_free(live.next));
            self.link_back(whole.next, live.next);
        } else {
            self.link_back(whole.next, live_slot);
        }
        self.blocks[live_slot] = live;
        self.free_bytes -= rounded;
        Placement { address: start, bytes: rounded, slot: live_slot }
    }

    /// Sets `prev` as the previous neighbor of `slot`.
    fn link_back(&mut self, slot: u32, prev: u32) {
        if slot != NONE {
            self.blocks[slot].prev = prev;
        }
    }

    /// Removes a neighbor from the free blocks, if it is free.
    fn take_free(&mut self, slot: u32) -> Option<Block> {
        let neighbor =
            (slot != NONE).then(|| self.blocks[slot]).filter(|block| block.state == State::Free)?;
        self.free.remove(neighbor.as_free(slot));
        Some(neighbor)
    }

    /// Merges a freed block with its free neighbors. The lowest one keeps its slot.
    fn join(&mut self, slot: u32) {
        let (mut slot, mut block) = (slot, self.blocks[slot]);
        block.state = State::Free;
        if let Some(prev) = self.take_free(block.prev) {
            self.blocks.remove(slot);
            slot = block.prev;
            block = Block { bytes: prev.bytes + block.bytes, next: block.next, ..prev };
        }
        if let Some(next) = self.take_free(block.next) {
            self.blocks.remove(block.next);
            block.bytes += next.bytes;
            block.next = next.next;
        }
        self.link_back(block.next, slot);
        self.blocks[slot] = block;
        self.free.insert(block.as_free(slot));
        self.idle_regions += usize::from(block.is_idle_region());
    }

    fn is_idle(&self, region: &TableRegion) -> bool {
        self.blocks[region.first].is_idle_region()
    }
}

impl Policy for AutoGrowth {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { releases_before_growth: self.options.free_before_growth, ..Capabilities::default() }
    }

    /// Returns the bytes plus padding, rounded up to the options' alignment.
    fn rounded(&self, bytes: u64, alignment: u64) -> Option<u64> {
        let step = self.options.alignment().0;
        let rounded = round_up(bytes.max(1).checked_add(self.options.padding())?, step)?;
        let sound = alignment.is_power_of_two() && rounded.checked_add(alignment).is_some();
        sound.then_some(rounded)
    }

    /// Cuts a block from the upper end of the smallest free block that fits, the lowest among equals.
    fn place(&mut self, request: &PlacementRequest) -> Option<Placement> {
        let rounded = self.rounded(request.bytes, request.alignment)?;
        if !self.blocks.has_room_for(2) {
            return None;
        }
        let (slot, start) = self.find(rounded, request.alignment)?;
        Some(self.carve(slot, start, rounded))
    }

    fn placed(&self, slot: u32) -> Option<Placement> {
        self.blocks.live(slot).map(|block| Placement { address: block.address, bytes: block.bytes, slot })
    }

    fn free(&mut self, slot: u32, _freed_at: u64) -> Result<(), NotLive> {
        let block = self.blocks.live(slot).ok_or(NotLive { slot })?;
        self.free_bytes += block.bytes;
        self.join(slot);
        Ok(())
    }

    /// Adds a region, without merging: regions return to the source unchanged.
    fn add_region(&mut self, span: Span, _join: bool) -> Result<(), NotAdded> {
        let index = self.regions.room_for(span)?;
        if !self.blocks.has_room_for(1) {
            return Err(NotAdded::Full);
        }
        let Span { address, bytes } = span;
        let block = Block { state: State::Free, address, bytes, prev: NONE, next: NONE };
        let first = self.blocks.insert(block);
        self.regions.insert(index, TableRegion { span, first });
        self.free.insert(block.as_free(first));
        self.free_bytes += bytes;
        self.idle_regions += 1;
        Ok(())
    }

    fn idle_bytes(&self) -> u64 {
        let idle = self.regions.as_slice().iter().filter(|region| self.is_idle(region));
        idle.map(|region| region.span.bytes).sum()
    }

    /// Releases any idle region, at the moments that the options select.
    #[inline]
    fn release(&mut self, release: Release) -> Option<Span> {
        match release {
            Release::Idle { at_most } => self.take_idle(at_most),
            Release::Unwanted if self.options.free_idle_chunks => self.take_idle(u64::MAX),
            Release::BeforeGrowth if self.options.free_before_growth => self.take_idle(u64::MAX),
            Release::Tail { .. } | Release::Unwanted | Release::BeforeGrowth => None,
        }
    }

    fn status(&self) -> PolicyStatus {
        PolicyStatus { reserved_bytes: self.regions.bytes(), tail: None, has_pending: false, damage: None }
    }

    fn regions(&self) -> Vec<Span> {
        self.regions.spans()
    }

    fn largest_free_bytes(&self) -> u64 {
        self.free.largest_bytes()
    }

    fn visit(&self, visit: &mut dyn FnMut(Piece)) {
        for (index, region) in self.regions.as_slice().iter().enumerate() {
            let mut slot = region.first;
            while slot != NONE {
                let Block { state, address, bytes, next, .. } = self.blocks[slot];
                visit(Piece::new(index, Span { address, bytes }, (state == State::Live).then_some(slot)));
                slot = next;
            }
        }
    }

    /// Returns the rounded size, but at least the options' chunk size. Ignores `planned`.
    fn region_bytes(&self, rounded: u64, _planned: u64) -> u64 {
        rounded.max(self.options.chunk_size().0)
    }

    fn check(&self) -> Result<(), Inconsistent> {
        check::check(self)
    }

    fn boxed_clone(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}
