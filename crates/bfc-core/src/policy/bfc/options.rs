//! Options of the best-fit-with-coalescing policy.

use crate::base::units::{Bytes, MIB};

/// The default waste limit per block, as upstream.
pub(crate) const MAX_WASTE: u64 = 128 * MIB;

/// When the rest of a chunk becomes a separate chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SplitRule {
    /// Always: a block is never larger than its request rounded up to 256 bytes.
    Always,
    /// TensorFlow's rule: only if the chunk is at least twice the rounded request, or if the rest has at least
    /// `max_waste` bytes. Otherwise the block takes the whole chunk.
    Twice {
        /// The most bytes that one block may waste.
        max_waste: Bytes,
    },
}

impl SplitRule {
    /// Whether a chunk of `bytes` is cut for a request of `rounded` bytes, both in whole granules.
    pub(crate) const fn cuts(self, bytes: u64, rounded: u64) -> bool {
        let rest = bytes - rounded;
        match self {
            Self::Always => rest > 0,
            Self::Twice { max_waste } => rest > 0 && (rest >= rounded || rest >= max_waste.0),
        }
    }
}

/// The end of a free chunk from which a block is cut.
///
/// Smallest fixed pool over live peak, geometric means, in one region that always splits; 1 is unreachable:
///
/// | traces | [`Low`](Self::Low) | [`LargeHigh`](Self::LargeHigh) |
/// |---|---|---|
/// | resnet18, gpt2, bert, lstm | 1.032 | 1.026 |
/// | 15 further training and inference runs, and mixtures of runs | 1.041 | 1.038 |
/// | the 17 recorded runs with each size changed by up to 15 % | 1.045 | 1.039 |
/// | 60 synthetic traces: random sizes and lifetimes, few sizes, layered networks | 1.099 | 1.097 |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CutRule {
    /// The low end, as TensorFlow.
    Low,
    /// The high end for blocks above 16 KiB of at least half the largest block so far, and the low end for all others.
    /// Large blocks leave large holes; this rule keeps them adjacent and small blocks out of them.
    ///
    /// Only for pools without growth. A growing pool cuts from the low end, because blocks at the high end obstruct
    /// growth: most reserved over live peak would be 1.09 instead of 1.03 with extended regions.
    LargeHigh,
}

/// When a freed block merges with adjacent free memory.
///
/// With both rules, searches for a best fit and queries of the pool see all free neighbors merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JoinRule {
    /// Immediately, as TensorFlow. Placements then depend only on the regions and live blocks (and, with
    /// [`CutRule::LargeHigh`], on the largest block so far). Steps that begin with the same blocks reuse the same
    /// addresses. Pools of devices with streams use this rule, because GPU steps run as graphs.
    AtOnce,
    /// Deferred for the last four freed blocks of at most 64 KiB, until a request fits none of them exactly. An exact
    /// fit is reused before other free memory of its size. This avoids merging and cutting nearly half of all blocks in
    /// a training step, and needs no more memory.
    Deferred,
}

/// The options of [`Bfc`](super::Bfc).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BfcOptions {
    /// When the rest of a chunk becomes a separate chunk.
    pub split: SplitRule,
    /// The end of a free chunk from which a block is cut.
    pub cut: CutRule,
    /// When a freed block merges with adjacent free memory.
    pub join: JoinRule,
}

impl BfcOptions {
    /// The best measured options: always splits, cuts large blocks from the high end, and defers merges of small ones.
    #[must_use]
    pub const fn new() -> Self {
        Self { split: SplitRule::Always, cut: CutRule::LargeHigh, join: JoinRule::Deferred }
    }

    /// TensorFlow's rules: splits by [`SplitRule::Twice`] with at most 128 MiB of waste, cuts from the low end, and
    /// merges immediately.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tensorflow_split_rule_is_followed() {
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
}
