//! What can be chosen of the best-fit-with-coalescing policy.

use crate::base::units::{Bytes, MIB};

/// The most that one block may waste inside, by upstream's rule.
pub(crate) const MAX_WASTE: u64 = 128 * MIB;

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

/// What can be chosen of [`Bfc`](super::Bfc).
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
