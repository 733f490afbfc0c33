//! First fit by address: the baseline that other policies are compared with.

use crate::base::memory::Span;
use crate::base::placement::{Inconsistent, Placement};
use crate::base::units::round_up;
use crate::policy::chunk_table::{ChunkTable, answered_by_chunks};
use crate::policy::{
    ConfiguredPolicy, GRANULE, NotAdded, NotLive, Piece, PlacementRequest, Policy, PolicyStatus, Release,
    round_to_granule,
};

/// Placement at the lowest address that fits, as in the oldest heaps. The rest of the chunk stays free above the block.
///
/// A baseline for comparisons: a request looks at every free chunk that is large enough.
///
/// ```
/// use bfc_core::{FirstFit, PlacementRequest, Policy, Span};
/// let mut policy = FirstFit::default();
/// policy.add_region(Span { address: 0, bytes: 4096 }, false)?;
/// let blocks = [1024, 256, 512].map(|bytes| policy.place(&PlacementRequest::new(bytes)).expect("there is room"));
/// policy.free(blocks[0].slot)?;
/// policy.free(blocks[2].slot)?;
/// // Best fit would keep the large piece at the end; first fit cuts the lowest one.
/// assert_eq!(policy.place(&PlacementRequest::new(512)).map(|place| place.address), Some(0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct FirstFit {
    chunks: ChunkTable,
}

impl Policy for FirstFit {
    answered_by_chunks!();

    fn name(&self) -> &'static str {
        "first-fit"
    }

    fn rounded(&self, bytes: u64, alignment: u64) -> Option<u64> {
        alignment.is_power_of_two().then(|| round_to_granule(bytes.max(1), alignment, GRANULE))?
    }

    fn place(&mut self, request: &PlacementRequest) -> Option<Placement> {
        let rounded = self.rounded(request.bytes, request.alignment)?;
        if !self.chunks.has_room_for(2) {
            return None;
        }
        let fits = self.chunks.free_from(rounded).filter_map(|chunk| {
            let start = round_up(chunk.address, request.alignment)?;
            (start - chunk.address <= chunk.bytes - rounded).then_some((start, chunk.slot))
        });
        let (start, slot) = fits.min()?;
        Some(self.chunks.carve(slot, start, rounded))
    }

    fn free(&mut self, slot: u32) -> Result<(), NotLive> {
        self.chunks.free(slot).map(|_| ())
    }

    fn release(&mut self, release: Release) -> Option<Span> {
        let Release::Idle { at_most } = release else { return None };
        self.chunks.take_idle(|region| region.bytes <= at_most)
    }

    fn check(&self) -> Result<(), Inconsistent> {
        self.chunks.check(self.name())
    }
}

// SAFETY: the chunks of a region cover it without overlap. A placement is one chunk with the requested alignment, and a
// region leaves only as one free chunk. `chunk_table.rs` checks these rules after every step of the tests.
unsafe impl ConfiguredPolicy for FirstFit {
    type Options = ();

    fn configured((): &()) -> Self {
        Self::default()
    }
}
