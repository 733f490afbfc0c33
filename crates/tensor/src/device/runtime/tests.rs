use bfc_core::{AllocatorAttributes, AllocatorChoice, BfcConfig};
use highwater_tracking::UsableMemory;

use super::limit::DEFAULT_POOL_LIMIT;
use super::*;
use crate::device::DeviceProfile;

fn environment(variables: &[(&str, &str)]) -> Environment {
    Environment::from_vars(variables.iter().copied()).unwrap()
}

fn limit(device: &Device) -> Option<u64> {
    device.default_allocator().unwrap().stats().bytes_limit
}

/// Returns the type of a device's allocator.
fn allocator_type(device: &Device) -> String {
    let text = format!("{:?}", device.default_allocator().unwrap());
    text.split([' ', '<']).next().unwrap().to_owned()
}

#[test]
fn code_overrides_the_environment_and_the_defaults() {
    let said = environment(&[("HIGHWATER_POOL_LIMIT", "2GiB"), ("HIGHWATER_ALLOCATOR_CPU", "passthrough")]);
    let default = Runtime::builder().environment(Environment::default()).build().unwrap();
    let usable = UsableMemory::of_this_process().map_or(DEFAULT_POOL_LIMIT, |usable| usable.pool_limit());
    assert_eq!(limit(&default.cpu().unwrap()), Some(usable.get()));
    assert_eq!(limit(&default.dry().unwrap()), Some(usable.get()));

    let by_environment = Runtime::builder().environment(said.clone()).build().unwrap();
    let (cpu, dry) = (by_environment.cpu().unwrap(), by_environment.dry().unwrap());
    assert_eq!((limit(&cpu), limit(&dry)), (Some(2 << 30), Some(2 << 30)));
    assert_eq!(
        (allocator_type(&cpu).as_str(), allocator_type(&dry).as_str()),
        ("PassthroughAllocator", "PolicyAllocator")
    );

    let builder = Runtime::builder().environment(said.clone()).pool(Bytes::mib(8));
    let by_code = builder.allocator(DeviceId::CPU, AllocatorChoice::Guard).build().unwrap();
    let cpu = by_code.cpu().unwrap();
    assert_eq!((limit(&cpu), allocator_type(&cpu).as_str()), (Some(8 << 20), "GuardAllocator"));

    let config = BfcConfig::tensorflow(Bytes::mib(16));
    let by_config = Runtime::builder().environment(said).pool_config(config).build().unwrap();
    let cpu = by_config.cpu().unwrap();
    assert_eq!((limit(&cpu), allocator_type(&cpu).as_str()), (Some(16 << 20), "PassthroughAllocator"));
}

#[test]
fn a_guard_for_all_devices_skips_unsupported_ones() {
    let builder = || Runtime::builder().environment(Environment::default());
    let by_code = builder().allocator(DeviceScope::All, AllocatorChoice::Guard);
    let by_environment = Runtime::builder().environment(environment(&[("HIGHWATER_ALLOCATOR", "guard")]));
    for builder in [by_code, by_environment] {
        let runtime = builder.build().unwrap();
        let (cpu, dry) = (runtime.cpu().unwrap(), runtime.dry().unwrap());
        assert_eq!(
            (allocator_type(&cpu).as_str(), allocator_type(&dry).as_str()),
            ("GuardAllocator", "PolicyAllocator")
        );
    }
}

