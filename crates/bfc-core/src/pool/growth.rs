//! How large the next region is.
//!
//! A growing pool doubles its regions, so that the number of regions stays logarithmic. When the source refuses, the
//! wish shrinks by a tenth at a time, down to what the request needs.
//! Source: `BFCAllocator::Extend`, in integers instead of floating point.

use super::config::PoolConfig;
use crate::policy::{GRANULE, whole_granules};
use crate::units::round_up;

/// The size of the next region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Growth {
    next: u64,
}

/// A region to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) bytes: u64,
    /// The next size was raised for this wish already, so that success does not double it again.
    raised: bool,
}

impl Growth {
    pub(crate) fn new<O>(config: &PoolConfig<O>) -> Self {
        let first = if config.allow_growth { config.limit.min(config.first_region) } else { config.limit };
        Self { next: round_up(first, GRANULE).unwrap_or(u64::MAX).max(GRANULE) }
    }

    /// What to ask for if `needed` bytes are needed and `available` are left below the limit, both in whole granules;
    /// `None` if they are not enough. The raised size stays raised even if the source then refuses, as upstream.
    pub(crate) fn wish(&mut self, needed: u64, available: u64) -> Option<Wish> {
        if needed > available {
            return None;
        }
        let raised = self.next < needed;
        while self.next < needed {
            self.next = self.next.saturating_mul(2);
        }
        Some(Wish { bytes: self.next.min(available), raised })
    }

    /// Says that a wish was met.
    pub(crate) const fn met(&mut self, wish: Wish) {
        if !wish.raised {
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

/// What may still be taken below the limit, in whole granules. Saturates: a source that delivers more than it was
/// asked for can push a pool over its limit (upstream then loses the limit by wrapping around).
pub(crate) const fn available(limit: u64, reserved: u64) -> u64 {
    whole_granules(limit.saturating_sub(reserved))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bfc::BfcConfig;
    use crate::units::{Bytes, GIB, MIB};

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
        let mut growth = Growth::new(&BfcConfig::new(Bytes::gib(1)));
        let mut taken = 0;
        let sizes: Vec<u64> = (0..5)
            .map(|_| {
                let wish = growth.wish(4 * MIB, available(GIB, taken)).unwrap();
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
        let first = |config: BfcConfig| Growth::new(&config).wish(256, u64::MAX).map(|wish| wish.bytes);
        assert_eq!(first(BfcConfig::new(Bytes::gib(2))), Some(2 * MIB));
        assert_eq!(first(BfcConfig::new(Bytes::gib(2)).with_allow_growth(false)), Some(2 * GIB));
        assert_eq!(first(BfcConfig::new(Bytes(1000))), Some(1024));
        assert_eq!(first(BfcConfig::new(Bytes(0))), Some(256));
    }

    #[test]
    fn an_overfull_pool_has_nothing_available() {
        assert_eq!(available(1000, 0), 768);
        assert_eq!(available(1000, 4096), 0);
        assert_eq!(Growth::new(&BfcConfig::new(Bytes(0))).wish(256, 0), None);
    }

    #[test]
    fn the_largest_sizes_do_not_overflow() {
        let mut growth = Growth::new(&BfcConfig::new(Bytes(u64::MAX)).with_allow_growth(false));
        let wish = growth.wish(1 << 63, available(u64::MAX, 0)).unwrap();
        assert_eq!(wish.bytes, u64::MAX - 255);
        growth.met(wish);
        assert!(Growth::smaller(wish.bytes, 256).is_some_and(|bytes| bytes < wish.bytes));
    }
}
