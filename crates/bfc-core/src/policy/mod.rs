//! Placement over offsets, apart from everything else: what all policies have in common.
//!
//! A policy decides where blocks go in a space that it was given as regions. It knows no lock, no pointer, no source of
//! memory, no owner and no clock; it is a value, so that a what-if runs on a copy. A pool adds the rest: the lock, the
//! accounts, the growth, the waiting.

pub(crate) mod auto_growth;
pub(crate) mod best_fit;
pub(crate) mod bfc;
pub(crate) mod buddy;
pub(crate) mod planned;
pub(crate) mod region_table;

use std::fmt;

use crate::base::memory::Span;
use crate::base::placement::{Inconsistent, Placement, PlanCounts};
use crate::base::units::round_up;

pub use auto_growth::*;
pub use bfc::*;
pub use buddy::*;
pub use planned::{Planned, PlannedOptions};

/// Regions start at multiples of this and are used in multiples of it, in bytes: upstream's smallest allocation.
pub(crate) const GRANULE: u64 = 256;

/// `bytes` rounded down to whole granules.
pub(crate) const fn whole_granules(bytes: u64) -> u64 {
    bytes & !(GRANULE - 1)
}

/// What is asked of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlacementRequest {
    /// How many bytes, as asked for; at least 1.
    pub bytes: u64,
    /// Least alignment of the address, a power of two.
    pub alignment: u64,
    /// If given, memory freed at a later count must not be used.
    pub freed_before: Option<u64>,
}

impl PlacementRequest {
    /// A need of `bytes` bytes with any alignment.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self { bytes, alignment: 1, freed_before: None }
    }

    /// The same need with another alignment, a power of two.
    #[must_use]
    pub const fn with_alignment(mut self, alignment: u64) -> Self {
        self.alignment = alignment;
        self
    }
}

/// Why a region was not added. The policy is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdded {
    /// It is misaligned, empty, leaves the address space or overlaps another.
    #[error("the region is misaligned, empty, outside of the address space or overlaps another")]
    Bad,
    /// No more pieces of memory can be numbered.
    #[error("no more pieces of memory can be numbered")]
    Full,
}

/// A slot that holds no live block was to be freed. The policy is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slot {slot} holds no live block")]
pub struct NotLive {
    /// The slot given.
    pub slot: u32,
}

/// Which memory a policy is to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// One idle region of at most so many bytes.
    Idle {
        /// The largest region that may be released.
        at_most: u64,
    },
    /// So many bytes, whole granules, at the end of the [tail](PolicyStatus::tail). Only for policies that can release a part
    /// of a region.
    Tail {
        /// How many bytes; no fewer are released.
        bytes: u64,
    },
    /// One idle region that the policy does not want to keep, after a free.
    Unwanted,
    /// One idle region that the policy wants to replace, before the pool asks the source for more.
    BeforeGrowth,
}

/// What a pool may do with a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// If a request finds no room, a larger one that is alike in all else finds none either.
    pub is_ordered_by_size: bool,
    /// The pool may keep freed blocks in [caches](crate::ThreadCache) and reuse them without the policy. Not for policies
    /// that follow the sequence of requests, watch over blocks, or release regions once their last block is free.
    pub supports_caches: bool,
    /// Frees may carry counts.
    pub supports_counts: bool,
    /// [`Release::BeforeGrowth`] releases all idle regions, so that a request can be served in their place.
    pub releases_before_growth: bool,
    /// The policy [follows a plan](Policy::plan_follower), so that a place depends on more than the request.
    pub follows_plan: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            is_ordered_by_size: true,
            supports_caches: false,
            supports_counts: false,
            releases_before_growth: false,
            follows_plan: false,
        }
    }
}

/// Figures of a policy that are cheap to read. All sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyStatus {
    /// Bytes of all regions.
    pub reserved_bytes: u64,
    /// The free piece at the end of the last region, or the empty span there if that end is in use: a region that is added
    /// right behind joins it. `None` without regions, and for policies that join none.
    pub tail: Option<Span>,
    /// Frees wait for the frontier.
    pub has_pending: bool,
    /// Overwritten bookkeeping, for policies that can notice it. From then on [`Policy::place`] finds no room, so that no
    /// block is placed by damaged data. A pool then reports the damage instead of growing.
    pub damage: Option<Inconsistent>,
}

/// The part of a policy that follows a plan.
pub trait PlanFollower {
    /// A step begins: the next request is compared with the first one of the plan.
    fn begin_step(&mut self);

    /// How many requests followed the plan.
    fn counts(&self) -> PlanCounts;
}

impl dyn Policy + '_ {
    /// Free bytes that a request with this `freed_before` may have, in however many pieces. Visits every piece.
    #[must_use]
    pub fn free_bytes(&self, freed_before: Option<u64>) -> u64 {
        let before = freed_before.unwrap_or(u64::MAX);
        let mut free = 0;
        self.visit(&mut |piece| {
            if piece.slot.is_none() && piece.freed_at <= before {
                free += piece.span.bytes;
            }
        });
        free
    }
}

