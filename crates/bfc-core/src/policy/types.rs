//! The data that a pool and its policy exchange.

use super::bfc::Timing;
use crate::base::memory::Span;

/// A request for a block, without owner and waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlacementRequest {
    /// The requested bytes, at least 1.
    pub bytes: u64,
    /// The minimum alignment of the address, a power of two.
    pub alignment: u64,
    /// The number of the stream that uses the block. Only policies with pools by stream read it.
    pub stream: u32,
    /// The frees whose memory the request may use. Only a [timed policy](crate::Policy::timed) reads it.
    pub(super) timing: Timing,
}

impl PlacementRequest {
    /// Creates a request for `bytes` bytes with any alignment.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self { bytes, alignment: 1, stream: 0, timing: Timing::ANY }
    }

    /// Sets the alignment, a power of two.
    #[must_use]
    pub const fn with_alignment(mut self, alignment: u64) -> Self {
        self.alignment = alignment;
        self
    }

    /// Sets the stream; 0 by default.
    #[must_use]
    pub const fn with_stream(mut self, stream: u32) -> Self {
        self.stream = stream;
        self
    }
}

/// The reason why a region was not added. The policy is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdded {
    /// The region is misaligned, empty, outside of the address space, or overlaps another.
    #[error("the region is misaligned, empty, outside of the address space or overlaps another")]
    Bad,
    /// The policy has no slots left.
    #[error("no more pieces of memory can be numbered")]
    Full,
}

/// The error of freeing a slot without a live block. The policy is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slot {slot} holds no live block")]
pub struct NotLive {
    /// The invalid slot.
    pub slot: u32,
}

/// The memory that a policy releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Release {
    /// One idle region of at most this many bytes.
    Idle {
        /// The largest region to release.
        at_most: u64,
    },
    /// This many bytes, in whole granules, at the end of the [tail](PolicyStatus::tail). Only for policies that can
    /// release a part of a region.
    Tail {
        /// The bytes to release, exactly.
        bytes: u64,
    },
    /// One idle region that the policy does not keep after a free.
    Unwanted,
    /// One idle region that the policy replaces before the pool grows.
    BeforeGrowth,
}

/// The features of a policy that a pool may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// If a request finds no room, an otherwise equal larger one finds none either.
    pub is_ordered_by_size: bool,
    /// The pool may keep freed blocks in [caches](crate::ThreadCache) and reuse them without the policy. Not for
    /// policies that follow the sequence of requests, or release regions with their last free.
    pub supports_caches: bool,
    /// [`Release::BeforeGrowth`] releases all idle regions, so that new ones can replace them.
    pub releases_before_growth: bool,
    /// The policy [follows a packing](crate::Policy::packing_follower), so placements depend on more than the request.
    pub follows_packing: bool,
    /// A region of fewer bytes than [`region_bytes`](crate::Policy::region_bytes) is useless: if the source has no memory
    /// for it, the pool does not ask for less.
    pub exact_regions: bool,
    /// All idle regions return to the source before a request fails, even if it could not fit in their place.
    pub releases_before_failure: bool,
    /// A region serves only some requests, such as those of one stream.
    pub separates_requests: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            is_ordered_by_size: true,
            supports_caches: false,
            releases_before_growth: false,
            follows_packing: false,
            exact_regions: false,
            releases_before_failure: false,
            separates_requests: false,
        }
    }
}

/// Figures of a policy that are cheap to read. All sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyStatus {
    /// Bytes of all regions.
    pub reserved_bytes: u64,
    /// The free chunk at the end of the last region, or an empty span if that end is in use. A region added directly
    /// behind merges with it. `None` without regions, and for policies that never merge regions.
    pub tail: Option<Span>,
    /// Whether freed memory is pending: not yet reusable by every request.
    pub has_pending: bool,
}

/// One chunk of a policy's space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Piece {
    /// The index of its region, in order of address.
    pub region: usize,
    /// Its span.
    pub span: Span,
    /// The slot of its live block; `None` if it is free.
    pub slot: Option<u32>,
    /// The count of its free while it is pending; 0 if it is reusable or in use.
    pub freed_at: u64,
}

impl Piece {
    /// Creates a live chunk, or a free one that is reusable immediately.
    #[must_use]
    pub const fn new(region: usize, span: Span, slot: Option<u32>) -> Self {
        Self { region, span, slot, freed_at: 0 }
    }
}
