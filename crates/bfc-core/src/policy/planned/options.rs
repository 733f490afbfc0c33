//! The options of the planned policy.

use std::sync::Arc;

use crate::plan::Plan;
use crate::policy::bfc::BfcOptions;

/// The options of [`Planned`](super::Planned).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PlannedOptions<O = BfcOptions> {
    /// The plan.
    pub plan: Arc<Plan>,
    /// The options of the fallback.
    pub fallback: O,
}

impl<O> PlannedOptions<O> {
    /// Follows `plan`, with these options of the fallback.
    #[must_use]
    pub const fn new(plan: Arc<Plan>, fallback: O) -> Self {
        Self { plan, fallback }
    }
}
