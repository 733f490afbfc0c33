//! Planning ahead: offsets for allocations whose lifetimes are known.
//!
//! A training step asks for the same blocks in the same order as the step before it. From one recorded step a [`Plan`]
//! is made offline: each block gets an offset such that no two blocks that live at the same time overlap, and the space
//! is as small as can be found. This is dynamic storage allocation; it is NP-hard, but the live bytes at the peak are a
//! lower bound, and the plans found here mostly reach it. [`Planned`] then serves the steps that follow.
//!
//! How a plan is found, in this order, until the lower bound or the target is reached or the effort is used up:
//!
//! 1. Placement from below, always onto the lowest part of the skyline (`skyline.rs`): quick, whatever the number of blocks.
//! 2. Greedy placement in several orders, each block at the lowest offset where it fits (`greedy.rs`).
//! 3. For up to a thousand blocks, searches for a placement within a given capacity (`search.rs`), begun again and again, a
//!    little differently (`search/restarts.rs`): at the lower bound, then in between.
//! 4. The order is improved by what went wrong: blocks that ended up too high move forward (`improve.rs`).
//! 5. Searches as before, with what is left of the effort.
//!
//! Sources: Buchsbaum, Karloff, Kenyon, Reingold, Thorup, "OPT versus LOAD in dynamic storage allocation" (STOC 2003);
//! Sekiyama, Imai, Negishi, Kawachiya, "Profile-guided memory optimization for deep neural networks" (2018); Maas,
//! Beaugnon, Chauhan, Ilbeyi, "TelaMalloc" (ASPLOS 2022); Moffitt, "MiniMalloc" (ASPLOS 2023).

use crate::base::units::round_up;

mod constraint;
mod greedy;
mod improve;
mod occupancy;
mod pieces;
mod search;
mod sections;
mod shapes;
mod skyline;
mod solve;
mod verify;
mod within;

pub use constraint::{BlockConstraint, Gap};
pub use solve::{PlanOptions, PlanProgress};

/// When a block lives: from its allocation up to its free, both as event numbers. At one number frees come before
/// allocations, so a block may take the place of one that ends where it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lifetime {
    /// Bytes asked for; at least 1.
    pub bytes: u64,
    /// The event at which it is allocated.
    pub start: u32,
    /// The event at which it is free again; above `start`.
    pub end: u32,
}

/// A block of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlanBlock {
    /// What is asked for, and when.
    pub lifetime: Lifetime,
    /// Where it goes, from the start of the planned range; `None` if the plan leaves it to others, as it does with
    /// blocks that outlive the step.
    pub offset: Option<u64>,
}

/// Offsets for the allocations of a step, in the order in which they are asked for.
///
/// ```
/// use bfc_core::{Lifetime, Plan, PlanOptions};
/// // Two long blocks with a short one before each: best fit as they come would need 5 KiB.
/// let step = [
///     Lifetime { bytes: 1024, start: 0, end: 2 },
///     Lifetime { bytes: 2048, start: 1, end: 9 },
///     Lifetime { bytes: 2048, start: 3, end: 9 },
/// ];
/// let plan = Plan::solve(&step, &PlanOptions::default())?;
/// assert_eq!(plan.capacity(), 4096);
/// assert_eq!(plan.capacity(), plan.lower_bound());
/// # Ok::<(), bfc_core::PlanError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    granule: u64,
    capacity: u64,
    lower_bound: u64,
    blocks: Vec<PlanBlock>,
    /// By block, of those that require more than the granule.
    constraints: Vec<BlockConstraint>,
}

