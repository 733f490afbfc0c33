//! The size of the next region of a pool.
//!
//! The rule states a preferred size. When the source fails, the size shrinks by a tenth at a time, down to what the
//! request needs. Source of [`GrowthRule::Doubling`] and of the shrinking: `BFCAllocator::Extend`, in integers instead
//! of floating point.

use super::config::PoolConfig;
use crate::base::units::{Bytes, MIB, round_up};
use crate::policy::{GRANULE, whole_granules};

/// The rule for the size of a growing pool's next region. A region is never smaller than its request, and never exceeds
/// the limit.
///
/// If the source [merges adjacent regions](crate::SubAllocator::supports_coalescing), the pool first tries to extend
/// its last region by the missing bytes (source: Paddle's virtual-memory allocator).
///
/// Most reserved over live peak, geometric means over the first replay of four recorded training runs (resnet18, gpt2,
/// bert, lstm); after three replays in brackets. The calls to the source are means over these and 17 other traces.
///
/// | rule | separate regions | the same, [idle ones make way](crate::PoolConfig::with_region_merging) | extended | calls |
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
/// A region that replaces idle ones has the size of the rule alone. Separate regions for small and large blocks do not
/// reserve less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrowthRule {
    /// TensorFlow's rule: each region is twice as large as the previous one, up to `cap`, so their number is
    /// logarithmic. A larger request doubles the size until it fits. A request above the cap gets a region of its own
    /// size.
    Doubling {
        /// The largest region by doubling.
        cap: Bytes,
    },
    /// The size of the request, in whole granules.
    AsRequested {
        /// The granule: sizes are multiples of it. 0 stands for 256 bytes.
        granule: Bytes,
    },
    /// Regions of this size.
    Fixed(Bytes),
    /// A share of the reserved bytes, in whole granules. The number of regions is logarithmic, and bytes reserved early
    /// stay below the share.
    Proportional {
        /// The divisor: 8 stands for an eighth. 0 stands for 1.
        parts: u64,
        /// The granule: sizes are multiples of it. 0 stands for 256 bytes.
        granule: Bytes,
    },
}

impl GrowthRule {
    /// TensorFlow's rule, without a cap.
    pub const DOUBLING: Self = Self::Doubling { cap: Bytes(u64::MAX) };

    /// The default of [`BfcConfig::new`](crate::BfcConfig::new): a thirty-second of the reserved bytes, in granules of
    /// 2 MiB. From 64 MiB on, a pool doubles in at most 23 steps.
    pub const MEASURED_BEST: Self = Self::Proportional { parts: 32, granule: Bytes(2 * MIB) };
}

/// The state of the growth rule of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Growth {
    rule: GrowthRule,
    /// The current size of the doubling rule. Other rules use it for their first region.
    next: u64,
}

/// A region to request from the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionRequest {
    pub(crate) bytes: u64,
    /// Whether the doubled size was raised for this region already, so that success does not double it again.
    raised: bool,
}

impl Growth {
    pub(crate) fn new<O>(config: &PoolConfig<O>) -> Self {
        let (rule, first) = if config.allow_growth {
            (config.growth, config.limit.min(config.first_region))
        } else {
            (GrowthRule::Fixed(config.limit), config.limit)
        };
        Self { rule, next: round_up(first.0, GRANULE).unwrap_or(u64::MAX).max(GRANULE) }
    }

    /// Returns the region to request if `needed` bytes are needed, `reserved` are held and `available` are left below
    /// the limit, all in whole granules. `None` if `available` is too small. A doubled size persists even if the source
    /// then fails, as upstream.
    pub(crate) fn next_region(
        &mut self,
        needed: u64,
        reserved: u64,
        available: u64,
    ) -> Option<RegionRequest> {
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
        Some(RegionRequest { bytes: bytes.min(available), raised })
    }

    /// Records that the source provided the region.
    pub(crate) fn succeeded(&mut self, region: RegionRequest) {
        match self.rule {
            GrowthRule::Doubling { cap } if !region.raised && self.next < cap.0 => {
                self.next = self.next.saturating_mul(2);
            }
            _ => {}
        }
    }

    /// Returns the size to try after the source failed for `bytes`, in whole granules: nine tenths rounded up, but at
    /// least one granule less. `None` once that is below `needed`.
    pub(crate) fn smaller(bytes: u64, needed: u64) -> Option<u64> {
        let tenths = bytes / 10 * 9 + bytes % 10 * 9 / 10;
        let shrunk = round_up(tenths, GRANULE).unwrap_or(bytes).min(bytes.saturating_sub(GRANULE));
        (shrunk >= needed && shrunk > 0).then_some(shrunk)
    }
}

