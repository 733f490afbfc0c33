//! The simulated device respects its capacity, fails on command, and records its allocations.

use std::sync::Arc;

use bfc_core::sim::{CallCounts, DeviceCall, Fault, FaultTime, SimDevice};
use bfc_core::{
    Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, DeviceMemory, Driver, FreeFaults, MIB, MemoryInfo,
    MemoryKind, PinnedMemory, Request, SourceError, Span, SubAllocator,
};

fn device(capacity: u64) -> Arc<SimDevice> {
    Arc::new(SimDevice::new(Bytes(capacity)))
}

fn free(memory: &impl SubAllocator, region: Span) {
    // SAFETY: the tests use no freed memory. Wrong frees reach only the simulated device, which looks up
    // every address.
    unsafe { memory.free(region) };
}

#[test]
fn device_memory_is_unique_aligned_and_bounded_by_the_capacity() {
    let device = device(1000);
    let memory = DeviceMemory::new(device.clone());
    assert_eq!(memory.memory_kind(), MemoryKind::Device);
    let first = memory.allocate(256, 300).unwrap();
    let second = memory.allocate(256, 600).unwrap();
    assert_eq!(first, Span { address: 0x7000_0000_0000, bytes: 300 });
    assert_eq!(second, Span { address: 0x7000_0000_0200, bytes: 600 });
    assert_eq!(device.memory_info(), Ok(MemoryInfo { free: 100, total: 1000 }));
    assert_eq!(memory.allocate(256, 101), Err(SourceError::Exhausted { bytes: 101 }));

    free(&memory, first);
    assert_eq!(device.live(MemoryKind::Device), [second]);
    let third = memory.allocate(256, 400).unwrap();
    assert!(third.address > second.address, "addresses are not used twice");
}

#[test]
fn pinned_memory_is_real_zeroed_and_bounded_by_its_limit() {
    let device = Arc::new(SimDevice::new(Bytes(0)).with_pinned_limit(Bytes(4096)));
    let memory = PinnedMemory::new(device.clone());
    assert_eq!(memory.memory_kind(), MemoryKind::PinnedHost);
    let region = memory.allocate(256, 4096).unwrap();
    let pointer: *mut u64 = std::ptr::with_exposed_provenance_mut(region.address as usize);
    // SAFETY: the region is 4096 bytes of aligned host memory that only this test uses.
    let words = unsafe { std::slice::from_raw_parts_mut(pointer, 512) };
    assert!(words.iter().all(|&word| word == 0));
    words.fill(7);
    assert_eq!(words.iter().sum::<u64>(), 7 * 512);
    assert_eq!(memory.allocate(256, 1), Err(SourceError::Exhausted { bytes: 1 }));
    free(&memory, region);
    assert_eq!(device.live(MemoryKind::PinnedHost), []);
}

#[test]
fn requests_for_nothing_never_reach_the_driver() {
    let device = device(MIB);
    for alignment in [0, 3, 256] {
        let bytes = if alignment == 256 { 0 } else { 100 };
        let exhausted = Err(SourceError::Exhausted { bytes });
        assert_eq!(DeviceMemory::new(device.clone()).allocate(alignment, bytes), exhausted);
        assert_eq!(PinnedMemory::new(device.clone()).allocate(alignment, bytes), exhausted);
    }
    assert_eq!(device.calls(), CallCounts::default());
}

#[test]
fn a_misaligned_region_is_returned_and_reported() {
    let device = device(MIB);
    let memory = DeviceMemory::new(device.clone());
    let first = memory.allocate(4096, 256).unwrap();
    let refused = Span { address: first.address + 256, bytes: 512 };
    assert_eq!(
        memory.allocate(4096, 512),
        Err(SourceError::BadRegion { address: refused.address, bytes: refused.bytes })
    );
    assert_eq!(device.live(MemoryKind::Device), [first]);
    assert_eq!(device.free_faults(), FreeFaults::default());
}

#[test]
fn the_chosen_call_fails_and_the_others_do_not() {
    let device = device(MIB);
    let memory = DeviceMemory::new(device.clone());
    memory.allocate(256, 1).unwrap();
    device.inject(Fault::new(DeviceCall::AllocateDevice, FaultTime::Call(2)));
    let outcomes: Vec<bool> = (0..4).map(|_| memory.allocate(256, 1).is_ok()).collect();
    assert_eq!(outcomes, [true, false, true, true]);
    assert_eq!(device.calls().of(DeviceCall::AllocateDevice), 5);
    let pinned = PinnedMemory::new(device);
    let region = pinned.allocate(256, 1).expect("faults strike their operation alone");
    free(&pinned, region);
}

