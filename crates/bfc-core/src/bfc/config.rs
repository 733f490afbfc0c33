//! How a pool behaves.

use std::sync::Arc;
use std::time::Duration;

use super::chunk::GRANULE;
use super::frontier::TimingCounter;
use crate::units::{Bytes, MIB};

/// The first region that a growing pool takes, as upstream.
const FIRST_REGION: u64 = 2 * MIB;

/// The most that one block may waste inside, by upstream's rule.
const MAX_WASTE: u64 = 128 * MIB;

/// How long a request waits for frees, as upstream.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);

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

/// How a [`BfcAllocator`](super::BfcAllocator) behaves.
///
/// ```
/// use std::time::Duration;
/// use bfc_core::{BfcConfig, Bytes};
/// let config = BfcConfig::new(Bytes::gib(1)).with_allow_growth(false).with_retry_timeout(Duration::from_millis(50));
/// assert_eq!(config.limit(), Bytes::gib(1));
/// ```
#[derive(Clone, Debug)]
pub struct BfcConfig {
    pub(super) limit: u64,
    pub(super) allow_growth: bool,
    pub(super) first_region: u64,
    pub(super) split: SplitRule,
    pub(super) garbage_collection: bool,
    pub(super) retry: bool,
    pub(super) retry_timeout: Duration,
    pub(super) timing_counter: Option<Arc<TimingCounter>>,
}

impl BfcConfig {
    /// The house's choice for a pool of at most `limit` bytes: grows from 2 MiB by doubling, gives idle regions back
    /// when that makes room for a larger one, waits up to 10 s for frees, and splits always.
    ///
    /// Upstream splits a chunk only if at least half of it would remain. On nine recorded training runs that takes a
    /// pool of 1.069 times the live peak (geometric mean, one fixed region); splitting always takes 1.036.
    #[must_use]
    pub const fn new(limit: Bytes) -> Self {
        Self {
            limit: limit.0,
            allow_growth: true,
            first_region: FIRST_REGION,
            split: SplitRule::Always,
            garbage_collection: true,
            retry: true,
            retry_timeout: RETRY_TIMEOUT,
            timing_counter: None,
        }
    }

    /// TensorFlow's `BFCAllocator` with its default options: grows, keeps idle regions, waits up to 10 s, and splits by
    /// [`SplitRule::Twice`] with at most 128 MiB of waste. Its `GPUBFCAllocator` is this
    /// `.with_allow_growth(false).with_garbage_collection(true)`.
    #[must_use]
    pub const fn tensorflow(limit: Bytes) -> Self {
        let mut config = Self::new(limit);
        config.split = SplitRule::Twice { max_waste: Bytes(MAX_WASTE) };
        config.garbage_collection = false;
        config
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

    /// The same with another limit.
    #[must_use]
    pub const fn with_limit(mut self, limit: Bytes) -> Self {
        self.limit = limit.0;
        self
    }

    /// Whether the pool takes memory as it needs it. If not, the first request takes one region of the whole limit,
    /// or as much of it as the source gives.
    #[must_use]
    pub const fn with_allow_growth(mut self, allow: bool) -> Self {
        self.allow_growth = allow;
        self
    }

    /// The size of a growing pool's first region; each later one is twice as large as the one before.
    #[must_use]
    pub const fn with_first_region(mut self, bytes: Bytes) -> Self {
        self.first_region = if bytes.0 < GRANULE { GRANULE } else { bytes.0 };
        self
    }

    /// When the rest of a chunk becomes a chunk of its own.
    #[must_use]
    pub const fn with_split_rule(mut self, rule: SplitRule) -> Self {
        self.split = rule;
        self
    }

    /// [`SplitRule::Twice`] with at most `fraction` times the limit of waste in a block, as upstream's option of this
    /// name; 0, less and NaN stand for upstream's default of 128 MiB.
    #[must_use]
    pub fn with_fragmentation_fraction(mut self, fraction: f64) -> Self {
        let max_waste = if fraction > 0.0 { fraction_of(self.limit, fraction) } else { MAX_WASTE };
        self.split = SplitRule::Twice { max_waste: Bytes(max_waste) };
        self
    }

    /// Whether idle regions are given back when a larger one could then be taken.
    #[must_use]
    pub const fn with_garbage_collection(mut self, collect: bool) -> Self {
        self.garbage_collection = collect;
        self
    }

    /// Whether requests wait for frees at all.
    #[must_use]
    pub const fn with_retry(mut self, retry: bool) -> Self {
        self.retry = retry;
        self
    }

    /// How long a request waits for frees before it fails.
    #[must_use]
    pub const fn with_retry_timeout(mut self, timeout: Duration) -> Self {
        self.retry_timeout = timeout;
        self
    }

    /// Marks every free with the counter's next count; the memory joins its neighbours, and goes back to the source,
    /// only once [`set_safe_frontier`](crate::Allocator::set_safe_frontier) has passed that count.
    #[must_use]
    pub fn with_timing_counter(mut self, counter: Arc<TimingCounter>) -> Self {
        self.timing_counter = Some(counter);
        self
    }

    /// The most the pool may take from its source.
    #[must_use]
    pub const fn limit(&self) -> Bytes {
        Bytes(self.limit)
    }

    /// Whether the pool takes memory as it needs it.
    #[must_use]
    pub const fn allow_growth(&self) -> bool {
        self.allow_growth
    }
}

/// `fraction` of `bytes`, rounded down and saturating; the fraction is above 0.
fn fraction_of(bytes: u64, fraction: f64) -> u64 {
    (bytes as f64 * fraction) as u64
}

/// A share of memory that is not a finite number above 0.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{fraction} is not a share of memory: expected a finite number above 0")]
pub struct FractionError {
    /// The fraction given.
    pub fraction: f64,
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
        let waste = |fraction| BfcConfig::new(Bytes::gib(1)).with_fragmentation_fraction(fraction).split;
        assert_eq!(waste(0.5), SplitRule::Twice { max_waste: Bytes::mib(512) });
        for fraction in [0.0, -1.0, f64::NAN] {
            assert_eq!(waste(fraction), BfcConfig::tensorflow(Bytes::gib(1)).split);
        }
    }
}
