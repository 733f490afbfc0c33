//! The offline packer: offsets for allocations with known lifetimes.
//!
//! A training step makes the same allocations in the same order as the previous one. The packer turns one recorded
//! step into a [`Packing`]: it gives each block an offset such that blocks with overlapping lifetimes are disjoint, in the
//! smallest space that it finds. This is dynamic storage allocation, which is NP-hard. The live bytes at the peak are a
//! lower bound, which most packings reach. [`Packed`] serves later steps by the packing.
//!
//! 1. The first placement proceeds from below, on the lowest part of the skyline (`skyline.rs`): fast for any number of
//!    blocks.
//! 2. For up to a thousand blocks, searches for a placement within a capacity follow (`search.rs`), restarted with
//!    variations (`search/restarts.rs`): at the lower bound, then above it. They end at the lower bound, at the target,
//!    or with the effort.
//! 3. Blocks with alignments or gaps are placed greedily instead, in several orders (`greedy.rs`).
//!
//! Sources: Buchsbaum, Karloff, Kenyon, Reingold, Thorup, "OPT versus LOAD in dynamic storage allocation" (STOC 2003);
//! Sekiyama, Imai, Negishi, Kawachiya, "Profile-guided memory optimization for deep neural networks" (2018); Maas,
//! Beaugnon, Chauhan, Ilbeyi, "TelaMalloc" (ASPLOS 2022); Moffitt, "MiniMalloc" (ASPLOS 2023).

use crate::base::units::round_up;

mod constraint;
mod greedy;
mod pieces;
mod problem;
mod search;
mod sections;
mod skyline;
mod solve;
mod verify;
mod within;

pub use constraint::{BlockConstraint, Gap};
pub use solve::{PackingOptions, PackingProgress};

/// The lifetime and size of a block, from its allocation to its free in event numbers. At one event, frees come before
/// allocations, so a block may reuse the space of one that ends where it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lifetime {
    /// The requested bytes; at least 1.
    pub bytes: u64,
    /// The event of the allocation.
    pub start: u32,
    /// The event of the free; above `start`.
    pub end: u32,
}

/// A block of a packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PackedBlock {
    /// Its size and lifetime.
    pub lifetime: Lifetime,
    /// Its offset in the packed range; `None` if the packing omits it, such as a block that outlives the step.
    pub offset: Option<u64>,
}

/// Offsets for the allocations of a step, in order of allocation.
///
/// ```
/// use bfc_core::{Lifetime, Packing, PackingOptions};
/// // Two long blocks with a short one before each: best fit as they come would need 5 KiB.
/// let step = [
///     Lifetime { bytes: 1024, start: 0, end: 2 },
///     Lifetime { bytes: 2048, start: 1, end: 9 },
///     Lifetime { bytes: 2048, start: 3, end: 9 },
/// ];
/// let packing = Packing::solve(&step, &PackingOptions::default())?;
/// assert_eq!(packing.capacity(), 4096);
/// assert_eq!(packing.capacity(), packing.lower_bound());
/// # Ok::<(), bfc_core::PackingError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    granule: u64,
    capacity: u64,
    lower_bound: u64,
    blocks: Vec<PackedBlock>,
    /// Sorted by block; only blocks that require more than the granule.
    constraints: Vec<BlockConstraint>,
}

