//! How large the next region is.
//!
//! The rule says what to wish for. When the source refuses, the wish shrinks by a tenth at a time, down to what the
//! request needs. Source of [`GrowthRule::Doubling`] and of the shrinking: `BFCAllocator::Extend`, in integers instead of
//! floating point.

use super::config::PoolConfig;
use crate::base::units::{Bytes, MIB, round_up};
use crate::policy::{GRANULE, whole_granules};

/// How large the next region of a growing pool is. A region is never smaller than the request that it is taken for, and
/// never leaves the limit.
///
/// Where the source [joins adjacent regions](crate::SubAllocator::supports_coalescing), the pool first tries to continue
/// its last region, and only what is missing there counts as needed (source: Paddle's virtual-memory allocator).
///
/// Most reserved over live peak, geometric means over the first replay of four recorded training runs (resnet18, gpt2,
/// bert, lstm; after three replays in brackets), and the mean number of calls to the source in the first replay over
/// those and 17 other traces:
///
/// | rule | separate regions | the same, [idle ones make way](crate::PoolConfig::with_region_merging) | continued | calls |
/// |---|---|---|---|---|
/// | [`DOUBLING`](Self::DOUBLING) | 1.39 | 1.39 | 1.39 | 6 |
/// | doubling up to 32 MiB | 1.28 | 1.16 (1.16) | 1.15 | 9 |
/// | as requested, granule 2 MiB | 1.29 | 1.08 (1.13) | 1.035 (1.038) | 50 |
/// | as requested, granule 20 MiB | 1.14 | 1.14 | 1.11 | 10 |
/// | regions of 8 MiB | 1.31 | 1.10 (1.13) | 1.034 (1.057) | 19–23 |
/// | an eighth, granule 2 MiB | 1.38 | 1.18 | 1.11 | 20 |
/// | [a thirty-second, granule 2 MiB](Self::MEASURED_BEST) | 1.28 | 1.09 (1.12) | 1.030 (1.051) | 37–40 |
/// | a sixty-fourth, granule 2 MiB | 1.29 | 1.09 (1.11) | 1.035 (1.040) | 43–46 |
///
/// A region that takes the place of idle ones has the size of the wish alone. If it is made at least as large as they were
/// together, as it was before, the defaults come to 1.15 (1.18) with the same 38 calls in the mean over the four (bert
/// 33, gpt2 57, lstm 25, resnet18 38); a granule of 1 MiB comes to 1.08 (1.10) with 48, and as requested in granules of 1 MiB to
/// 1.07 (1.09) with 64 (22 November 2026). On the digits run, which takes 1.6 MiB, the first region alone is 1.27.
///
/// Regions for small and large blocks apart were tried: mean 1.16 to 1.30 for bounds from 64 KiB to 8 MiB where it was
/// 1.15 otherwise, so there are none (measured on 21 November 2026 on the four traces).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrowthRule {
    /// TensorFlow's rule: each region is twice as large as the one before, which keeps their number logarithmic, but
    /// at most `cap`. A request that is larger doubles the size until it fits; one above the cap gets a region of its
    /// own size.
    Doubling {
        /// The largest region taken unasked.
        cap: Bytes,
    },
    /// What the request needs, in whole granules.
    AsRequested {
        /// What sizes are a multiple of; 0 stands for 256 bytes.
        granule: Bytes,
    },
    /// Regions of this size.
    Fixed(Bytes),
    /// A share of what the pool holds already, in whole granules: the number of regions stays logarithmic, and what is
    /// taken too early stays below the share.
    Proportional {
        /// The divisor: 8 stands for an eighth. 0 stands for 1.
        parts: u64,
        /// What sizes are a multiple of; 0 stands for 256 bytes.
        granule: Bytes,
    },
}

impl GrowthRule {
    /// TensorFlow's rule, without a cap.
    pub const DOUBLING: Self = Self::Doubling { cap: Bytes(u64::MAX) };

    /// The default of [`BfcConfig::new`](crate::BfcConfig::new): a thirty-second of what the pool holds, in granules of
    /// 2 MiB. From 64 MiB on the pool doubles in 23 steps at most.
    pub const MEASURED_BEST: Self = Self::Proportional { parts: 32, granule: Bytes(2 * MIB) };
}

