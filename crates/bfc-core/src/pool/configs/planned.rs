//! Pools that follow a plan.

use std::sync::Arc;

use super::ConfiguredPolicy;
use crate::base::placement::PlanCounts;
use crate::base::units::Bytes;
use crate::plan::Plan;
use crate::policy::bfc::{Bfc, BfcOptions};
use crate::policy::planned::{Planned, PlannedOptions};
use crate::pool::PolicyAllocator;
use crate::pool::config::PoolConfig;

/// The configuration of a [`PlannedAllocator`].
pub type PlannedConfig = PoolConfig<PlannedOptions>;

impl PlannedConfig {
    /// Creates a pool of at most `limit` bytes that follows `plan`, and places other requests by best fit with
    /// coalescing.
    #[must_use]
    pub fn planned(limit: Bytes, plan: Arc<Plan>) -> Self {
        Self::with_options(limit, PlannedOptions::new(plan, BfcOptions::default()))
    }
}

/// A pool that follows a plan, over best fit with coalescing.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::{AddressOnlyMemory, Allocation, Allocator, Bytes, Lifetime, Plan, PlanOptions, Request};
/// use bfc_core::{PlannedAllocator, PlannedConfig};
/// let step = [
///     Lifetime { bytes: 1000, start: 0, end: 3 },
///     Lifetime { bytes: 3000, start: 1, end: 2 },
/// ];
/// let plan = Arc::new(Plan::solve(&step, &PlanOptions::default())?);
/// let config = PlannedConfig::planned(Bytes(plan.capacity()), plan);
/// let pool = Arc::new(PlannedAllocator::new("pool", Arc::new(AddressOnlyMemory::new()), config));
/// let allocator: Arc<dyn Allocator> = pool.clone();
/// for _ in 0..10 {
///     let first = Allocation::new(&allocator, &Request::new(1000))?;
///     let second = Allocation::new(&allocator, &Request::new(3000))?;
///     drop((second, first));
/// }
/// assert_eq!(pool.counts().planned, 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type PlannedAllocator = PolicyAllocator<Planned<Bfc>>;

// SAFETY: a verified plan keeps expected blocks apart within the range. Before each placement in the range, the policy
// checks it against all other blocks there (see `policy/planned.rs`). The range is one block of the fallback, which
// keeps its own guarantees, and the policy frees it only while it is empty. A placement in the range has the requested
// alignment; all other requests go to the fallback. Planned blocks that lend their bytes go there too, because a pool's
// blocks may be used until their free.
unsafe impl<P: ConfiguredPolicy + Clone> ConfiguredPolicy for Planned<P> {
    type Options = PlannedOptions<P::Options>;

    fn configured(options: &Self::Options) -> Self {
        Self::new(&options.plan, P::configured(&options.fallback))
    }

    fn configured_to_grow(options: &Self::Options) -> Self {
        Self::new(&options.plan, P::configured_to_grow(&options.fallback))
    }
}

impl<P: ConfiguredPolicy + Clone> PolicyAllocator<Planned<P>> {
    /// Returns how many allocations followed the plan so far. Zeros if called back from the source.
    #[must_use]
    pub fn counts(&self) -> PlanCounts {
        self.with_policy(|policy| policy.counts()).unwrap_or_default()
    }
}
