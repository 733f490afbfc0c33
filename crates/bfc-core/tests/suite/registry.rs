//! The registry: attributes choose a memory, and the first request creates its allocator.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use bfc_core::sim::{DeviceCall, SimDevice};
use bfc_core::{
    AddressOnlyMemory, Allocation, Allocator, AllocatorAttributes, BfcConfig, Bytes, DeviceId, DeviceKind,
    DeviceMemory, HostMemory, MemoryKind, PassthroughAllocator, PinnedMemory, Pool, PoolOptions, Registry,
    RegistryError, Request, SourceError, VisitorError,
};

const GPU: DeviceId = DeviceId::new(DeviceKind::Sim, 0);

fn plain() -> AllocatorAttributes {
    AllocatorAttributes::default()
}

fn on_host() -> AllocatorAttributes {
    plain().with_on_host(true)
}

fn pinned() -> AllocatorAttributes {
    on_host().with_gpu_compatible(true)
}

/// Host memory without a pool; `made` counts how often the registry creates it.
fn counted(made: &Arc<AtomicUsize>) -> Pool {
    let made = Arc::clone(made);
    Pool::custom(MemoryKind::Host, move |_, _| {
        made.fetch_add(1, Ordering::SeqCst);
        // Long enough for every thread of a race to arrive.
        thread::sleep(Duration::from_millis(20));
        Ok(host())
    })
}

fn host() -> Arc<dyn Allocator> {
    Arc::new(PassthroughAllocator::new("host", Arc::new(HostMemory::new())))
}

fn host_pool() -> Pool {
    Pool::new("host_bfc", Arc::new(HostMemory::new()), 0, BfcConfig::new(Bytes::mib(64)))
}

/// A registry with cpu:0 and a GPU-like device that has device and pinned memory, like those of
/// `DeviceMemory` and `PinnedMemory`.
fn machine() -> (Registry, Arc<SimDevice>) {
    let device = Arc::new(SimDevice::new(Bytes::mib(64)));
    let registry = Registry::new();
    registry.register(DeviceId::CPU, [host_pool()]).unwrap();
    let memory = Pool::new(
        "sim_0_bfc",
        Arc::new(DeviceMemory::new(device.clone())),
        0,
        BfcConfig::new(Bytes::mib(32)),
    );
    let pinned = Pool::new(
        "sim_host_bfc",
        Arc::new(PinnedMemory::new(device.clone())),
        0,
        BfcConfig::new(Bytes::mib(8)),
    );
    registry.register(GPU, [memory, pinned]).unwrap();
    (registry, device)
}

fn get(registry: &Registry, device: DeviceId, attributes: AllocatorAttributes) -> Arc<dyn Allocator> {
    registry.allocator(device, attributes, None).unwrap().allocator
}

#[test]
fn attributes_choose_among_the_memories_of_a_gpu() {
    let (registry, _) = machine();
    let kind = |attributes| get(&registry, GPU, attributes).memory_kind();
    assert_eq!(kind(plain()), MemoryKind::Device);
    assert_eq!(kind(plain().with_gpu_compatible(true)), MemoryKind::Device);
    assert_eq!(kind(on_host()), MemoryKind::Host);
    assert_eq!(kind(pinned()), MemoryKind::PinnedHost);
    assert_eq!(kind(on_host().with_nic_compatible(true)), MemoryKind::PinnedHost);
}

#[test]
fn everything_on_a_cpu_is_host_memory() {
    let (registry, _) = machine();
    let allocator = get(&registry, DeviceId::CPU, plain());
    assert_eq!(allocator.memory_kind(), MemoryKind::Host);
    for attributes in [on_host(), pinned(), plain().with_nic_compatible(true), plain().with_device_bits(9)] {
        assert!(Arc::ptr_eq(&allocator, &get(&registry, DeviceId::CPU, attributes)));
    }
}

#[test]
fn equal_attributes_give_the_same_allocator() {
    let (registry, _) = machine();
    let first = get(&registry, GPU, pinned());
    assert!(Arc::ptr_eq(&first, &get(&registry, GPU, on_host().with_nic_compatible(true))));
    assert!(!Arc::ptr_eq(&first, &get(&registry, GPU, on_host())));
    let host = get(&registry, GPU, on_host());
    assert!(Arc::ptr_eq(&host, &get(&registry, DeviceId::CPU, plain())), "host memory is that of cpu:0");
}

