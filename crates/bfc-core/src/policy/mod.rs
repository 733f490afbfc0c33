//! Placement policies: [`Policy`] and its implementations, one file or folder each.
//!
//! A policy places blocks in a space of offsets that it receives as regions. It has no lock, pointer, source, owner or
//! clock, so it is a plain value. A what-if runs on a clone, and the same calls in the same order give the same
//! offsets. A pool converts each request to a [`PlacementRequest`] and adds the lock, the accounts, growth and waiting.

pub(crate) mod auto_growth;
pub(crate) mod bfc;
pub(crate) mod buddy;
pub(crate) mod chunk_table;
mod configured;
mod first_fit;
pub(crate) mod packed;
pub(crate) mod pytorch;
mod types;

use std::fmt;

use crate::base::memory::Span;
use crate::base::placement::{Inconsistent, PackingCounts, Placement};
use crate::base::units::round_up;

pub use auto_growth::*;
pub use bfc::*;
pub use buddy::*;
pub use configured::ConfiguredPolicy;
pub use first_fit::FirstFit;
pub use packed::{Packed, PackedOptions};
pub use pytorch::{ExpandingPolicy, Pytorch, PytorchOptions, PytorchOptionsError};
pub use types::{Capabilities, NotAdded, NotLive, Piece, PlacementRequest, PolicyStatus, Release};

/// The granularity of regions, in bytes: upstream's smallest allocation.
pub(crate) const GRANULE: u64 = 256;

/// Rounds `bytes` down to whole granules.
pub(crate) const fn whole_granules(bytes: u64) -> u64 {
    bytes & !(GRANULE - 1)
}

mod sealed {
    /// Keeps the right to add methods to traits that only this crate implements.
    pub trait Sealed {}
}

impl<P> sealed::Sealed for Packed<P> {}

