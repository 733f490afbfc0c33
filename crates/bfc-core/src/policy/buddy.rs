//! Paddle's buddy allocator as a policy: best fit over large regions that are split and merged. Huge requests get their
//! own regions. This is not the binary buddy system of textbooks: any neighbors merge.

mod check;
mod descriptor;
mod join;
mod options;

use std::collections::BTreeSet;

pub use options::{BuddyOptions, BuddyOptionsError};

use crate::base::memory::Span;
use crate::base::placement::{Inconsistent, Placement};
use crate::base::units::round_up;
use crate::policy::best_fit::{BestFit, FreePiece};
use crate::policy::region_table::{RegionTable, TableRegion};
use crate::policy::{NotAdded, NotLive, Piece, PlacementRequest, Policy, PolicyStatus, Release};
use descriptor::{Descriptor, Descriptors, Kind, NONE, Overwritten};

/// The policy's name.
const NAME: &str = "buddy";

/// Placement as Paddle's buddy allocator.
///
/// Source: `BuddyAllocator` in Paddle's memory/allocation, with the same choice of chunks, rounding, splits and region
/// sizes. The differences:
///
/// * Descriptors lie in a separate table, so the policy serves memory that the host cannot access, and a block starts
///   where its chunk does. By default requests do not pay for them; [`BuddyOptions::with_paddle_sizes`] restores
///   upstream's sizes.
/// * Requests have alignments. Bytes cut off before an aligned block stay free.
/// * Best fit orders by size, then address. Upstream orders by source first; a pool here has one source.
/// * A free subtracts exactly the bytes that the allocation added, and a returned region leaves no record. Upstream's
///   counts drift, and its records stay.
/// * Huge blocks count as in use, in [`huge_bytes`](Buddy::huge_bytes). [`used_bytes`](Buddy::used_bytes) is upstream's
///   and excludes them.
///
/// All descriptors carry guards. Once one is found overwritten, the policy places no more blocks, and reports the cause
/// by [`damage`](crate::PolicyStatus::damage) and [`check`](Policy::check). Blocks can still be freed, and all regions
/// are still known.
///
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
    descriptors: Descriptors,
    free: BestFit,
    regions: RegionTable,
    /// Bytes of blocks in shared regions.
    used: u64,
    /// Bytes of blocks in their own regions.
    huge: u64,
    /// The addresses of regions that are released once idle.
    own_regions: BTreeSet<u64>,
    /// Those of them that became idle.
    spent_regions: BTreeSet<u64>,
    /// The first descriptor that was found overwritten.
    damage: Option<Overwritten>,
}

/// A free chunk that fits a request, and the block's position in it.
#[derive(Clone, Copy, Debug)]
struct Fit {
    slot: u32,
    piece: Descriptor,
    start: u64,
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

    /// Returns the bytes of blocks in shared regions.
    #[must_use]
    pub const fn used_bytes(&self) -> u64 {
        self.used
    }

    /// Returns the bytes of blocks in their own regions.
    #[must_use]
    pub const fn huge_bytes(&self) -> u64 {
        self.huge
    }

    /// Flips bits of one of the six words of a descriptor, as a stray write would. Returns whether the word exists.
    #[cfg(test)]
    fn overwrite_descriptor(&mut self, slot: u32, word: usize, flip: u64) -> bool {
        self.descriptors.overwrite(slot, word, flip)
    }

    fn note_damage(&mut self, overwritten: Overwritten) {
        self.damage.get_or_insert(overwritten);
    }

    /// Returns the best fit. A huge request takes only a whole region. No shared region is as large, so that region was
    /// taken for it.
    fn find(&self, rounded: u64, alignment: u64) -> Result<Option<Fit>, Overwritten> {
        for FreePiece { bytes, address, slot } in self.free.at_least(rounded) {
            let piece = self.descriptors.load(slot)?;
            if piece.kind != Kind::Free || (piece.address, piece.bytes) != (address, bytes) {
                return Err(Overwritten { slot });
            }
            let own_region = rounded <= self.options.max_chunk().0 || piece.is_whole_region();
            let start = round_up(address, alignment).filter(|start| start - address <= bytes - rounded);
            if let (true, Some(start)) = (own_region, start) {
                return Ok(Some(Fit { slot, piece, start }));
            }
        }
        Ok(None)
    }

