//! Creates the allocator of a pool from its configuration, through a registry of its own.
//!
//! The registry applies the rules that the devices of Highwater follow: a limit is one region unless the options ask for
//! growth, and environment variables set what the configuration leaves out.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "memory/without_cuda.rs"]
mod cuda;

use std::sync::Arc;

use bfc_core::setting::LIMIT;
use bfc_core::{
    AddressOnlyMemory, Allocator, AllocatorAttributes, Amount, BfcConfig, Bytes, DeviceId, DeviceKind,
    Environment, EnvironmentError, HostMemory, MemoryKind, Pool, PoolOptions, Registry, Share, Span,
};
use highwater_tracking::{Tracker, UsableMemory};

use crate::config::{Memory, PoolSpec};
use crate::error::{ConfigurationError, Error};
use crate::fork;

/// The limit of a host pool if the amount of memory is unknown, as in TensorFlow.
const DEFAULT_LIMIT: Bytes = Bytes::gib(64);

/// The limit of a dry pool without one: more than any machine has, without overflow in sums.
const DRY_LIMIT: Bytes = Bytes(1 << 56);

/// Creates the allocator. Its regions appear in recordings of `tracker` under `name`.
pub(crate) fn allocator(
    spec: &PoolSpec,
    name: &str,
    tracker: &Arc<Tracker>,
) -> Result<Arc<dyn Allocator>, Error> {
    let registry = Registry::new();
    let id = device(spec.memory);
    let environment = Environment::read()?.settings().options(id);
    check_share(&spec.options)?;
    if spec.options.limit.is_none() {
        check_share_of_environment(&environment, id, |name| std::env::var_os(name).is_some())?;
    }
    let options = spec.options.or(environment);
    let (pool, attributes) = match spec.memory {
        Memory::Host => (host(name), AllocatorAttributes::default()),
        Memory::Dry => (dry(name), AllocatorAttributes::default()),
        Memory::Cuda(ordinal) => (cuda::device(name, ordinal)?, AllocatorAttributes::default()),
        Memory::Pinned(ordinal) => (
            cuda::pinned(name, ordinal)?,
            AllocatorAttributes::default().with_on_host(true).with_gpu_compatible(true),
        ),
    };
    let kind = pool.kind();
    registry.register(id, [pool.with_options(options)])?;
    record_regions(&registry, id, kind, name, tracker)?;
    Ok(registry.allocator(id, attributes, None)?.allocator)
}

/// Returns a limit above all of the memory, which only a driver that pages to the host could provide.
fn excessive_share(options: &PoolOptions) -> Option<Share> {
    match options.limit {
        Some(Amount::Share(limit)) if limit > Share::WHOLE => Some(limit),
        _ => None,
    }
}

/// Refuses such a limit in a configuration.
fn check_share(options: &PoolOptions) -> Result<(), ConfigurationError> {
    excessive_share(options).map_or(Ok(()), |limit| Err(ConfigurationError::Share { limit }))
}

/// Refuses such a limit in the environment, and names the variable: the most precise one that is set.
fn check_share_of_environment(
    options: &PoolOptions,
    id: DeviceId,
    is_set: impl Fn(&str) -> bool,
) -> Result<(), EnvironmentError> {
    let Some(limit) = excessive_share(options) else { return Ok(()) };
    let kind = id.kind.name().to_uppercase();
    let variable = LIMIT.variable.unwrap_or(LIMIT.name);
    let precise = [format!("{variable}_{kind}_{}", id.ordinal), format!("{variable}_{kind}")];
    Err(EnvironmentError::BadValue {
        name: precise.into_iter().find(|name| is_set(name)).unwrap_or_else(|| variable.to_owned()),
        value: limit.to_string(),
        expected: "at most 100 % of the memory".to_owned(),
    })
}

const fn device(memory: Memory) -> DeviceId {
    match memory {
        Memory::Host => DeviceId::CPU,
        Memory::Dry => DeviceId::new(DeviceKind::Dry, 0),
        Memory::Cuda(ordinal) | Memory::Pinned(ordinal) => DeviceId::new(DeviceKind::Cuda, ordinal),
    }
}

fn host(name: &str) -> Pool {
    let usable = UsableMemory::of_this_process();
    let (source, config) = match &usable {
        Some(usable) => (
            HostMemory::new().with_total(usable.bytes),
            BfcConfig::new(usable.pool_limit()).with_limit_origin(usable.limit_origin()),
        ),
        None => (HostMemory::new(), BfcConfig::new(DEFAULT_LIMIT)),
    };
    Pool::new(name, Arc::new(source), 0, config)
}

fn dry(name: &str) -> Pool {
    Pool::new(name, Arc::new(AddressOnlyMemory::new()), 0, BfcConfig::new(DRY_LIMIT))
}

/// Records the regions that the pool takes from its source and returns, and notes them for children of `fork`.
fn record_regions(
    registry: &Registry,
    id: DeviceId,
    kind: MemoryKind,
    name: &str,
    tracker: &Arc<Tracker>,
) -> Result<(), Error> {
    let record = |is_taken| {
        // A weak reference: blocks refer to the tracker, and the tracker must not refer to the pool.
        let (tracker, name) = (Arc::downgrade(tracker), name.to_owned());
        move |region: Span, _: usize| {
            if kind.is_host_accessible() {
                fork::note_region(region, is_taken);
            }
            if let Some(tracker) = tracker.upgrade() {
                tracker.record_region(&name, kind, region, is_taken);
            }
        }
    };
    registry.on_alloc(id, kind, record(true))?;
    registry.on_free(id, kind, record(false))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_above_all_memory_names_its_variable() {
        let id = DeviceId::new(DeviceKind::Cuda, 1);
        for name in ["HIGHWATER_POOL_LIMIT", "HIGHWATER_POOL_LIMIT_CUDA", "HIGHWATER_POOL_LIMIT_CUDA_1"] {
            let environment = |limit| Environment::from_vars([(name, limit)]).unwrap().settings().options(id);
            let check = |limit| check_share_of_environment(&environment(limit), id, |other| other == name);
            let message = check("101%").unwrap_err().to_string();
            let expected = format!(
                "environment variable {name}: \"101 %\" is not valid: expected at most 100 % of the memory"
            );
            assert_eq!(message, expected);
            assert!(check("100%").is_ok() && check("1MiB").is_ok());
        }
    }
}
