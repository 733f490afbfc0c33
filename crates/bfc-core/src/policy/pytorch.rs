//! PyTorch's caching allocator as a policy: best fit in sets of pools, one pair of sets for each stream.
//!
//! ```text
//! stream 0: small set (up to 1 MiB)   regions of 2 MiB
//!           large set                 regions of 20 MiB, or of the request's size from 10 MiB on
//! stream 1: small set, large set
//! ```
//!
//! A region serves its own set only, so freed memory of one stream never serves another. With `expandable_segments:True`,
//! each set has segments instead, which grow in place.

mod expandable;
mod garbage;
mod options;
mod rounding;
mod sets;

use garbage::Garbage;
use sets::{ANY_SET, Sets};

pub use expandable::ExpandingPolicy;
pub use options::{PytorchOptions, PytorchOptionsError};

use crate::base::memory::Span;
use crate::base::placement::{Inconsistent, Placement};
use crate::base::units::{MIB, round_up};
use crate::policy::chunk_table::{ChunkTable, FreeChunk, answered_by_chunks};
use crate::policy::{
    Capabilities, ConfiguredPolicy, NotAdded, NotLive, Piece, PlacementRequest, Policy, PolicyStatus, Release,
};

/// The policy's name.
const NAME: &str = "pytorch";

/// The granule of regions with the size of their request.
const REGION: u64 = 2 * MIB;

/// Requests from this size on get regions of their own size.
const OWN_REGION: u64 = 10 * MIB;

/// A large set keeps a remainder of at most this many bytes in the block.
const KEPT_REMAINDER: u64 = MIB;

/// Placement as PyTorch's `CUDACachingAllocator` of version 2.15.
///
/// A request takes the smallest free block of its set that is large enough. Of equal ones it takes the one in the oldest
/// region, and there the lowest. The remainder becomes a free block if it has at least 512 bytes in a small set, or more than 1 MiB in a large one. A freed block
/// merges with its free neighbors in the region. All idle regions return to the source before a request fails.
///
/// Addresses beyond multiples of 512 bytes are an addition: the padding before an aligned block stays free.
///
/// ```
/// use bfc_core::{PlacementRequest, Policy, Pytorch, PytorchOptions, Span};
/// let mut policy = Pytorch::new("roundup_power2_divisions:4".parse::<PytorchOptions>()?);
/// assert_eq!(policy.region_bytes(3 << 20, 0), 20 << 20);
/// let request = PlacementRequest::new(9 << 19);
/// policy.add_region_for(Span { address: 0, bytes: 20 << 20 }, false, &request)?;
/// let place = policy.place(&request).expect("the region was added for this request");
/// assert_eq!((place.address, place.bytes), (0, 5 << 20));
/// // Another stream has regions of its own.
/// assert_eq!(policy.place(&request.with_stream(1)), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Pytorch {
    options: PytorchOptions,
    chunks: ChunkTable,
    sets: Sets,
    /// The chunk of the last added or grown region. The next request uses it, even if another one fits better.
    fresh: Option<u32>,
    garbage: Garbage,
}

/// A free chunk, and the start of the block in it.
#[derive(Clone, Copy, Debug)]
struct Fit {
    chunk: FreeChunk,
    start: u64,
}

