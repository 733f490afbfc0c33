//! Which regions of a pool a recording knows.
//!
//! Pools tell of the regions that they take and give back; those that they had before must be asked for. A pool may join
//! neighbours, so what it calls one region may be several that it told of, and some that it did not.

use std::collections::BTreeMap;

use bfc_core::Span;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Regions {
    /// The regions that were told of, by address, with their lengths.
    told: BTreeMap<u64, u64>,
    changes: u64,
    complete: bool,
}

impl Regions {
    /// Whether the pool was asked for those that it had before.
    #[inline]
    pub(super) const fn are_complete(&self) -> bool {
        self.complete
    }

    /// How many regions have come and gone.
    pub(super) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Notes that a region was taken, or given back.
    pub(super) fn change(&mut self, region: Span, taken: bool) {
        self.changes += 1;
        if self.complete {
            // Nobody will ask any more.
        } else if taken {
            self.told.insert(region.address, region.bytes);
        } else {
            self.told.remove(&region.address);
        }
    }

    /// Of all regions that the pool has, those that were not told of. Once answered, there are none.
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
    fn what_was_told_of_is_missing_nowhere() {
        let mut regions = Regions::default();
        regions.change(span(100, 50), true);
        regions.change(span(300, 50), true);
        regions.change(span(300, 50), false);
        // The first was joined with neighbours on both sides, of which nobody told.
        let missing = regions.complete(&[span(50, 150), span(400, 10)]);
        assert_eq!(missing, [span(50, 50), span(150, 50), span(400, 10)]);
        assert!(regions.are_complete() && regions.complete(&[span(0, 10)]).is_empty());
        assert_eq!(regions.changes(), 3);
    }

    #[test]
    fn a_region_told_of_as_it_is_needs_no_telling() {
        let mut regions = Regions::default();
        regions.change(span(256, 1024), true);
        assert_eq!(regions.complete(&[span(256, 1024)]), []);
    }
}
