//! The default limits of pools, where they come from, and the addresses of dry runs.

use bfc_core::{AddressOnlyMemory, Amount, BfcConfig, Bytes, SubAllocator};
use highwater_tracking::UsableMemory;

use crate::device::DeviceProfile;

/// The limit of a pool where nothing tells how much memory there is (TensorFlow's default).
pub(super) const POOL_OF_UNKNOWN_MEMORY: Bytes = Bytes::gib(64);

/// The default configuration of a pool of host memory.
pub(super) fn host_config(usable: Option<&UsableMemory>) -> BfcConfig {
    match usable {
        Some(usable) => BfcConfig::new(usable.pool_limit()).with_limit_origin(usable.limit_origin()),
        None => BfcConfig::new(POOL_OF_UNKNOWN_MEMORY)
            .with_limit_origin("the default, as the system does not tell its memory"),
    }
}

/// Sets the limit that the environment chooses, with its origin.
pub(super) fn by_environment(config: BfcConfig, limit: Amount, usable: Option<&UsableMemory>) -> BfcConfig {
    let whole = usable.map(|usable| usable.bytes);
    let bytes = match limit {
        Amount::Bytes(bytes) => Some(bytes),
        share => whole.map(|whole| share.of(whole)),
    };
    match bytes {
        Some(bytes) => config.with_limit(bytes).with_limit_origin("HIGHWATER_POOL_LIMIT"),
        // A share of an unknown memory: the registry resolves it or fails when it makes the pool.
        None => config,
    }
}

/// The default configuration of a pool over the memory of a device that the program brings.
pub(super) fn config_of(memory: &dyn SubAllocator, usable: Option<&UsableMemory>) -> BfcConfig {
    if memory.memory_kind().is_host_accessible() {
        return host_config(usable);
    }
    match memory.total_bytes() {
        Some(total) => BfcConfig::new(Bytes(total)).with_limit_origin("all memory of the device"),
        None => host_config(None),
    }
}

/// The addresses that stand for a machine's memory in a dry run: bounded by what the profile tells, and otherwise without an end.
pub(super) fn host_addresses(profile: &DeviceProfile) -> AddressOnlyMemory {
    let mut addresses = AddressOnlyMemory::new();
    if let Some(total) = profile.memory() {
        addresses = addresses.with_total(total);
    }
    match profile.bound() {
        Some(bound) => addresses.with_limit(bound),
        None => addresses,
    }
}
