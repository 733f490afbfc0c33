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

/// How a [`PlannedAllocator`] behaves.
pub type PlannedConfig = PoolConfig<PlannedOptions>;

impl PlannedConfig {
    /// A pool of at most `limit` bytes that follows `plan`, and places by best fit with coalescing what departs from
    /// it.
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

// SAFETY: expected blocks lie where a verified plan keeps them apart, within the range; all others in the range are
// looked up before a place is given (see `plan/planned.rs`). The range is one block of the fallback, which keeps its own promise
// for it and for the blocks outside; it is handed back only while nothing lies in it. A place is given only if it has the need's alignment; else the
// need goes to the fallback. Blocks that lend their bytes go there too, as a pool's blocks may be used until they are freed.
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
    /// How much went by the plan so far. Nothing if called back from the source.
    #[must_use]
    pub fn counts(&self) -> PlanCounts {
        self.with_policy(|policy| policy.counts()).unwrap_or_default()
    }
}
