//! Pools that follow a plan.

use std::sync::Arc;

use crate::base::placement::PlanCounts;
use crate::base::units::Bytes;
use crate::plan::Plan;
use crate::policy::ConfiguredPolicy;
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

impl<P: ConfiguredPolicy + Clone> PolicyAllocator<Planned<P>> {
    /// Returns how many allocations followed the plan so far. Zeros if called back from the source.
    #[must_use]
    pub fn counts(&self) -> PlanCounts {
        self.with_policy(|policy| policy.counts()).unwrap_or_default()
    }
}