#[test]
fn a_guard_for_a_dry_device_is_an_error() {
    let builder = Runtime::builder().environment(environment(&[("HIGHWATER_ALLOCATOR_DRY", "guard")]));
    let runtime = builder.build().unwrap();
    assert!(runtime.cpu().unwrap().default_allocator().is_ok());
    let error = runtime.dry().unwrap().default_allocator().unwrap_err();
    assert!(error.to_string().contains("address only memory cannot be guarded"), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_limit_may_be_a_share_of_the_machines_memory() {
    let said = environment(&[("HIGHWATER_POOL_LIMIT", "50%")]);
    let runtime = Runtime::builder().environment(said).build().unwrap();
    let total = UsableMemory::of_this_process().unwrap().bytes;
    let half = Some(total.get() / 2);
    assert_eq!((limit(&runtime.cpu().unwrap()), limit(&runtime.dry().unwrap())), (half, half));
}

#[test]
fn all_attributes_select_the_chosen_allocator() {
    let builder = Runtime::builder().environment(Environment::default());
    let runtime = builder.allocator(DeviceId::CPU, AllocatorChoice::Guard).build().unwrap();
    let pinned = AllocatorAttributes::default().with_on_host(true).with_gpu_compatible(true);
    let cpu = runtime.cpu().unwrap();
    let allocator = cpu.allocator(pinned).unwrap();
    assert!(Arc::ptr_eq(allocator.allocator(), cpu.default_allocator().unwrap()));
}

#[test]
fn an_out_of_memory_report_names_the_origin_of_the_limit() {
    let origin = |builder: RuntimeBuilder| {
        let device = builder.build().unwrap().dry().unwrap();
        let limit = limit(&device).unwrap();
        let error = crate::Tensor::zeros(&device, [(limit / 4 + 1) as usize]).unwrap_err();
        let report = error.out_of_memory().unwrap();
        assert_eq!(report.limit, Some(limit));
        report.limit_origin.as_deref().map(str::to_owned)
    };
    let builder = || Runtime::builder().environment(Environment::default());
    let card = DeviceProfile::cpu(Bytes::gib(4));
    let found = origin(builder().dry_profile(card));
    assert_eq!(found.as_deref(), Some("4.00 GiB of physical memory less a reserve of 256.00 MiB"));
    if let Some(usable) = UsableMemory::of_this_process() {
        assert_eq!(origin(builder()), Some(usable.limit_origin()));
    }
    let said = environment(&[("HIGHWATER_POOL_LIMIT", "1GiB")]);
    assert_eq!(origin(builder().environment(said.clone())).as_deref(), Some("HIGHWATER_POOL_LIMIT"));
    assert_eq!(origin(builder().environment(said).pool(Bytes::mib(8))), None);
}

#[test]
fn the_environment_sets_threads_and_tf32_that_code_leaves_unset() {
    let build = |variables: &[(&str, &str)], builder: super::RuntimeBuilder| {
        builder.environment(environment(variables)).build()
    };
    let set = [("HIGHWATER_THREADS", "3"), ("HIGHWATER_TF32", "yes")];
    let runtime = build(&set, Runtime::builder()).unwrap();
    assert_eq!((runtime.threads(), runtime.0.tf32), (3, true));
    let runtime = build(&set, Runtime::builder().threads(2).tf32(false)).unwrap();
    assert_eq!((runtime.threads(), runtime.0.tf32), (2, false));
    for (name, value) in
        [("HIGHWATER_THREADS", "0"), ("HIGHWATER_THREADS", "1025"), ("HIGHWATER_TF32", "maybe")]
    {
        let error = build(&[(name, value)], Runtime::builder()).unwrap_err();
        assert!(matches!(&error, Error::Environment(_)) && error.to_string().contains(name), "{error}");
    }
}

#[test]
fn no_device_opens_after_an_environment_error() {
    let error = Environment::from_vars([("HIGHWATER_SPLIT", "x")]).unwrap_err();
    let builder = Runtime::builder();
    let runtime = builder.build_in(&Environment::default(), Some(error.clone())).unwrap();
    for device in [runtime.cpu(), runtime.dry(), runtime.best()] {
        assert_eq!(device.unwrap_err(), Error::Environment(error.clone()));
    }
}

#[test]
fn the_most_specific_packing_applies_unless_overridden() {
    use bfc_core::{Lifetime, Packing, PackingOptions};
    let packing = |bytes| {
        let step = [Lifetime { bytes, start: 0, end: 1 }];
        Arc::new(Packing::solve(&step, &PackingOptions::default()).unwrap())
    };
    let builder = || {
        let builder = Runtime::builder().environment(environment(&[("HIGHWATER_ALLOCATOR", "passthrough")]));
        builder.packing(DeviceScope::All, packing(400)).packing(DeviceKind::Dry, packing(1 << 25))
    };
    let runtime = builder().build().unwrap();
    let counts = |device: Device, elements: usize| {
        for _ in 0..3 {
            drop(crate::Tensor::zeros(&device, [elements]).unwrap());
        }
        let allocator = device.default_allocator().unwrap();
        (allocator.packing_counts().map(|counts| counts.packed), allocator.stats().bytes_reserved)
    };
    assert_eq!(counts(runtime.cpu().unwrap(), 100), (Some(3), 2 << 20));
    // A growing pool starts with the range of the packing.
    assert_eq!(counts(runtime.dry().unwrap(), 1 << 23), (Some(3), 1 << 25));
    // So do the pools of GPUs, real and dry.
    let card = builder().dry_profile(DeviceProfile::cuda(Bytes::gib(8), (8, 6))).build().unwrap();
    assert_eq!(counts(card.dry().unwrap(), 1 << 23), (Some(3), 1 << 25));
    let other = builder().allocator(DeviceId::CPU, AllocatorChoice::Bfc).build().unwrap();
    assert_eq!(counts(other.cpu().unwrap(), 100).0, None);
}
