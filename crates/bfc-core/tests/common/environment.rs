//! Environment variables as bytes: the invariants for any values. The tests and the fuzz target `environment`
//! share it.

use std::ffi::OsString;
use std::sync::Arc;

use bfc_core::{
    AddressOnlyMemory, Allocation, AllocationAttributes, AllocatorAttributes, BfcConfig, Bytes, DeviceId,
    DeviceKind, Environment, Pool, Registry, Request,
};

/// Reads lines `NAME=VALUE`, without the prefix of the names, as a user's variables. Requests some memory
/// from the pool that they configure. Nothing may panic, and every error must be short.
pub fn run_variables(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let variables: Vec<(OsString, OsString)> = text
        .lines()
        .take(20)
        .map(|line| line.split_once('=').unwrap_or((line, "")))
        .map(|(name, value)| (format!("HIGHWATER_{name}").into(), value.into()))
        .collect();
    let environment = match Environment::from_vars(variables) {
        Ok(environment) => environment,
        Err(error) => return assert!(error.to_string().len() < 2000, "{error}"),
    };
    for unknown in environment.unknown(&[]) {
        assert!(unknown.to_string().len() < 2000, "{unknown}");
    }
    let kinds = [DeviceKind::Cpu, DeviceKind::Cuda, DeviceKind::Dry, DeviceKind::Sim];
    for device in kinds.map(|kind| DeviceId::new(kind, 0)) {
        let options = environment.settings().options(device);
        for config in [BfcConfig::new(Bytes::mib(64)), BfcConfig::tensorflow(Bytes(u64::MAX))] {
            let registry = Registry::new();
            let pool = Pool::new("pool", Arc::new(AddressOnlyMemory::new()), 0, config);
            registry.register(device, [pool]).expect("the registry is empty");
            let Ok(made) = registry.allocator(device, AllocatorAttributes::default(), Some(options)) else {
                continue;
            };
            let _ = made.options.to_string();
            let mut held = Vec::new();
            for bytes in [0, 1, 100, 1 << 14, 1 << 20, 1 << 23, 1 << 40, u64::MAX] {
                let request = Request::new(bytes).with_attributes(AllocationAttributes::no_retry());
                held.extend(Allocation::new(&made.allocator, &request));
            }
            assert!(made.allocator.stats().live_allocs <= held.len() as u64);
            drop(held);
            assert_eq!(made.allocator.stats().live_allocs, 0);
        }
    }
}
