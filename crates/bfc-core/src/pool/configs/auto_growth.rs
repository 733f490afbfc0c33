//! Pools that place as Paddle's auto-growth allocator.

use crate::base::units::Bytes;
use crate::policy::auto_growth::{AutoGrowth, AutoGrowthOptions};
use crate::pool::PolicyAllocator;
use crate::pool::config::PoolConfig;

/// A pool that places as Paddle's auto-growth allocator.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::{AddressOnlyMemory, Allocation, Allocator, AutoGrowthAllocator, AutoGrowthConfig, Bytes, Request};
/// let config = AutoGrowthConfig::gpu(Bytes::gib(80));
/// let pool = Arc::new(AutoGrowthAllocator::new("gpu", Arc::new(AddressOnlyMemory::new()), config));
/// let allocator: Arc<dyn Allocator> = pool.clone();
/// let blocks = [1000, 5000].map(|bytes| Allocation::new(&allocator, &Request::new(bytes)));
/// assert_eq!(pool.regions().iter().map(|region| region.bytes).collect::<Vec<_>>(), [1024, 5120]);
/// # for block in blocks { block?; }
/// # Ok::<(), bfc_core::AllocError>(())
/// ```
pub type AutoGrowthAllocator = PolicyAllocator<AutoGrowth>;

/// The configuration of an [`AutoGrowthAllocator`]. The options set the size of regions, so its growth settings have no
/// effect.
pub type AutoGrowthConfig = PoolConfig<AutoGrowthOptions>;

impl AutoGrowthConfig {
    /// Creates the configuration for the memory of a machine with `physical` bytes.
    #[must_use]
    pub const fn cpu(physical: Bytes) -> Self {
        Self::with_options(physical, AutoGrowthOptions::cpu())
    }

    /// Creates the configuration for page-locked memory of a machine with `physical` bytes, half of which may be
    /// locked.
    #[must_use]
    pub const fn pinned(physical: Bytes) -> Self {
        Self::with_options(Bytes(physical.0 / 2), AutoGrowthOptions::pinned())
    }

    /// Creates the configuration for device memory with `available` free bytes.
    #[must_use]
    pub const fn gpu(available: Bytes) -> Self {
        Self::with_options(available, AutoGrowthOptions::gpu())
    }
}