#[test]
fn where_nothing_is_pinned_gpu_compatible_memory_is_host_memory() {
    let (registry, device) = machine();
    let other = DeviceId::new(DeviceKind::Sim, 1);
    let memory =
        Pool::new("sim_1_bfc", Arc::new(DeviceMemory::new(device)), 1, BfcConfig::new(Bytes::mib(1)));
    registry.register(other, [memory]).unwrap();
    assert!(Arc::ptr_eq(&get(&registry, other, pinned()), &get(&registry, DeviceId::CPU, plain())));
}

#[test]
fn a_dry_device_never_touches_real_memory() {
    let (registry, _) = machine();
    let dry = DeviceId::new(DeviceKind::Dry, 0);
    registry
        .register(
            dry,
            [Pool::new("dry_bfc", Arc::new(AddressOnlyMemory::new()), 0, BfcConfig::new(Bytes::gib(80)))],
        )
        .unwrap();
    for attributes in [plain(), on_host(), pinned()] {
        assert_eq!(get(&registry, dry, attributes).memory_kind(), MemoryKind::AddressOnly);
    }
}

#[test]
fn nothing_is_made_or_taken_before_the_first_use() {
    let (registry, device) = machine();
    let allocator = get(&registry, GPU, plain());
    assert_eq!(device.calls().of(DeviceCall::AllocateDevice), 0);
    let allocation = Allocation::new(&allocator, &Request::new(1000)).unwrap();
    assert_eq!(device.calls().of(DeviceCall::AllocateDevice), 1);
    assert_eq!(device.calls().of(DeviceCall::AllocatePinned), 0);
    drop(allocation);
    drop((allocator, registry));
    assert_eq!(device.live(MemoryKind::Device), [], "regions go back with the last user");
}

#[test]
fn a_later_different_pool_size_is_ignored_and_reported() {
    let (registry, _) = machine();
    let options = PoolOptions::default().with_limit(Bytes::mib(4)).with_allow_growth(false);
    let first = registry.allocator(GPU, plain(), Some(options)).unwrap();
    assert_eq!(first.ignored, None);
    assert_eq!(first.allocator.stats().bytes_limit, Some(4 << 20));

    let larger = PoolOptions::default().with_limit(Bytes::mib(16));
    let second = registry.allocator(GPU, plain(), Some(larger)).unwrap();
    assert!(Arc::ptr_eq(&first.allocator, &second.allocator));
    let ignored = second.ignored.unwrap();
    assert_eq!((ignored.asked, ignored.in_effect), (larger, options));
    assert_eq!(
        ignored.to_string(),
        "the pool was made before, limit 4.00 MiB, without growth; ignored: limit 16.00 MiB"
    );
    assert_eq!(second.allocator.stats().bytes_limit, Some(4 << 20));
}

#[test]
fn options_that_are_in_effect_already_are_not_reported() {
    let (registry, _) = machine();
    let resolve = |options| registry.allocator(GPU, plain(), options).unwrap().ignored;
    assert_eq!(resolve(None), None);
    let defaults = PoolOptions::default().with_limit(Bytes::mib(32)).with_allow_growth(true);
    for options in [PoolOptions::default(), PoolOptions::default().with_limit(Bytes::mib(32)), defaults] {
        assert_eq!(resolve(Some(options)), None);
    }
    assert!(resolve(Some(PoolOptions::default().with_allow_growth(false))).is_some());
}

#[test]
fn threads_that_race_for_a_memory_make_it_once() {
    let registry = Arc::new(Registry::new());
    let made = Arc::new(AtomicUsize::new(0));
    registry.register(DeviceId::CPU, [counted(&made)]).unwrap();
    let barrier = Arc::new(Barrier::new(8));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (registry, barrier) = (Arc::clone(&registry), Arc::clone(&barrier));
            thread::spawn(move || {
                barrier.wait();
                get(&registry, DeviceId::CPU, plain())
            })
        })
        .collect();
    let allocators: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(made.load(Ordering::SeqCst), 1);
    assert!(allocators.iter().all(|allocator| Arc::ptr_eq(allocator, &allocators[0])));
}

