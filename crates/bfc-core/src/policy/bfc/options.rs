//! What can be chosen of the best-fit-with-coalescing policy.

use super::Bfc;
use crate::base::units::{Bytes, MIB};
use crate::pool::{ConfiguredPolicy, FractionError, GrowthRule, PoolConfig, fraction_of};

/// The most that one block may waste inside, by upstream's rule.
const MAX_WASTE: u64 = 128 * MIB;

/// When the unneeded rest of a chunk becomes a chunk of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SplitRule {
    /// Whenever there is a rest: a block is never larger than its request rounded up to 256 bytes.
    Always,
    /// TensorFlow's rule: only if the chunk is at least twice the rounded request, or if the rest has at least
    /// `max_waste` bytes. Otherwise the whole chunk is handed out.
    Twice {
        /// What one block may waste at most, to the byte.
        max_waste: Bytes,
    },
}

impl SplitRule {
    /// Whether a chunk of `bytes` is cut for a need of `rounded` bytes, both in whole granules.
    pub(crate) const fn cuts(self, bytes: u64, rounded: u64) -> bool {
        let rest = bytes - rounded;
        match self {
            Self::Always => rest > 0,
            Self::Twice { max_waste } => rest > 0 && (rest >= rounded || rest >= max_waste.0),
        }
    }
}

/// From which end of a free chunk a block is cut.
///
/// Smallest fixed pool over live peak, geometric means (always splitting, one region; 1 is out of reach):
///
/// | traces | [`Low`](Self::Low) | [`LargeHigh`](Self::LargeHigh) |
/// |---|---|---|
/// | resnet18, gpt2, bert, lstm | 1.032 | 1.026 |
/// | 15 further training and inference runs, and mixtures of runs | 1.041 | 1.038 |
/// | the 17 recorded runs with each size changed by up to 15 % | 1.045 | 1.039 |
/// | 60 made up: random sizes and lifetimes, few sizes, layered nets | 1.099 | 1.097 |
///
/// A share of a third or three quarters instead of a half does about as well. Tried and not better: blocks beside the
/// neighbour that is youngest, oldest or nearest in size; sizes that died young last time at one end; small ones at the
/// high end; any of several near fits; first fit (1.038 on the first row); keeping the last chunk for last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CutRule {
    /// From the low end, as TensorFlow.
    Low,
    /// Blocks of at least half the largest block that was ever placed, and of more than 16 KiB, from the high end, all others from the low
    /// end. Large blocks, which leave large holes, then lie beside each other, and small ones do not end up between
    /// them.
    ///
    /// Only in pools without growth. A pool that grows cuts from the low end, as blocks at the high end are in the way
    /// there: most reserved over live peak would be 1.09 instead of 1.03 where regions can be continued, and with
    /// separate regions 1.17 instead of 1.15 (measured when idle ones did not yet make way as they do now).
    LargeHigh,
}

/// When a freed block is joined with the free memory beside it.
///
/// Either way, a search for a best fit finds all free neighbours joined, and so does whoever looks into the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JoinRule {
    /// At once, as TensorFlow. Where a block goes then follows from the regions and the live blocks alone (and, with [`CutRule::LargeHigh`], from the
    /// largest there was), so steps that begin with the same ones find the same addresses. Pools of devices with streams
    /// join so, as a GPU is given steps as graphs.
    AtOnce,
    /// Small blocks (64 KiB at most, of which the four freed last) only when a request comes that none of them fits
    /// exactly. One that does fit is handed out again before any other free memory of its size, which spares the
    /// joining and cutting of nearly half of all blocks in a training step and needs no more memory.
    Deferred,
}

/// What can be chosen of [`Bfc`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BfcOptions {
    /// When the rest of a chunk becomes a chunk of its own.
    pub split: SplitRule,
    /// From which end of a free chunk a block is cut.
    pub cut: CutRule,
    /// When a freed block is joined with the free memory beside it.
    pub join: JoinRule,
}

impl BfcOptions {
    /// What measures best: splits always, cuts large blocks from the high end, and joins small ones later.
    #[must_use]
    pub const fn new() -> Self {
        Self { split: SplitRule::Always, cut: CutRule::LargeHigh, join: JoinRule::Deferred }
    }

    /// TensorFlow's rules: splits by [`SplitRule::Twice`] with at most 128 MiB of waste, cuts from the low end, joins at
    /// once.
    #[must_use]
    pub const fn tensorflow() -> Self {
        Self {
            split: SplitRule::Twice { max_waste: Bytes(MAX_WASTE) },
            cut: CutRule::Low,
            join: JoinRule::AtOnce,
        }
    }
}

impl Default for BfcOptions {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: the chunks of a region cover it without overlap, a chunk is one place at a time, cut at the alignment asked
// for, and a region goes only as one free chunk: rules of `bfc/invariants.rs`, checked by the tests after every step.
unsafe impl ConfiguredPolicy for Bfc {
    type Options = BfcOptions;

    fn configured(options: &BfcOptions) -> Self {
        Self::new(*options)
    }

    fn configured_to_grow(options: &BfcOptions) -> Self {
        Self::new(BfcOptions { cut: CutRule::Low, ..*options })
    }

