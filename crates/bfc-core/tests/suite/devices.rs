//! Several devices in one registry: each has its own pool, stream, limit and failures.

use std::sync::Arc;

use bfc_core::sim::{DeviceCall, Fault, FaultTime, MemoryUse, Pace, SimDevice};
use bfc_core::{
    Allocation, Allocator, AllocatorAttributes, Amount, Bytes, DeviceId, DeviceKind, Driver, Environment,
    GIB, Lifetime, MIB, MemoryKind, Packing, PackingOptions, PoolOptions, Registry, RegistryError, Request,
    SourceError, Stream, device_source,
};

/// Free memory that pools leave by default.
const RESERVE: Bytes = Bytes::mib(256);

fn sim(ordinal: u32) -> DeviceId {
    DeviceId::new(DeviceKind::Sim, ordinal)
}

struct Machine {
    registry: Registry,
    devices: Vec<Arc<SimDevice>>,
    streams: Vec<Arc<Stream>>,
}

/// Two devices of 2 and 4 GiB, with these variables set.
fn machine(variables: &[(&str, &str)]) -> Machine {
    let environment = Environment::from_vars(variables.iter().copied()).unwrap();
    let registry = Registry::new();
    let device = |gib| Arc::new(SimDevice::new(Bytes::gib(gib)).with_pace(Pace::OnDemand));
    let devices = vec![device(2), device(4)];
    let streams = (0..).zip(&devices).map(|(ordinal, device)| {
        let options = environment.settings().options(sim(ordinal));
        registry.register_device(sim(ordinal), device.clone(), RESERVE, options, None).unwrap()
    });
    let streams = streams.collect();
    Machine { registry, devices, streams }
}

impl Machine {
    fn memory(&self, ordinal: u32) -> Arc<dyn Allocator> {
        self.registry.allocator(sim(ordinal), AllocatorAttributes::default(), None).unwrap().allocator
    }

    fn limits(&self) -> [u64; 2] {
        [0, 1].map(|ordinal| self.memory(ordinal).stats().bytes_limit.unwrap() / MIB)
    }
}

#[test]
fn each_device_returns_its_pool_and_stream() {
    let machine = machine(&[]);
    assert_ne!(machine.streams[0], machine.streams[1]);
    let memories = [0, 1].map(|ordinal| machine.memory(ordinal));
    assert_eq!(memories.each_ref().map(|memory| memory.name().to_owned()), ["sim:0", "sim:1"]);
    let blocks = memories.each_ref().map(|memory| Allocation::new(memory, &Request::new(300 * MIB)).unwrap());
    for (device, block) in machine.devices.iter().zip(&blocks) {
        let memory = device.memory_info().unwrap();
        assert!(memory.total - memory.free >= 300 * MIB);
        assert!(device.mappings().iter().any(|mapped| mapped.address == block.block().address));
    }
    // A block of one device is unknown to the other.
    // SAFETY: the pool looks the block up, and the address has no memory behind it.
    assert!(unsafe { memories[1].deallocate(blocks[0].block()) }.is_err());
    drop((blocks, memories, machine.registry, machine.streams));
    for device in machine.devices {
        let memory = device.memory_info().unwrap();
        assert_eq!((memory.free, device.ranges_and_handles()), (memory.total, (0, 0)));
        assert_eq!(device.open_streams_and_events(), 0);
    }
}

#[test]
fn memory_used_on_another_device_waits_for_it() {
    let machine = machine(&[]);
    let memory = machine.memory(0);
    let copies = Stream::new(machine.devices[0].clone()).unwrap();
    let block = Allocation::new(&memory, &Request::new(MIB)).unwrap();
    memory.record_stream(&block.block(), &copies).unwrap();
    machine.devices[0].launch(copies.handle(), &[MemoryUse::of(&block.block())]).unwrap();
    // Work on the other device does not affect it.
    machine.devices[1].synchronize().unwrap();
    drop(block);
    assert!(memory.stats().bytes_in_use > 0);
    machine.devices[0].synchronize().unwrap();
    drop(Allocation::new(&memory, &Request::new(1)).unwrap());
    assert_eq!(memory.stats().bytes_in_use, 0);
}

#[test]
fn limits_are_all_but_a_reserve_a_share_or_a_number() {
    assert_eq!(machine(&[]).limits(), [2048 - 256, 4096 - 256]);
    assert_eq!(machine(&[("HIGHWATER_POOL_LIMIT", "50%")]).limits(), [1024, 2048]);
    assert_eq!(machine(&[("HIGHWATER_POOL_LIMIT", "all-1GiB")]).limits(), [1024, 3072]);
    assert_eq!(machine(&[("HIGHWATER_POOL_LIMIT", "all-3GiB")]).limits(), [2048, 1024]);
    let each = [("HIGHWATER_POOL_LIMIT_SIM", "25%"), ("HIGHWATER_POOL_LIMIT_SIM_1", "100MiB")];
    assert_eq!(machine(&each).limits(), [512, 100]);
    let options = PoolOptions::default().with_limit(Amount::AllBut(Bytes::gib(1)));
    let asked = machine(&[]);
    let made = asked.registry.allocator(sim(1), AllocatorAttributes::default(), Some(options)).unwrap();
    assert_eq!(made.allocator.stats().bytes_limit, Some(3 * GIB));
}