    fn try_place(&mut self, rounded: u64, alignment: u64) -> Result<Option<Placement>, Overwritten> {
        if !self.descriptors.has_room_for(2) {
            return Ok(None);
        }
        let Some(fit) = self.find(rounded, alignment)? else { return Ok(None) };
        // Load all descriptors before changing any of them.
        let right = match fit.piece.right {
            NONE => None,
            slot => Some((slot, self.descriptors.load(slot)?)),
        };
        Ok(Some(self.carve(&fit, rounded, right)))
    }

    /// Allocates `rounded` bytes of a free chunk. The bytes before stay free, and so do those behind, unless they are
    /// too few or the region is the block's own.
    fn carve(&mut self, fit: &Fit, rounded: u64, right: Option<(u32, Descriptor)>) -> Placement {
        let Fit { slot, piece, start } = *fit;
        let is_huge = rounded > self.options.max_chunk().0;
        let before = start - piece.address;
        let behind = piece.bytes - before - rounded;
        let cut = !is_huge && behind > self.options.overhead();
        let bytes = if cut { rounded } else { rounded + behind };

        self.free.remove(FreePiece { bytes: piece.bytes, address: piece.address, slot });
        let kind = if is_huge { Kind::Huge } else { Kind::Live };
        let mut block = Descriptor { kind, address: start, bytes, ..piece };
        let mut block_slot = slot;
        if before > 0 {
            block.left = slot;
            block_slot = self.descriptors.insert(&block);
            self.descriptors.store(slot, &Descriptor { bytes: before, right: block_slot, ..piece });
            self.free.insert(FreePiece { bytes: before, address: piece.address, slot });
        }
        let mut right_of_block = block_slot;
        if cut {
            let address = start + bytes;
            let rest =
                Descriptor { kind: Kind::Free, address, bytes: behind, left: block_slot, right: piece.right };
            let rest_slot = self.descriptors.insert(&rest);
            self.free.insert(FreePiece { bytes: behind, address, slot: rest_slot });
            block.right = rest_slot;
            right_of_block = rest_slot;
        }
        self.descriptors.store(block_slot, &block);
        if let Some((right_slot, right)) = right.filter(|(_, right)| right.left != right_of_block) {
            self.descriptors.store(right_slot, &Descriptor { left: right_of_block, ..right });
        }

        if is_huge {
            self.huge += bytes;
            self.note_own_region(start);
        } else {
            self.used += bytes;
        }
        Placement { address: start, bytes, slot: block_slot }
    }

    /// Releases the region of a huge block once it is idle.
    fn note_own_region(&mut self, address: u64) {
        if let Some(region) = self.regions.containing(address) {
            self.own_regions.insert(region.span.address);
            self.spent_regions.remove(&region.span.address);
        }
    }

    /// Whether a region is one free chunk.
    fn is_idle(&self, region: &TableRegion) -> bool {
        let first = self.descriptors.load(region.first);
        first.is_ok_and(|first| first.kind == Kind::Free && first.is_whole_region())
    }

    /// Removes an idle region.
    fn forget(&mut self, index: usize) -> Span {
        let TableRegion { span, first } = self.regions.remove(index);
        self.free.remove(FreePiece { bytes: span.bytes, address: span.address, slot: first });
        self.descriptors.remove(first);
        self.own_regions.remove(&span.address);
        self.spent_regions.remove(&span.address);
        span
    }
}

impl Policy for Buddy {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Returns the bytes plus the options' padding, in whole smallest chunks.
    fn rounded(&self, bytes: u64, alignment: u64) -> Option<u64> {
        let min_chunk = self.options.min_chunk().0;
        let rounded = round_up(bytes.max(1).checked_add(self.options.overhead())?, min_chunk)?;
        let sound = alignment.is_power_of_two() && rounded.checked_add(alignment).is_some();
        sound.then_some(rounded)
    }

    /// Takes the smallest chunk that fits, the lowest among equals.
    fn place(&mut self, request: &PlacementRequest) -> Option<Placement> {
        let rounded = self.rounded(request.bytes, request.alignment)?;
        if self.damage.is_some() {
            return None;
        }
        self.try_place(rounded, request.alignment).unwrap_or_else(|overwritten| {
            self.note_damage(overwritten);
            None
        })
    }

