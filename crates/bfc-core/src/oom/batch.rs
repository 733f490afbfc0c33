//! At which batch the request would have fitted, as far as sums can tell.

use super::OomReport;
use crate::ledger::Category;

/// Whether bytes of a category grow with the batch. Gradients are those of parameters as well as those of activations, and
/// what libraries ask for follows rules of their own: both are taken not to, which makes the answer a careful one.
const fn grows_with_batch(category: Category) -> bool {
    matches!(category, Category::Input | Category::Activation | Category::Output | Category::Temporary)
}

impl OomReport {
    /// The largest batch below `batch`, at which the request was refused, whose share of what was in use fits together
    /// with the request: inputs, activations, outputs and temporaries are taken to grow with the batch, all else not to.
    /// `None` if not even a batch of 1 does, or if nothing is known of who holds what.
    ///
    /// An estimate from sums. It knows neither how blocks lie nor what the step will ask for later; a
    /// dry run does.
    #[must_use]
    pub fn largest_batch(&self, batch: u64) -> Option<u64> {
        if self.holdings.is_empty() {
            return None;
        }
        let room = match (self.budget, self.limit) {
            (Some(budget), _) => budget.limit,
            (None, Some(limit)) => limit,
            (None, None) => self.reserved,
        };
        let total = self.holdings.total();
        let by_category = self.holdings.by_category();
        let growing = by_category.iter().filter(|(category, _)| grows_with_batch(*category));
        let mut growing: u64 = growing.map(|(_, bytes)| bytes).sum();
        let mut fixed = total - growing;
        let request = if grows_with_batch(self.tag.category) { &mut growing } else { &mut fixed };
        *request = request.saturating_add(self.rounded);
        let room = room.checked_sub(fixed)?;
        let fits = match growing {
            0 => batch,
            _ => u64::try_from(u128::from(batch) * u128::from(room) / u128::from(growing)).unwrap_or(batch),
        };
        Some(fits.min(batch.saturating_sub(1))).filter(|&fits| fits > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Request;
    use crate::ledger::Tag;
    use crate::oom::{Budget, Holdings, Verdict};
    use crate::owner::OwnerId;

    /// Refused 100 bytes of outputs beside 200 of parameters and 300 of activations.
    fn report(limit: u64) -> OomReport {
        let tag = |category| Tag { category, owner: OwnerId::ROOT };
        OomReport {
            limit: Some(limit),
            holdings: Holdings::sum([(tag(Category::Parameter), 200), (tag(Category::Activation), 300)]),
            ..OomReport::new("pool", &Request::new(100).with_category(Category::Output), Verdict::Exhausted)
        }
    }

    #[test]
    fn what_does_not_grow_is_taken_off_first() {
        assert_eq!(report(400).largest_batch(64), Some(32), "half of 400, beside the 200");
        assert_eq!(report(599).largest_batch(64), Some(63));
        assert_eq!(report(205).largest_batch(64), None, "a batch of one takes 6 and a quarter");
        assert_eq!(report(100).largest_batch(64), None, "the parameters alone do not fit");
    }

    #[test]
    fn a_fragmented_pool_still_makes_the_batch_smaller() {
        assert_eq!(report(10_000).largest_batch(64), Some(63));
        assert_eq!(report(10_000).largest_batch(1), None);
    }

    #[test]
    fn a_budget_counts_before_the_limit() {
        let budget = Some(Budget { scope: OwnerId::ROOT, limit: 300, live: 500 });
        assert_eq!(OomReport { budget, ..report(10_000) }.largest_batch(64), Some(16));
    }

    #[test]
    fn nothing_is_said_where_nothing_is_known() {
        let report = OomReport::new("system", &Request::new(100), Verdict::Exhausted);
        assert_eq!(report.largest_batch(64), None);
    }
}
