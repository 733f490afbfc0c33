//! One address range with memory mapped on demand.
//!
//! - Upstream's cases: `gpu_virtual_mem_allocator_test.cc`, and `gpu_bfc_allocator_test.cc` over plain and
//!   mapped memory.
//! - The memory that the range returns.
//! - A failure of every driver call.

use std::sync::{Arc, Mutex};

use bfc_core::sim::{DeviceCall, Fault, FaultTime, SimDevice};
use bfc_core::{
    Allocator, BfcAllocator, BfcConfig, Block, Bytes, DeviceMemory, Driver, FreeFaults, GIB, GrowthRule, MIB,
    MemoryKind, Request, SourceError, Span, SubAllocator, VirtualMemory, VisitedMemory, Visitors,
};

use crate::common::{Random, allocate, assert_disjoint, free, out_of_memory};

/// A device and upstream's 8 MiB of addresses on it.
fn eight_mebibytes() -> (Arc<SimDevice>, VirtualMemory) {
    let device = Arc::new(SimDevice::new(Bytes::mib(64)));
    let memory = VirtualMemory::with_range(device.clone(), Bytes::mib(8)).unwrap();
    (device, memory)
}

fn take(memory: &VirtualMemory, bytes: u64) -> Span {
    memory.allocate(256, bytes).unwrap()
}

fn give(memory: &dyn SubAllocator, region: Span) {
    // SAFETY: the tests free each block once, and the addresses have no memory behind them.
    unsafe { memory.free(region) };
}

fn assert_nothing_left(device: &SimDevice) {
    assert_eq!(device.mappings(), []);
    assert_eq!(device.ranges_and_handles(), (0, 0));
    assert_eq!(device.live(MemoryKind::Device), []);
    let memory = device.memory_info().unwrap();
    assert_eq!(memory.free, memory.total);
    assert_eq!(device.violations(), []);
}

#[test]
fn allocations_are_padded_up_to_the_granularity() {
    let (_, memory) = eight_mebibytes();
    assert_eq!(take(&memory, 256).bytes, 2 * MIB);
    assert_eq!(memory.memory_kind(), MemoryKind::Device);
}

#[test]
fn allocations_are_contiguous() {
    let (device, memory) = eight_mebibytes();
    let [first, second, third] = [2, 4, 2].map(|size| take(&memory, size * MIB));
    assert_eq!(first.address, memory.range().address);
    assert_eq!((first.end(), second.end()), (Some(second.address), Some(third.address)));
    assert_eq!(device.memory_info().unwrap().free, 56 * MIB);
}

#[test]
fn more_than_the_addresses_is_refused() {
    let (_, memory) = eight_mebibytes();
    take(&memory, 2 * MIB);
    assert_eq!(memory.allocate(256, 8 * MIB), Err(SourceError::Exhausted { bytes: 8 * MIB }));
    assert_eq!(memory.allocate(256, 0), Err(SourceError::Exhausted { bytes: 0 }));
    assert_eq!(memory.allocate(3, 1), Err(SourceError::Exhausted { bytes: 1 }));
    assert_eq!(memory.allocate(256, u64::MAX), Err(SourceError::Exhausted { bytes: u64::MAX }));
}

#[test]
fn what_is_freed_at_the_end_is_reused_at_the_same_address() {
    let (_, memory) = eight_mebibytes();
    take(&memory, 2 * MIB);
    let last = take(&memory, 2 * MIB);
    give(&memory, last);
    assert_eq!(take(&memory, 2 * MIB), last);
}

#[test]
fn a_hole_is_not_filled_until_all_behind_it_is_freed() {
    let (_, memory) = eight_mebibytes();
    let (first, second) = (take(&memory, 2 * MIB), take(&memory, 2 * MIB));
    give(&memory, first);
    let third = take(&memory, 2 * MIB);
    assert_eq!(Some(third.address), second.end());
    give(&memory, third);
    give(&memory, second);
    assert_eq!(take(&memory, 2 * MIB), first);
}

#[test]
fn a_run_of_regions_is_freed_in_one() {
    let (device, memory) = eight_mebibytes();
    let regions = [(); 3].map(|()| take(&memory, 2 * MIB));
    give(&memory, Span { address: regions[0].address, bytes: 6 * MIB });
    assert_eq!(take(&memory, 2 * MIB), regions[0]);
    assert_eq!(device.mappings(), regions[..1]);
}

