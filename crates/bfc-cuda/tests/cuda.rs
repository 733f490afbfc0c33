//! Tests for every CUDA device, for machines without one, and for a failing driver.
//!
//! Tests named `device_…` use cuda:0, and print a line if they are skipped. On Linux they run again in another process
//! with the emulated driver, so that every machine tests something.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]

use std::fmt::Display;
use std::io::Write;
use std::sync::Arc;

use bfc_core::{
    Allocation, Allocator, AllocatorAttributes, BfcAllocator, BfcConfig, Bytes, DeviceId, DeviceKind,
    DeviceMemory, Driver, Environment, FreeFaults, GrowthRule, MIB, MemoryKind, PinnedBuffer, PinnedMemory,
    Registry, Request, SourceError, Span, Stream, StreamAllocator, StreamEvent, SubAllocator, Transfers,
    VirtualMemory,
};
#[cfg(target_os = "linux")]
use bfc_cuda::emulator::libraries;
use bfc_cuda::{CudaDriver, CudaUnavailable, probe, register};

/// The driver of cuda:0; returns from the test with a message if there is none.
macro_rules! cuda_or_skip {
    () => {
        match CudaDriver::new(0) {
            Ok(driver) => driver,
            Err(reason) => return say_skipped(&reason),
        }
    };
}

// After the macro, which they use too.
#[path = "cuda/computing.rs"]
mod computing;
#[cfg(target_os = "linux")]
#[path = "cuda/emulated.rs"]
mod emulated;
#[cfg(target_os = "linux")]
mod emulated_driver;
#[path = "cuda/interleavings.rs"]
mod interleavings;
#[path = "cuda/ranks.rs"]
mod ranks;
#[path = "ranks/mod.rs"]
mod ranks_of_processes;

/// Reports that this test is skipped, and why.
fn say_skipped(reason: &dyn Display) {
    let thread = std::thread::current();
    // Directly to the stream: the harness hides `println!` of passing tests.
    let _ = writeln!(std::io::stderr(), "skipped {}: {reason}", thread.name().unwrap_or("a test"));
}

/// The expected facts, if a test started this process on the emulated driver.
fn expected() -> Option<String> {
    #[cfg(target_os = "linux")]
    return emulated_driver::expected();
    #[cfg(not(target_os = "linux"))]
    None
}

fn free(memory: &impl SubAllocator, region: Span) {
    // SAFETY: the tests give back what they took, once, and use it no more.
    unsafe { memory.free(region) };
}

#[test]
fn probing_answers_on_every_machine() {
    match probe() {
        Ok(devices) => {
            assert!(!devices.is_empty());
            for (ordinal, device) in devices.iter().enumerate() {
                assert_eq!(device.ordinal as usize, ordinal);
                assert!(!device.name.is_empty() && device.total_bytes > 0);
                assert!(device.compute_capability.major > 0 && device.driver_version.major > 0);
            }
        }
        Err(reason) => {
            assert!(!reason.to_string().is_empty());
            assert_eq!(CudaDriver::new(0).err(), Some(reason), "opening a device gives the same reason");
        }
    }
}

#[test]
fn device_numbers_beyond_the_last_are_refused() {
    let _driver = cuda_or_skip!();
    let count = probe().unwrap().len() as u32;
    let error = CudaDriver::new(count).err().unwrap();
    assert!(
        matches!(error, CudaUnavailable::NoSuchDevice { ordinal, count: c, .. } if ordinal == count && c == count),
        "{error}"
    );
}

#[test]
fn device_memory_is_taken_aligned_and_given_back() {
    let driver = cuda_or_skip!();
    let memory = DeviceMemory::new(driver.clone());
    assert_eq!(memory.memory_kind(), MemoryKind::Device);
    let first = memory.allocate(256, 2 * MIB).unwrap();
    let second = memory.allocate(256, 1).unwrap();
    assert_ne!(first.address, second.address);
    free(&memory, first);
    free(&memory, second);
    assert_eq!(driver.free_faults(), FreeFaults::default());
}

#[test]
fn device_memory_beyond_the_total_is_refused() {
    let driver = cuda_or_skip!();
    let memory = DeviceMemory::new(driver.clone());
    let bytes = driver.memory_info().unwrap().total + MIB;
    assert_eq!(memory.allocate(256, bytes), Err(SourceError::Exhausted { bytes }));
    let region = memory.allocate(256, MIB).unwrap();
    free(&memory, region);
    assert_eq!(driver.free_faults(), FreeFaults::default());
}

#[test]
fn device_figures_agree_between_the_probe_and_the_driver() {
    let driver = cuda_or_skip!();
    let device = probe().unwrap().remove(0);
    let info = driver.memory_info().unwrap();
    assert_eq!(driver.name(), format!("cuda:0 ({})", device.name));
    assert!(info.free <= info.total && device.free_bytes().unwrap() <= device.total_bytes);
}

