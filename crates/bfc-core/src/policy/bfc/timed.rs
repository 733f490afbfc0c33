//! Frees with counts: what a pool with a [timing counter](crate::TimingCounter) asks of its policy.

use crate::policy::{NotLive, Piece, PlacementRequest};

/// The methods of a policy that keeps freed memory apart until all work on it has ended.
///
/// A free may carry a count. Its memory is *pending* until the safe frontier has passed that count: any request may reuse
/// it, except those [bound to earlier frees](PlacementRequest::with_freed_before), but it merges with no other memory.
pub trait TimedPolicy {
    /// Frees a block at a count above 0 that no other free has. The memory may only be merged with other memory or
    /// released once [`merge_ripe`](Self::merge_ripe) has passed that count.
    ///
    /// # Errors
    /// Fails if the slot holds no live block.
    fn free_at(&mut self, slot: u32, count: u64) -> Result<(), NotLive>;

    /// Merges memory that was freed at counts strictly below the frontier.
    fn merge_ripe(&mut self, frontier: u64);
}

/// The frees whose memory a request may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timing {
    /// The latest admitted count, if any.
    freed_before: Option<u64>,
}

impl Timing {
    /// All frees.
    pub(crate) const ANY: Self = Self { freed_before: None };
}

impl PlacementRequest {
    /// Excludes memory that was freed at a later count and that the frontier has not passed.
    #[must_use]
    pub const fn with_freed_before(mut self, count: u64) -> Self {
        self.timing = Timing { freed_before: Some(count) };
        self
    }

    /// Returns the latest count of memory that the request may use; `None` if it may use all.
    #[inline]
    #[must_use]
    pub const fn freed_before(&self) -> Option<u64> {
        self.timing.freed_before
    }

    /// Whether the request may use the memory of this chunk: it is free, and early enough.
    pub(crate) fn admits(&self, piece: &Piece) -> bool {
        piece.slot.is_none() && self.freed_before().is_none_or(|before| piece.freed_at <= before)
    }
}