#[test]
fn large_regions_are_mapped_in_pieces() {
    let device = Arc::new(SimDevice::new(Bytes::gib(1)));
    let memory = VirtualMemory::new(device.clone()).unwrap();
    assert_eq!(memory.range().bytes, 2 * GIB);
    let region = take(&memory, 70 * MIB);
    let pieces: Vec<u64> = device.mappings().iter().map(|piece| piece.bytes / MIB).collect();
    assert_eq!(pieces, [32, 32, 6]);
    assert_eq!(device.ranges_and_handles(), (1, 0), "mappings alone keep the memory");
    assert_eq!(memory.boundary_in(Span { address: region.address + 1, bytes: 70 * MIB - 1 }), {
        Some(region.address + 32 * MIB)
    });
    assert_eq!(memory.boundary_in(Span { address: region.address, bytes: 70 * MIB - 1 }), None);
    give(&memory, region);
    drop(memory);
    assert_nothing_left(&device);
}

#[test]
fn a_device_without_mapping_is_a_typed_error() {
    let device = Arc::new(SimDevice::new(Bytes::mib(64)).without_mapping());
    let error = VirtualMemory::new(device.clone()).unwrap_err();
    assert_eq!(error.to_string(), "simulated device has no virtual memory management");
    assert_eq!(device.calls().total(), 0);
}

/// Repeats the call until it succeeds, after the faults have struck one after the other.
fn fail_each_call(operation: Option<DeviceCall>, exhausted: bool) -> u64 {
    for call in 1.. {
        let device = Arc::new(SimDevice::new(Bytes::mib(256)));
        let kind = operation.unwrap_or(DeviceCall::Map);
        let fault = match exhausted {
            true => Fault::exhausted(kind, FaultTime::Call(call)),
            false => Fault::new(kind, FaultTime::Call(call)),
        };
        device.inject(if operation.is_none() { fault.of_any_operation() } else { fault });
        let Ok(memory) = VirtualMemory::with_range(device.clone(), Bytes::mib(256)) else {
            assert_nothing_left(&device);
            continue;
        };
        let mut out: Vec<Span> = Vec::new();
        for (step, size) in [2, 70, 4, 2, 100, 6].into_iter().enumerate() {
            let before = device.mappings();
            match memory.allocate(256, size * MIB) {
                Ok(region) => {
                    assert!(out.iter().all(|other| other.end() <= Some(region.address)));
                    out.push(region);
                }
                // The allocator has undone all steps, except mappings that the failing call itself left.
                Err(_) if device.free_faults().count == 0 => assert_eq!(device.mappings(), before),
                Err(_) => {}
            }
            if step % 2 == 1 && !out.is_empty() {
                give(&memory, out.remove(out.len() / 2));
            }
        }
        for region in out {
            give(&memory, region);
        }
        drop(memory);
        device.clear_faults();
        let refused = device.free_faults().count;
        let left = device.mappings().len() + device.ranges_and_handles().0 + device.ranges_and_handles().1;
        match operation {
            // The memory that the driver refused to take back is still there, and the allocator has reported
            // it.
            None | Some(DeviceCall::Unmap | DeviceCall::Release | DeviceCall::ReleaseRange)
                if refused > 0 =>
            {
                assert!(left > 0 && refused == 1);
            }
            // Then the allocator does not know whether work still uses the memory.
            None | Some(DeviceCall::Synchronize) if left > 0 => {}
            _ => assert_nothing_left(&device),
        }
        if device.calls().total() < call || operation.is_some_and(|kind| device.calls().of(kind) < call) {
            return call;
        }
    }
    unreachable!("the calls end")
}

#[test]
fn a_growth_that_fails_at_any_call_is_undone() {
    for exhausted in [false, true] {
        assert!(fail_each_call(None, exhausted) > 40);
        let kinds = [
            DeviceCall::Reserve,
            DeviceCall::Create,
            DeviceCall::Map,
            DeviceCall::SetAccess,
            DeviceCall::Release,
            DeviceCall::Unmap,
            DeviceCall::ReleaseRange,
            DeviceCall::Synchronize,
        ];
        for kind in kinds {
            fail_each_call(Some(kind), exhausted);
        }
    }
}