#[test]
fn device_calls_work_on_every_thread() {
    let driver = cuda_or_skip!();
    let memory = Arc::new(DeviceMemory::new(driver.clone()));
    let taker = Arc::clone(&memory);
    let region = std::thread::spawn(move || taker.allocate(256, MIB).unwrap()).join().unwrap();
    std::thread::spawn(move || free(&*memory, region)).join().unwrap();
    assert_eq!(driver.free_faults(), FreeFaults::default());
}

#[test]
fn device_pinned_memory_is_zeroed_and_accessible() {
    let driver = cuda_or_skip!();
    let memory = PinnedMemory::new(driver.clone());
    assert_eq!(memory.memory_kind(), MemoryKind::PinnedHost);
    let region = memory.allocate(256, 4096).unwrap();
    let pointer: *mut u64 = std::ptr::with_exposed_provenance_mut(region.address as usize);
    // SAFETY: the region is 4096 bytes of aligned host memory that this test alone holds.
    let words = unsafe { std::slice::from_raw_parts_mut(pointer, 512) };
    assert!(words.iter().all(|&word| word == 0));
    words.iter_mut().zip(1..).for_each(|(word, value)| *word = value);
    assert_eq!(words.iter().sum::<u64>(), 512 * 513 / 2);
    free(&memory, region);
    assert_eq!(driver.free_faults(), FreeFaults::default());
}

#[test]
fn device_pools_enforce_their_limit_and_free_everything() {
    let driver = cuda_or_skip!();
    let config = BfcConfig::new(Bytes::mib(16));
    let memory = Arc::new(DeviceMemory::new(driver.clone()));
    let pool: Arc<dyn Allocator> = Arc::new(BfcAllocator::new("cuda_0_bfc", memory, config));
    assert_eq!(pool.memory_kind(), MemoryKind::Device);
    let small = Allocation::new(&pool, &Request::new(1000)).unwrap();
    let large = Allocation::new(&pool, &Request::new(4 * MIB)).unwrap();
    assert_ne!(small.block().address, large.block().address);
    let error = Allocation::new(&pool, &Request::new(17 * MIB)).unwrap_err();
    assert_eq!(error.out_of_memory().map(|report| report.requested), Some(17 * MIB));
    assert_eq!(pool.stats().bytes_in_use, 1024 + 4 * MIB);
    drop((small, large));
    assert_eq!(pool.stats().bytes_in_use, 0);
    drop(pool);
    assert_eq!(driver.free_faults(), FreeFaults::default());
}

#[test]
fn device_mapped_memory_grows_in_place_and_goes_back() {
    let driver = cuda_or_skip!();
    let memory = match VirtualMemory::new(driver.clone()) {
        Ok(memory) => memory,
        Err(reason @ SourceError::Unsupported { .. }) => return say_skipped(&reason),
        Err(error) => panic!("{error}"),
    };
    let rule = GrowthRule::AsRequested { granule: Bytes::mib(2) };
    let config = BfcConfig::new(Bytes::mib(256)).with_growth(rule);
    let pool = Arc::new(BfcAllocator::new("cuda_0_bfc", Arc::new(memory), config));
    let allocator: Arc<dyn Allocator> = pool.clone();
    let mut blocks: Vec<Allocation> =
        (0..8).map(|_| Allocation::new(&allocator, &Request::new(8 * MIB)).unwrap()).collect();
    assert_eq!(pool.regions().len(), 1, "growths follow each other");
    blocks.truncate(2);
    assert_eq!(pool.trim(Bytes(0)), 48 * MIB);
    pool.check_invariants().unwrap();
    drop((blocks, allocator));
    drop(pool);
    assert_eq!(driver.free_faults(), FreeFaults::default());
}

/// A device's pool for work on its compute stream, and one of pinned memory.
fn pools(driver: &Arc<CudaDriver>) -> (Arc<Stream>, Arc<dyn Allocator>, Arc<dyn Allocator>) {
    let compute = Stream::new(driver.clone()).unwrap();
    let config = BfcConfig::new(Bytes::mib(64));
    let pool = BfcAllocator::new("cuda_0_bfc", Arc::new(DeviceMemory::new(driver.clone())), config.clone());
    let pinned = BfcAllocator::new("pinned", Arc::new(PinnedMemory::new(driver.clone())), config);
    let pool = StreamAllocator::new(Arc::new(pool), compute.clone());
    (compute, Arc::new(pool), Arc::new(pinned))
}

#[test]
fn device_copies_on_another_stream_round_trip() {
    let driver = cuda_or_skip!();
    let (compute, pool, pinned) = pools(&driver);
    let transfers = Transfers::new(Stream::new(driver.clone()).unwrap());
    for round in 0..20_u8 {
        let tensor = Allocation::new(&pool, &Request::new(1 << 16)).unwrap();
        let mut buffer = PinnedBuffer::new(&pinned, 1 << 16).unwrap();
        buffer.as_mut_slice().fill(round);
        let upload = transfers.to_device(buffer, &tensor, 0).unwrap();
        upload.come_before(&compute).unwrap();
        drop(upload);
        let back = transfers.to_host(&tensor, 16, PinnedBuffer::new(&pinned, 1000).unwrap()).unwrap();
        drop(tensor);
        assert!(back.wait().unwrap().as_slice().iter().all(|&byte| byte == round));
    }
    drop((transfers, pool, pinned, compute));
    assert_eq!(driver.free_faults(), FreeFaults::default());
}

