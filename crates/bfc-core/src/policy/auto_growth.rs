//! Paddle's auto-growth best fit as a policy: each region has the size of its request.

mod options;

pub use options::{AutoGrowthOptions, AutoGrowthOptionsError};

use crate::base::memory::Span;
use crate::base::placement::{Inconsistent, Placement};
use crate::base::units::round_up;
use crate::policy::chunk_table::{ChunkTable, answered_by_chunks};
use crate::policy::{
    Capabilities, ConfiguredPolicy, NotAdded, NotLive, Piece, PlacementRequest, Policy, PolicyStatus, Release,
};

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
    chunks: ChunkTable,
}

impl AutoGrowth {
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
}

impl Policy for AutoGrowth {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { releases_before_growth: self.options.free_before_growth, ..Capabilities::default() }
    }

    answered_by_chunks!();

    /// Returns the bytes plus padding, rounded up to the options' alignment.
    fn rounded(&self, bytes: u64, alignment: u64) -> Option<u64> {
        let step = self.options.alignment().0;
        let rounded = round_up(bytes.max(1).checked_add(self.options.padding())?, step)?;
        let sound = alignment.is_power_of_two() && rounded.checked_add(alignment).is_some();
        sound.then_some(rounded)
    }

    /// Cuts a block from the upper end of the smallest free block that fits, the lowest among equals: as high as the
    /// alignment allows.
    fn place(&mut self, request: &PlacementRequest) -> Option<Placement> {
        let rounded = self.rounded(request.bytes, request.alignment)?;
        if !self.chunks.has_room_for(2) {
            return None;
        }
        let (slot, start) = self.chunks.free_from(rounded).find_map(|chunk| {
            let start = (chunk.address + (chunk.bytes - rounded)) & !(request.alignment - 1);
            (start >= chunk.address).then_some((chunk.slot, start))
        })?;
        Some(self.chunks.carve(slot, start, rounded))
    }

    fn free(&mut self, slot: u32) -> Result<(), NotLive> {
        self.chunks.free(slot).map(|_| ())
    }

    /// Releases any idle region, at the moments that the options select.
    #[inline]
    fn release(&mut self, release: Release) -> Option<Span> {
        match release {
            Release::Idle { at_most } => self.chunks.take_idle(|region| region.bytes <= at_most),
            Release::Unwanted if self.options.free_idle_chunks => self.chunks.take_idle(|_| true),
            Release::BeforeGrowth if self.options.free_before_growth => self.chunks.take_idle(|_| true),
            Release::Tail { .. } | Release::Unwanted | Release::BeforeGrowth => None,
        }
    }

    /// Returns the rounded size, but at least the options' chunk size. Ignores `proposed`.
    fn region_bytes(&self, rounded: u64, _proposed: u64) -> u64 {
        rounded.max(self.options.chunk_size().0)
    }

    fn check(&self) -> Result<(), Inconsistent> {
        self.chunks.check(NAME)
    }
}

// SAFETY: the chunks of a region cover it without overlap. A placement is one chunk with the requested alignment, and a
// region leaves only as one free chunk. `chunk_table.rs` checks these rules after every step of the tests.
unsafe impl ConfiguredPolicy for AutoGrowth {
    type Options = AutoGrowthOptions;

    fn configured(options: &AutoGrowthOptions) -> Self {
        Self::new(*options)
    }
}