/// Rounds `bytes` up to whole granules, or returns `bytes` if the result exceeds the address space.
fn in_granules(bytes: u64, granule: Bytes) -> u64 {
    bytes.checked_next_multiple_of(granule.0.max(GRANULE)).unwrap_or(bytes)
}

/// Returns the bytes left below the limit, in whole granules; 0 if none are left.
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
                let region = growth.next_region(4 * MIB, taken, available(GIB, taken)).unwrap();
                growth.succeeded(region);
                taken += region.bytes;
                region.bytes / MIB
            })
            .collect();
        assert_eq!(sizes, [4, 4, 8, 16, 32]);
    }

    /// As upstream's `ForceAllowGrowth`, without the environment variable.
    #[test]
    fn the_first_region_is_two_mebibytes_or_the_whole_limit() {
        let first =
            |config: BfcConfig| Growth::new(&config).next_region(256, 0, u64::MAX).map(|region| region.bytes);
        assert_eq!(first(BfcConfig::new(Bytes::gib(2))), Some(2 * MIB));
        assert_eq!(first(BfcConfig::new(Bytes::gib(2)).with_allow_growth(false)), Some(2 * GIB));
        assert_eq!(first(BfcConfig::new(Bytes(1000))), Some(1024));
        assert_eq!(first(BfcConfig::new(Bytes(0))), Some(256));
    }

    /// Returns the region to request for a pool that holds `reserved` bytes.
    fn next_region_bytes(rule: GrowthRule, reserved: u64, needed: u64) -> u64 {
        let config = BfcConfig::new(Bytes::gib(64)).with_growth(rule);
        Growth::new(&config).next_region(needed, reserved, u64::MAX).unwrap().bytes
    }

    #[test]
    fn growth_without_doubling_follows_need_and_reserve() {
        let granule = Bytes(2 * MIB);
        assert_eq!(next_region_bytes(GrowthRule::AsRequested { granule }, GIB, 3 * MIB), 4 * MIB);
        assert_eq!(next_region_bytes(GrowthRule::AsRequested { granule: Bytes(0) }, GIB, 768), 768);
        assert_eq!(next_region_bytes(GrowthRule::Fixed(Bytes(5 * MIB)), GIB, 256), 5 * MIB);
        assert_eq!(next_region_bytes(GrowthRule::Fixed(Bytes(5 * MIB)), GIB, 6 * MIB), 6 * MIB);
        assert_eq!(next_region_bytes(GrowthRule::Fixed(Bytes(300)), GIB, 256), 512);
        assert_eq!(next_region_bytes(GrowthRule::Proportional { parts: 32, granule }, GIB, 256), 32 * MIB);
        assert_eq!(next_region_bytes(GrowthRule::Proportional { parts: 32, granule }, 2 * MIB, 256), 2 * MIB);
        assert_eq!(next_region_bytes(GrowthRule::Proportional { parts: 0, granule }, GIB, 256), GIB);
    }

    #[test]
    fn doubling_stops_at_its_cap() {
        let rule = GrowthRule::Doubling { cap: Bytes(16 * MIB) };
        let mut growth = Growth::new(&BfcConfig::new(Bytes::gib(1)).with_growth(rule));
        let mut next = |needed| {
            let region = growth.next_region(needed, MIB, GIB).unwrap();
            growth.succeeded(region);
            region.bytes / MIB
        };
        assert_eq!([256; 5].map(&mut next), [2, 4, 8, 16, 16]);
        assert_eq!((next(40 * MIB), next(256)), (40, 16));
    }

    #[test]
    fn an_overfull_pool_has_nothing_available() {
        assert_eq!(available(1000, 0), 768);
        assert_eq!(available(1000, 4096), 0);
        assert_eq!(Growth::new(&BfcConfig::new(Bytes(0))).next_region(256, 0, 0), None);
    }

    #[test]
    fn the_largest_sizes_do_not_overflow() {
        let mut growth = Growth::new(&BfcConfig::new(Bytes(u64::MAX)).with_allow_growth(false));
        let region = growth.next_region(1 << 63, 0, available(u64::MAX, 0)).unwrap();
        assert_eq!(region.bytes, u64::MAX - 255);
        growth.succeeded(region);
        assert!(Growth::smaller(region.bytes, 256).is_some_and(|bytes| bytes < region.bytes));
    }
}