/// Places blocks in a space of offsets. The same calls in the same order give the same placements.
///
/// ```
/// use bfc_core::{Bfc, PlacementRequest, Policy, Span};
/// let mut bfc = Bfc::default();
/// bfc.add_region(Span { address: 0, bytes: 4096 }, false)?;
/// let placement = bfc.place(&PlacementRequest::new(1000)).expect("the region is free");
/// // What if the block were twice as large? A clone answers, and the original does not change.
/// let mut what_if = bfc.clone();
/// what_if.free(placement.slot)?;
/// assert!(what_if.place(&PlacementRequest::new(2000)).is_some());
/// assert_eq!(bfc.largest_free_bytes(), 4096 - 1024);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Policy: fmt::Debug + Send + Sync + 'static {
    /// The policy's name in tables and on the command line.
    fn name(&self) -> &'static str;

    /// The features of the policy that a pool may use.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Returns the minimum size of a block for `bytes` bytes; `None` if it exceeds the address space once rounded and
    /// aligned.
    fn rounded(&self, bytes: u64, alignment: u64) -> Option<u64>;

    /// Places a block for a request that [`rounded`](Self::rounded) accepts. Returns `None` without a change if nothing
    /// fits.
    fn place(&mut self, need: &PlacementRequest) -> Option<Placement>;

    /// Returns the live block of a slot.
    fn placed(&self, slot: u32) -> Option<Placement>;

    /// Frees a block.
    ///
    /// # Errors
    /// Fails if the slot holds no live block.
    fn free(&mut self, slot: u32) -> Result<(), NotLive>;

    /// Changes the size of a live block at its address, to the size that [`place`](Self::place) would choose for `bytes`
    /// bytes. Returns `None` without a change if the policy cannot, or if the slot holds no live block.
    fn resize(&mut self, slot: u32, bytes: u64) -> Option<Placement> {
        let _ = (slot, bytes);
        None
    }

    /// Adds a free region. With `join` it is merged with adjacent regions, if the policy can.
    ///
    /// # Errors
    /// See [`NotAdded`].
    fn add_region(&mut self, span: Span, join: bool) -> Result<(), NotAdded>;

    /// Adds a free region for a request that found no place. A policy that [keeps requests
    /// apart](Capabilities::separates_requests) uses the region for such requests alone, and places this one in it.
    ///
    /// # Errors
    /// See [`NotAdded`].
    fn add_region_for(&mut self, span: Span, join: bool, request: &PlacementRequest) -> Result<(), NotAdded> {
        let _ = request;
        self.add_region(span, join)
    }

    /// Returns the bytes of idle regions: those without a live block and without a pending free.
    fn idle_bytes(&self) -> u64;

    /// Releases memory without a live block, which then belongs to the caller. See [`Release`]. Returns `None` without
    /// a change if there is none.
    fn release(&mut self, release: Release) -> Option<Span>;

    /// Releases the regions that the policy gives up first for a request for which the source has no memory. They then
    /// belong to the caller.
    fn release_for(&mut self, request: &PlacementRequest) -> Vec<Span> {
        let _ = request;
        Vec::new()
    }

    /// Returns figures that are cheap to read.
    fn status(&self) -> PolicyStatus;

    /// Returns the regions in order of address.
    fn regions(&self) -> Vec<Span>;

    /// Returns the size of the largest free chunk, or 0.
    fn largest_free_bytes(&self) -> u64;

    /// Returns an upper bound of the bytes that a request can get without a new region, including by
    /// [`merge_until_fit`](Self::merge_until_fit).
    fn largest_obtainable_bytes(&self) -> u64 {
        self.largest_free_bytes()
    }

    /// Whether the request may use the memory of this chunk: it is free, early enough, and in a region that serves such
    /// requests.
    fn may_use(&self, request: &PlacementRequest, piece: &Piece) -> bool {
        request.admits(piece)
    }

    /// Visits every chunk of every region, in order of address.
    fn visit(&self, visit: &mut dyn FnMut(Piece));

    /// Returns the bytes to request from the source for a block of `rounded` bytes, where the pool's growth rule gives
    /// `proposed` bytes. For policies with their own growth rule.
    fn region_bytes(&self, rounded: u64, proposed: u64) -> u64 {
        let _ = rounded;
        proposed
    }

    /// Merges free memory that [`place`](Self::place) leaves separate, until the request fits. Returns whether it does.
    fn merge_until_fit(&mut self, need: &PlacementRequest) -> bool {
        let _ = need;
        false
    }

    /// Returns the packing follower of a policy; `None` without a packing.
    fn packing_follower(&mut self) -> Option<&mut dyn PackingFollower> {
        None
    }

    /// Returns the methods of a policy that maps memory into reserved ranges of addresses; `None` if it takes regions.
    fn expanding(&mut self) -> Option<&mut dyn ExpandingPolicy> {
        None
    }

    /// Returns the methods for a [timing counter](crate::TimingCounter); `None` if the policy has none.
    fn timed(&mut self) -> Option<&mut dyn TimedPolicy> {
        None
    }

    /// Checks all invariants, in time proportional to the number of chunks.
    ///
    /// # Errors
    /// Fails with the first violated invariant.
    fn check(&self) -> Result<(), Inconsistent>;

    /// Clones the policy for what-ifs.
    fn boxed_clone(&self) -> Box<dyn Policy>;
}

/// The methods of a policy that follows a packing. Only [`Packed`] implements it.
pub trait PackingFollower: sealed::Sealed {
    /// Begins a step: the next request is compared with the first one of the packing.
    fn begin_step(&mut self);

    /// Returns how many requests followed the packing.
    fn counts(&self) -> PackingCounts;
}

impl dyn Policy + '_ {
    /// Returns the free bytes, in any number of chunks. Visits every chunk.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        let mut free = 0;
        self.visit(&mut |piece| free += if piece.slot.is_none() { piece.span.bytes } else { 0 });
        free
    }

    /// Returns the free bytes that the request may use, in any number of chunks. Visits every chunk.
    #[must_use]
    pub fn free_bytes_for(&self, request: &PlacementRequest) -> u64 {
        self.free_and_largest_for(request).0
    }

    /// Returns the free bytes that the request may use, and the largest chunk of them.
    pub(crate) fn free_and_largest_for(&self, request: &PlacementRequest) -> (u64, u64) {
        let (mut free, mut largest) = (0, 0);
        self.visit(&mut |piece| {
            if self.may_use(request, &piece) {
                free += piece.span.bytes;
                largest = piece.span.bytes.max(largest);
            }
        });
        (free, largest)
    }
}

/// Rounds `bytes` up to whole granules; `None` if an aligned block of that size could exceed the address space. Both
/// `granule` and `alignment` are powers of two.
#[inline]
pub(crate) fn round_to_granule(bytes: u64, alignment: u64, granule: u64) -> Option<u64> {
    let rounded = round_up(bytes, granule)?;
    rounded.checked_add(alignment.max(granule)).map(|_| rounded)
}