/// The size of the next region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Growth {
    rule: GrowthRule,
    /// The size that doubling has come to. Other rules take it for their first region.
    next: u64,
}

/// A region to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionWish {
    pub(crate) bytes: u64,
    /// The next size was raised for this wish already, so that success does not double it again.
    raised: bool,
}

impl Growth {
    pub(crate) fn new<O>(config: &PoolConfig<O>) -> Self {
        let (rule, first) = if config.allow_growth {
            (config.growth, config.limit.min(config.first_region))
        } else {
            (GrowthRule::Fixed(Bytes(config.limit)), config.limit)
        };
        Self { rule, next: round_up(first, GRANULE).unwrap_or(u64::MAX).max(GRANULE) }
    }

    /// What to ask for if `needed` bytes are needed, `reserved` are held and `available` are left below the limit, all
    /// in whole granules; `None` if they are not enough. A size that was doubled stays so even if the source then
    /// refuses, as upstream.
    pub(crate) fn wish(&mut self, needed: u64, reserved: u64, available: u64) -> Option<RegionWish> {
        if needed > available {
            return None;
        }
        let raised = self.next < needed;
        let bytes = match self.rule {
            GrowthRule::Doubling { cap } => {
                while self.next < needed && self.next < cap.0 {
                    self.next = self.next.saturating_mul(2);
                }
                self.next.min(cap.0)
            }
            _ if reserved == 0 => self.next,
            GrowthRule::AsRequested { granule } => in_granules(needed, granule),
            GrowthRule::Fixed(bytes) => bytes.0,
            GrowthRule::Proportional { parts, granule } => {
                in_granules(needed.max(reserved / parts.max(1)), granule)
            }
        };
        let bytes = round_up(bytes, GRANULE).unwrap_or(u64::MAX).max(needed);
        Some(RegionWish { bytes: bytes.min(available), raised })
    }

    /// Says that a wish was met.
    pub(crate) fn met(&mut self, wish: RegionWish) {
        if let GrowthRule::Doubling { cap } = self.rule
            && !wish.raised
            && self.next < cap.0
        {
            self.next = self.next.saturating_mul(2);
        }
    }

    /// The size to try after the source refused `bytes`, in whole granules: nine tenths rounded up, but at least one
    /// granule less; `None` once that is below `needed`.
    pub(crate) fn smaller(bytes: u64, needed: u64) -> Option<u64> {
        let tenths = bytes / 10 * 9 + bytes % 10 * 9 / 10;
        let shrunk = round_up(tenths, GRANULE).unwrap_or(bytes).min(bytes.saturating_sub(GRANULE));
        (shrunk >= needed && shrunk > 0).then_some(shrunk)
    }
}

/// `bytes` in whole granules, or as they are if that leaves the address space.
fn in_granules(bytes: u64, granule: Bytes) -> u64 {
    bytes.checked_next_multiple_of(granule.0.max(GRANULE)).unwrap_or(bytes)
}