/// An invalid packing, or invalid lifetimes or options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackingError {
    /// The granule is not a power of two.
    #[error("the granule of {granule} bytes is not a power of two")]
    BadGranule {
        /// The invalid granule.
        granule: u64,
    },
    /// A block has no bytes or no lifetime.
    #[error("block {index} has no bytes, or ends where it starts")]
    Empty {
        /// The block's index.
        index: usize,
    },
    /// A block starts before its predecessor.
    #[error("block {index} starts before block {}", index - 1)]
    OutOfOrder {
        /// The block's index.
        index: usize,
    },
    /// Live bytes exceed 63 bits, or there are more than 2^31 blocks.
    #[error("block {index}: too many bytes or too many blocks")]
    TooLarge {
        /// The first block beyond the limit.
        index: usize,
    },
    /// An offset is not a multiple of the granule or of the block's alignment.
    #[error(
        "block {index} lies at {offset}, which is not a multiple of the granule and the block's alignment"
    )]
    Misaligned {
        /// The block's index.
        index: usize,
        /// Its offset.
        offset: u64,
    },
    /// An alignment is not a power of two.
    #[error("block {index} has an alignment of {alignment} bytes, which is not a power of two")]
    BadAlignment {
        /// The block's index.
        index: usize,
        /// Its alignment.
        alignment: u64,
    },
    /// The gaps of a block are out of order, overlap, or exceed its lifetime or its bytes.
    #[error("the gaps of block {index} are out of order, or outside of its lifetime or its bytes")]
    BadGap {
        /// The block's index.
        index: usize,
    },
    /// A constraint names a block that does not exist, or that another constraint names.
    #[error("block {index} has a constraint, and is not in the packing or has two")]
    BadConstraint {
        /// The block's index.
        index: usize,
    },
    /// Two blocks overlap in time and space.
    #[error("blocks {first} and {second} overlap in time and space")]
    Overlap {
        /// The earlier block.
        first: usize,
        /// The block that overlaps it.
        second: usize,
    },
}

impl PackingError {
    /// Returns the index of the invalid block, if the error is about a block.
    #[must_use]
    pub const fn block(&self) -> Option<usize> {
        match *self {
            Self::BadGranule { .. } => None,
            Self::Empty { index }
            | Self::OutOfOrder { index }
            | Self::TooLarge { index }
            | Self::BadAlignment { index, .. }
            | Self::BadGap { index }
            | Self::BadConstraint { index }
            | Self::Misaligned { index, .. } => Some(index),
            Self::Overlap { second, .. } => Some(second),
        }
    }
}

impl Packing {
    /// Computes offsets for the blocks of a step, in order of their starts. The same lifetimes and options give the
    /// same packing on every machine.
    ///
    /// Takes memory proportional to n log n for n blocks, and time up to [`PackingOptions::effort`]: 100,000 blocks take
    /// seconds.
    ///
    /// # Errors
    /// Fails with a [`PackingError`] if the lifetimes or options are invalid. Every valid set of lifetimes has a packing.
    pub fn solve(lifetimes: &[Lifetime], options: &PackingOptions) -> Result<Self, PackingError> {
        Self::solve_constrained(lifetimes, Vec::new(), |_| true, options, &mut |_| true)
    }

    /// As [`solve`](Self::solve), for blocks with alignments and gaps. Only the blocks with `packed` get an offset; the
    /// others stay in the sequence. Reports the progress, and returns the best packing so far once `progress` returns
    /// `false`.
    ///
    /// Only greedy placement supports constraints, so constrained packings are more often above the lower bound.
    ///
    /// # Errors
    /// As [`solve`](Self::solve); also for an invalid [`BlockConstraint`].
    pub fn solve_constrained(
        lifetimes: &[Lifetime],
        constraints: Vec<BlockConstraint>,
        mut packed: impl FnMut(usize) -> bool,
        options: &PackingOptions,
        progress: &mut dyn FnMut(PackingProgress) -> bool,
    ) -> Result<Self, PackingError> {
        let unplaced = |&lifetime| PackedBlock { lifetime, offset: None };
        let blocks = lifetimes.iter().map(unplaced).collect();
        let mut packing = Self::unplaced(options.granule, blocks, constraints)?;
        let selected: Vec<usize> = (0..lifetimes.len()).filter(|&index| packed(index)).collect();
        packing.place(&selected, options, progress);
        Ok(packing)
    }