impl Pytorch {
    /// Creates an allocator without memory.
    #[must_use]
    pub fn new(options: PytorchOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Returns the options.
    #[must_use]
    pub const fn options(&self) -> &PytorchOptions {
        &self.options
    }

    /// Returns the set of a request; `None` if the request is invalid or the numbers of sets are used up.
    fn set_of(&mut self, request: &PlacementRequest) -> Option<u16> {
        let rounded = self.rounded(request.bytes, request.alignment)?;
        self.sets.of(request.stream, rounded, &self.options, &mut self.chunks)
    }

    /// Returns the best fit of a set.
    fn find(&self, set: u16, rounded: u64, alignment: u64) -> Option<Fit> {
        let mut fits =
            self.chunks.free_in(set, rounded).filter_map(|chunk| fit_in(chunk, rounded, alignment));
        let mut best = fits.next()?;
        if self.options.has_expandable_segments() {
            // A chunk counts with the unmapped addresses behind it, so that the end of a segment is used last.
            while self.chunks.is_in_segment(best.chunk.slot) {
                let size = |fit: &Fit| self.chunks.bytes_with_growth(&fit.chunk);
                let Some(next) = fits.next().filter(|next| size(next) < size(&best)) else { break };
                best = next;
            }
        }
        self.options.may_take(rounded, best.chunk.bytes).then_some(best)
    }

    /// Returns the chunk of the last growth, if the block fits there.
    fn find_fresh(&mut self, set: u16, rounded: u64, alignment: u64) -> Option<Fit> {
        let chunk = self.chunks.free_chunk(self.fresh.take()?)?;
        let is_of_set = self.chunks.set_of(chunk.slot) == set;
        fit_in(chunk, rounded, alignment).filter(|_| is_of_set)
    }

    /// Returns the best fit among regions that were added without a request. The region becomes one of the set.
    fn adopt(&mut self, set: u16, rounded: u64, alignment: u64) -> Option<Fit> {
        let mut regions = self.chunks.free_in(ANY_SET, rounded);
        let fit = regions.find_map(|chunk| fit_in(chunk, rounded, alignment))?;
        drop(regions);
        self.chunks.move_region(fit.chunk.slot, set);
        Some(fit)
    }

    /// Whether a remainder of this size becomes a free chunk, behind a block in this chunk.
    fn splits_off(&self, remainder: u64, slot: u32, rounded: u64) -> bool {
        if self.chunks.is_in_segment(slot) || Sets::is_small(self.chunks.set_of(slot)) {
            remainder >= rounding::STEP
        } else {
            rounded < self.options.max_split() && remainder > KEPT_REMAINDER
        }
    }
}

/// Returns the place of a block in a free chunk of at least `rounded` bytes, if its alignment leaves room for it.
fn fit_in(chunk: FreeChunk, rounded: u64, alignment: u64) -> Option<Fit> {
    let start = round_up(chunk.address, alignment)?;
    let padding = start - chunk.address;
    chunk.bytes.checked_sub(rounded).is_some_and(|rest| padding <= rest).then_some(Fit { chunk, start })
}

impl Policy for Pytorch {
    answered_by_chunks!();

    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            // A small request may fail while the large set has room.
            is_ordered_by_size: false,
            releases_before_failure: true,
            exact_regions: true,
            separates_requests: true,
            ..Capabilities::default()
        }
    }

    /// Returns the bytes in multiples of 512, or as `roundup_power2_divisions` rounds them.
    fn rounded(&self, bytes: u64, alignment: u64) -> Option<u64> {
        let rounded = self.options.divisions().rounded(bytes)?;
        let sound = alignment.is_power_of_two() && rounded.checked_add(alignment).is_some();
        sound.then_some(rounded)
    }

    fn place(&mut self, request: &PlacementRequest) -> Option<Placement> {
        let (bytes, alignment) = (request.bytes, request.alignment);
        let rounded = self.rounded(bytes, alignment)?;
        if !self.chunks.has_room_for(2) {
            return None;
        }
        let set = self.sets.of(request.stream, rounded, &self.options, &mut self.chunks)?;
        let fresh = self.find_fresh(set, rounded, alignment);
        let found = fresh.or_else(|| self.find(set, rounded, alignment));
        let Fit { chunk, start } = found.or_else(|| self.adopt(set, rounded, alignment))?;
        let remainder = chunk.bytes - (start - chunk.address) - rounded;
        let granted =
            if self.splits_off(remainder, chunk.slot, rounded) { rounded } else { rounded + remainder };
        self.garbage.note_request(set);
        Some(self.chunks.carve(chunk.slot, start, granted))
    }

    fn free(&mut self, slot: u32) -> Result<(), NotLive> {
        let merged = self.chunks.free(slot)?;
        if self.options.collects_garbage() && self.chunks.is_region(merged.slot) {
            self.garbage.note_idle(merged.slot);
        }
        Ok(())
    }

    /// Adds a region to the set of the request, which is placed in it.
    fn add_region_for(
        &mut self,
        span: Span,
        _join: bool,
        request: &PlacementRequest,
    ) -> Result<(), NotAdded> {
        let set = self.set_of(request).ok_or(NotAdded::Full)?;
        self.fresh = Some(self.chunks.add_region_to(span, set)?);
        Ok(())
    }

    /// Releases any idle region, or whole handles within a free part of a segment. Before the pool grows, releases the
    /// oldest idle regions above `garbage_collection_threshold`.
    #[inline]
    fn release(&mut self, release: Release) -> Option<Span> {
        match release {
            Release::Idle { at_most } => {
                let region = self.chunks.take_idle(|region| region.bytes <= at_most);
                region.or_else(|| self.chunks.unmap_idle(at_most))
            }
            Release::BeforeGrowth if self.options.collects_garbage() => {
                self.garbage.collect(&self.options, &mut self.chunks)
            }
            Release::BeforeGrowth | Release::Unwanted | Release::Tail { .. } => None,
        }
    }

    /// Releases oversize regions, which only oversize requests use, if they suffice for the request.
    fn release_for(&mut self, request: &PlacementRequest) -> Vec<Span> {
        let rounded = self.rounded(request.bytes, request.alignment);
        let (Some(rounded), Some(set)) = (rounded, self.set_of(request)) else { return Vec::new() };
        let oversize = self.options.max_split();
        let needed = rounded.max(oversize);
        let regions = || self.chunks.free_in(set, oversize).filter(|chunk| self.chunks.is_region(chunk.slot));
        let mut chosen: Vec<u64> = Vec::new();
        if let Some(single) = regions().find(|chunk| chunk.bytes >= needed) {
            chosen.push(single.address);
        } else {
            // Several ones, the largest first.
            let mut bytes = 0_u64;
            chosen.extend(regions().rev().map_while(|chunk| {
                let goes = bytes < needed;
                bytes = bytes.saturating_add(chunk.bytes);
                goes.then_some(chunk.address)
            }));
            if bytes < needed {
                return Vec::new();
            }
        }
        chosen.into_iter().filter_map(|address| self.chunks.take_idle_at(address)).collect()
    }

    /// Returns the size that PyTorch requests for a block. Ignores `proposed`.
    fn region_bytes(&self, rounded: u64, _proposed: u64) -> u64 {
        if rounded < OWN_REGION {
            self.options.shared_region(rounded <= sets::MAX_SMALL)
        } else {
            round_up(rounded, REGION).unwrap_or(rounded)
        }
    }

    /// Whether the chunk is free in the set of the request.
    fn may_use(&self, request: &PlacementRequest, piece: &Piece) -> bool {
        let rounded = self.rounded(request.bytes, request.alignment);
        let set = rounded.and_then(|rounded| self.sets.known(request.stream, rounded));
        let of_piece = self.chunks.set_at(piece.span.address);
        piece.slot.is_none() && (of_piece == Some(ANY_SET) || of_piece == set)
    }

    fn expanding(&mut self) -> Option<&mut dyn ExpandingPolicy> {
        if self.options.has_expandable_segments() { Some(self) } else { None }
    }

    fn check(&self) -> Result<(), Inconsistent> {
        self.chunks.check(NAME)
    }
}

// SAFETY: the chunks of a region cover it without overlap. A placement is one chunk with the requested alignment. A
// region, or a part of a segment, leaves only as one free chunk. `chunk_table.rs` checks these rules after every step of
// the tests.
unsafe impl ConfiguredPolicy for Pytorch {
    type Options = PytorchOptions;

    fn configured(options: &PytorchOptions) -> Self {
        Self::new(*options)
    }
}