/// What may still be taken below the limit, in whole granules. Saturates: a source that delivers more than it was
/// asked for can push a pool over its limit (upstream then loses the limit by wrapping around).
pub(crate) const fn available(limit: u64, reserved: u64) -> u64 {
    whole_granules(limit.saturating_sub(reserved))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::units::GIB;
    use crate::pool::BfcConfig;

    #[test]
    fn backpedalling_reaches_the_need_in_bounded_steps() {
        let mut steps = vec![2048];
        while let Some(next) = Growth::smaller(*steps.last().unwrap(), 256) {
            steps.push(next);
        }
        assert_eq!(steps, [2048, 1792, 1536, 1280, 1024, 768, 512, 256]);

        let (mut bytes, mut calls) = (8 * GIB, 1);
        while let Some(next) = Growth::smaller(bytes, 256) {
            assert!(next < bytes && next % 256 == 0);
            (bytes, calls) = (next, calls + 1);
        }
        assert_eq!((bytes, calls), (256, 158));
    }

    #[test]
    fn a_wish_that_needed_raising_does_not_double_the_next() {
        let mut growth = Growth::new(&BfcConfig::tensorflow(Bytes::gib(1)));
        let mut taken = 0;
        let sizes: Vec<u64> = (0..5)
            .map(|_| {
                let wish = growth.wish(4 * MIB, taken, available(GIB, taken)).unwrap();
                growth.met(wish);
                taken += wish.bytes;
                wish.bytes / MIB
            })
            .collect();
        assert_eq!(sizes, [4, 4, 8, 16, 32]);
    }

    /// Upstream's `ForceAllowGrowth`, without the environment variable.
    #[test]
    fn the_first_region_is_two_mebibytes_or_the_whole_limit() {
        let first = |config: BfcConfig| Growth::new(&config).wish(256, 0, u64::MAX).map(|wish| wish.bytes);
        assert_eq!(first(BfcConfig::new(Bytes::gib(2))), Some(2 * MIB));
        assert_eq!(first(BfcConfig::new(Bytes::gib(2)).with_allow_growth(false)), Some(2 * GIB));
        assert_eq!(first(BfcConfig::new(Bytes(1000))), Some(1024));
        assert_eq!(first(BfcConfig::new(Bytes(0))), Some(256));
    }

    /// What a pool that holds `reserved` bytes asks for.
    fn wished(rule: GrowthRule, reserved: u64, needed: u64) -> u64 {
        let config = BfcConfig::new(Bytes::gib(64)).with_growth(rule);
        Growth::new(&config).wish(needed, reserved, u64::MAX).unwrap().bytes
    }

    #[test]
    fn growth_without_doubling_follows_need_and_reserve() {
        let granule = Bytes(2 * MIB);
        assert_eq!(wished(GrowthRule::AsRequested { granule }, GIB, 3 * MIB), 4 * MIB);
        assert_eq!(wished(GrowthRule::AsRequested { granule: Bytes(0) }, GIB, 768), 768);
        assert_eq!(wished(GrowthRule::Fixed(Bytes(5 * MIB)), GIB, 256), 5 * MIB);
        assert_eq!(wished(GrowthRule::Fixed(Bytes(5 * MIB)), GIB, 6 * MIB), 6 * MIB);
        assert_eq!(wished(GrowthRule::Fixed(Bytes(300)), GIB, 256), 512);
        assert_eq!(wished(GrowthRule::Proportional { parts: 32, granule }, GIB, 256), 32 * MIB);
        assert_eq!(wished(GrowthRule::Proportional { parts: 32, granule }, 2 * MIB, 256), 2 * MIB);
        assert_eq!(wished(GrowthRule::Proportional { parts: 0, granule }, GIB, 256), GIB);
    }

    #[test]
    fn doubling_stops_at_its_cap() {
        let rule = GrowthRule::Doubling { cap: Bytes(16 * MIB) };
        let mut growth = Growth::new(&BfcConfig::new(Bytes::gib(1)).with_growth(rule));
        let mut next = |needed| {
            let wish = growth.wish(needed, MIB, GIB).unwrap();
            growth.met(wish);
            wish.bytes / MIB
        };
        assert_eq!([256; 5].map(&mut next), [2, 4, 8, 16, 16]);
        assert_eq!((next(40 * MIB), next(256)), (40, 16));
    }

    #[test]
    fn an_overfull_pool_has_nothing_available() {
        assert_eq!(available(1000, 0), 768);
        assert_eq!(available(1000, 4096), 0);
        assert_eq!(Growth::new(&BfcConfig::new(Bytes(0))).wish(256, 0, 0), None);
    }

    #[test]
    fn the_largest_sizes_do_not_overflow() {
        let mut growth = Growth::new(&BfcConfig::new(Bytes(u64::MAX)).with_allow_growth(false));
        let wish = growth.wish(1 << 63, 0, available(u64::MAX, 0)).unwrap();
        assert_eq!(wish.bytes, u64::MAX - 255);
        growth.met(wish);
        assert!(Growth::smaller(wish.bytes, 256).is_some_and(|bytes| bytes < wish.bytes));
    }
}