#[test]
fn what_cannot_be_unmapped_is_never_handed_out_again() {
    let (device, memory) = eight_mebibytes();
    let first = take(&memory, 2 * MIB);
    device.inject(Fault::new(DeviceCall::Unmap, FaultTime::Call(1)));
    give(&memory, first);
    let second = take(&memory, 2 * MIB);
    assert_eq!(Some(second.address), first.end());
    give(&memory, second);
    drop(memory);
    assert_eq!((device.mappings(), device.ranges_and_handles().0), (vec![first], 1));
}

/// A pool over mapped memory that reserves only what it needs.
fn pool_over(device: &Arc<SimDevice>) -> BfcAllocator {
    let memory = VirtualMemory::new(device.clone()).unwrap();
    let rule = GrowthRule::AsRequested { granule: Bytes::mib(2) };
    let config = BfcConfig::new(Bytes::mib(512)).with_growth(rule).with_retry(false);
    BfcAllocator::new("sim_0_bfc", Arc::new(memory), config)
}

#[test]
fn a_pool_grows_in_place_and_trim_unmaps_the_free_end() {
    let device = Arc::new(SimDevice::new(Bytes::gib(1)));
    let pool = pool_over(&device);
    let blocks: Vec<Block> = (0..8).map(|_| allocate(&pool, 4 * MIB)).collect();
    assert_eq!(pool.regions().len(), 1);
    assert_eq!(pool.stats().bytes_reserved, 32 * MIB);
    for &block in &blocks[3..] {
        free(&pool, block);
    }
    assert_eq!(pool.trim(Bytes::mib(20)), 12 * MIB, "as much as was not to be kept");
    assert_eq!(pool.trim(Bytes(0)), 8 * MIB, "up to the last block");
    assert_eq!(pool.trim(Bytes(0)), 0);
    pool.check_invariants().unwrap();
    assert_eq!(device.memory_info().unwrap().free, GIB - 12 * MIB);

    let again = allocate(&pool, 4 * MIB);
    assert_eq!(again.address, blocks[3].address, "the same addresses, with new memory behind");
    assert_eq!(pool.regions().len(), 1);
    for &block in blocks[..3].iter().chain([&again]) {
        free(&pool, block);
    }
    assert_eq!(pool.trim(Bytes(0)), 16 * MIB);
    assert_eq!(pool.stats().bytes_reserved, 0);
    drop(pool);
    assert_nothing_left(&device);
}

/// Paddle's `vmm_allocator_tail_test`: the second block begins in the remainder of the first growth.
#[test]
fn what_is_missing_behind_the_free_tail_is_all_that_is_mapped() {
    let device = Arc::new(SimDevice::new(Bytes::gib(1)));
    let pool = pool_over(&device);
    let first = allocate(&pool, MIB - 257);
    assert_eq!(pool.stats().bytes_reserved, 2 * MIB);
    let second = allocate(&pool, 2 * MIB - 257);
    assert_eq!(second.address, first.address + MIB - 256);
    assert_eq!((pool.stats().bytes_reserved, pool.regions().len()), (4 * MIB, 1));
    assert_eq!(device.memory_info().unwrap().free, GIB - 4 * MIB);
    free(&pool, first);
    free(&pool, second);
    drop(pool);
    assert_nothing_left(&device);
}

#[test]
fn a_tail_that_ends_within_a_piece_goes_as_far_as_whole_pieces() {
    let device = Arc::new(SimDevice::new(Bytes::gib(1)));
    let pool = pool_over(&device);
    let first = allocate(&pool, MIB);
    let second = allocate(&pool, 5 * MIB);
    free(&pool, second);
    // The first block uses the piece at the border between the blocks.
    assert_eq!(pool.trim(Bytes(0)), pool.stats().peak_bytes_reserved - 2 * MIB);
    pool.check_invariants().unwrap();
    free(&pool, first);
    drop(pool);
    assert_nothing_left(&device);
}

