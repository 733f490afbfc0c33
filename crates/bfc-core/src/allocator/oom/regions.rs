//! How much of the limit the regions of a pool cover.

use super::{OomReport, Verdict};
use crate::base::units::Bytes;

/// The regions of a pool that can have several: a block cannot span two of them. All sizes are in bytes.
///
/// A pool that [grows](crate::PoolOptions::allow_growth) adds regions up to its limit. The bytes that growth left
/// unused serve a request only if they form a region that is large enough, or extend the last region far enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct RegionUse {
    /// The number of regions.
    pub regions: u64,
    /// The bytes below the limit that no region covers.
    pub unreserved: u64,
    /// The free bytes at the end of the last region, if the source of memory can add the unreserved bytes behind it.
    /// `None` if each new region is separate.
    pub tail: Option<u64>,
}

impl RegionUse {
    /// Returns the regions of a pool, or `None` if one region covers the limit.
    pub(crate) const fn new(regions: u64, unreserved: u64, tail: Option<u64>) -> Option<Self> {
        match (regions, unreserved) {
            (0, _) | (1, 0) => None,
            _ => Some(Self { regions, unreserved, tail }),
        }
    }

    /// Returns a note on the bytes that growth left unused.
    fn note(&self, report: &OomReport) -> String {
        let Self { unreserved, tail, .. } = *self;
        if unreserved == 0 {
            return "cover the limit; no block can span two of them".to_owned();
        }
        let (reserved, rest, needed) = (Bytes(report.reserved), Bytes(unreserved), Bytes(report.rounded));
        let within = report.limit.map_or(String::new(), |limit| format!(" of the limit of {}", Bytes(limit)));
        let rest = match tail {
            Some(tail) if tail.saturating_add(unreserved) < report.rounded => {
                let tail = Bytes(tail);
                format!("the remaining {rest} and {tail} free before them are too small for {needed}")
            }
            None if unreserved < report.rounded => {
                format!("the remaining {rest} would be a separate region, too small for {needed}")
            }
            _ => format!("the source of memory did not provide the remaining {rest}"),
        };
        format!("cover {reserved}{within}; {rest}")
    }
}

impl OomReport {
    /// Returns the number of regions and a note on the bytes that growth left unused, if that matters to the request.
    pub(super) fn region_figure(&self) -> Option<(String, String)> {
        let regions = self.regions?;
        let applies = matches!(
            self.verdict,
            Verdict::Exhausted | Verdict::Fragmented | Verdict::Pinned | Verdict::Separated
        );
        applies.then(|| (regions.regions.to_string(), regions.note(self)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Request;
    use crate::base::units::MIB;

    fn note(regions: RegionUse, rounded: u64) -> String {
        let report = OomReport {
            rounded,
            limit: Some(24 * MIB),
            reserved: 24 * MIB - regions.unreserved,
            regions: Some(regions),
            ..OomReport::new("pool", &Request::new(rounded), Verdict::Fragmented)
        };
        report.region_figure().unwrap().1
    }

    #[test]
    fn the_note_says_why_the_rest_of_the_limit_did_not_help() {
        let separate = RegionUse { regions: 3, unreserved: 8 * MIB, tail: None };
        assert_eq!(
            note(separate, 10 * MIB),
            "cover 16.00 MiB of the limit of 24.00 MiB; the remaining 8.00 MiB would be a separate region, too small \
             for 10.00 MiB"
        );
        let refused = "the source of memory did not provide the remaining 8.00 MiB";
        assert!(note(separate, 8 * MIB).ends_with(refused));
        let adjacent = RegionUse { tail: Some(MIB), ..separate };
        let short = "the remaining 8.00 MiB and 1.00 MiB free before them are too small for 10.00 MiB";
        assert!(note(adjacent, 10 * MIB).ends_with(short));
        assert!(note(adjacent, 9 * MIB).ends_with(refused));
        let whole = RegionUse { unreserved: 0, ..separate };
        assert_eq!(note(whole, 10 * MIB), "cover the limit; no block can span two of them");
    }

    #[test]
    fn only_pools_with_several_possible_regions_have_the_data() {
        assert_eq!((RegionUse::new(0, MIB, None), RegionUse::new(1, 0, None)), (None, None));
        assert!(RegionUse::new(1, MIB, None).is_some() && RegionUse::new(2, 0, None).is_some());
    }

    #[test]
    fn a_request_over_the_limit_or_budget_has_no_note() {
        for verdict in [Verdict::OverLimit, Verdict::OverBudget] {
            let regions = RegionUse::new(2, MIB, None);
            let report = OomReport { regions, ..OomReport::new("pool", &Request::new(1), verdict) };
            assert_eq!(report.region_figure(), None);
        }
    }
}
