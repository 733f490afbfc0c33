//! The data that a pool and its policy exchange.

use crate::base::memory::Span;
use crate::base::placement::Inconsistent;

/// A request for a block, without owner and waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlacementRequest {
    /// Requested bytes; at least 1.
    pub bytes: u64,
    /// Least alignment of the address, a power of two.
    pub alignment: u64,
    /// If given, memory that was freed at a later count must not be used.
    pub freed_before: Option<u64>,
}

impl PlacementRequest {
    /// A request for `bytes` bytes with any alignment.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self { bytes, alignment: 1, freed_before: None }
    }

    /// The same request with another alignment, a power of two.
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
    /// The policy [follows a plan](crate::Policy::plan_follower), so that a place depends on more than the request.
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
    /// Overwritten bookkeeping, for policies that can notice it. From then on [`Policy::place`](crate::Policy::place) finds no room, so that no
    /// block is placed by damaged data. A pool then reports the damage instead of growing.
    pub damage: Option<Inconsistent>,
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
