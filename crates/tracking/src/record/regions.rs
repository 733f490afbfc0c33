//! The known regions of a pool.
//!
//! Pools report the regions that they take and return. A query finds the regions that a pool had before. A pool may
//! join neighbors, so one region of the pool may consist of several reported and unreported ones.

use std::collections::BTreeMap;

use bfc_core::Span;

/// The regions of a pool that the recording contains.
#[derive(Debug, Default)]
pub(super) struct Regions {
    /// The lengths of the reported regions by address.
    told: BTreeMap<u64, u64>,
    changes: u64,
    complete: bool,
}

impl Regions {
    /// Whether the pool was queried for its earlier regions.
    #[inline]
    pub(super) const fn are_complete(&self) -> bool {
        self.complete
    }

    /// Returns the number of changes so far.
    pub(super) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Notes that the pool took or returned a region.
    pub(super) fn change(&mut self, region: Span, taken: bool) {
        self.changes += 1;
        if self.complete {
            // No query will follow.
        } else if taken {
            self.told.insert(region.address, region.bytes);
        } else {
            self.told.remove(&region.address);
        }
    }

    /// Returns the unreported regions of the pool. Later calls return none.
    pub(super) fn complete(&mut self, all: &[Span]) -> Vec<Span> {
        if std::mem::replace(&mut self.complete, true) {
            return Vec::new();
        }
        let told = std::mem::take(&mut self.told);
        let mut missing = Vec::new();
        for region in all {
            let (mut from, end) = (region.address, region.address.saturating_add(region.bytes));
            for (&address, &bytes) in told.range(from..end) {
                if from < address {
                    missing.push(Span { address: from, bytes: address - from });
                }
                from = from.max(address.saturating_add(bytes));
            }
            if from < end {
                missing.push(Span { address: from, bytes: end - from });
            }
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn span(address: u64, bytes: u64) -> Span {
        Span { address, bytes }
    }

    #[test]
    fn reported_regions_are_never_missing() {
        let mut regions = Regions::default();
        regions.change(span(100, 50), true);
        regions.change(span(300, 50), true);
        regions.change(span(300, 50), false);
        // The first region was joined with unreported neighbors on both sides.
        let missing = regions.complete(&[span(50, 150), span(400, 10)]);
        assert_eq!(missing, [span(50, 50), span(150, 50), span(400, 10)]);
        assert!(regions.are_complete() && regions.complete(&[span(0, 10)]).is_empty());
        assert_eq!(regions.changes(), 3);
    }

    #[test]
    fn reported_regions_are_not_queried() {
        let mut regions = Regions::default();
        regions.change(span(256, 1024), true);
        assert_eq!(regions.complete(&[span(256, 1024)]), []);
    }
}