#[test]
fn a_reserve_is_left_of_what_others_leave_free() {
    let machine = machine(&[]);
    machine.devices[0].allocate_device(GIB).unwrap();
    assert_eq!(machine.limits(), [1024 - 256, 4096 - 256]);
}

#[test]
fn a_pool_without_growth_takes_its_limit_at_once() {
    let machine = machine(&[("HIGHWATER_GROWTH_SIM_0", "off")]);
    for (ordinal, reserved) in [(0, 1792), (1, 2)] {
        let memory = machine.memory(ordinal);
        let _block = Allocation::new(&memory, &Request::new(1)).unwrap();
        assert_eq!(memory.stats().bytes_reserved / MIB, reserved);
    }
}

#[test]
fn a_chosen_limit_of_a_device_is_reserved_at_first_use() {
    let machine = machine(&[("HIGHWATER_POOL_LIMIT_SIM_0", "96MiB")]);
    let free = || machine.devices[0].memory_info().unwrap().free;
    let memory = machine.memory(0);
    assert_eq!(free(), 2 * GIB);
    let block = Allocation::new(&memory, &Request::new(96 * MIB)).unwrap();
    assert_eq!((memory.stats().bytes_reserved, memory.stats().regions), (96 * MIB, 1));
    assert_eq!(free(), 2 * GIB - 96 * MIB);
    drop(block);
    drop(Allocation::new(&memory, &Request::new(1)).unwrap());
    assert_eq!(free(), 2 * GIB - 96 * MIB);
}

/// Each call of the driver fails once while a pool takes its limit, and the next request succeeds.
#[test]
fn no_failed_call_breaks_a_pool_that_takes_its_limit() {
    let limit = 96 * MIB;
    for operation in [DeviceCall::Create, DeviceCall::Map, DeviceCall::SetAccess] {
        for call in 1..=4 {
            let machine = machine(&[("HIGHWATER_POOL_LIMIT_SIM_0", "96MiB")]);
            let (memory, device) = (machine.memory(0), &machine.devices[0]);
            device.inject(Fault::new(operation, FaultTime::Call(call)));
            let first = Allocation::new(&memory, &Request::new(MIB));
            let used = || {
                let info = device.memory_info().unwrap();
                info.total - info.free
            };
            assert_eq!(memory.stats().bytes_reserved, used(), "{operation:?}, call {call}");
            drop(first);
            drop(Allocation::new(&memory, &Request::new(limit)).unwrap());
            assert_eq!((memory.stats().bytes_reserved, used()), (limit, limit), "{operation:?}, call {call}");
        }
    }
}

#[test]
fn the_free_end_of_a_devices_memory_goes_back_on_demand() {
    let machine = machine(&[]);
    let memory = machine.memory(0);
    let _kept = Allocation::new(&memory, &Request::new(1)).unwrap();
    drop(Allocation::new(&memory, &Request::new(100 * MIB)).unwrap());
    assert!(memory.trim(Bytes(0)) >= 98 * MIB);
    assert_eq!(memory.stats().bytes_reserved, 2 * MIB);
}

#[test]
fn each_device_has_pinned_memory_of_its_own() {
    let machine = machine(&[]);
    let pinned = AllocatorAttributes::default().with_on_host(true).with_gpu_compatible(true);
    let allocators =
        [0, 1].map(|ordinal| machine.registry.allocator(sim(ordinal), pinned, None).unwrap().allocator);
    assert_eq!(allocators[0].memory_kind(), MemoryKind::PinnedHost);
    assert_eq!(allocators[1].name(), "sim:1 pinned");
}

#[test]
fn a_device_that_is_lost_leaves_the_others_alone() {
    let machine = machine(&[]);
    let memories = [machine.memory(0), machine.memory(1)];
    let kept = Allocation::new(&memories[1], &Request::new(MIB)).unwrap();
    machine.devices[0].inject(Fault::sticky(DeviceCall::Launch, FaultTime::Call(1)));
    assert!(machine.devices[0].launch(machine.streams[0].handle(), &[]).is_err());
    assert!(memories[0].allocate(&Request::new(1)).is_err());
    drop(kept);
    drop(Allocation::new(&memories[1], &Request::new(MIB)).unwrap());
}