    fn other_splits(options: &BfcOptions) -> Vec<(&'static str, BfcOptions)> {
        let (name, split) = match options.split {
            SplitRule::Always => ("twice", BfcOptions::tensorflow().split),
            SplitRule::Twice { .. } => ("always", SplitRule::Always),
        };
        vec![(name, BfcOptions { split, ..*options })]
    }
}

/// How a [`BfcAllocator`](super::BfcAllocator) behaves.
pub type BfcConfig = PoolConfig<BfcOptions>;

impl BfcConfig {
    /// The house's choice for a pool of at most `limit` bytes, by measurement:
    ///
    /// | | upstream | here |
    /// |---|---|---|
    /// | splits a chunk | if at least half of it would remain | always |
    /// | cuts large blocks, in a pool without growth ([`CutRule`]) | from the low end | from the high end |
    /// | joins small free blocks ([`JoinRule`]) | at once | when none fits a request exactly |
    /// | smallest fixed pool / live peak on four recorded training runs, geometric mean | 1.054 | 1.026 |
    /// | grows ([`GrowthRule`]) | by doubling | by a thirty-second, idle regions make way |
    /// | most reserved / live peak on the same, separate regions | 1.39 | 1.09 |
    /// | the same where regions can be continued | 1.39 | 1.03 |
    ///
    /// It also gives idle regions back when that makes room for a larger one, and waits up to 10 s for frees.
    #[must_use]
    pub const fn new(limit: Bytes) -> Self {
        Self::with_options(limit, BfcOptions::new())
            .with_growth(GrowthRule::MEASURED_BEST)
            .with_region_merging(true)
    }

    /// TensorFlow's `BFCAllocator` with its default options: grows, keeps idle regions, waits up to 10 s, and splits by
    /// [`SplitRule::Twice`] with at most 128 MiB of waste. Its `GPUBFCAllocator` is this
    /// `.with_allow_growth(false).with_garbage_collection(true)`.
    #[must_use]
    pub const fn tensorflow(limit: Bytes) -> Self {
        Self::with_options(limit, BfcOptions::tensorflow()).with_garbage_collection(false)
    }

    /// [`BfcConfig::new`] with a limit of `fraction` times `total`. More than 1 is allowed, for memory that a driver
    /// pages to the host.
    ///
    /// # Errors
    /// If the fraction is not a finite number above 0.
    pub fn fraction_of(total: Bytes, fraction: f64) -> Result<Self, FractionError> {
        if !(fraction.is_finite() && fraction > 0.0) {
            return Err(FractionError { fraction });
        }
        Ok(Self::new(Bytes(fraction_of(total.0, fraction))))
    }

    /// When the rest of a chunk becomes a chunk of its own.
    #[must_use]
    pub const fn with_split_rule(mut self, rule: SplitRule) -> Self {
        self.options.split = rule;
        self
    }

    /// From which end of a free chunk a block is cut.
    #[must_use]
    pub const fn with_cut_rule(mut self, rule: CutRule) -> Self {
        self.options.cut = rule;
        self
    }

    /// When a freed block is joined with the free memory beside it.
    #[must_use]
    pub const fn with_join_rule(mut self, rule: JoinRule) -> Self {
        self.options.join = rule;
        self
    }

    /// [`SplitRule::Twice`] with at most `fraction` times the limit of waste in a block, as upstream's option of this
    /// name; 0, less and NaN stand for upstream's default of 128 MiB.
    #[must_use]
    pub fn with_fragmentation_fraction(self, fraction: f64) -> Self {
        let max_waste = if fraction > 0.0 { fraction_of(self.limit().0, fraction) } else { MAX_WASTE };
        self.with_split_rule(SplitRule::Twice { max_waste: Bytes(max_waste) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_rule_splits_from_twice_the_request_or_from_the_most_waste() {
        let rule = SplitRule::Twice { max_waste: Bytes(4096) };
        assert!(!rule.cuts(512, 512) && !rule.cuts(768, 512));
        assert!(rule.cuts(1024, 512));
        assert!(!rule.cuts(16384 + 3840, 16384));
        assert!(rule.cuts(16384 + 4096, 16384));
        assert!(SplitRule::Always.cuts(768, 512) && !SplitRule::Always.cuts(512, 512));
    }

    #[test]
    fn a_waste_of_nothing_still_makes_no_empty_chunk() {
        assert!(!SplitRule::Twice { max_waste: Bytes(0) }.cuts(512, 512));
        assert!(SplitRule::Twice { max_waste: Bytes(0) }.cuts(768, 512));
    }

    #[test]
    fn the_fraction_must_be_a_finite_number_above_zero() {
        for fraction in [0.0, -0.5, f64::NAN, f64::INFINITY] {
            assert!(BfcConfig::fraction_of(Bytes::gib(1), fraction).is_err(), "{fraction}");
        }
        let limit = |fraction| BfcConfig::fraction_of(Bytes::gib(2), fraction).unwrap().limit();
        assert_eq!(limit(0.25), Bytes::mib(512));
        assert_eq!(limit(1.5), Bytes::gib(3));
        assert_eq!(limit(f64::MAX), Bytes(u64::MAX));
    }

    #[test]
    fn the_fragmentation_fraction_is_of_the_limit_and_falls_back_to_128_mib() {
        let waste =
            |fraction| BfcConfig::new(Bytes::gib(1)).with_fragmentation_fraction(fraction).options.split;
        assert_eq!(waste(0.5), SplitRule::Twice { max_waste: Bytes::mib(512) });
        for fraction in [0.0, -1.0, f64::NAN] {
            assert_eq!(waste(fraction), BfcConfig::tensorflow(Bytes::gib(1)).options.split);
        }
    }
}