    fn placed(&self, slot: u32) -> Option<Placement> {
        let block = self.descriptors.load(slot).ok().filter(Descriptor::is_live)?;
        Some(Placement { address: block.address, bytes: block.bytes, slot })
    }

    /// Frees a block and merges it with a free neighbor above, then with one below. Next to an overwritten descriptor
    /// it stays unmerged.
    ///
    /// # Errors
    /// Also fails if the block's descriptor was overwritten; [`damage`](crate::PolicyStatus::damage) then reports it.
    fn free(&mut self, slot: u32, _freed_at: u64) -> Result<(), NotLive> {
        let block = match self.descriptors.load(slot) {
            Ok(block) if block.is_live() => block,
            Ok(_) => return Err(NotLive { slot }),
            Err(overwritten) => {
                self.note_damage(overwritten);
                return Err(NotLive { slot });
            }
        };
        match block.kind {
            Kind::Huge => self.huge -= block.bytes,
            _ => self.used -= block.bytes,
        }
        let joined = self.join(slot, Descriptor { kind: Kind::Free, ..block });
        if joined.is_whole_region() && self.own_regions.remove(&joined.address) {
            self.spent_regions.insert(joined.address);
        }
        Ok(())
    }

    /// Adds a region, without merging: regions return to the source unchanged.
    fn add_region(&mut self, span: Span, _join: bool) -> Result<(), NotAdded> {
        let index = self.regions.room_for(span)?;
        if !self.descriptors.has_room_for(1) {
            return Err(NotAdded::Full);
        }
        let Span { address, bytes } = span;
        let piece = Descriptor { kind: Kind::Free, address, bytes, left: NONE, right: NONE };
        let first = self.descriptors.insert(&piece);
        self.regions.insert(index, TableRegion { span, first });
        self.free.insert(FreePiece { bytes, address, slot: first });
        Ok(())
    }

    fn idle_bytes(&self) -> u64 {
        let idle = self.regions.as_slice().iter().filter(|region| self.is_idle(region));
        idle.map(|region| region.span.bytes).sum()
    }

    /// Releases a region that was taken for a huge request as soon as it is idle.
    #[inline]
    fn release(&mut self, release: Release) -> Option<Span> {
        match release {
            Release::Idle { at_most } => {
                let small = |region: &TableRegion| region.span.bytes <= at_most;
                let mut regions = self.regions.as_slice().iter();
                let index = regions.position(|region| small(region) && self.is_idle(region))?;
                Some(self.forget(index))
            }
            Release::Tail { .. } => None,
            Release::Unwanted | Release::BeforeGrowth => {
                while let Some(address) = self.spent_regions.pop_first() {
                    let index = self.regions.starting_at(address)?;
                    if self.is_idle(&self.regions.as_slice()[index]) {
                        return Some(self.forget(index));
                    }
                    // The region was reused before the pool asked.
                    self.own_regions.insert(address);
                }
                None
            }
        }
    }

    fn status(&self) -> PolicyStatus {
        PolicyStatus {
            reserved_bytes: self.regions.bytes(),
            tail: None,
            has_pending: false,
            damage: self.damage.map(check::overwritten),
        }
    }

    fn regions(&self) -> Vec<Span> {
        self.regions.spans()
    }

    fn largest_free_bytes(&self) -> u64 {
        self.free.largest_bytes()
    }

    /// Visits every chunk of every region that intact descriptors lead to.
    fn visit(&self, visit: &mut dyn FnMut(Piece)) {
        for (index, region) in self.regions.as_slice().iter().enumerate() {
            let mut slot = region.first;
            while let Ok(Descriptor { address, bytes, right, kind, .. }) = self.descriptors.load(slot) {
                let live = (kind != Kind::Free).then_some(slot);
                visit(Piece::new(index, Span { address, bytes }, live));
                if right == NONE {
                    break;
                }
                slot = right;
            }
        }
    }

    /// Returns exactly the rounded size for a huge request. Otherwise returns the first refill while the pool has no
    /// memory, the later one afterwards, but at least the rounded size. Ignores `planned`.
    fn region_bytes(&self, rounded: u64, _planned: u64) -> u64 {
        self.options.refill(rounded, self.regions.bytes(), self.huge)
    }

    fn check(&self) -> Result<(), Inconsistent> {
        check::check(self)
    }

    fn boxed_clone(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests;