/// Why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The granule is not a power of two.
    #[error("the granule of {granule} bytes is not a power of two")]
    BadGranule {
        /// The granule given.
        granule: u64,
    },
    /// A block has no bytes or no time.
    #[error("block {index} has no bytes, or ends where it starts")]
    Empty {
        /// The block's index.
        index: usize,
    },
    /// A block starts before the one that stands before it.
    #[error("block {index} starts before block {}", index - 1)]
    OutOfOrder {
        /// The block's index.
        index: usize,
    },
    /// Live bytes leave 63 bits, or there are more than 2^31 blocks.
    #[error("block {index}: too many bytes or too many blocks")]
    TooLarge {
        /// The first block that is too much.
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
    /// The gaps of a block are out of order, overlap, or leave its lifetime or its bytes.
    #[error("the gaps of block {index} are out of order, or outside of its lifetime or its bytes")]
    BadGap {
        /// The block's index.
        index: usize,
    },
    /// A constraint names a block that does not exist, or that another constraint names too.
    #[error("block {index} has a constraint, and is not in the plan or has two")]
    BadConstraint {
        /// The block's index.
        index: usize,
    },
    /// Two blocks overlap in time and space.
    #[error("blocks {first} and {second} overlap in time and space")]
    Overlap {
        /// The block placed earlier.
        first: usize,
        /// The block that overlaps it.
        second: usize,
    },
}

impl PlanError {
    /// The index of the block at which it shows, if it is about a block.
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

impl Plan {
    /// Finds offsets for the blocks of a step, given in the order of their starts. The same lifetimes and options give
    /// the same plan, on every machine.
    ///
    /// Takes memory proportional to the number of blocks (times its logarithm), and time as [`PlanOptions::effort`]
    /// allows: 100,000 blocks take seconds.
    ///
    /// # Errors
    /// A [`PlanError`] if the lifetimes or the options are not what they should be. There is a plan for every set of
    /// lifetimes that are.
    pub fn solve(lifetimes: &[Lifetime], options: &PlanOptions) -> Result<Self, PlanError> {
        Self::solve_with(lifetimes, options, &mut |_| true)
    }

    /// As [`solve`](Self::solve), and tells of its progress. Once `progress` returns `false`, the best plan so far is the
    /// answer.
    ///
    /// # Errors
    /// As [`solve`](Self::solve).
    pub fn solve_with(
        lifetimes: &[Lifetime],
        options: &PlanOptions,
        progress: &mut dyn FnMut(PlanProgress) -> bool,
    ) -> Result<Self, PlanError> {
        Self::solve_some(lifetimes, |_| true, options, progress)
    }

    /// As [`solve`](Self::solve), but only the blocks with `planned` get an offset; the others stay in the sequence.
    ///
    /// # Errors
    /// As [`solve`](Self::solve).
    pub fn solve_some(
        lifetimes: &[Lifetime],
        planned: impl FnMut(usize) -> bool,
        options: &PlanOptions,
        progress: &mut dyn FnMut(PlanProgress) -> bool,
    ) -> Result<Self, PlanError> {
        Self::solve_constrained(lifetimes, Vec::new(), planned, options, progress)
    }

    /// Like [`solve_some`](Self::solve_some), for blocks with alignments and gaps.
    ///
    /// Greedy placement alone respects these, so such a plan is more often above the lower bound.
    ///
    /// # Errors
    /// As [`solve`](Self::solve); also for a [`BlockConstraint`] that its block cannot have.
    pub fn solve_constrained(
        lifetimes: &[Lifetime],
        constraints: Vec<BlockConstraint>,
        mut planned: impl FnMut(usize) -> bool,
        options: &PlanOptions,
        progress: &mut dyn FnMut(PlanProgress) -> bool,
    ) -> Result<Self, PlanError> {
        let unplaced = |&lifetime| PlanBlock { lifetime, offset: None };
        let blocks = lifetimes.iter().map(unplaced).collect();
        let mut plan = Self::unplaced(options.granule, blocks, constraints)?;
        let wanted: Vec<usize> = (0..lifetimes.len()).filter(|&index| planned(index)).collect();
        plan.place(&wanted, options, progress);
        Ok(plan)
    }

    /// A plan made elsewhere, or read from a file: checked throughout, in time proportional to the number of blocks
    /// (times its logarithm).
    ///
    /// # Errors
    /// A [`PlanError`] that names the first block that is not as it should be.
    pub fn from_blocks(granule: u64, blocks: Vec<PlanBlock>) -> Result<Self, PlanError> {
        Self::from_constrained_blocks(granule, blocks, Vec::new())
    }