#[test]
fn driver_calls_fail_after_a_count_until_faults_are_cleared() {
    let device = device(MIB);
    let memory = DeviceMemory::new(device.clone());
    device.inject(Fault::exhausted(DeviceCall::AllocateDevice, FaultTime::After(1)));
    assert!(memory.allocate(256, 1).is_ok());
    for _ in 0..3 {
        assert_eq!(memory.allocate(256, 1), Err(SourceError::Exhausted { bytes: 1 }));
    }
    device.clear_faults();
    assert!(memory.allocate(256, 1).is_ok());
}

#[test]
fn random_faults_depend_only_on_the_seed() {
    let outcomes = |seed| -> Vec<bool> {
        let device = device(MIB);
        device.inject(Fault::new(DeviceCall::AllocateDevice, FaultTime::Random { probability: 0.25, seed }));
        (0..1000).map(|_| device.allocate_device(1).is_err()).collect()
    };
    let failed = outcomes(1).iter().filter(|&&failed| failed).count();
    assert!((200..300).contains(&failed), "{failed} of 1000 calls failed");
    assert_eq!(outcomes(1), outcomes(1));
    assert_ne!(outcomes(1), outcomes(2));
}

#[test]
fn wrong_frees_are_recorded_and_change_nothing() {
    let device = device(MIB);
    let memory = DeviceMemory::new(device.clone());
    let region = memory.allocate(256, 512).unwrap();
    free(&memory, Span { address: region.address + 256, bytes: 256 });
    assert_eq!(device.free_faults().count, 1);
    assert_eq!(device.live(MemoryKind::Device), [region]);
    free(&memory, region);
    free(&memory, region);
    let faults = device.free_faults();
    assert_eq!(faults.count, 2);
    assert!(matches!(faults.last, Some(SourceError::Driver { call: "free_device", .. })));
    assert_eq!(device.memory_info().unwrap().free, MIB);
}

#[test]
fn memory_whose_free_fails_stays_taken() {
    let device = device(MIB);
    let memory = DeviceMemory::new(device.clone());
    let region = memory.allocate(256, 512).unwrap();
    device.inject(Fault::new(DeviceCall::FreeDevice, FaultTime::Call(1)));
    free(&memory, region);
    assert_eq!(device.live(MemoryKind::Device), [region]);
    assert_eq!((device.free_faults().count, device.calls().of(DeviceCall::FreeDevice)), (1, 1));
}

/// Whichever calls a device refuses, a pool on top neither loses a region nor returns one twice.
#[test]
fn a_pool_over_a_failing_device_gives_back_every_region_it_took() {
    for seed in 0..50 {
        let device = device(64 * MIB);
        for (operation, seed) in [(DeviceCall::AllocateDevice, seed), (DeviceCall::FreeDevice, seed + 1000)] {
            device.inject(Fault::new(operation, FaultTime::Random { probability: 0.3, seed }));
            device.inject(Fault::exhausted(
                operation,
                FaultTime::Random { probability: 0.3, seed: seed + 5000 },
            ));
        }
        let memory = Arc::new(DeviceMemory::new(device.clone()));
        let config = BfcConfig::new(Bytes::mib(48)).with_retry(false);
        let pool: Arc<dyn Allocator> = Arc::new(BfcAllocator::new("sim_0_bfc", memory, config));
        let mut held = Vec::new();
        for step in 0..40 {
            let bytes = (step * 7919 + seed * 104_729) % (4 * MIB) + 1;
            held.extend(Allocation::new(&pool, &Request::new(bytes)));
            if step % 3 == 0 && !held.is_empty() {
                held.remove(0);
            }
        }
        assert!(pool.stats().bytes_reserved <= 48 * MIB);
        drop(held);
        drop(pool);
        let (calls, refused) = (device.calls(), device.free_faults().count);
        assert!(refused <= calls.of(DeviceCall::FreeDevice));
        assert_eq!(device.live(MemoryKind::Device).len() as u64, refused, "seed {seed}: {calls:?}");
    }
}

#[test]
fn over_alignment_works_with_a_driver_that_aligns_to_256() {
    let device = device(64 * MIB);
    // Another allocation moves the next addresses off the round ones.
    device.allocate_device(256).unwrap();
    let device_memory: Arc<dyn SubAllocator> = Arc::new(DeviceMemory::new(device.clone()));
    for memory in [device_memory, Arc::new(PinnedMemory::new(device.clone()))] {
        let pool = BfcAllocator::new("sim", memory, BfcConfig::new(Bytes::mib(32)));
        for _ in 0..4 {
            let block = pool.allocate(&Request::new(3 * MIB).with_alignment(4096)).unwrap();
            assert!(block.address % 4096 == 0);
        }
        pool.check_invariants().unwrap();
    }
}
