//! Pools that follow a packing.

use std::sync::Arc;

use crate::base::placement::PackingCounts;
use crate::base::units::Bytes;
use crate::packing::Packing;
use crate::policy::ConfiguredPolicy;
use crate::policy::bfc::{Bfc, BfcOptions};
use crate::policy::packed::{Packed, PackedOptions};
use crate::pool::PolicyAllocator;
use crate::pool::config::PoolConfig;

/// The configuration of a [`PackedAllocator`].
pub type PackedConfig = PoolConfig<PackedOptions>;

impl PackedConfig {
    /// Creates a pool of at most `limit` bytes that follows `packing`, and places other requests by best fit with
    /// coalescing.
    #[must_use]
    pub fn packed(limit: Bytes, packing: Arc<Packing>) -> Self {
        Self::with_options(limit, PackedOptions::new(packing, BfcOptions::default()))
    }
}

/// A pool that follows a packing, over best fit with coalescing.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::{AddressOnlyMemory, Allocation, Allocator, Bytes, Lifetime, Packing, PackingOptions, Request};
/// use bfc_core::{PackedAllocator, PackedConfig};
/// let step = [
///     Lifetime { bytes: 1000, start: 0, end: 3 },
///     Lifetime { bytes: 3000, start: 1, end: 2 },
/// ];
/// let packing = Arc::new(Packing::solve(&step, &PackingOptions::default())?);
/// let config = PackedConfig::packed(Bytes(packing.capacity()), packing);
/// let pool = Arc::new(PackedAllocator::new("pool", Arc::new(AddressOnlyMemory::new()), config));
/// let allocator: Arc<dyn Allocator> = pool.clone();
/// for _ in 0..10 {
///     let first = Allocation::new(&allocator, &Request::new(1000))?;
///     let second = Allocation::new(&allocator, &Request::new(3000))?;
///     drop((second, first));
/// }
/// assert_eq!(pool.counts().packed, 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type PackedAllocator = PolicyAllocator<Packed<Bfc>>;

impl<P: ConfiguredPolicy + Clone> PolicyAllocator<Packed<P>> {
    /// Returns how many allocations followed the packing so far. Zeros if called back from the source.
    #[must_use]
    pub fn counts(&self) -> PackingCounts {
        self.with_policy(|policy| policy.counts()).unwrap_or_default()
    }
}