#[test]
fn visitors_see_mapped_regions_go_as_they_came() {
    let device = Arc::new(SimDevice::new(Bytes::gib(1)));
    let seen: Arc<Mutex<Vec<Span>>> = Arc::default();
    let memory = Arc::new(VirtualMemory::new(device.clone()).unwrap());
    let (taken, given) = (Arc::clone(&seen), Arc::clone(&seen));
    let mut visitors = Visitors::new();
    visitors.on_alloc(move |region, _| taken.lock().unwrap().push(region));
    visitors.on_free(move |region, _| {
        let seen = &mut *given.lock().unwrap();
        let place = seen.iter().position(|other| *other == region).unwrap();
        seen.remove(place);
    });
    let memory = VisitedMemory::new(memory, 0, visitors);
    let config = BfcConfig::new(Bytes::mib(512)).with_first_region(Bytes::mib(2)).with_retry(false);
    let pool = BfcAllocator::new("sim_0_bfc", Arc::new(memory), config);
    let (first, second) = (allocate(&pool, MIB), allocate(&pool, 70 * MIB));
    free(&pool, second);
    let large = seen.lock().unwrap()[1].bytes;
    assert_eq!(pool.trim(Bytes(0)), large, "the region of three pieces goes whole");
    free(&pool, first);
    drop(pool);
    assert_eq!(*seen.lock().unwrap(), []);
    assert_nothing_left(&device);
}

/// Random requests, frees and trims: the pool's reserved bytes equal the device's used bytes exactly.
#[test]
fn what_a_pool_reserves_is_what_the_device_has_given() {
    for seed in 0..40 {
        let device = Arc::new(SimDevice::new(Bytes::mib(256)));
        let config = BfcConfig::new(Bytes::mib(128)).with_retry(false);
        let memory = Arc::new(VirtualMemory::new(device.clone()).unwrap());
        let pool = BfcAllocator::new("sim_0_bfc", memory, config);
        let mut random = Random(seed);
        let mut live: Vec<Block> = Vec::new();
        if seed % 2 == 1 {
            for operation in [DeviceCall::Create, DeviceCall::Map, DeviceCall::SetAccess] {
                device.inject(Fault::new(operation, FaultTime::Random { probability: 0.1, seed }));
            }
        }
        for _ in 0..150 {
            match random.below(8) {
                0..5 => live.extend(pool.allocate(&Request::new(1 + random.below(12 * MIB)))),
                5..7 if !live.is_empty() => {
                    let pick = random.below(live.len() as u64) as usize;
                    free(&pool, live.swap_remove(pick));
                }
                _ => {
                    pool.trim(Bytes(random.below(64 * MIB)));
                }
            }
            pool.check_invariants().unwrap();
            assert_disjoint(&live);
            let memory = device.memory_info().unwrap();
            assert_eq!(pool.stats().bytes_reserved, memory.total - memory.free, "seed {seed}");
            let mapped = device.mappings();
            let covered = |block: &Block| {
                let end = block.address + block.bytes;
                let inside =
                    |piece: &&Span| piece.address < end && block.address < piece.address + piece.bytes;
                mapped.iter().filter(inside).map(|piece| piece.bytes).sum::<u64>() >= block.bytes
            };
            assert!(live.iter().all(covered));
        }
        for block in live {
            free(&pool, block);
        }
        drop(pool);
        assert_eq!(device.free_faults(), FreeFaults::default());
        assert_nothing_left(&device);
    }
}

/// Upstream's GPU pool over each kind of source, on a device of twice the limit.
fn on_both_sources(limit: u64, allow_growth: bool, check: impl Fn(&BfcAllocator, bool)) {
    for mapped in [false, true] {
        let device = Arc::new(SimDevice::new(Bytes(2 * limit)));
        let source: Arc<dyn SubAllocator> = match mapped {
            true => Arc::new(VirtualMemory::new(device.clone()).unwrap()),
            false => Arc::new(DeviceMemory::new(device.clone())),
        };
        let config = BfcConfig::tensorflow(Bytes(limit))
            .with_allow_growth(allow_growth)
            .with_garbage_collection(true)
            .with_retry(false);
        let pool = BfcAllocator::new("GPU_0_bfc", source, config);
        check(&pool, mapped);
        pool.check_invariants().unwrap();
        drop(pool);
        assert_nothing_left(&device);
    }
}