    /// Like [`from_blocks`](Self::from_blocks), for blocks with alignments and gaps.
    ///
    /// # Errors
    /// As [`from_blocks`](Self::from_blocks); also for a [`BlockConstraint`] that its block cannot have or does not meet.
    pub fn from_constrained_blocks(
        granule: u64,
        blocks: Vec<PlanBlock>,
        constraints: Vec<BlockConstraint>,
    ) -> Result<Self, PlanError> {
        let mut plan = Self::unplaced(granule, blocks, constraints)?;
        let misaligned = |&(index, block): &(usize, &PlanBlock)| {
            block
                .offset
                .filter(|offset| offset % granule != 0)
                .map(|offset| PlanError::Misaligned { index, offset })
        };
        if let Some(error) = plan.blocks.iter().enumerate().find_map(|entry| misaligned(&entry)) {
            return Err(error);
        }
        plan.capacity = verify::capacity(&plan.blocks, &plan.constraints, granule)?;
        plan.lower_bound = verify::lower_bound(&plan.blocks, &plan.constraints, granule);
        Ok(plan)
    }

    /// Checks the lifetimes and the constraints, not the offsets.
    fn unplaced(
        granule: u64,
        blocks: Vec<PlanBlock>,
        constraints: Vec<BlockConstraint>,
    ) -> Result<Self, PlanError> {
        if !granule.is_power_of_two() {
            return Err(PlanError::BadGranule { granule });
        }
        let constraints = constraint::checked(constraints, &blocks, granule)?;
        verify::lifetimes(&blocks, &constraints, granule)?;
        Ok(Self { granule, capacity: 0, lower_bound: 0, blocks, constraints })
    }

    /// Gives the `wanted` blocks their offsets.
    fn place(
        &mut self,
        wanted: &[usize],
        options: &PlanOptions,
        progress: &mut dyn FnMut(PlanProgress) -> bool,
    ) {
        let lifetimes: Vec<Lifetime> = wanted.iter().map(|&index| self.blocks[index].lifetime).collect();
        let of_wanted = |constraint: &BlockConstraint| {
            let block = wanted.binary_search(&constraint.block).ok()?;
            Some(BlockConstraint { block, ..constraint.clone() })
        };
        let constraints: Vec<BlockConstraint> = self.constraints.iter().filter_map(of_wanted).collect();
        let placement = solve::solve(&lifetimes, &constraints, options, progress);
        for (&index, offset) in wanted.iter().zip(placement.offsets) {
            self.blocks[index].offset = Some(offset);
        }
        self.capacity = placement.capacity;
        self.lower_bound = placement.lower_bound;
        // Programs read and write through these places: a fault of the methods must not get past here.
        let verified = verify::capacity(&self.blocks, &self.constraints, self.granule);
        assert_eq!(verified, Ok(self.capacity), "a plan holds together");
    }

    /// What offsets are multiples of, in bytes: the alignment that the plan can promise.
    #[must_use]
    pub const fn granule(&self) -> u64 {
        self.granule
    }

    /// The bytes that the planned blocks need together.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// A bound that no plan can go below, in bytes: the most bytes of planned blocks that are live at a time, each in whole
    /// granules, without the bytes that gaps lend to other blocks, and with the padding that alignments require.
    #[must_use]
    pub const fn lower_bound(&self) -> u64 {
        self.lower_bound
    }

    /// The blocks, in the order in which they are asked for.
    #[must_use]
    pub fn blocks(&self) -> &[PlanBlock] {
        &self.blocks
    }

    /// What blocks require beyond the granule, in the order of the blocks; blocks without gaps and with no larger
    /// alignment are left out.
    #[must_use]
    pub fn constraints(&self) -> &[BlockConstraint] {
        &self.constraints
    }

    /// How many of the blocks have an offset.
    #[must_use]
    pub fn planned_blocks(&self) -> usize {
        self.blocks.iter().filter(|block| block.offset.is_some()).count()
    }

    /// The bytes that a block of the plan takes: its size in whole granules.
    #[must_use]
    pub fn rounded(&self, bytes: u64) -> Option<u64> {
        round_up(bytes, self.granule)
    }
}

#[cfg(test)]
mod tests;
