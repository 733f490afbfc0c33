//! Pools that place as PyTorch's caching allocator.

use crate::base::units::Bytes;
use crate::policy::pytorch::{Pytorch, PytorchOptions};
use crate::pool::PolicyAllocator;
use crate::pool::config::PoolConfig;

/// A pool that places as PyTorch's caching allocator.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::{AddressOnlyMemory, Allocation, Allocator, Bytes, PytorchAllocator, PytorchConfig, PytorchOptions};
/// use bfc_core::Request;
/// let config = PytorchConfig::pytorch(Bytes::gib(80), PytorchOptions::default());
/// let pool = Arc::new(PytorchAllocator::new("gpu", Arc::new(AddressOnlyMemory::new()), config));
/// let allocator: Arc<dyn Allocator> = pool.clone();
/// let blocks = [1000, 3 << 20].map(|bytes| Allocation::new(&allocator, &Request::new(bytes)));
/// assert_eq!(pool.regions().iter().map(|region| region.bytes >> 20).collect::<Vec<_>>(), [2, 20]);
/// # for block in blocks { block?; }
/// # Ok::<(), bfc_core::AllocError>(())
/// ```
pub type PytorchAllocator = PolicyAllocator<Pytorch>;

/// The configuration of a [`PytorchAllocator`]. The options set the size of regions, so its growth settings have no
/// effect.
pub type PytorchConfig = PoolConfig<PytorchOptions>;

impl PytorchConfig {
    /// Creates the configuration for a device with `memory` bytes, of which the options may allow a share.
    #[must_use]
    pub fn pytorch(memory: Bytes, options: PytorchOptions) -> Self {
        Self::with_options(memory, options).with_pytorch(options)
    }
}

impl<O> PoolConfig<O> {
    /// Replaces the policy by PyTorch's. The limit shrinks to the share of `per_process_memory_fraction`.
    #[must_use]
    pub fn with_pytorch(self, options: PytorchOptions) -> PytorchConfig {
        let limit = options.memory_of(self.limit);
        let config = if limit == self.limit { self } else { self.with_limit(limit) };
        config.with_policy(options.with_limit(limit))
    }
}
