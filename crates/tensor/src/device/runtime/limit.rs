//! The default limits of pools with their origins, and the address spaces of dry runs.

use bfc_core::{AddressOnlyMemory, Amount, BfcConfig, Bytes, SubAllocator};
use highwater_tracking::UsableMemory;

use crate::device::DeviceProfile;

/// The limit of a pool if the amount of memory is unknown (TensorFlow's default).
pub(super) const DEFAULT_POOL_LIMIT: Bytes = Bytes::gib(64);

/// Returns the default configuration of a host memory pool.
pub(super) fn host_config(usable: Option<&UsableMemory>) -> BfcConfig {
    match usable {
        Some(usable) => BfcConfig::new(usable.pool_limit()).with_limit_origin(usable.limit_origin()),
        None => BfcConfig::new(DEFAULT_POOL_LIMIT)
            .with_limit_origin("the default, as the system does not report its memory"),
    }
}

/// Applies the limit from the environment, with its origin.
pub(super) fn with_environment_limit(
    config: BfcConfig,
    limit: Amount,
    usable: Option<&UsableMemory>,
) -> BfcConfig {
    let whole = usable.map(|usable| usable.bytes);
    let bytes = match limit {
        Amount::Bytes(bytes) => Some(bytes),
        share => whole.map(|whole| share.of(whole)),
    };
    match bytes {
        Some(bytes) => config.with_limit(bytes).with_limit_origin("HIGHWATER_POOL_LIMIT"),
        // A share of an unknown amount: the registry resolves it or fails when it creates the pool.
        None => config,
    }
}

/// Returns the default configuration of a pool for a custom device.
pub(super) fn custom_device_config(memory: &dyn SubAllocator, usable: Option<&UsableMemory>) -> BfcConfig {
    if memory.memory_kind().is_host_accessible() {
        return host_config(usable);
    }
    match memory.total_bytes() {
        Some(total) => BfcConfig::new(Bytes(total)).with_limit_origin("all memory of the device"),
        None => host_config(None),
    }
}

/// Returns the address space of a machine's memory in a dry run. The profile bounds it; without a bound it is
/// unlimited.
pub(super) fn host_addresses(profile: &DeviceProfile) -> AddressOnlyMemory {
    let mut addresses = AddressOnlyMemory::new().with_segments(false);
    if let Some(total) = profile.memory() {
        addresses = addresses.with_total(total);
    }
    match profile.address_limit() {
        Some(limit) => addresses.with_limit(limit),
        None => addresses,
    }
}