#[test]
fn registry_visitors_must_come_before_the_first_use() {
    let (registry, _) = machine();
    let seen = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&seen);
    registry
        .on_alloc(GPU, MemoryKind::Device, move |region, index| {
            assert_eq!(index, 0);
            counter.fetch_add(region.bytes as usize, Ordering::SeqCst);
        })
        .unwrap();
    let counter = Arc::clone(&seen);
    registry
        .on_free(GPU, MemoryKind::Device, move |region, _| {
            counter.fetch_sub(region.bytes as usize, Ordering::SeqCst);
        })
        .unwrap();

    let allocator = get(&registry, GPU, plain());
    let late =
        RegistryError::Visitor { device: "sim:0".to_owned(), kind: MemoryKind::Device, error: VisitorError };
    assert_eq!(registry.on_alloc(GPU, MemoryKind::Device, |_, _| ()), Err(late.clone()));
    assert_eq!(registry.on_free(GPU, MemoryKind::Device, |_, _| ()), Err(late));
    assert_eq!(registry.on_alloc(GPU, MemoryKind::PinnedHost, |_, _| ()), Ok(()), "that one is not in use");

    let allocations = [100, 200].map(|bytes| Allocation::new(&allocator, &Request::new(bytes)).unwrap());
    assert_eq!(seen.load(Ordering::SeqCst) as u64, allocator.stats().bytes_reserved);
    drop(allocations);
    drop((allocator, registry));
    assert_eq!(seen.load(Ordering::SeqCst), 0);
}

#[test]
fn a_pool_that_cannot_be_made_is_an_error_and_is_tried_again() {
    let registry = Registry::new();
    let tries = AtomicUsize::new(0);
    let pool = Pool::custom(MemoryKind::Host, move |_, _| match tries.fetch_add(1, Ordering::SeqCst) {
        0 => Err(SourceError::Exhausted { bytes: 7 }),
        _ => Ok(host()),
    });
    registry.register(DeviceId::CPU, [pool]).unwrap();
    let error = registry.allocator(DeviceId::CPU, plain(), None).unwrap_err();
    let expected =
        RegistryError::Source { device: "cpu:0".to_owned(), error: SourceError::Exhausted { bytes: 7 } };
    assert_eq!(error, expected);
    assert!(registry.on_alloc(DeviceId::CPU, MemoryKind::Host, |_, _| ()).is_ok(), "still not in use");
    assert!(registry.allocator(DeviceId::CPU, plain(), None).is_ok());
}

#[test]
fn an_allocator_of_another_kind_than_registered_is_refused() {
    let registry = Registry::new();
    let pool = Pool::custom(MemoryKind::Device, |_, _| Ok(host()));
    registry.register(GPU, [pool]).unwrap();
    let error = registry.allocator(GPU, plain(), None).unwrap_err();
    let expected = RegistryError::WrongKind {
        device: "sim:0".to_owned(),
        kind: MemoryKind::Device,
        found: MemoryKind::Host,
    };
    assert_eq!(error, expected);
}

#[test]
fn what_is_not_registered_is_named_in_the_error() {
    let (registry, _) = machine();
    let absent = DeviceId::new(DeviceKind::Cuda, 3);
    let no_device = RegistryError::NoDevice { device: "cuda:3".to_owned() };
    assert_eq!(registry.allocator(absent, plain(), None).unwrap_err(), no_device);
    assert_eq!(registry.on_alloc(absent, MemoryKind::Device, |_, _| ()), Err(no_device));

    let no_memory = RegistryError::NoMemory { device: "cpu:0".to_owned(), kind: MemoryKind::Device };
    assert_eq!(registry.on_alloc(DeviceId::CPU, MemoryKind::Device, |_, _| ()), Err(no_memory));

    let lonely = Registry::new();
    lonely.register(GPU, []).unwrap();
    for (attributes, kind) in
        [(plain(), MemoryKind::Device), (on_host(), MemoryKind::Host), (pinned(), MemoryKind::PinnedHost)]
    {
        let expected = RegistryError::NoMemory { device: "sim:0".to_owned(), kind };
        assert_eq!(lonely.allocator(GPU, attributes, None).unwrap_err(), expected);
    }
}

