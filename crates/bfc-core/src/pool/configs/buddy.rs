//! Pools that place as Paddle's buddy allocator.

use crate::base::units::Bytes;
use crate::policy::buddy::{Buddy, BuddyOptions};
use crate::pool::PolicyAllocator;
use crate::pool::config::PoolConfig;

/// A pool that places as Paddle's buddy allocator.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::{Allocation, Allocator, BuddyAllocator, BuddyConfig, Bytes, HostMemory, Request};
/// let config = BuddyConfig::cpu(Bytes::gib(1));
/// let pool: Arc<dyn Allocator> = Arc::new(BuddyAllocator::new("cpu", Arc::new(HostMemory::new()), config));
/// let block = Allocation::new(&pool, &Request::new(1000))?;
/// assert_eq!((pool.stats().bytes_in_use, pool.stats().bytes_reserved), (4 << 10, 32 << 20));
/// // What is larger than a 32nd of the memory comes straight from the system, and goes straight back.
/// drop(Allocation::new(&pool, &Request::new(40 << 20))?);
/// assert_eq!((pool.stats().peak_bytes_reserved, pool.stats().bytes_reserved), (72 << 20, 32 << 20));
/// # Ok::<(), bfc_core::AllocError>(())
/// ```
pub type BuddyAllocator = PolicyAllocator<Buddy>;

/// The configuration of a [`BuddyAllocator`]. The options set the size of regions, so its growth settings have no
/// effect. For one fixed region, set the largest chunk to the limit.
pub type BuddyConfig = PoolConfig<BuddyOptions>;

impl BuddyConfig {
    /// Creates the configuration for the memory of a machine with `physical` bytes. See [`BuddyOptions::cpu`].
    #[must_use]
    pub const fn cpu(physical: Bytes) -> Self {
        Self::with_options(physical, BuddyOptions::cpu(physical))
    }

    /// Creates the configuration for page-locked memory of a machine with `physical` bytes, half of which may be
    /// locked. See [`BuddyOptions::pinned`].
    #[must_use]
    pub const fn pinned(physical: Bytes) -> Self {
        Self::with_options(Bytes(physical.0 / 2), BuddyOptions::pinned(physical))
    }

    /// Creates the configuration for device memory with `available` free bytes. See [`BuddyOptions::gpu`].
    #[must_use]
    pub fn gpu(available: Bytes) -> Self {
        Self::with_options(available, BuddyOptions::gpu(available))
    }
}
