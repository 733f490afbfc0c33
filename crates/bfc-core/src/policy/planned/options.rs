//! What can be chosen of the planned policy.

use std::sync::Arc;

use crate::plan::Plan;
use crate::policy::bfc::BfcOptions;

/// What can be chosen of [`Planned`](super::Planned).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PlannedOptions<O = BfcOptions> {
    /// What to follow.
    pub plan: Arc<Plan>,
    /// What can be chosen of the fallback.
    pub fallback: O,
}

impl<O> PlannedOptions<O> {
    /// Follows `plan`, with these options of the fallback.
    #[must_use]
    pub const fn new(plan: Arc<Plan>, fallback: O) -> Self {
        Self { plan, fallback }
    }
}