#[test]
fn host_memory_is_not_reported_as_device_memory() {
    let (registry, _) = machine();
    let bare = DeviceId::new(DeviceKind::Sim, 1);
    registry.register(bare, []).unwrap();
    let expected = RegistryError::NoMemory { device: "sim:1".to_owned(), kind: MemoryKind::Device };
    assert_eq!(registry.allocator(bare, plain(), None).unwrap_err(), expected);
    assert!(registry.allocator(bare, on_host(), None).is_ok());
}

#[test]
fn devices_and_their_memories_are_registered_once() {
    let (registry, _) = machine();
    let exists = RegistryError::DeviceExists { device: "cpu:0".to_owned() };
    assert_eq!(registry.register(DeviceId::CPU, [host_pool()]), Err(exists));
    let twice = DeviceId::new(DeviceKind::Cpu, 1);
    let error = RegistryError::MemoryExists { device: "cpu:1".to_owned(), kind: MemoryKind::Host };
    assert_eq!(registry.register(twice, [host_pool(), host_pool()]), Err(error));
    assert_eq!(registry.devices(), [DeviceId::CPU, GPU]);
}

#[test]
fn the_process_has_one_default_registry() {
    assert!(Arc::ptr_eq(Registry::global(), Registry::global()));
}

#[test]
fn a_factory_that_asks_for_its_own_memory_is_told() {
    let registry = Arc::new(Registry::new());
    let (weak, calls) = (Arc::downgrade(&registry), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&calls);
    let pool = Pool::custom(MemoryKind::Host, move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        let registry = weak.upgrade().unwrap();
        let error = registry.allocator(DeviceId::CPU, plain(), None).unwrap_err();
        assert!(matches!(error, RegistryError::Reentrant { kind: MemoryKind::Host, .. }), "{error}");
        // The registry allows everything else, also for the same device.
        assert!(registry.on_alloc(DeviceId::CPU, MemoryKind::Host, |_, _| ()).is_err());
        assert_eq!((registry.trim(DeviceId::CPU), registry.devices().len()), (0, 1));
        Ok(host())
    });
    registry.register(DeviceId::CPU, [pool]).unwrap();
    let first = registry.allocator(DeviceId::CPU, plain(), None).unwrap().allocator;
    let second = registry.allocator(DeviceId::CPU, plain(), None).unwrap().allocator;
    assert!(Arc::ptr_eq(&first, &second));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[test]
fn a_factory_that_panics_leaves_its_memory_unmade() {
    let (registry, calls) = (Registry::new(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&calls);
    let pool = Pool::custom(MemoryKind::Host, move |_, _| {
        assert!(counted.fetch_add(1, Ordering::SeqCst) > 0, "as planned");
        Ok(host())
    });
    registry.register(DeviceId::CPU, [pool]).unwrap();
    let ask = || registry.allocator(DeviceId::CPU, plain(), None).map(drop);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(ask)).is_err());
    registry.on_alloc(DeviceId::CPU, MemoryKind::Host, |_, _| ()).unwrap();
    ask().unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[test]
fn what_a_dropped_visitor_holds_may_use_the_registry() {
    struct Asks(std::sync::Weak<Registry>);
    impl Drop for Asks {
        fn drop(&mut self) {
            if let Some(registry) = self.0.upgrade() {
                registry.allocator(DeviceId::CPU, plain(), None).unwrap();
            }
        }
    }
    let registry = Arc::new(Registry::new());
    // A factory that uses no visitors: the registry drops them after it creates the allocator.
    let pool = Pool::custom(MemoryKind::Host, |_, _| Ok(host()));
    registry.register(DeviceId::CPU, [pool]).unwrap();
    let held = Asks(Arc::downgrade(&registry));
    registry
        .on_alloc(DeviceId::CPU, MemoryKind::Host, move |_, _| {
            let _ = &held;
        })
        .unwrap();
    registry.allocator(DeviceId::CPU, plain(), None).unwrap();
}
