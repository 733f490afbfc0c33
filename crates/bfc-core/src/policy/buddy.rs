//! Paddle's buddy allocator as a policy: best fit over large regions that are split and merged. Huge requests get their
//! own regions. This is not the binary buddy system of textbooks: any neighbors merge.

mod options;

use std::collections::BTreeSet;

pub use options::{BuddyOptions, BuddyOptionsError};

use crate::base::memory::Span;
use crate::base::placement::{Inconsistent, Placement};
use crate::base::units::round_up;
use crate::policy::chunk_table::{ChunkTable, FreeChunk, answered_by_chunks};
use crate::policy::{
    ConfiguredPolicy, NotAdded, NotLive, Piece, PlacementRequest, Policy, PolicyStatus, Release,
};

/// The policy's name.
const NAME: &str = "buddy";

/// Placement as Paddle's buddy allocator.
///
/// Source: `BuddyAllocator` in Paddle's memory/allocation, with the same choice of chunks, rounding, splits and region
/// sizes. The differences:
///
/// * Descriptors lie in a separate table, so the policy serves memory that the host cannot access, and a block starts
///   where its chunk does. No write outside of a block reaches them, so they have no guards. By default requests do not
///   pay for them; [`BuddyOptions::with_paddle_sizes`] restores upstream's sizes.
/// * Requests have alignments. Bytes cut off before an aligned block stay free.
/// * Best fit orders by size, then address. Upstream orders by source first; a pool here has one source.
/// * A free subtracts exactly the bytes that the allocation added, and a returned region leaves no record. Upstream's
///   counts drift, and its records stay.
/// * Huge blocks count as in use, in [`huge_bytes`](Buddy::huge_bytes).
///
/// ```
/// use bfc_core::{Buddy, BuddyOptions, Bytes, PlacementRequest, Policy, Span};
/// let mut buddy = Buddy::new(BuddyOptions::new(Bytes(256), Bytes::mib(1))?);
/// assert_eq!(buddy.region_bytes(1024, 0), 1 << 20);
/// buddy.add_region(Span { address: 0, bytes: 1 << 20 }, false)?;
/// let place = buddy.place(&PlacementRequest::new(1000)).expect("there is room");
/// assert_eq!((place.address, place.bytes), (0, 1024));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Buddy {
    options: BuddyOptions,
    chunks: ChunkTable,
    /// The slots of blocks in their own regions, and the bytes of these blocks.
    huge_slots: BTreeSet<u32>,
    huge: u64,
    /// The addresses of regions that are released once idle.
    own_regions: BTreeSet<u64>,
    /// Those of them that became idle.
    spent_regions: BTreeSet<u64>,
}

impl Buddy {
    /// Creates an allocator without memory.
    #[must_use]
    pub fn new(options: BuddyOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Returns the options.
    #[must_use]
    pub const fn options(&self) -> &BuddyOptions {
        &self.options
    }

    /// Returns the bytes of blocks in their own regions.
    #[must_use]
    pub const fn huge_bytes(&self) -> u64 {
        self.huge
    }

    /// Returns the best fit and the block's start in it. A huge request takes only a whole region. No shared region is as
    /// large, so that region was taken for it.
    fn find(&self, rounded: u64, alignment: u64) -> Option<(FreeChunk, u64)> {
        let is_huge = rounded > self.options.max_chunk().0;
        self.chunks.free_from(rounded).filter(|chunk| !is_huge || self.chunks.is_region(chunk.slot)).find_map(
            |chunk| {
                let start = round_up(chunk.address, alignment)?;
                (start - chunk.address <= chunk.bytes - rounded).then_some((chunk, start))
            },
        )
    }

    /// Charges a huge block. Its region is released once idle.
    fn note_huge(&mut self, block: Placement) {
        self.huge += block.bytes;
        self.huge_slots.insert(block.slot);
        if let Some(region) = self.chunks.region_of(block.address) {
            self.own_regions.insert(region.address);
            self.spent_regions.remove(&region.address);
        }
    }

    /// Removes the record of a released region.
    fn forget(&mut self, region: Span) -> Span {
        self.own_regions.remove(&region.address);
        self.spent_regions.remove(&region.address);
        region
    }
}

impl Policy for Buddy {
    fn name(&self) -> &'static str {
        NAME
    }