#[test]
fn device_events_order_streams_and_pass() {
    let driver = cuda_or_skip!();
    let [first, second] = [(); 2].map(|()| Stream::new(driver.clone()).unwrap());
    let event = StreamEvent::new(&first).unwrap();
    second.wait(&event).unwrap();
    event.record(&second).unwrap();
    event.synchronize().unwrap();
    assert_eq!(event.is_complete(), Ok(true));
    first.synchronize().unwrap();
    assert_eq!(driver.synchronize(), Ok(()));
    drop((event, first, second));
    assert_eq!(driver.free_faults(), FreeFaults::default());
}

/// Several devices, each with its own pool and streams. One device proves nothing.
#[test]
fn device_pools_of_several_devices_are_apart() {
    let first = cuda_or_skip!();
    let second = match CudaDriver::new(1) {
        Ok(second) => second,
        Err(reason) => return say_skipped(&reason),
    };
    for driver in [&first, &second] {
        let (_, pool, pinned) = pools(driver);
        let transfers = Transfers::new(Stream::new(driver.clone()).unwrap());
        let tensor = Allocation::new(&pool, &Request::new(MIB)).unwrap();
        let buffer = PinnedBuffer::new(&pinned, 4096).unwrap();
        transfers.to_device(buffer, &tensor, 0).unwrap().wait().unwrap();
    }
    assert_eq!(first.free_faults(), FreeFaults::default());
    assert_eq!(second.free_faults(), FreeFaults::default());
}

#[test]
fn device_pools_are_registered_with_reserve_and_environment() {
    let _driver = cuda_or_skip!();
    let environment = Environment::from_vars([("HIGHWATER_POOL_LIMIT_CUDA_1", "100MiB")]).unwrap();
    for device in probe().unwrap().iter().take(2) {
        let registry = Registry::new();
        let compute = register(&registry, device.ordinal, environment.settings()).unwrap();
        let id = DeviceId::new(DeviceKind::Cuda, device.ordinal);
        let allocator = |attributes| registry.allocator(id, attributes, None).unwrap().allocator;
        let memory = allocator(AllocatorAttributes::default());
        let limit = memory.stats().bytes_limit.unwrap();
        match device.ordinal {
            1 => assert_eq!(limit, 100 * MIB),
            _ => assert!(limit < device.total_bytes),
        }
        let block = Allocation::new(&memory, &Request::new(MIB)).unwrap();
        let pinned = AllocatorAttributes::default().with_on_host(true).with_gpu_compatible(true);
        let buffer = PinnedBuffer::new(&allocator(pinned), 100).unwrap();
        let transfers = Transfers::new(compute);
        transfers.to_device(buffer, &block, 0).unwrap().wait().unwrap();
        assert!(register(&registry, device.ordinal, environment.settings()).is_err(), "once is enough");
    }
}

/// Real CUDA would have to fail for this.
#[cfg(target_os = "linux")]
#[test]
fn a_lost_device_says_so_once_and_is_not_called_again() {
    if expected().is_none() {
        return say_skipped(&"needs the emulated driver: another test runs it there");
    }
    if std::env::var_os("EMULATED_RECORD_STATUS").is_none() {
        // Another run on the emulated driver has the fault.
        return;
    }
    let driver = CudaDriver::new(0).unwrap();
    let (_compute, pool, _pinned) = pools(&driver);
    let copies = Stream::new(driver.clone()).unwrap();
    let blocks: Vec<Allocation> =
        (0..4).map(|_| Allocation::new(&pool, &Request::new(MIB)).unwrap()).collect();
    assert!(pool.record_stream(&blocks[0].block(), &copies).is_err());
    let error = driver.poison().unwrap();
    assert_eq!(
        error.to_string(),
        "cuda:0 (Emulated Device) is lost to this process: cuEventRecord failed with CUDA_ERROR_ILLEGAL_ADDRESS"
    );
    drop(blocks);
    assert_eq!(driver.allocate_device(1), Err(error.clone()));
    assert!(pool.allocate(&Request::new(1)).is_err());
    drop((pool, copies));
    assert_eq!(driver.free_faults(), FreeFaults { count: 1, last: Some(error) });
}

/// Not for real CUDA, where a wrong free is undefined.
#[cfg(target_os = "linux")]
#[test]
fn a_refused_free_is_recorded_and_not_raised() {
    if expected().is_none() {
        return say_skipped(&"needs the emulated driver: another test runs it there");
    }
    let driver = CudaDriver::new(0).unwrap();
    // SAFETY: the emulated driver looks the address up, and has nothing there.
    unsafe { driver.free_device(64) };
    let faults = driver.free_faults();
    assert_eq!(faults.count, 1);
    let reason = "CUDA_ERROR_INVALID_VALUE".to_owned();
    assert_eq!(faults.last, Some(SourceError::Driver { call: "cuMemFree", reason }));
}