    /// Creates a packing from external offsets, such as those of a file. Checks everything, in time proportional to n log
    /// n for n blocks.
    ///
    /// # Errors
    /// Fails with a [`PackingError`] that names the first invalid block, or a [`BlockConstraint`] that is invalid or
    /// violated.
    pub fn from_blocks(
        granule: u64,
        blocks: Vec<PackedBlock>,
        constraints: Vec<BlockConstraint>,
    ) -> Result<Self, PackingError> {
        let mut packing = Self::unplaced(granule, blocks, constraints)?;
        let misaligned = |&(index, block): &(usize, &PackedBlock)| {
            block
                .offset
                .filter(|offset| offset % granule != 0)
                .map(|offset| PackingError::Misaligned { index, offset })
        };
        if let Some(error) = packing.blocks.iter().enumerate().find_map(|entry| misaligned(&entry)) {
            return Err(error);
        }
        packing.capacity = verify::capacity(&packing.blocks, &packing.constraints, granule)?;
        packing.lower_bound = verify::lower_bound(&packing.blocks, &packing.constraints, granule);
        Ok(packing)
    }

    /// Checks the lifetimes and the constraints, not the offsets.
    fn unplaced(
        granule: u64,
        blocks: Vec<PackedBlock>,
        constraints: Vec<BlockConstraint>,
    ) -> Result<Self, PackingError> {
        if !granule.is_power_of_two() {
            return Err(PackingError::BadGranule { granule });
        }
        let constraints = constraint::checked(constraints, &blocks, granule)?;
        verify::lifetimes(&blocks, &constraints, granule)?;
        Ok(Self { granule, capacity: 0, lower_bound: 0, blocks, constraints })
    }

    /// Assigns offsets to the `selected` blocks.
    fn place(
        &mut self,
        selected: &[usize],
        options: &PackingOptions,
        progress: &mut dyn FnMut(PackingProgress) -> bool,
    ) {
        let lifetimes: Vec<Lifetime> = selected.iter().map(|&index| self.blocks[index].lifetime).collect();
        let of_selected = |constraint: &BlockConstraint| {
            let block = selected.binary_search(&constraint.block).ok()?;
            Some(BlockConstraint { block, ..constraint.clone() })
        };
        let constraints: Vec<BlockConstraint> = self.constraints.iter().filter_map(of_selected).collect();
        let (placement, lower_bound) = solve::solve(&lifetimes, &constraints, options, progress);
        for (&index, offset) in selected.iter().zip(placement.offsets) {
            self.blocks[index].offset = Some(offset);
        }
        self.capacity = placement.capacity;
        self.lower_bound = lower_bound;
        // Programs read and write at these offsets, so a fault of the methods must not pass unnoticed.
        let verified = verify::capacity(&self.blocks, &self.constraints, self.granule);
        assert_eq!(verified, Ok(self.capacity), "a packing holds together");
    }

    /// Returns the granule of offsets in bytes: the alignment that the packing guarantees.
    #[must_use]
    pub const fn granule(&self) -> u64 {
        self.granule
    }

    /// Returns the total bytes that the packed blocks need.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns a lower bound for any packing, in bytes: the most bytes of packed blocks live at a time, in whole
    /// granules, without the bytes lent in gaps, and with the padding for alignments.
    #[must_use]
    pub const fn lower_bound(&self) -> u64 {
        self.lower_bound
    }

    /// Returns the blocks in order of allocation.
    #[must_use]
    pub fn blocks(&self) -> &[PackedBlock] {
        &self.blocks
    }

    /// Returns the constraints in order of blocks. Omits blocks without gaps whose alignment is at most the granule.
    #[must_use]
    pub fn constraints(&self) -> &[BlockConstraint] {
        &self.constraints
    }

    /// Returns the number of blocks with an offset.
    #[must_use]
    pub fn packed_blocks(&self) -> usize {
        self.blocks.iter().filter(|block| block.offset.is_some()).count()
    }

    /// Returns the packed size of a block, in whole granules.
    #[must_use]
    pub fn rounded(&self, bytes: u64) -> Option<u64> {
        round_up(bytes, self.granule)
    }
}

#[cfg(test)]
mod tests;