    answered_by_chunks!();

    /// Returns the bytes plus the options' padding, in whole smallest chunks.
    fn rounded(&self, bytes: u64, alignment: u64) -> Option<u64> {
        let min_chunk = self.options.min_chunk().0;
        let rounded = round_up(bytes.max(1).checked_add(self.options.overhead())?, min_chunk)?;
        let sound = alignment.is_power_of_two() && rounded.checked_add(alignment).is_some();
        sound.then_some(rounded)
    }

    /// Takes the smallest chunk that fits, the lowest among equals. The bytes before the block stay free, and so do those
    /// behind, unless they are too few or the region is the block's own.
    fn place(&mut self, request: &PlacementRequest) -> Option<Placement> {
        let rounded = self.rounded(request.bytes, request.alignment)?;
        if !self.chunks.has_room_for(2) {
            return None;
        }
        let (chunk, start) = self.find(rounded, request.alignment)?;
        let is_huge = rounded > self.options.max_chunk().0;
        let behind = chunk.bytes - (start - chunk.address) - rounded;
        let cut = !is_huge && behind > self.options.overhead();
        let place = self.chunks.carve(chunk.slot, start, if cut { rounded } else { rounded + behind });
        if is_huge {
            self.note_huge(place);
        }
        Some(place)
    }

    /// Frees a block and merges it with its free neighbors.
    fn free(&mut self, slot: u32) -> Result<(), NotLive> {
        let block = self.chunks.live(slot).ok_or(NotLive { slot })?;
        let joined = self.chunks.free(slot)?;
        if self.huge_slots.remove(&slot) {
            self.huge -= block.bytes;
        }
        if self.chunks.is_region(joined.slot) && self.own_regions.remove(&joined.address) {
            self.spent_regions.insert(joined.address);
        }
        Ok(())
    }

    /// Releases a region that was taken for a huge request as soon as it is idle.
    #[inline]
    fn release(&mut self, release: Release) -> Option<Span> {
        match release {
            Release::Idle { at_most } => {
                let region = self.chunks.take_idle(|region| region.bytes <= at_most)?;
                Some(self.forget(region))
            }
            Release::Tail { .. } => None,
            Release::Unwanted | Release::BeforeGrowth => {
                while let Some(address) = self.spent_regions.pop_first() {
                    if let Some(region) = self.chunks.take_idle(|region| region.address == address) {
                        return Some(self.forget(region));
                    }
                    // The region was reused before the pool asked.
                    self.own_regions.insert(address);
                }
                None
            }
        }
    }

    /// Returns exactly the rounded size for a huge request. Otherwise returns the first refill while the pool has no
    /// memory, the later one afterwards, but at least the rounded size. Ignores `proposed`.
    fn region_bytes(&self, rounded: u64, _proposed: u64) -> u64 {
        self.options.refill(rounded, self.chunks.reserved_bytes(), self.huge)
    }

    fn check(&self) -> Result<(), Inconsistent> {
        self.chunks.check(NAME)?;
        let wrong = |detail: String| Err(Inconsistent { policy: NAME, detail });
        let huge =
            self.huge_slots.iter().map(|&slot| self.chunks.live(slot).map_or(0, |block| block.bytes)).sum();
        if self.huge != huge {
            return wrong(format!("{huge} bytes are huge, counted as {}", self.huge));
        }
        let starts =
            |address: &u64| self.chunks.region_of(*address).is_some_and(|region| region.address == *address);
        if !self.own_regions.iter().chain(&self.spent_regions).all(starts)
            || !self.own_regions.is_disjoint(&self.spent_regions)
        {
            return wrong(format!(
                "own regions at {:x?}, spent ones at {:x?}",
                self.own_regions, self.spent_regions
            ));
        }
        Ok(())
    }
}

// SAFETY: the chunks of a region cover it without overlap. A placement is one chunk with the requested alignment, and a
// region leaves only as one free chunk. `chunk_table.rs` checks these rules after every step of the tests.
unsafe impl ConfiguredPolicy for Buddy {
    type Options = BuddyOptions;

    fn configured(options: &BuddyOptions) -> Self {
        Self::new(*options)
    }
}