/// The values that upstream's `CheckStats` compares: (allocations, bytes in use, peak bytes in use, largest
/// allocation).
fn figures(pool: &BfcAllocator) -> (u64, u64, u64, u64) {
    let stats = pool.stats();
    (stats.num_allocs, stats.bytes_in_use, stats.peak_bytes_in_use, stats.largest_alloc_bytes)
}

#[test]
fn no_dups_on_either_source() {
    on_both_sources(GIB, false, |pool, _| {
        let blocks: Vec<Block> = (1..1024).map(|bytes| allocate(pool, bytes)).collect();
        assert_eq!(figures(pool), (1023, 654_336, 654_336, 1024));
        assert_disjoint(&blocks);
        for block in blocks {
            free(pool, block);
        }
        assert_eq!(figures(pool), (1023, 0, 654_336, 1024));
    });
}

#[test]
fn allocations_and_deallocations_on_either_source() {
    on_both_sources(GIB, false, |pool, _| {
        let mut random = Random(12_317);
        let mut some =
            || -> Vec<Block> { (0..255).map(|_| allocate(pool, 100 + random.below(MIB - 100))).collect() };
        let first = some();
        let (kept, freed): (Vec<_>, Vec<_>) =
            first.into_iter().enumerate().partition(|(index, _)| index % 2 == 0);
        for (_, block) in freed {
            free(pool, block);
        }
        out_of_memory(pool, GIB + 1);
        let mut live: Vec<Block> = kept.into_iter().map(|(_, block)| block).collect();
        live.extend(some());
        assert_disjoint(&live);
        for block in live {
            free(pool, block);
        }
    });
}

#[test]
fn exercise_coalescing_on_either_source() {
    on_both_sources(GIB, false, |pool, _| {
        let first = allocate(pool, 4096);
        free(pool, first);
        assert_eq!(figures(pool), (1, 0, 4096, 4096));
        for _ in 0..1024 {
            let blocks =
                [1024 * 4, 1_048_576 * 8, 2048 * 8, 10_485_760 * 4].map(|bytes| allocate(pool, bytes));
            for block in blocks {
                free(pool, block);
            }
        }
        assert_eq!(figures(pool), (4097, 0, 50_352_128, 41_943_040));
        let last = allocate(pool, 4096);
        assert_eq!(last.address, first.address);
        free(pool, last);
    });
}

#[test]
fn allocations_and_deallocations_with_growth_on_either_source() {
    on_both_sources(2 * GIB, true, |pool, mapped| {
        let mut random = Random(12_317);
        let mut some = |most: u64| -> Vec<Block> {
            (0..9).map(|_| allocate(pool, 100 + random.below(most - 100))).collect()
        };
        let first = some(128 * MIB);
        let mut live = Vec::new();
        for (index, block) in first.into_iter().enumerate() {
            if index % 2 == 0 { live.push(block) } else { free(pool, block) }
        }
        live.extend(some(64 * MIB));
        assert_disjoint(&live);
        assert!(!mapped || pool.regions().len() == 1);
        for block in live {
            free(pool, block);
        }
    });
}

#[test]
fn growths_that_join_promote_reuse_and_separate_ones_do_not() {
    on_both_sources(512 * MIB, true, |pool, mapped| {
        let mut blocks: Vec<Block> = (0..128).map(|_| allocate(pool, 4 * MIB)).collect();
        let last = blocks.pop().unwrap();
        for block in blocks {
            free(pool, block);
        }
        if mapped {
            let large = allocate(pool, 508 * MIB);
            free(pool, large);
        } else {
            out_of_memory(pool, 508 * MIB);
        }
        free(pool, last);
    });
}

#[test]
fn idle_regions_and_free_mapped_ends_are_returned() {
    on_both_sources(2 * GIB, true, |pool, mapped| {
        let mut blocks: Vec<Block> = (0..128).map(|_| allocate(pool, 4 * MIB)).collect();
        assert_eq!(pool.regions().len(), if mapped { 1 } else { 8 });
        let last = blocks.pop().unwrap();
        for block in blocks {
            free(pool, block);
        }
        let released = pool.trim(Bytes(0));
        assert_eq!(pool.regions().len(), 1);
        // Upstream's case `NoRegionDeallocation`: the last block keeps all memory before it.
        assert_eq!(released == 0, mapped);
        free(pool, last);
    });
}