/// One piece of a policy's space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Piece {
    /// Which region it lies in, counted in the order of addresses.
    pub region: usize,
    /// Where it lies.
    pub span: Span,
    /// The slot of the live block in it; `None` if it is free.
    pub slot: Option<u32>,
    /// The count at which it was freed; 0 if anyone may use it, and while in use.
    pub freed_at: u64,
}

impl Piece {
    /// A live or free piece that anyone may use once it is free.
    #[must_use]
    pub const fn new(region: usize, span: Span, slot: Option<u32>) -> Self {
        Self { region, span, slot, freed_at: 0 }
    }
}

/// Placement over offsets. Same calls in the same order give the same places.
///
/// ```
/// use bfc_core::{Bfc, PlacementRequest, Policy, Span};
/// let mut bfc = Bfc::default();
/// bfc.add_region(Span { address: 0, bytes: 4096 }, false)?;
/// let place = bfc.place(&PlacementRequest::new(1000)).expect("there is room");
/// // What if the block were twice as large? A copy knows, and the original is as it was.
/// let mut what_if = bfc.clone();
/// what_if.free(place.slot, 0)?;
/// assert!(what_if.place(&PlacementRequest::new(2000)).is_some());
/// assert_eq!(bfc.largest_free_bytes(), 4096 - 1024);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Policy: fmt::Debug + Send + Sync + 'static {
    /// The policy's name in tables and on the command line.
    fn name(&self) -> &'static str;

    /// What a pool may do with the policy.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// The bytes that a block of `bytes` bytes needs at least; `None` if it leaves the address space once rounded and
    /// aligned.
    fn rounded(&self, bytes: u64, alignment: u64) -> Option<u64>;

    /// Finds room for a need that [`rounded`](Self::rounded) accepts; `None`, and nothing changed, if there is none.
    fn place(&mut self, need: &PlacementRequest) -> Option<Placement>;

    /// The live block of a slot.
    fn placed(&self, slot: u32) -> Option<Placement>;

    /// Takes a block back. With a `freed_at` above 0, a count that no other free bears, the memory may only be joined
    /// with other memory or given back once [`merge_ripe`](Self::merge_ripe) has passed that count. Policies that cannot
    /// keep such memory apart lack [`Capabilities::supports_counts`], and are only called with 0.
    ///
    /// # Errors
    /// If the slot holds no live block.
    fn free(&mut self, slot: u32, freed_at: u64) -> Result<(), NotLive>;

    /// Adds a region, free throughout. With `join` it becomes one with regions that it touches, if the policy can.
    ///
    /// # Errors
    /// See [`NotAdded`].
    fn add_region(&mut self, span: Span, join: bool) -> Result<(), NotAdded>;

    /// Bytes of the regions that could be released: those without a live block and without a free that waits for the
    /// frontier.
    fn idle_bytes(&self) -> u64;

    /// Forgets memory without a live block: it belongs to the caller from now on. See [`Release`]; `None`, and nothing
    /// changes, if there is none.
    fn release(&mut self, release: Release) -> Option<Span>;

    /// Figures that are cheap to read, and damage.
    fn status(&self) -> PolicyStatus;

    /// The regions, in the order of their addresses.
    fn regions(&self) -> Vec<Span>;

    /// The largest free piece in bytes, or 0.
    fn largest_free_bytes(&self) -> u64;

    /// The most bytes for which a need may find room in the memory there is, also where that takes a
    /// [`merge_until_fit`](Self::merge_until_fit); more than can be had in the end does no harm.
    fn largest_obtainable_bytes(&self) -> u64 {
        self.largest_free_bytes()
    }

    /// Shows every piece of every region, in the order of addresses.
    fn visit(&self, visit: &mut dyn FnMut(Piece));

    /// How many bytes to ask the source for when a need finds no room and the pool's own growth would take `planned`
    /// bytes: for policies with a rule of their own.
    fn region_bytes(&self, rounded: u64, planned: u64) -> u64 {
        let _ = rounded;
        planned
    }

    /// Joins what was freed at counts strictly below the frontier.
    fn merge_ripe(&mut self, frontier: u64) {
        let _ = frontier;
    }

    /// Joins frees regardless of their counts until one fits; whether one does. Only for needs that may use memory
    /// whenever it was freed.
    fn merge_until_fit(&mut self, need: &PlacementRequest) -> bool {
        let _ = need;
        false
    }

    /// The part of a policy that follows a plan; `None` for policies that follow none.
    fn plan_follower(&mut self) -> Option<&mut dyn PlanFollower> {
        None
    }

    /// Checks everything that must hold between two calls, in time proportional to the number of pieces.
    ///
    /// # Errors
    /// What does not hold.
    fn check(&self) -> Result<(), Inconsistent>;

    /// A copy, for what-ifs.
    fn boxed_clone(&self) -> Box<dyn Policy>;
}

/// `bytes` in whole granules; `None` if a block of that size could leave the address space once it is aligned. Both
/// `granule` and `alignment` are powers of two.
#[inline]
pub(crate) fn round_to_granule(bytes: u64, alignment: u64, granule: u64) -> Option<u64> {
    let rounded = round_up(bytes, granule)?;
    rounded.checked_add(alignment.max(granule)).map(|_| rounded)
}