#[test]
fn a_device_whose_driver_gives_nothing_is_a_typed_error() {
    let registry = Registry::new();
    let device = Arc::new(SimDevice::new(Bytes::gib(1)));
    device.inject(Fault::new(DeviceCall::CreateStream, FaultTime::Call(1)));
    let register = || registry.register_device(sim(0), device.clone(), RESERVE, PoolOptions::default(), None);
    let error = register().unwrap_err();
    assert!(matches!(error, RegistryError::Source { error: SourceError::Driver { .. }, .. }));
    assert_eq!(registry.devices(), []);

    register().unwrap();
    assert!(matches!(register(), Err(RegistryError::DeviceExists { .. })));
    device.inject(Fault::new(DeviceCall::Reserve, FaultTime::Call(1)));
    let memory = || registry.allocator(sim(0), AllocatorAttributes::default(), None);
    assert!(matches!(memory(), Err(RegistryError::Source { .. })));
    assert!(memory().is_ok(), "the next who asks tries again");
}

#[test]
fn mapping_falls_back_to_plain_memory_unless_required() {
    let driver: Arc<dyn Driver> = Arc::new(SimDevice::new(Bytes::gib(1)).without_mapping());
    assert!(!device_source(&driver).unwrap().supports_coalescing());
    let driver: Arc<dyn Driver> = Arc::new(SimDevice::new(Bytes::gib(1)));
    assert!(device_source(&driver).unwrap().supports_coalescing());
}

#[test]
fn a_removed_device_can_be_registered_again() {
    let machine = machine(&[]);
    let before = machine.memory(0);
    assert!(machine.registry.unregister(sim(0)) && !machine.registry.unregister(sim(0)));
    let attributes = AllocatorAttributes::default();
    let error = machine.registry.allocator(sim(0), attributes, None).unwrap_err();
    assert!(matches!(error, RegistryError::NoDevice { .. }), "{error}");
    let options = PoolOptions::default();
    machine.registry.register_stream(sim(0), &machine.streams[0], RESERVE, options, None).unwrap();
    assert!(!Arc::ptr_eq(&before, &machine.memory(0)));
    assert!(Allocation::new(&before, &Request::new(MIB)).is_ok());
}

#[test]
fn trimming_a_device_creates_no_pools() {
    let machine = machine(&[]);
    assert_eq!((machine.registry.trim(sim(0)), machine.registry.trim(sim(7))), (0, 0));
    let memory = machine.memory(0);
    drop(Allocation::new(&memory, &Request::new(300 * MIB)).unwrap());
    let reserved = memory.stats().bytes_reserved;
    assert!(reserved >= 300 * MIB);
    assert_eq!(machine.registry.trim(sim(0)), reserved);
    assert_eq!(memory.stats().bytes_reserved, 0);
}

/// Memory that grows in place, a stream beside the compute stream, and a packing in one.
#[test]
fn a_packed_device_supports_deferred_frees() {
    let registry = Registry::new();
    let device = Arc::new(SimDevice::new(Bytes::gib(1)).with_pace(Pace::OnDemand));
    let lifetime = |bytes, start| Lifetime { bytes, start, end: 9 };
    let step = [lifetime(3 * MIB, 0), lifetime(5 * MIB, 1)];
    let packing = Arc::new(Packing::solve(&step, &PackingOptions::default()).unwrap());
    let options = PoolOptions::default().with_limit(Bytes::mib(24)).with_allow_growth(true);
    registry.register_device(sim(0), device.clone(), RESERVE, options, Some(packing)).unwrap();
    let memory = registry.allocator(sim(0), AllocatorAttributes::default(), None).unwrap().allocator;
    let take = |bytes| Allocation::new(&memory, &Request::new(bytes)).unwrap();
    let packed = || memory.packing_counts().unwrap().packed;

    for _ in 0..3 {
        drop([take(3 * MIB), take(5 * MIB)]);
    }
    assert_eq!((packed(), memory.stats().bytes_reserved), (6, 8 * MIB));

    // Requests outside the packing extend the memory in place, and the pool returns that memory from its end.
    let other = take(7 * MIB);
    assert_eq!((packed(), memory.regions().len()), (6, 1));
    drop(other);
    let before = memory.stats().bytes_reserved;
    assert!(memory.trim(Bytes::mib(8)) > 0 && memory.stats().bytes_reserved < before);
    assert_eq!(memory.packing_counts().unwrap().packed, 6);

    // The pool returns the range for a request that needs all memory, once the pending frees have passed.
    let side = Stream::new(device.clone()).unwrap();
    let blocks = [take(3 * MIB), take(5 * MIB)];
    for block in &blocks {
        memory.record_stream(&block.block(), &side).unwrap();
        device.launch(side.handle(), &[MemoryUse::of(&block.block())]).unwrap();
    }
    drop(blocks);
    drop(take(24 * MIB));
    assert_eq!(device.violations(), []);
    // The pool reserves the range again when a step begins.
    memory.begin_step();
    let before = packed();
    drop([take(3 * MIB), take(5 * MIB)]);
    assert_eq!(packed(), before + 2);
}
