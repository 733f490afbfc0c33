//! What can be chosen of a space with two ends.
//!
//! Source of the rules: the spatial partitioning of XLA's `BFCAllocator`, 2026.

/// In which order an end tries its holes that are equally large. The smallest that fits comes first in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HoleOrder {
    /// The lowest address first.
    LowestFirst,
    /// The highest address first.
    HighestFirst,
}

/// When an end cuts a hole that is larger than needed. The gap is always cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HoleSplit {
    /// By the pool's [`SplitRule`](crate::SplitRule).
    AsPool,
    /// Whenever there is a rest.
    Always,
}

/// How one end uses its holes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EndRule {
    /// Which of several equally large holes.
    pub order: HoleOrder,
    /// Whether a rest stays free.
    pub split: HoleSplit,
}

/// Whether a pool keeps two [ends](crate::End) apart.
///
/// With two ends a region is blocks of the lower end, a gap, and blocks of the upper end:
///
/// ```text
/// low address                                              high address
/// | lower end: blocks and holes -> |  gap  | <- upper end: blocks and holes |
/// ```
///
/// A request takes the best fit among the holes of its own end; failing that, a piece of the gap, exactly as large as
/// needed, at its own side. A free chunk beside the gap becomes part of it, and the holes behind that too: so each end
/// can come to have all of the memory, but never a hole between two blocks of the other.
///
/// **What that promises.** As long as the gap is not used up, where an end places its blocks depends on the requests and
/// frees at that end alone: lower blocks have the same offsets from the start of the region, upper blocks from its end,
/// whatever happens at the other end. So processes that make the same requests for, say, buffers of collective
/// operations find them at the same offsets. The promise needs a pool without growth, which has one region, of the same
/// size and equally aligned in each process, and frees without a timing counter, which says when memory is free by what
/// the device has done. A pool whose source gives less than the limit, or that is made to grow all the same, keeps two
/// ends in each of its regions; lower blocks then go to the lowest region whose gap has room and upper ones to the highest.
///
/// A [guard](crate::GuardAllocator), which keeps blocks of both ends back, breaks the promise; a [plan](crate::Planned)
/// takes the place of the lower end's rules for what it expects.
///
/// A request may be refused though a hole of the other end would hold it: the
/// [report](crate::OomReport::other_end) then says so. Pools with two ends make no
/// [thread caches](crate::PoolConfig::with_thread_cache), and the [`CutRule`](crate::CutRule) means nothing.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::{AddressOnlyMemory, AllocationAttributes, Allocator, BfcAllocator, BfcConfig, Bytes, End, Ends};
/// use bfc_core::Request;
///
/// let config = BfcConfig::new(Bytes::mib(64)).with_ends(Ends::TWO);
/// let pool = BfcAllocator::new("pool", Arc::new(AddressOnlyMemory::new()), config);
/// let shared = AllocationAttributes::default().with_end(End::Upper);
///
/// // However many blocks of its own a process has, those that it shares with others lie where theirs do.
/// let own = pool.allocate(&Request::new(10_000_000))?;
/// let buffer = pool.allocate(&Request::new(1_000_000).with_attributes(shared))?;
/// let region = pool.regions()[0];
/// assert_eq!(own.address, region.address);
/// assert_eq!(buffer.address + buffer.bytes, region.address + region.bytes);
/// # Ok::<(), bfc_core::AllocError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ends {
    /// One space. Requests for the upper end are placed as all others.
    #[default]
    One,
    /// Two ends apart.
    Two {
        /// How the lower end uses its holes.
        lower: EndRule,
        /// How the upper end uses its holes.
        upper: EndRule,
    },
}

impl Ends {
    /// Two ends, each the mirror image of the other: of equal holes the one farthest from the gap, so that those beside it
    /// may come to join it. Cuts by the pool's rule.
    pub const TWO: Self = Self::Two {
        lower: EndRule { order: HoleOrder::LowestFirst, split: HoleSplit::AsPool },
        upper: EndRule { order: HoleOrder::HighestFirst, split: HoleSplit::AsPool },
    };

    /// Upstream's default: the lowest of equal holes at both ends. Cuts by the pool's rule.
    pub const TENSORFLOW: Self = Self::Two {
        lower: EndRule { order: HoleOrder::LowestFirst, split: HoleSplit::AsPool },
        upper: EndRule { order: HoleOrder::LowestFirst, split: HoleSplit::AsPool },
    };

    /// XLA's pool that serves collective operations from the lower end and all else from the upper: the highest of equal
    /// holes at both ends, and those of the lower end always cut.
    pub const COLLECTIVES: Self = Self::Two {
        lower: EndRule { order: HoleOrder::HighestFirst, split: HoleSplit::Always },
        upper: EndRule { order: HoleOrder::HighestFirst, split: HoleSplit::AsPool },
    };

    /// Whether there are two.
    #[must_use]
    pub const fn are_two(self) -> bool {
        matches!(self, Self::Two { .. })
    }
}
